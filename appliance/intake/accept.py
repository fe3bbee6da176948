"""Accepts or refuses messages from every source: HTTP, SMTP and the dashboard's test.

The steps are the same for all: limits, template, compose, store. A message is on disk and handed to delivery before its
sender gets an answer. One Idempotency-Key accepts one message; a refused message leaves nothing behind.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from appliance.concurrency.fair_share import FairQueue, Workers
from appliance.environment import Environment
from appliance.errors import Code, PublicError, Refused, invalid
from appliance.feedback.return_path import ReturnPaths, UnsubscribeLinks, Unsubscription
from appliance.intake.limits import FreeSpace, Quota
from appliance.message.addresses import Address
from appliance.message.characters import BYTES_PER_MICROSECOND, cost_of_size
from appliance.message.compose import Draft, compose, draft, receipt_of
from appliance.message.request import cost_of_request
from appliance.message.schedule import due_time
from appliance.message.schema import Receipt, SendRequest
from appliance.message.submitted import SubmittedMessage, cost_of_submission, read, write
from appliance.message.template import cost_of_template
from appliance.model.accounts import Caller
from appliance.model.mail import (
    KEY_LIFETIME,
    DsnRequest,
    IdempotencyClaim,
    NewMessage,
    NewRecipient,
    RememberedSend,
    Source,
    StoredTemplate,
    header_id_of,
    lists_of,
)
from appliance.model.ramp import bucket_of
from appliance.model.streams import TRANSACTIONAL, Stream, Streams
from appliance.store import KeyTaken, Store
from appliance.telemetry.log import MESSAGE_LOG
from appliance.telemetry.metrics import ACCEPT_SECONDS, MESSAGES_ACCEPTED, RECIPIENTS_ACCEPTED
from appliance.times import SECOND, rfc3339

T = TypeVar("T")

LARGE_MESSAGE_SIZE = 1024 * 1024  # bytes; of messages this large, one is composed while another is stored


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """A message on disk. `replay_of` is the id of the first request if this one repeated it."""

    receipt: bytes
    message_id: str
    replay_of: str | None = None
    refusals: dict[int, Refused] | None = None  # of a batch, by index; none of a replay


class Submitted(msgspec.Struct, frozen=True, gc=False):
    """A submitted message on disk. `replayed`: an earlier request with the same Idempotency-Key stored it."""

    message_id: str
    replayed: bool = False


class Begun(NamedTuple):
    caller: Caller
    id: str
    first_recipient_id: str
    request_id: str
    source: Source
    created_at: int
    claim: IdempotencyClaim | None
    scheduled_at: int | None = None

    @property
    def date_seconds(self) -> int:
        """The Date of a message is when it is due: receivers distrust a message from last week."""
        return (self.scheduled_at or self.created_at) // SECOND

    def credits(self, recipients: Sequence[Address]) -> int:
        return 0 if self.source is Source.TEST else len(recipients)


@dataclass(eq=False, repr=False)
class MessageIntake:
    store: Store
    env: Environment
    free_space: FreeSpace
    quota: Quota
    sandbox: bool
    hostname: str
    links: UnsubscribeLinks
    return_paths: ReturnPaths | None = None  # None: the inbound listener is off
    streams: Streams = field(default_factory=Streams)
    text_from_html: bool = True
    notify: Callable[[NewMessage], None] = lambda _: None  # called for each accepted message
    workers: Workers = field(default_factory=Workers)
    accepted: Counter[str] = field(default_factory=Counter)  # messages since startup, by account
    _large: FairQueue = field(default_factory=lambda: FairQueue(2, rest=0.0))
    _running: set[tuple[str, str]] = field(default_factory=set)

    def check_open(self, caller: Caller) -> None:
        if caller.suspended:
            raise Refused(Code.ACCOUNT_SUSPENDED, "This account is suspended. Ask the operator to resume it.")
        self.check_disk()
        self.check_clock()

    def check_clock(self) -> None:
        if not self.store.engine.has_right_clock():
            text = "The clock of this node is wrong, so it would not deliver this message. Retry with the same key."
            raise Refused(Code.SERVICE_UNAVAILABLE, text, retry_after=5)

    def check_disk(self) -> None:
        if self.free_space.low():
            text = "The server is low on disk space and accepts no mail for now. Retry later with the same key."
            raise Refused(Code.TEMPORARY_FAILURE, text, retry_after=60)

    # ---- over HTTP

    async def send(
        self, caller: Caller, request: SendRequest, key: str | None, digest: bytes, request_id: str, size: int
    ) -> Accepted:
        """Accept one HTTP message with its fingerprint. `size` is that of the body, for the cost estimate."""
        estimate = cost_of_request(request, size)
        message = self.begin(caller, Source.API, request_id, key, digest)
        return await self.once(
            message, partial(self._send_new, request, message, estimate), partial(_replayed, request_id)
        )

    async def send_test(self, caller: Caller, request: SendRequest, request_id: str) -> Receipt:
        """Accept a test message: free of charge, and really delivered. A retry sends another."""
        message = self.begin(caller, Source.TEST, request_id, None, b"")
        accepted = await self._send_new(request, message, cost_of_request(request, 0))
        return msgspec.json.decode(accepted.receipt, type=Receipt)

    async def _send_new(self, request: SendRequest, message: Begun, estimate: int) -> Accepted:
        account_id, template = message.caller.account_id, None
        message = scheduled(message, request)
        if request.template is not msgspec.UNSET:
            template = await self.store.templates.current(account_id, request.template)
            if template is None:
                raise unknown_template()
            estimate += cost_of_template(template, request.variables or {})
        low = self.is_low(message.caller, request.stream or None, template)
        async with self.turn(account_id, estimate * BYTES_PER_MICROSECOND, low=low):
            drafted, mime = await self.workers.run(
                account_id, estimate, self.compose, request, template, message, low=low
            )
            credits_needed = message.credits(drafted.recipients)
            answer = receipt_of(drafted, message.id, message.request_id, credits_needed)
            if message.scheduled_at is not None:
                answer.scheduled_at = rfc3339(message.scheduled_at)
            receipt = msgspec.json.encode(answer)
            new = self.new_message(message, drafted, drafted.sender, mime, template=template, receipt=receipt)
            await self.accept(message.caller, new, drafted, template)
        return Accepted(receipt, message.id)

    def compose(self, request: SendRequest, template: StoredTemplate | None, message: Begun) -> tuple[Draft, bytes]:
        """Runs on a worker thread when expensive."""
        drafted = draft(request, template)
        _check_domain(message.caller, drafted.sender, "from")
        mime = compose(
            drafted,
            message_id=drafted.header_id or header_id_of(message.id, drafted.sender.domain),
            date_seconds=message.date_seconds,
            text_from_html=self.text_from_html,
            unsubscribe_urls=self._unsubscribe_urls(message, drafted, template),
        )
        if drafted.files:  # their contents, which the message has
            drafted = replace(drafted, files=tuple([replace(file, content=b"") for file in drafted.files]))
        return drafted, mime

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
        dsn: Mapping[str, DsnRequest] | None = None,
        hold: int | None = None,
        source: Source = Source.SMTP,
    ) -> Submitted:
        """Accept the content of DATA; `dsn` by recipient key. `hold`: when it is due; at once if that has passed."""
        self.check_open(caller)
        estimate = cost_of_submission(data, recipients)
        submission = await self.workers.run(caller.account_id, estimate, read, envelope_from, recipients, data)
        message = self.begin(caller, source, request_id, submission.key, submission.fingerprint)
        if hold is not None and hold > message.created_at:
            message = message._replace(scheduled_at=hold)
        first = partial(self._submit_new, submission, message, secure=secure, dsn=dsn)
        return await self.once(message, first, lambda earlier: Submitted(earlier.message_id, replayed=True))

    async def _submit_new(
        self, submission: SubmittedMessage, message: Begun, *, secure: bool, dsn: Mapping[str, DsnRequest] | None
    ) -> Submitted:
        check_domains(message.caller, submission)
        seconds, size = message.created_at // SECOND, len(submission.data)
        if submission.header_id is None:
            submission = replace(submission, header_id=header_id_of(message.id, submission.sender.domain))
        finish = partial(
            write,
            message_id=message.id,
            now_seconds=seconds,
            hostname=self.hostname,
            due_seconds=message.date_seconds,
            secure=secure,
            unsubscribe_urls=self._unsubscribe_urls(message, submission, None),
        )
        low = self.is_low(message.caller, submission.stream, None)
        async with self.turn(message.caller.account_id, size, low=low):
            mime = await self.workers.run(message.caller.account_id, cost_of_size(size), finish, submission, low=low)
            new = self.new_message(message, submission, submission.envelope_from, mime, dsn=dsn)
            await self.accept(message.caller, new, submission)
        return Submitted(message.id)

    # ---- all sources

    def begin(self, caller: Caller, source: Source, request_id: str, key: str | None, fingerprint: bytes) -> Begun:
        message_id, recipient_id = self.env.identifier("msg"), self.env.identifier("rcp")
        now, claim = self.env.now(), None
        if key is not None:
            claim = IdempotencyClaim(caller.idempotency_scope, key, fingerprint, now + KEY_LIFETIME)
        return Begun(caller, message_id, recipient_id, request_id, Source.TEST if caller.test else source, now, claim)

    async def once(
        self, message: Begun, first: Callable[[], Awaitable[T]], again: Callable[[RememberedSend], T | None]
    ) -> T:
        if message.claim is None:
            return await first()
        claim = (message.claim.scope, message.claim.key)
        if claim in self._running:
            replay = await self._earlier(message, message.claim, again)
            if replay is not None:  # only another retry is running
                return replay
            text = "The first request with this Idempotency-Key is still running. Retry in a second."
            raise Refused(Code.IDEMPOTENCY_IN_PROGRESS, text, retry_after=1)
        self._running.add(claim)
        try:
            return await first()
        except (KeyTaken, PublicError) as refused:
            # Retries are rare, so first sends do not search for the key: the transaction detects a taken one. A message
            # that was accepted once stays accepted, even if it would be refused now.
            if (replay := await self._earlier(message, message.claim, again)) is not None:
                return replay
            if isinstance(refused, KeyTaken):  # the key expired in between
                text = "This Idempotency-Key has just expired. Retry with it."
                raise Refused(Code.TEMPORARY_FAILURE, text, retry_after=1) from None
            raise
        finally:
            self._running.discard(claim)

    async def _earlier(
        self, message: Begun, claim: IdempotencyClaim, again: Callable[[RememberedSend], T | None]
    ) -> T | None:
        earlier = await self.store.messages.remembered(message.caller.account_id, claim.scope, claim.key)
        if earlier is not None and earlier.fingerprint != claim.fingerprint:
            text = "This Idempotency-Key was used with another body in the last 24 hours. Choose a new key."
            raise Refused(Code.IDEMPOTENCY_CONFLICT, text) from None
        return None if earlier is None else again(earlier)

    async def accept(
        self, caller: Caller, new: NewMessage, content: Draft | SubmittedMessage, template: StoredTemplate | None = None
    ) -> None:
        """Store the message; when this returns, it is on disk and handed to delivery."""
        began = perf_counter()
        await self.store.messages.accept(new)
        ACCEPT_SECONDS.add(perf_counter() - began)
        self.note_accepted(caller, new, content, template)

    def new_message(
        self,
        message: Begun,
        content: Draft | SubmittedMessage,
        envelope_from: Address,
        mime: bytes,
        *,
        template: StoredTemplate | None = None,
        receipt: bytes | None = None,
        dsn: Mapping[str, DsnRequest] | None = None,
    ) -> NewMessage:
        # Recipients are read back by id, so ids ascend in their order, even within one microsecond.
        others = self.env.identifiers("rcp", len(content.recipients) - 1)
        ids = sorted([message.first_recipient_id, *others])
        pairs = zip(ids, content.recipients, strict=True)
        recipients = tuple([NewRecipient(new_id, to.spelling, to.key, to.domain) for new_id, to in pairs])
        if dsn:
            asked = {key: replace(request, reporter=self.hostname) for key, request in dsn.items()}
            recipients = tuple([replace(recipient, dsn=asked.get(recipient.key)) for recipient in recipients])
        simulated = message.caller.test or self.sandbox
        if self.store.ramping.plan is not None and not simulated:
            recipients = tuple([replace(recipient, bucket=bucket_of(recipient.key)) for recipient in recipients])
        stream = self._stream_of(message.caller, content, template)
        return NewMessage(
            id=message.id,
            account_id=message.caller.account_id,
            request_id=message.request_id,
            source=message.source,
            simulated=simulated,
            sender=content.sender.text,
            envelope_from=envelope_from.wire,
            subject=content.subject,
            tags=content.tags,
            template_alias=template.alias if template else None,
            template_version=template.version if template else None,
            mime=mime,
            receipt=receipt,
            recipients=recipients,
            credits=message.credits(content.recipients),
            created_at=message.created_at,
            idempotency=message.claim,
            may_store=self.quota.bytes(),
            credential=message.caller.credential,
            scheduled_at=message.scheduled_at,
            metadata=content.metadata,
            header_id=content.header_id,
            stream=stream.name,
            low=int(stream.is_low),
        )

    def note_accepted(
        self, caller: Caller, new: NewMessage, content: Draft | SubmittedMessage, template: StoredTemplate | None
    ) -> None:
        self.accepted[new.account_id] += 1
        self.notify(new)
        MESSAGES_ACCEPTED.add(new.source)
        RECIPIENTS_ACCEPTED.add(new.source, len(new.recipients))
        if MESSAGE_LOG.keep:
            MESSAGE_LOG.note(
                "accepted",
                message_id=new.id,
                request_id=new.request_id,
                account_id=new.account_id,
                source=str(new.source),
                recipients=len(new.recipients),
                bytes=len(new.mime),
            )
            if len(new.recipients) > 1 and (mail_list := self._linked_list(caller, content, template)) is not None:
                reason = "several recipients"
                MESSAGE_LOG.note("no unsubscribe link", message_id=new.id, list=mail_list, reason=reason)

    def _unsubscribe_urls(
        self, message: Begun, content: Draft | SubmittedMessage, template: StoredTemplate | None
    ) -> Sequence[str]:
        """Return the link, and a mailto URL. With several recipients, each could unsubscribe another: none."""
        stream = self._stream_of(message.caller, content, template)
        if stream.unsubscribe:
            self._check_unsubscribe(stream, content)
        mail_list = self._linked_list(message.caller, content, template)
        if mail_list is None or len(content.recipients) > 1:
            return ()
        url = self.links.url(Unsubscription(message.caller.account_id, mail_list, content.recipients[0].key))
        name = message.caller.return_paths.get(content.sender.domain)
        if url is None or name is None or self.return_paths is None:
            return () if url is None else (url,)
        number = lists_of(content.tags, template.alias if template else None, stream.name).index(mail_list)
        address = self.return_paths.unsubscribe_address(message.first_recipient_id, name, number)
        return url, f"mailto:{address}?subject=unsubscribe"

    def _check_unsubscribe(self, stream: Stream, content: Draft | SubmittedMessage) -> None:
        if len(content.recipients) > 1:
            text = f"a message of the stream {stream.name} has one recipient, because its unsubscribe link is for one."
            raise invalid("to", f"{text} Send each recipient a message of their own")
        if not (self.links.usable or content.own_unsubscribe):
            text = f"messages of the stream {stream.name} have an unsubscribe link, which requires https in base_url."
            raise invalid("stream", f"{text} Ask the operator to set http.base_url")

    def _stream_of(self, caller: Caller, content: Draft | SubmittedMessage, template: StoredTemplate | None) -> Stream:
        """The stream that the message names; otherwise that of its template, or of the credential."""
        name = _stream_name(caller, content.stream, template)
        return TRANSACTIONAL if name is None else self.streams.get(name)

    def is_low(self, caller: Caller, named: str | None, template: StoredTemplate | None) -> bool:
        """Whether a message has low priority; `named`: the stream that it names. An unknown one is refused later."""
        stream = self.streams.by_name.get(_stream_name(caller, named, template) or TRANSACTIONAL.name)
        return stream is not None and stream.is_low

    def _linked_list(
        self, caller: Caller, content: Draft | SubmittedMessage, template: StoredTemplate | None
    ) -> str | None:
        """The list that the message's link unsubscribes from; None: it gets no link."""
        if content.own_unsubscribe:
            return None
        stream = self._stream_of(caller, content, template)
        alias = template.alias if template is not None and template.unsubscribe else None
        *linked, of_stream = lists_of(
            [tag for tag in content.tags if tag in caller.unsubscribe_tags], alias, stream.name
        )
        return of_stream if stream.unsubscribe else next(iter(linked), None)

    def turn(self, account_id: str, size: int, *, low: bool = False) -> AbstractAsyncContextManager[object]:
        """Let large messages be composed and stored two at a time, so that memory holds two of them."""
        return nullcontext() if size < LARGE_MESSAGE_SIZE else self._large.take(account_id, low=low)


