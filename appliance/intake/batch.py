"""Accepts the messages of `POST /emails/batch`: all of them in one transaction, or none.

A batch costs its account, not the others: batches are composed and stored one at a time, and accounts take turns. A
batch is composed in slices of a millisecond on the event loop, and expensive messages on a worker thread. The 202 is
stored with the first accepted message, like that of a single one: it counts for the quota and stays as long as the key.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from time import perf_counter
from typing import NamedTuple

import msgspec
import trio
from msgspec.structs import replace

from appliance.concurrency.fair_share import FairQueue
from appliance.errors import Code, Refused
from appliance.intake.accept import Accepted, Begun, MessageIntake, scheduled, unknown_template
from appliance.message.batch import Batch, Series, place
from appliance.message.compose import Draft
from appliance.message.limits import BATCH_ASSEMBLED, BATCH_MESSAGES
from appliance.message.request import cost_of_request
from appliance.message.schema import BatchReceipt, BatchResult, SendRequest
from appliance.message.template import cost_of_template
from appliance.model.accounts import Caller
from appliance.model.mail import NewMessage, RememberedSend, Source, StoredTemplate
from appliance.store import Acceptance, NewBatch, written_bytes
from appliance.telemetry.metrics import ACCEPT_SECONDS

SLICE = 1_000  # microseconds of composing, estimated, between two checkpoints; threads would cost a tenth more
COMPOSING = 100  # microseconds to compose the smallest message


class NoneAccepted(Refused):
    """Every message of a batch was refused; the first refusal stands for them."""

    def __init__(self, refusals: dict[int, Refused]) -> None:
        self.refusals = refusals
        first = refusals[min(refusals)]
        super().__init__(first.code, first.reason, retry_after=first.retry_after, field=first.field)


class _Request(NamedTuple):
    number: int  # its place in the batch
    begun: Begun
    request: SendRequest
    template: StoredTemplate | None
    cost: int  # microseconds to compose it


class _Composed(NamedTuple):
    number: int  # its place in the batch
    draft: Draft
    template: StoredTemplate | None
    message: NewMessage


@dataclass(eq=False, repr=False)
class BatchIntake:
    intake: MessageIntake
    _turns: FairQueue = field(default_factory=lambda: FairQueue(1, rest=0.0))

    async def send(
        self, caller: Caller, batch: Batch | Series, key: str | None, request_id: str, size: int
    ) -> Accepted:
        """Accept the messages of one request. `size` is that of its body. Each BATCH_MESSAGES have a transaction."""
        if isinstance(batch, Batch) and len(batch.items) <= BATCH_MESSAGES:
            return await self._send(caller, batch, key, request_id, size)
        accepted: Accepted | None = None
        results, refusals = list[BatchResult](), dict[int, Refused]()
        for places in batch.places():
            cost = COMPOSING * len(places) if isinstance(batch, Series) else 0
            part = await self.intake.workers.run(caller.account_id, cost, batch.part, places)
            part_key = None if key is None else f"{key}#{part.begin}"
            try:
                sent = await self._send(caller, part, part_key, request_id, size)
            except NoneAccepted as none:
                refusals |= none.refusals
            except Refused as refused:
                if not results:
                    raise
                refusals |= {index: refused.within(place(index)) for index in places}
            else:
                accepted = accepted or sent
                refusals |= sent.refusals or {}
                part_results = msgspec.json.decode(sent.receipt, type=BatchReceipt).results
                results += [one for one in part_results if one.id is not msgspec.UNSET]
        if accepted is None:
            raise NoneAccepted(refusals)
        return replace(accepted, receipt=_encoded(results, refusals, request_id), refusals=refusals)

    async def _send(self, caller: Caller, batch: Batch, key: str | None, request_id: str, size: int) -> Accepted:
        head = self.intake.begin(caller, Source.API, request_id, key, batch.fingerprint)
        return await self.intake.once(head, partial(self._send_new, batch, head, size), partial(_replayed, request_id))

    async def _send_new(self, batch: Batch, head: Begun, size: int) -> Accepted:
        account_id, bad = head.caller.account_id, _Bad(batch.skip)
        requests = await self._with_templates(batch, head, bad)
        is_low = self.intake.is_low
        low = all(is_low(head.caller, request.request.stream or None, request.template) for request in requests)
        async with self._turns.take(account_id, low=low), self.intake.turn(account_id, size, low=low):
            composed, room = list[_Composed](), _Room()
            for requests_of_slice, cost in _slices(requests):
                done = await self.intake.workers.run(account_id, cost, self._compose, requests_of_slice, bad, low=low)
                composed += room.fitting(done, bad)
                await trio.lowlevel.checkpoint()
            if not composed:
                raise bad.first()
            return await self._accept(head, composed, bad)

    async def _with_templates(self, batch: Batch, head: Begun, bad: "_Bad") -> list[_Request]:
        find, templates = self.intake.store.templates.current, dict[str, StoredTemplate | None]()
        requests = []
        for index, (item, size) in enumerate(zip(batch.items, batch.sizes, strict=True), batch.begin):
            if isinstance(item, Refused):
                bad.refusals[index] = item
                continue
            cost, template = COMPOSING + cost_of_request(item, size), None
            if isinstance(item.template, str):
                if item.template not in templates:
                    templates[item.template] = await find(head.caller.account_id, item.template)
                if (template := templates[item.template]) is None:
                    bad.add(index, unknown_template())
                    continue
                cost += cost_of_template(template, item.variables or {})
            begun = self.intake.begin(head.caller, Source.API, head.request_id, None, b"")
            try:
                begun = scheduled(begun, item)
            except Refused as refused:
                bad.add(index, refused)
                continue
            requests.append(_Request(index, begun, item, template, cost))
        return requests

    def _compose(self, requests: list[_Request], bad: "_Bad") -> list[_Composed]:
        """Runs on a worker thread when expensive."""
        composed = []
        for index, begun, request, template, _ in requests:
            try:
                drafted, mime = self.intake.compose(request, template, begun)
            except Refused as refused:
                bad.add(index, refused)
            else:
                message = self.intake.new_message(begun, drafted, drafted.sender, mime, template=template)
                composed.append(_Composed(index, drafted, template, message))
        return composed

    async def _accept(self, head: Begun, composed: list[_Composed], bad: "_Bad") -> Accepted:
        """Store the messages; when this returns, they are on disk and handed to delivery."""
        messages = [item.message for item in composed]
        messages[0] = replace(messages[0], idempotency=head.claim)
        began = perf_counter()
        receipt = partial(_receipt, head.request_id, composed, bad)
        results = await self.intake.store.messages.accept_batch(NewBatch(messages, bad.skip, receipt))
        ACCEPT_SECONDS.add(perf_counter() - began)
        for (index, *_), result in zip(composed, results, strict=True):
            if isinstance(result, Refused):
                bad.add(index, result)
        accepted = [item for item, result in zip(composed, results, strict=True) if isinstance(result, Acceptance)]
        if not accepted:
            raise bad.first()
        for item in accepted:
            self.intake.note_accepted(head.caller, item.message, item.draft, item.template)
        return Accepted(receipt(results), accepted[0].message.id, refusals=bad.refusals)


class _Bad:
    """The refusals of a batch by index; without `skip` the first one ends it."""

    def __init__(self, skip: bool) -> None:
        self.skip = skip
        self.refusals: dict[int, Refused] = {}

    def add(self, index: int, refused: Refused) -> None:
        refused = refused.within(place(index))
        if not self.skip:
            raise refused
        self.refusals[index] = refused

    def first(self) -> Refused:
        return NoneAccepted(self.refusals)


def _slices(requests: Sequence[_Request]) -> Iterator[tuple[list[_Request], int]]:
    part: list[_Request] = []
    cost = 0
    for request in requests:
        part.append(request)
        cost += request.cost
        if cost >= SLICE:
            yield part, cost
            part, cost = [], 0
    if part:
        yield part, cost


class _Room:
    """Counts the bytes of a batch's assembled messages, which have a limit."""

    def __init__(self) -> None:
        self.used = 0

    def fitting(self, composed: list[_Composed], bad: _Bad) -> Iterator[_Composed]:
        """Yield messages until all of the batch together would be too large."""
        for item in composed:
            size = written_bytes(item.message)
            if self.used + size > BATCH_ASSEMBLED:
                text = "the assembled messages of a batch, and their metadata twice for each recipient, may have"
                text = f"{text} {BATCH_ASSEMBLED} bytes (32 MiB) together. Send several batches."
                bad.add(item.number, Refused(Code.PAYLOAD_TOO_LARGE, text))
            else:
                self.used += size
                yield item


