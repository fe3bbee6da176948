"""In charge of the one front door: whatever comes in, over HTTP or SMTP or as a test, is accepted here or refused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, TypeVarTuple, Unpack

import msgspec
import trio

from appliance.disk import FreeSpace
from appliance.errors import Code, Refused
from appliance.message.compose import compose
from appliance.message.draft import Draft, draft
from appliance.message.request import SendRequest, fingerprint
from appliance.message.template import Template
from appliance.model import Billing, Caller, IdempotencyClaim, NewMessage, NewRecipient, Source
from appliance.outside import Outside, Wake
from appliance.store import KeyTaken, Store

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

KEY_LIFETIME = 24 * 3600 * 1_000_000  # microseconds, by the interface
FEW_ADDRESSES = 60  # read on the event loop; an unusual one takes up to half a millisecond
LARGE = 256 * 1024  # bytes; composing more than this would keep the event loop busy for milliseconds


class AttachmentReceipt(msgspec.Struct, omit_defaults=True):
    """What the 202 says of one attachment."""

    filename: str
    content_type: str
    size: int
    content_id: str | msgspec.UnsetType = msgspec.UNSET


class Receipt(msgspec.Struct, rename={"sender": "from"}):
    """The body of a 202: what was accepted, in the caller's own spelling."""

    id: str
    status: Literal["queued"]
    source: Literal["api"]
    request_id: str
    sender: str
    to: list[str]
    cc: list[str]
    bcc: list[str]
    subject: str
    billing_status: Billing
    recipient_count: int
    credits_reserved: int
    headers: dict[str, str]
    tags: list[str]
    attachments: list[AttachmentReceipt]
    reply_to: str | msgspec.UnsetType = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class Accepted:
    """A message that is on disk. `replay_of` names the first request when this one only repeated it."""

    receipt: bytes
    replay_of: str | None = None


@dataclass(frozen=True, slots=True)
class Wakes:
    """Whom to tell that there is new mail: delivery to the world, or its simulation."""

    delivery: Wake
    simulated: Wake