def _stream_name(caller: Caller, named: str | None, template: StoredTemplate | None) -> str | None:
    return named if named is not None else (template.stream if template else None) or caller.stream


def unknown_template() -> Refused:
    return invalid("template", "this account has no template with that alias")


def scheduled(message: Begun, request: SendRequest) -> Begun:
    """A message that is due when its request says so; checked here, since a replay may come after that time."""
    if request.scheduled_at is msgspec.UNSET:
        return message
    return message._replace(scheduled_at=due_time(request.scheduled_at, message.created_at))


def _replayed(request_id: str, first: RememberedSend) -> Accepted | None:
    if first.receipt is None:
        return None
    receipt = msgspec.json.decode(first.receipt, type=Receipt)
    receipt.request_id = request_id
    return Accepted(msgspec.json.encode(receipt), first.message_id, replay_of=first.request_id)


def check_domains(caller: Caller, submission: SubmittedMessage) -> None:
    fields = (("MAIL FROM", submission.envelope_from), ("From", submission.sender), *submission.responsible)
    for name, address in fields:
        _check_domain(caller, address, name)


def _check_domain(caller: Caller, sender: Address, field: str) -> None:
    if caller.key is not None and caller.key.domain not in (None, sender.domain):
        text = f"this API key may only send from {caller.key.domain}, not from {sender.domain}."
        raise Refused(Code.FORBIDDEN, text, field=field)
    if sender.domain not in caller.domains:
        text = f"the domain {sender.domain} is not registered and verified for this account. Add it first."
        raise Refused(Code.FORBIDDEN, text, field=field)