def _receipt(
    request_id: str, composed: Sequence[_Composed], bad: _Bad, results: Sequence[Acceptance | Exception]
) -> bytes:
    """The 202 as JSON. Part of a transaction that may run twice, so it changes nothing."""
    refusals = dict(bad.refusals)
    lines = []
    for (index, _, _, new), result in zip(composed, results, strict=True):
        if isinstance(result, Refused):
            refusals.setdefault(index, result.within(place(index)))
        else:
            lines.append(BatchResult(index, new.id, "queued", len(new.recipients), new.credits))
    return _encoded(lines, refusals, request_id)


def _encoded(lines: list[BatchResult], refusals: dict[int, Refused], request_id: str) -> bytes:
    lines = lines + [BatchResult(index, error=refused.text, code=refused.code) for index, refused in refusals.items()]
    lines.sort(key=attrgetter("index"))
    return msgspec.json.encode(BatchReceipt(lines, len(lines) - len(refusals), len(refusals), request_id))


def _replayed(request_id: str, first: RememberedSend) -> Accepted | None:
    if first.receipt is None:
        return None
    receipt = msgspec.json.decode(first.receipt, type=BatchReceipt)
    receipt.request_id = request_id
    return Accepted(msgspec.json.encode(receipt), first.message_id, replay_of=first.request_id, refusals={})
