"""Receiving addresses and received messages: /v1/inbound.

The MX record of an address is looked up for each request, within the limits of `domains.py`. A message is parsed for
each request, on the thread and within the limits of `message_body.py`.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta
from quart import Response, request

from appliance.dns.check import CheckedRecord
from appliance.dns.records import receiving_hosts, receiving_record
from appliance.errors import Code, Refused, invalid
from appliance.intake.account_rules import receiving_address
from appliance.intake.received import received_data
from appliance.keys.received_links import ReceivedLinks
from appliance.message.forward import FORWARDS, forwarded
from appliance.message.limits import MAILBOX_LENGTH, RECIPIENTS
from appliance.message.received import read_received
from appliance.message.request import cost_of_request, fingerprint
from appliance.message.schema import Mailbox
from appliance.model.accounts import RecordStatus, User
from appliance.model.dashboard import MailFilter
from appliance.model.received import CheckResult, ReceivedMessage
from appliance.model.received_event import EnvelopeObject, ReceivedData
from appliance.store.audit import about
from appliance.store.receiving import unknown_address
from appliance.times import rfc3339
from appliance.web.api.domains import DomainLookups, RecordObject, record_object
from appliance.web.api.message_body import ATTACHED_FILE, JSON, OCTETS, RAW_MESSAGE, encoded_attachment
from appliance.web.api.message_export import exported_received, received_page
from appliance.web.api.message_objects import CreditsReserved, RecipientCount
from appliance.web.app import ApiServices, Routes, page_limit
from appliance.web.exchange import (
    ApiAnswer,
    CreatedAt,
    DeletedAnswer,
    NextPage,
    RequestId,
    Time,
    idempotency_key,
    object_from,
    request_id,
)
from appliance.web.operations import KEY_PARAMETER, PAGING, PAGING_BACK, Tag, for_customers, identifier, parameter

_ADDRESS = Meta(min_length=1, max_length=MAILBOX_LENGTH, examples=["support@in.example.com", "in.example.com"])
_ADDRESS_IN_PATH = parameter("address", "path", "Address or domain.", {"type": "string"})
_FORWARDER = "Sender of the new message, at a domain that the account has registered."
_TO_LIST = Meta(min_length=1, max_length=RECIPIENTS)
_NO_LISTENER = (
    "This server does not listen for mail yet. Its operator has to set inbound.bind, for example to 0.0.0.0:25."
)
_NUMBER = identifier("Number of the file in `attachments`, starting at 1.", "^[0-9]{1,3}$", "number")
_ID = parameter("id", "path", "Id of the received message, `inb_…`.", {"type": "string"})
_SEARCH = parameter(
    "q",
    "query",
    "Only messages with all of these words in sender, recipients or subject. Case-insensitive.",
    {"type": "string", "minLength": 1, "maxLength": 200},
)
_WORDS = 10  # of a search
FORWARDS_LISTED = 20
_RAW_FILE = (200, RAW_MESSAGE, "The message as it was received.")


class ReceivingRequest(msgspec.Struct, forbid_unknown_fields=True):
    """An address or a domain that receives mail."""

    address: Annotated[str, Meta(description="Address, or a domain for all its addresses."), _ADDRESS]


class ReceivingObject(msgspec.Struct):
    """An address or a domain that receives mail."""

    address: Annotated[str, Meta(description="Address in lower case, or a domain.")]
    created_at: CreatedAt


class ReceivingAnswer(ApiAnswer):
    """The added address."""

    address: Annotated[ReceivingObject, Meta(description="The added address.")]


class ReceivingListAnswer(ApiAnswer):
    """A page of addresses. Pass `next` as `after` to get the next page."""

    addresses: Annotated[list[ReceivingObject], Meta(description="Addresses and domains.")]
    next: NextPage


class ReceivingDetails(ReceivingObject):
    """An address that receives mail, with the DNS record to publish."""

    records: Annotated[list[RecordObject], Meta(description="DNS records to publish: one MX.")]
    warning: Annotated[
        str | None, Meta(description="What to know before you publish the record: its effect on other mail; or null.")
    ]
    request_id: RequestId


class ReceivedSummary(msgspec.Struct):
    """A received message in a list."""

    id: Annotated[str, Meta(description="Id of the message, `inb_…`.")]
    inbound_id: Annotated[str, Meta(description="The same id, under its name in events.")]
    received_at: Annotated[Time, Meta(description="Time of receipt.")]
    envelope: Annotated[EnvelopeObject, Meta(description="SMTP envelope.")]
    sender: Annotated[str, Meta(description="From header.")] = msgspec.field(name="from")
    subject: Annotated[str, Meta(description="Decoded subject.")]
    spf: Annotated[CheckResult, Meta(description="SPF result.")]
    dkim: Annotated[CheckResult, Meta(description="DKIM result.")]
    dmarc: Annotated[CheckResult, Meta(description="DMARC result.")]
    auto_submitted: Annotated[bool, Meta(description="Whether a program sent the message, or it loops.")]
    attachment_count: Annotated[int, Meta(description="Number of attached files.")]
    size: Annotated[int, Meta(description="Size of the message in bytes.")]


class ReceivedListAnswer(ApiAnswer):
    """A page of received messages, newest first. Pass `next` as `before` to get the next page."""

    emails: Annotated[list[ReceivedSummary], Meta(description="Received messages, newest first.")]
    next: NextPage


class SpfObject(msgspec.Struct):
    """Result of SPF (RFC 7208)."""

    result: Annotated[CheckResult, Meta(description="Result.")]
    domain: Annotated[str, Meta(description="Domain of MAIL FROM, or of EHLO for the null sender.")]
    reason: Annotated[str, Meta(description="Why the check ended in an error; otherwise empty.")]


class DkimObject(msgspec.Struct):
    """Result of one DKIM signature (RFC 6376)."""

    result: Annotated[CheckResult, Meta(description="Result.")]
    domain: Annotated[str, Meta(description="Signing domain.")]
    selector: Annotated[str, Meta(description="Selector of the key.")]
    aligned: Annotated[bool, Meta(description="Whether the domain aligns with the From header.")]
    reason: Annotated[str, Meta(description="Why the signature does not pass; otherwise empty.")]


class DmarcResultObject(msgspec.Struct):
    """Result of DMARC (RFC 7489)."""

    result: Annotated[CheckResult, Meta(description="Result.")]
    domain: Annotated[str, Meta(description="Domain of the From header.")]
    policy: Annotated[str | None, Meta(description="Published policy: `none`, `quarantine`, `reject` or null.")]
    reason: Annotated[str, Meta(description="Why the message does not pass; otherwise empty.")]


class ClientObject(msgspec.Struct):
    """The server that delivered a message."""

    address: Annotated[str, Meta(description="IP address.")]
    helo: Annotated[str, Meta(description="Its name in EHLO or HELO. Not verified.")]
    tls: Annotated[bool, Meta(description="Whether the connection was encrypted.")]


class AuthenticationObject(msgspec.Struct):
    """The checks of the sender in detail."""

    spf: Annotated[SpfObject, Meta(description="Result of SPF.")]
    dkim: Annotated[list[DkimObject], Meta(description="Results of up to 5 DKIM signatures.")]
    dmarc: Annotated[DmarcResultObject, Meta(description="Result of DMARC.")]
    client: Annotated[ClientObject, Meta(description="The server that delivered the message.")]


class ReceivedAnswer(ReceivedData, kw_only=True):
    """A received message, as in the event `email.received`, with the checks of its sender in detail."""

    id: Annotated[str, Meta(description="The same as `inbound_id`.")]
    received_at: Annotated[Time, Meta(description="Time of receipt.")]
    authentication: Annotated[AuthenticationObject, Meta(description="Checks of the sender.")]
    forwarded_as: Annotated[
        list[str], Meta(description="Ids of the messages that forward it, `msg_…`, newest first, at most 20.")
    ]
    request_id: RequestId


class ForwardRequest(msgspec.Struct, forbid_unknown_fields=True, rename={"sender": "from"}):
    """The sender and the recipients of a forwarded message."""

    sender: Annotated[Mailbox, Meta(examples=["support@example.com"], description=_FORWARDER)]
    to: Annotated[Mailbox | Annotated[list[Mailbox], _TO_LIST], Meta(description="One address or a list.")]


class ForwardedAnswer(ApiAnswer):
    """The new message and the original."""

    id: Annotated[str, Meta(description="Id of the new message, `msg_…`.")]
    forwards: Annotated[str, Meta(description="Id of the received message.")]
    recipient_count: RecipientCount
    credits_reserved: CreditsReserved


class InboundRoutes(Routes):
    tag = Tag.RECEIVING

    def __init__(self, services: ApiServices) -> None:
        super().__init__(services)
        self.lookups = DomainLookups(services)

    @for_customers("GET /v1/inbound/addresses", ReceivingListAnswer, *PAGING)
    async def list_receiving_addresses(self, user: User) -> ReceivingListAnswer:
        """List the addresses and domains that receive mail."""
        limit = page_limit()
        page = await self.store.receiving.page(user.account_id, request.args.get("after", ""), limit + 1)
        following = page[limit - 1].address if len(page) > limit else None
        return ReceivingListAnswer([object_from(ReceivingObject, item) for item in page[:limit]], following)

    @for_customers(
        "POST /v1/inbound/addresses",
        (201, ReceivingAnswer, "The added address."),
        Code.CONFLICT,
        action="inbound.added",
    )
    async def add_receiving_address(self, user: User, body: ReceivingRequest) -> ReceivingAnswer:
        """Receive mail at an address and its plus-addresses, or at every address of a domain.

        The domain must be a verified domain of the account, or below one.
        """
        address = receiving_address(body.address)
        about(address)
        added = await self.store.receiving.add(user.account_id, address)
        return ReceivingAnswer(object_from(ReceivingObject, added))

    @for_customers("GET /v1/inbound/addresses/{address}", ReceivingDetails, _ADDRESS_IN_PATH)
    async def get_receiving_address(self, user: User, address: str) -> ReceivingDetails:
        """Read a receiving address, the MX record to publish, and what DNS has now."""
        added = await self.store.receiving.read(user.account_id, _spelled(address))
        domain, config = added.address.rpartition("@")[2], self.services.config
        hosts = receiving_hosts(config, await self.store.engine.hosts())
        record = receiving_record(domain, hosts or (config.server.hostname,))
        (checked,) = await self.lookups.check(user.account_id, [record])
        warning = _warning(domain, checked) if hosts else _NO_LISTENER
        return object_from(
            ReceivingDetails,
            added,
            records=[record_object(checked, None)],
            warning=warning,
            request_id=request_id(),
        )

    @for_customers("DELETE /v1/inbound/addresses/{address}", DeletedAnswer, _ADDRESS_IN_PATH, action="inbound.removed")
    async def remove_receiving_address(self, user: User, address: str) -> DeletedAnswer:
        """Stop receiving mail at an address or a domain. Received messages stay until they expire."""
        await self.store.receiving.remove(user.account_id, _spelled(address))
        return DeletedAnswer(True)

    # ---- messages

    @for_customers("GET /v1/inbound", ReceivedListAnswer, _SEARCH, *PAGING_BACK)
    async def list_received_emails(self, user: User) -> ReceivedListAnswer | Response:
        """List received messages, newest first.

        With `q`, a page may be incomplete while the search continues; `next` is null only at the end. With
        `Accept: text/csv` or `format=csv`, the response is CSV with one line per message, at most 100,000.
        """
        limit, before, words = page_limit(), request.args.get("before"), _words(request.args.get("q"))
        if request.headers.get("Accept", "").startswith("text/csv") or request.args.get("format") == "csv":
            workers = self.services.intake.workers
            lines = exported_received(self.store.received, workers, user.account_id, words, before)
            disposition = {"Content-Disposition": 'attachment; filename="received.csv"'}
            return Response(lines, 200, disposition, content_type="text/csv; charset=utf-8")
        page, following = await received_page(self.store.received, user.account_id, words, before, limit)
        return ReceivedListAnswer([_summary(message) for message in page], following)

    @for_customers("GET /v1/inbound/{id}", ReceivedAnswer, _ID)
    async def get_received_email(self, user: User, message_id: str) -> Response:
        """Read a received message, with new links and the checks of its sender in detail."""
        message, now = await self._found(user, message_id), self.services.env.now()
        filters = MailFilter(metadata=(FORWARDS, message_id), since=message.received_at)
        forwards = (await self.store.mail_log.page(user.account_id, filters, None, FORWARDS_LISTED)).messages
        ids = [new.id for new in forwards]
        read = partial(
            _encoded, self.services.received_links, user.account_id, message, now, request_id(), forwarded_as=ids
        )
        return await self._answer(user, message, read, JSON)

    @for_customers("GET /v1/inbound/{id}/raw", _RAW_FILE, _ID)
    async def get_received_raw(self, user: User, message_id: str) -> Response:
        """Download a received message as an `.eml` file."""
        message = await self._found(user, message_id)
        return await self._answer(user, message, bytes, RAW_MESSAGE, f"{message_id}.eml")

    @for_customers("GET /v1/inbound/{id}/attachments/{number}", ATTACHED_FILE, _ID, _NUMBER)
    async def get_received_attachment(self, user: User, message_id: str, number: str) -> Response:
        """Download an attached file.

        The response type is always `application/octet-stream`. `attachments` has the declared type.
        """
        message = await self._found(user, message_id)
        if not (number.isascii() and number.isdigit() and len(number) <= 3 and int(number) >= 1):
            raise Refused(Code.NOT_FOUND, "This message has no attachment with this number.")
        read, file = partial(encoded_attachment, int(number) - 1), (OCTETS, f"{message_id}-{int(number)}")
        return await self._answer(user, message, read, *file)

    @for_customers(
        "POST /v1/inbound/{id}/forward",
        (202, ForwardedAnswer, "Stored on disk."),
        *Code,
        _ID,
        KEY_PARAMETER,
        action="inbound.forwarded",
    )
    async def forward_received_email(self, user: User, message_id: str, body: ForwardRequest) -> ForwardedAnswer:
        """Send a received message to other addresses, as a new message from a domain of the account.

        It has the same texts and files, `Fwd:` before the subject, and the original sender in `Reply-To`. It is
        checked, charged and delivered like any message. Retrying with the same `Idempotency-Key` and body is safe.
        """
        keys = [value.encode("utf-8") for value in request.headers.getlist("Idempotency-Key")]
        key = idempotency_key(keys[0] if keys else None, doubled=len(keys) > 1)
        message, caller, intake = await self._found(user, message_id), await self.caller_of(user), self.services.intake
        intake.check_open(caller)
        to = [body.to] if isinstance(body.to, str) else body.to
        about(message_id, {"to": ", ".join(to)})
        load = partial(self.store.received.mime, user.account_id, message_id)
        read = partial(forwarded, inbound_id=message_id, sender=body.sender, to=to)
        forward = await self.services.bodies.read(user.account_id, load, read)
        cost = cost_of_request(forward, message.size)
        digest = await intake.workers.run(caller.account_id, cost, fingerprint, forward)
        sent = await intake.send(caller, forward, key, digest, request_id(), message.size)
        new = await self.store.messages.read(user.account_id, sent.message_id)
        assert new is not None  # noqa: S101 - it has just been written
        about(details={"email_id": new.id})
        return ForwardedAnswer(new.id, message_id, new.recipient_count, new.credits_reserved)

    async def _found(self, user: User, message_id: str) -> ReceivedMessage:
        message = await self.store.received.find(user.account_id, message_id)
        if message is None:
            raise Refused(Code.NOT_FOUND, "No received message has this id, or it has expired.")
        return message

    async def _answer(
        self, user: User, message: ReceivedMessage, read: Callable[[bytes], bytes], kind: str, filename: str = ""
    ) -> Response:
        load = partial(self.store.received.mime, user.account_id, message.id)
        bodies = self.services.bodies
        return await bodies.answer(user.account_id, message.id, message.size, read, kind, filename, load=load)


def _words(text: str | None) -> list[str]:
    words = [] if text is None else text.lower().split()
    if text is not None and (not 1 <= len(words) <= _WORDS or len(text) > 200):
        raise invalid("q", f"must have 1 to {_WORDS} words and at most 200 characters")
    return words


def _spelled(address: str) -> str:
    """The stored address. Raises not_found for an invalid one."""
    try:
        return receiving_address(address)
    except Refused as refused:
        raise unknown_address() from refused


def _warning(domain: str, checked: CheckedRecord) -> str | None:
    if checked.status is not RecordStatus.DIFFERS:
        return None
    return (
        f"The MX record of {domain} does not lead to this server. Once you change it, all mail of {domain} arrives"
        f" here, also that of its mailboxes. To keep them, receive at a subdomain such as in.{domain} instead."
    )


def _summary(message: ReceivedMessage) -> ReceivedSummary:
    return ReceivedSummary(
        id=message.id,
        inbound_id=message.id,
        received_at=rfc3339(message.received_at),
        envelope=EnvelopeObject(message.envelope.sender, list(message.envelope.recipients)),
        sender=message.sender,
        subject=message.subject,
        spf=CheckResult(message.spf),
        dkim=CheckResult(message.dkim),
        dmarc=CheckResult(message.dmarc),
        auto_submitted=message.auto_submitted,
        attachment_count=message.attachments,
        size=message.size,
    )


def _encoded(
    links: ReceivedLinks,
    account_id: str,
    message: ReceivedMessage,
    now: int,
    request_id: str,
    mime: bytes,
    *,
    forwarded_as: list[str],
) -> bytes:
    envelope, checks = message.envelope, message.facts.authentication
    content = read_received(mime, envelope.recipients, null_sender=not envelope.sender)
    data = received_data(links, account_id, message.id, envelope, message.size, content, message.facts, now)
    authentication = AuthenticationObject(
        object_from(SpfObject, checks.spf),
        [object_from(DkimObject, check) for check in checks.dkim],
        object_from(DmarcResultObject, checks.dmarc),
        ClientObject(envelope.client, envelope.helo, envelope.secure),
    )
    answer = ReceivedAnswer(
        **msgspec.structs.asdict(data),
        id=message.id,
        received_at=rfc3339(message.received_at),
        authentication=authentication,
        forwarded_as=forwarded_as,
        request_id=request_id,
    )
    return msgspec.json.encode(answer)
