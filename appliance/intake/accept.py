"""In charge of the one front door: whatever comes in, over HTTP or SMTP or as a test, is accepted here or refused."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Literal, TypeVar

import msgspec

from appliance.concurrency.wake import Wake
from appliance.concurrency.workers import FairQueue, Workers
from appliance.config.values import Share
from appliance.errors import Code, Refused
from appliance.intake.quota import Quota
from appliance.message import cost
from appliance.message.addresses import Address
from appliance.message.compose import compose
from appliance.message.draft import Draft, draft
from appliance.message.request import SendRequest, fingerprint
from appliance.message.submitted import Submission, read, write
from appliance.message.template import Template
from appliance.model.mail import Billing, Caller, IdempotencyClaim, NewMessage, NewRecipient, RememberedSend, Source
from appliance.outside import Outside
from appliance.store import KeyTaken, Store
from appliance.store.new_mail import Inbox
from appliance.system.free_space import FreeSpace
from appliance.telemetry.message_log import MESSAGE_LOG
from appliance.telemetry.metrics import ACCEPT_SECONDS, MESSAGES_ACCEPTED, RECIPIENTS_ACCEPTED

T = TypeVar("T")

LARGE = 1024 * 1024  # bytes of a message of which memory is to hold one only
KEY_LIFETIME = 24 * 3600 * 1_000_000  # microseconds, by the interface

_ENCODER = msgspec.json.Encoder()
# Asking an enum for a member takes ten times as long as asking a module.
_API, _SMTP, _TEST, _RESERVED = Source.API, Source.SMTP, Source.TEST, Billing.RESERVED


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


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """A message that is on disk. `replay_of` names the first request when this one only repeated it."""

    receipt: bytes
    replay_of: str | None = None


class Submitted(msgspec.Struct, frozen=True, gc=False):
    """A submitted message that is on disk. `replayed` when it was before, under the same Idempotency-Key."""

    message_id: str
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Who is to have new mail: delivery to the world, or its simulation."""

    world: Inbox
    simulated: Wake