class FrontDoor:
    """Accepts messages: limits, template, compose, one durable transaction, then a word to delivery."""

    def __init__(self, store: Store, outside: Outside, wakes: Wakes, free_space: FreeSpace, *, sandbox: bool) -> None:
        self._store = store
        self._outside = outside
        self._wakes = wakes
        self._free_space = free_space
        self._sandbox = sandbox
        self._running: set[tuple[str, str]] = set()
        # Large messages are made one at a time, off the loop: that bounds memory as well as stalls.
        self._large = trio.CapacityLimiter(1)

    def check_open(self, caller: Caller) -> None:
        """Refuse, before any body is read, what could not be accepted whatever it said."""
        if caller.suspended:
            raise Refused(Code.ACCOUNT_SUSPENDED, "This account is suspended. Ask the operator to resume it.")
        self.check_disk()

    def check_disk(self) -> None:
        """Refuse to write more onto a disk that is nearly full."""
        if self._free_space.low():
            raise Refused(
                Code.TEMPORARY_FAILURE,
                "The server is low on disk space and accepts nothing for now. Retry later with the same key.",
                retry_after=60,
            )

    async def send(self, caller: Caller, request: SendRequest, key: str, request_id: str, size: int) -> Accepted:
        """Accept one HTTP message durably. `size` is the body's, to choose where the work is done."""
        size = max(size, _work(request))
        print_of_body = await self._off_loop(size, fingerprint, request)
        claim = (caller.idempotency_scope, key)
        if claim in self._running:
            raise Refused(
                Code.IDEMPOTENCY_IN_PROGRESS,
                "The first request with this Idempotency-Key is still running. Retry in a second.",
                retry_after=1,
            )
        self._running.add(claim)
        try:
            return await self._send_new(caller, request, key, print_of_body, request_id, size)
        except (KeyTaken, Refused):
            # A retry is rare, so nobody else pays for a look: the transaction finds a taken key by itself, and what
            # was accepted once stays accepted, even if it would be refused by now.
            if (replay := self._replay(caller, key, print_of_body, request_id)) is None:
                raise
            return replay
        finally:
            self._running.discard(claim)

    def _replay(self, caller: Caller, key: str, print_of_body: bytes, request_id: str) -> Accepted | None:
        first = self._store.messages.remembered(caller.account_id, caller.idempotency_scope, key)
        if first is None:
            return None
        if first.fingerprint != print_of_body:
            raise Refused(
                Code.IDEMPOTENCY_CONFLICT,
                "This Idempotency-Key was used with another body in the last 24 hours. Choose a new key.",
            )
        receipt = msgspec.json.decode(first.receipt, type=Receipt)
        receipt.request_id = request_id
        return Accepted(msgspec.json.encode(receipt), replay_of=first.request_id)

    async def _send_new(
        self, caller: Caller, request: SendRequest, key: str, print_of_body: bytes, request_id: str, size: int
    ) -> Accepted:
        template = self._template(caller, request)
        message_id, now = self._outside.identifier("msg"), self._outside.now()
        drafted, mime = await self._off_loop(size, _build, request, template, message_id, now, caller)
        source = Source.TEST if caller.test else Source.API
        credits_needed = 0 if caller.test else len(drafted.recipients)
        receipt = _receipt(drafted, request, message_id, request_id, credits_needed)
        encoded = msgspec.json.encode(receipt)
        new = NewMessage(
            id=message_id,
            account_id=caller.account_id,
            request_id=request_id,
            source=source,
            simulated=caller.test or self._sandbox,
            sender=drafted.sender.text,
            envelope_from=drafted.sender.wire,
            subject=drafted.subject,
            tags=drafted.tags,
            template_alias=template.alias if template else None,
            template_version=template.version if template else None,
            mime=mime,
            receipt=encoded,
            recipients=self._recipients(drafted),
            credits=credits_needed,
            created_at=now,
            idempotency=IdempotencyClaim(caller.idempotency_scope, key, print_of_body, now + KEY_LIFETIME),
        )
        await self._store.messages.accept(new)
        (self._wakes.simulated if new.simulated else self._wakes.delivery).set()
        return Accepted(encoded)

    def _recipients(self, drafted: Draft) -> tuple[NewRecipient, ...]:
        # They are read back by id, so the ids go up with them, also when two are made in one microsecond.
        addresses = drafted.recipients
        ids = sorted(self._outside.identifier("rcp") for _ in addresses)
        return tuple(
            NewRecipient(recipient_id, address.spelling, address.key, address.domain)
            for recipient_id, address in zip(ids, addresses, strict=True)
        )

    def _template(self, caller: Caller, request: SendRequest) -> Template | None:
        if request.template is msgspec.UNSET:
            return None
        stored = self._store.templates.current(caller.account_id, request.template)
        if stored is None:
            raise Refused(Code.INVALID_REQUEST, "template: this account has no template with that alias")
        return Template(stored.alias, stored.version, stored.subject, stored.text, stored.html)

    async def _off_loop(self, size: int, work: Callable[[Unpack[Arguments]], T], *arguments: *Arguments) -> T:
        """Do the work here when it is small, in a thread when it would hold up everybody else."""
        if size < LARGE:
            return work(*arguments)
        return await trio.to_thread.run_sync(work, *arguments, limiter=self._large)


def _work(request: SendRequest) -> int:
    """What a request costs beyond its bytes, counted in them: reading hundreds of addresses takes its time, too."""
    lists = (request.to, request.cc, request.bcc)
    entries = sum(len(each) for each in lists if isinstance(each, list))
    return LARGE if entries > FEW_ADDRESSES else 0


def _build(
    request: SendRequest, template: Template | None, message_id: str, now: int, caller: Caller
) -> tuple[Draft, bytes]:
    drafted = draft(request, template)
    _check_sender(caller, drafted)
    header_id = f"{message_id.removeprefix('msg_')}@{drafted.sender.domain}"
    return drafted, compose(drafted, message_id=header_id, date_seconds=now // 1_000_000)


def _check_sender(caller: Caller, drafted: Draft) -> None:
    if drafted.sender.domain not in caller.domains:
        raise Refused(
            Code.FORBIDDEN,
            f"from: the domain {drafted.sender.domain} is not registered and verified for this account. Add it first.",
        )


def _receipt(drafted: Draft, request: SendRequest, message_id: str, request_id: str, credits_needed: int) -> Receipt:
    return Receipt(
        id=message_id,
        status="queued",
        source="api",
        request_id=request_id,
        sender=drafted.sender.text,
        to=[address.text for address in drafted.to],
        cc=[address.text for address in drafted.cc],
        bcc=[address.text for address in drafted.bcc],
        reply_to=drafted.reply_to.text if drafted.reply_to else msgspec.UNSET,
        subject=drafted.subject,
        billing_status=Billing.RESERVED,
        recipient_count=len(drafted.recipients),
        credits_reserved=credits_needed,
        headers=dict(drafted.headers),
        tags=list(drafted.tags),
        attachments=[
            AttachmentReceipt(file.filename, file.content_type, file.size, file.content_id or msgspec.UNSET)
            for file in drafted.files
        ],
    )