class FrontDoor:
    """Accepts messages: limits, template, compose, one durable transaction, then a word to delivery."""

    def __init__(
        self,
        store: Store,
        outside: Outside,
        deliveries: Deliveries,
        free_space: FreeSpace,
        *,
        sandbox: bool,
        hostname: str,
        quota: Quota | None = None,
        text_from_html: bool = True,
    ) -> None:
        self._store = store
        self._outside = outside
        self._deliveries = deliveries
        self.free_space = free_space
        self.quota = quota or Quota(Share(), free_space)
        self._sandbox = sandbox
        self._hostname = hostname
        self._text_from_html = text_from_html
        self._running: set[tuple[str, str]] = set()
        self._large = FairQueue(1, rest=0.0)
        self.workers = Workers()

    def check_open(self, caller: Caller) -> None:
        """Refuse, before any body is read, what could not be accepted whatever it said."""
        if caller.suspended:
            raise Refused(Code.ACCOUNT_SUSPENDED, "This account is suspended. Ask the operator to resume it.")
        self.check_disk()

    def check_disk(self) -> None:
        """Refuse to write more onto a disk that is nearly full."""
        if self.free_space.low():
            raise Refused(
                Code.TEMPORARY_FAILURE,
                "The server is low on disk space and accepts nothing for now. Retry later with the same key.",
                retry_after=60,
            )

    # ---- over HTTP

    async def send(self, caller: Caller, request: SendRequest, key: str, request_id: str, size: int) -> Accepted:
        """Accept one HTTP message durably. `size` is the body's, to choose where the work is done."""
        estimate = cost.of_request(request, size)
        print_of_body = await self.workers.run(caller.account_id, estimate, fingerprint, request)
        return await self._once(
            (caller.idempotency_scope, key),
            partial(self._send_new, caller, request, key, print_of_body, request_id, estimate=estimate),
            partial(self._replay, caller, key, print_of_body, request_id),
        )

    def _replay(self, caller: Caller, key: str, print_of_body: bytes, request_id: str) -> Accepted | None:
        first = self._first_send(caller, key, print_of_body)
        if first is None or first.receipt is None:
            return None
        receipt = msgspec.json.decode(first.receipt, type=Receipt)
        receipt.request_id = request_id
        return Accepted(msgspec.json.encode(receipt), replay_of=first.request_id)

    async def _send_new(
        self,
        caller: Caller,
        request: SendRequest,
        key: str | None,
        print_of_body: bytes,
        request_id: str,
        *,
        estimate: int,
        own_test: bool = False,
    ) -> Accepted:
        template = None if request.template is msgspec.UNSET else self._template(caller, request.template)
        if template is not None:
            estimate += cost.of_template(template, request.variables or {})
        message_id, now = self._outside.identifier("msg"), self._outside.now()
        async with self._turn(caller, estimate * cost.BYTES_PER_MICROSECOND):
            drafted, mime = await self.workers.run(
                caller.account_id, estimate, _build, request, template, message_id, now, caller, self._text_from_html
            )
            credits_needed = 0 if own_test else _credits(caller, drafted.recipients)
            encoded = _ENCODER.encode(_receipt(drafted, message_id, request_id, credits_needed))
            await self._accept(
                NewMessage(
                    id=message_id,
                    account_id=caller.account_id,
                    request_id=request_id,
                    source=_TEST if caller.test or own_test else _API,
                    simulated=caller.test or self._sandbox,
                    sender=drafted.sender.text,
                    envelope_from=drafted.sender.wire,
                    subject=drafted.subject,
                    tags=drafted.tags,
                    template_alias=template.alias if template else None,
                    template_version=template.version if template else None,
                    mime=mime,
                    receipt=encoded,
                    recipients=self._recipients(drafted.recipients),
                    credits=credits_needed,
                    created_at=now,
                    idempotency=_claim(caller, key, print_of_body, now),
                    may_store=self.quota.bytes(),
                )
            )
        return Accepted(encoded)

    async def send_test(self, caller: Caller, request: SendRequest, request_id: str) -> Receipt:
        """Accept an owner's own test durably: free of charge, and really delivered. Retrying one sends another."""
        estimate = cost.of_request(request, 0)
        accepted = await self._send_new(caller, request, None, b"", request_id, estimate=estimate, own_test=True)
        return msgspec.json.decode(accepted.receipt, type=Receipt)

    # ---- over SMTP

    async def submit(
        self,
        caller: Caller,
        envelope_from: str,
        recipients: Sequence[str],
        data: bytes,
        request_id: str,
        *,
        secure: bool = True,
    ) -> Submitted:
        """Accept one whole message durably: `data` as after DATA, dots unstuffed. `secure`: it came over TLS."""
        self.check_open(caller)
        estimate = cost.of_submission(data, recipients)
        submission = await self.workers.run(caller.account_id, estimate, read, envelope_from, recipients, data)
        first = partial(self._submit_new, caller, submission, request_id, secure=secure)
        if submission.key is None:
            return await first()
        again = partial(self._submitted_before, caller, submission.key, submission.fingerprint)
        return await self._once((caller.idempotency_scope, submission.key), first, again)

    def _submitted_before(self, caller: Caller, key: str, print_of_message: bytes) -> Submitted | None:
        first = self._first_send(caller, key, print_of_message)
        return None if first is None else Submitted(first.message_id, replayed=True)

    async def _submit_new(self, caller: Caller, submission: Submission, request_id: str, *, secure: bool) -> Submitted:
        _check_domain(caller, submission.envelope_from, "MAIL FROM")
        _check_domain(caller, submission.sender, "From")
        for field, address in submission.responsible:
            _check_domain(caller, address, field)
        message_id, now = self._outside.identifier("msg"), self._outside.now()
        finish = partial(
            write,
            submission,
            message_id=message_id,
            now_seconds=now // 1_000_000,
            hostname=self._hostname,
            secure=secure,
        )
        async with self._turn(caller, len(submission.data)):
            mime = await self.workers.run(caller.account_id, cost.of_size(len(submission.data)), finish)
            await self._accept(
                NewMessage(
                    id=message_id,
                    account_id=caller.account_id,
                    request_id=request_id,
                    source=_TEST if caller.test else _SMTP,
                    simulated=caller.test or self._sandbox,
                    sender=submission.sender.text,
                    envelope_from=submission.envelope_from.wire,
                    subject=submission.subject,
                    tags=submission.tags,
                    template_alias=None,
                    template_version=None,
                    mime=mime,
                    receipt=None,
                    recipients=self._recipients(submission.recipients),
                    credits=_credits(caller, submission.recipients),
                    created_at=now,
                    idempotency=_claim(caller, submission.key, submission.fingerprint, now),
                    may_store=self.quota.bytes(),
                )
            )
        return Submitted(message_id)

    # ---- either way

    async def _once(
        self, claim: tuple[str, str], first: Callable[[], Awaitable[T]], again: Callable[[], T | None]
    ) -> T:
        """Do `first` unless it was done under this claim before: then `again` says what came of it."""
        if claim in self._running:
            raise Refused(
                Code.IDEMPOTENCY_IN_PROGRESS,
                "The first request with this Idempotency-Key is still running. Retry in a second.",
                retry_after=1,
            )
        self._running.add(claim)
        try:
            return await first()
        except (KeyTaken, Refused) as refused:
            # A retry is rare, so nobody else pays for a look: the transaction finds a taken key by itself, and what
            # was accepted once stays accepted, even if it would be refused by now.
            if (replay := again()) is not None:
                return replay
            if isinstance(refused, KeyTaken):  # and free again by now: its 24 hours were over just then
                raise Refused(
                    Code.TEMPORARY_FAILURE, "This Idempotency-Key has just expired. Retry with it.", retry_after=1
                ) from None
            raise
        finally:
            self._running.discard(claim)

    def _first_send(self, caller: Caller, key: str, fingerprint: bytes) -> RememberedSend | None:
        """What was sent under this key before; refused when it was something else, or came the other way."""
        first = self._store.messages.remembered(caller.account_id, caller.idempotency_scope, key)
        if first is not None and first.fingerprint != fingerprint:
            raise Refused(
                Code.IDEMPOTENCY_CONFLICT,
                "This Idempotency-Key was used with another body in the last 24 hours. Choose a new key.",
            )
        return first

    async def _accept(self, new: NewMessage) -> None:
        """On disk when this returns; delivery has its word."""
        world, began = self._deliveries.world, perf_counter()
        world.expect(new.id)  # so that a look into the store between the commit and the offer passes it by
        try:
            charged = await self._store.messages.accept(new)
        except BaseException:
            world.give_up(new.id)
            raise
        if new.simulated:
            world.give_up(new.id)
            self._deliveries.simulated.set()
        else:
            world.offer(new, charged)
        ACCEPT_SECONDS.add(perf_counter() - began)
        MESSAGES_ACCEPTED.add(new.source)
        RECIPIENTS_ACCEPTED.add(new.source, len(new.recipients))
        if MESSAGE_LOG.keep:
            _note(new)

    def _turn(self, caller: Caller, size: int) -> AbstractAsyncContextManager[object]:
        """A turn to make and store a message of about so many bytes, which a small one does not need.

        Large ones are made and written one at a time, so that memory holds one of them. Nothing rests in between: the
        thread that makes them does so by itself, and so does the store between the parts it writes.
        """
        return nullcontext() if size < LARGE else self._large.take(caller.account_id)

    def _recipients(self, addresses: Sequence[Address]) -> tuple[NewRecipient, ...]:
        new = self._outside.identifier
        if len(addresses) == 1:
            return (_recipient(new("rcp"), addresses[0]),)
        # They are read back by id, so the ids go up with them, also when two are made in one microsecond.
        return tuple(map(_recipient, sorted([new("rcp") for _ in addresses]), addresses))

    def _template(self, caller: Caller, alias: str) -> Template:
        stored = self._store.templates.current(caller.account_id, alias)
        if stored is None:
            raise Refused(Code.INVALID_REQUEST, "template: this account has no template with that alias")
        return Template(stored.alias, stored.version, stored.subject, stored.text, stored.html)


def _note(new: NewMessage) -> None:
    MESSAGE_LOG.note(
        "accepted",
        message_id=new.id,
        request_id=new.request_id,
        account_id=new.account_id,
        source=new.source.value,
        recipients=len(new.recipients),
        bytes=len(new.mime),
    )


def _build(
    request: SendRequest, template: Template | None, message_id: str, now: int, caller: Caller, text_from_html: bool
) -> tuple[Draft, bytes]:
    drafted = draft(request, template)
    _check_domain(caller, drafted.sender, "from")
    header_id = f"{message_id.removeprefix('msg_')}@{drafted.sender.domain}"
    seconds = now // 1_000_000
    return drafted, compose(drafted, message_id=header_id, date_seconds=seconds, text_from_html=text_from_html)


def _check_domain(caller: Caller, sender: Address, field: str) -> None:
    if sender.domain not in caller.domains:
        raise Refused(
            Code.FORBIDDEN,
            f"{field}: the domain {sender.domain} is not registered and verified for this account. Add it first.",
        )


def _credits(caller: Caller, recipients: Sequence[Address]) -> int:
    return 0 if caller.test else len(recipients)


def _claim(caller: Caller, key: str | None, print_of_body: bytes, now: int) -> IdempotencyClaim | None:
    if key is None:
        return None
    return IdempotencyClaim(caller.idempotency_scope, key, print_of_body, now + KEY_LIFETIME)


def _recipient(recipient_id: str, address: Address) -> NewRecipient:
    return NewRecipient(recipient_id, address.spelling, address.key, address.domain)


def _receipt(drafted: Draft, message_id: str, request_id: str, credits_needed: int) -> Receipt:
    return Receipt(
        id=message_id,
        status="queued",
        source="api",
        request_id=request_id,
        sender=drafted.sender.text,
        to=[address.text for address in drafted.to],
        cc=[address.text for address in drafted.cc] if drafted.cc else [],
        bcc=[address.text for address in drafted.bcc] if drafted.bcc else [],
        subject=drafted.subject,
        billing_status=_RESERVED,
        recipient_count=len(drafted.recipients),
        credits_reserved=credits_needed,
        headers=dict(drafted.headers),
        tags=list(drafted.tags),
        attachments=[
            AttachmentReceipt(file.filename, file.content_type, file.size, file.content_id or msgspec.UNSET)
            for file in drafted.files
        ],
        reply_to=drafted.reply_to.text if drafted.reply_to else msgspec.UNSET,
    )
