"""Reads the mail that the listener accepted, records what it says about a recipient or a domain, and deletes it.

Every mail is recorded, found to mean nothing, or given up after `TRIES`. A bounce may arrive before our own record of
the delivery: the worker retries it for some seconds, until its recipient has a result. Parsing has its own thread, so
that no client waits for it, and the readers of `feedback/` bound its cost. Reports, which anyone can send, take at most
a fifth of that thread's time. On several nodes, one at a time reads.

| sent to | read as | concerns |
|---|---|---|
| a token | complaint, otherwise bounce | the token's recipient |
| a token to unsubscribe | nothing: its content does not matter | the token's recipient and its list |
| `fbl@` | complaint | the recipient of a token in it, otherwise of the signed message in it |
| `dmarc@`, `tlsrpt@` | report | the domains of that return path |
| `postmaster@`, `abuse@` | nothing | the feedback inbox, and the operator's address if configured |

A complaint needs proof of its recipient: a token, or a copy of a message with our signature and no other recipient. An
address or a Message-ID proves nothing. Other mail to `fbl@`, such as the verification mail of a feedback loop, is kept
in the inbox for a person to read.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import trio
from msgspec import Struct, field

from appliance.concurrency.wake import until_stored
from appliance.environment import Environment
from appliance.errors import Refused, StorageUnavailable
from appliance.feedback.arf import Complaint, read_complaint
from appliance.feedback.dmarc import dmarc_counts
from appliance.feedback.dsn import NoticeKind, read_notice
from appliance.feedback.mime import UnreadableReport, first_value
from appliance.feedback.return_path import FeedbackAddress, RecipientIds, ReportAddress, ReturnPaths, read_address
from appliance.feedback.tls_report import tls_counts
from appliance.intake.limits import RequestRate
from appliance.message.addresses import parse
from appliance.message.decoding import one_line
from appliance.message.dkim import HeaderSignature
from appliance.message.reader import read_header
from appliance.model.feedback import FeedbackMail, FeedbackRecipient, FeedbackResult, KeptMail, NewComplaint
from appliance.model.mail import BounceClass, LateBounce
from appliance.model.reports import DmarcCounts, TlsCounts
from appliance.store import Store
from appliance.store.engine import Tx
from appliance.store.feedback import FeedbackStep, ResultPending
from appliance.store.reports import record_dmarc_report, record_tls_report
from appliance.telemetry.log import MESSAGE_LOG, get_logger
from appliance.telemetry.metrics import BOUNCES, FEEDBACK, REPORTS_READ

TRIES: Final = 5  # per mail; each ended with an error or with the process
FEEDBACK_CHORE_EVERY: Final = 10.0  # seconds; after 30 without a renewal another node takes the chore over
FEEDBACK_POLL: Final = 10.0  # seconds; another node may have accepted mail
REPORT_REST: Final = 4.0  # times the duration of a report that the thread then rests
FEEDBACK_PAUSE: Final = 2.0  # seconds before a retry

FORWARDED_BYTES: Final = 256 * 1024  # of a mail to postmaster@ or abuse@; a larger one stays in the inbox
FORWARDED_PER_HOUR: Final = 30
INBOX_FIELD_CHARACTERS: Final = 255  # of a header field in the inbox

TOKEN: Final = "bounce"  # noqa: S105 - the kind of address, in metrics
UNSUBSCRIBE_ADDRESS: Final = "unsubscribe"  # also a kind of address
NOTED: Final = (FeedbackResult.LATE_BOUNCED, FeedbackResult.COMPLAINED, FeedbackResult.UNSUBSCRIBED)
REPORT_KINDS: Final[dict[str, str]] = {ReportAddress.DMARC: "dmarc", ReportAddress.TLS: "tls"}  # in metrics
_OUR_MESSAGE_ID: Final = re.compile(r"([0-9a-f]{32})@.+", re.ASCII)  # see intake/accept.py

T = TypeVar("T")

log = get_logger("inbound")
_stored = partial(until_stored, log=log, failure="feedback not read")


class _Reading(Struct, frozen=True):
    kind: str  # of the address
    step: FeedbackStep
    note: dict[str, Any] = field(default_factory=dict)  # for the message log
    keeps_mail: bool = False  # the step stores the mail again


def _nothing(result: str) -> FeedbackStep:
    return lambda _: (result, set())


_GIVEN_UP: Final = _Reading(TOKEN, _nothing(FeedbackResult.GIVEN_UP))


class FeedbackWorker(Struct):
    store: Store
    return_paths: ReturnPaths
    forwarding_rate: RequestRate
    forward_to: str = ""  # the operator's address for mail to postmaster@ and abuse@; empty: none
    _thread: trio.CapacityLimiter = field(default_factory=partial(trio.CapacityLimiter, 1))
    _pending: dict[str, float] = field(default_factory=dict)  # time of the next try by mail id

    async def run(self) -> None:
        while True:
            try:
                until, has_more = trio.current_time() + FEEDBACK_CHORE_EVERY, False
                if await self.store.engine.has_chore("feedback"):
                    while (has_more := await self.read_next()) and trio.current_time() <= until:
                        pass
                if not has_more:
                    await self.store.feedback.arrived.wait(FEEDBACK_POLL)
            except StorageUnavailable as refused:
                log.warning("feedback not read: storage unavailable", reason=refused.text)
                await trio.sleep(FEEDBACK_PAUSE)

    async def read_next(self) -> bool:
        mail = await self.store.feedback.next()
        if mail is None:
            return False
        if (until := self._pending.pop(mail.id, None)) is not None:
            await trio.sleep_until(until)  # all other queued mail was tried as often
        try:
            if mail.tries <= TRIES:
                reports: dict[ReportAddress, DmarcCounts | TlsCounts | None] = {}
                readings = [await self._read_or_give_up(mail, address, reports) for address in mail.addresses]
            else:
                log.error("feedback given up: cannot be read", mail_id=mail.id, bytes=len(mail.mime))
                readings = [_GIVEN_UP]
            try:
                results = await self._finish(mail, readings)
            except Refused as refused:  # a step refused stored data, and would again
                log.error("feedback given up: cannot be read", mail_id=mail.id, reason=refused.text)
                readings = [_GIVEN_UP]
                results = await self._finish(mail, readings)
        except ResultPending:
            self._pending[mail.id] = trio.current_time() + FEEDBACK_PAUSE
            return True
        except Exception:
            log.exception("feedback not read", mail_id=mail.id, tries=mail.tries)
            return True
        for reading, result in zip(readings, results or (), strict=False):  # no results: another node read the mail
            if reading.kind in REPORT_KINDS:
                REPORTS_READ.add((REPORT_KINDS[reading.kind], result))
            else:
                FEEDBACK.add((reading.kind, result))
            if result == FeedbackResult.LATE_BOUNCED:
                BOUNCES.add((result, reading.note["bounce_class"]))
            if reading.note and result in NOTED:
                MESSAGE_LOG.note(result, **reading.note)
        log.info("feedback read", mail_id=mail.id, results=results or [])
        return True

    async def _finish(self, mail: FeedbackMail, readings: list[_Reading]) -> list[str] | None:
        steps, large = [reading.step for reading in readings], any(reading.keeps_mail for reading in readings)
        return await _stored(partial(self.store.feedback.finish, mail.id, steps, large=large))

    async def _read_or_give_up(
        self, mail: FeedbackMail, address: str, reports: dict[ReportAddress, DmarcCounts | TlsCounts | None]
    ) -> _Reading:
        """Give up if stored data, such as an old address, is no longer valid."""
        try:
            return await self._read(mail, address, reports)
        except Refused as refused:
            log.error("feedback given up: cannot be read", mail_id=mail.id, reason=refused.text)
            return _GIVEN_UP

    async def _read(
        self, mail: FeedbackMail, address: str, reports: dict[ReportAddress, DmarcCounts | TlsCounts | None]
    ) -> _Reading:
        """Read a mail for one address; `reports` caches the parsed reports, None for an unreadable one."""
        target = read_address(address)
        if target is None:
            return _Reading(TOKEN, _nothing(FeedbackResult.UNMATCHED))
        if target.list_number is not None:
            return await self._read_unsubscription(mail, target, target.list_number)
        if target.token is not None:
            return await self._read_at_token(mail, target)
        if target.report is ReportAddress.COMPLAINTS:
            return await self._read_complaint(mail, target.domain)
        if target.report in (ReportAddress.POSTMASTER, ReportAddress.ABUSE):
            return await self._keep(mail, target.report, target.domain, FeedbackResult.KEPT, forwards=True)
        assert target.report is not None  # noqa: S101
        if target.report not in reports:
            reports[target.report] = await self._report(mail, _READERS[target.report])
        if (report := reports[target.report]) is None:
            return _Reading(target.report, _nothing(FeedbackResult.NOT_UNDERSTOOD))
        return _Reading(target.report, partial(_record_report, mail.received_at, target.domain, report))

    async def _read_at_token(self, mail: FeedbackMail, address: FeedbackAddress) -> _Reading:
        recipient = await self._recipient(address, mail.received_at)
        if recipient is None:
            return _Reading(TOKEN, _nothing(FeedbackResult.UNMATCHED))
        said = await self._on_thread(lambda: read_complaint(mail.mime) or read_notice(mail.mime, recipient.address))
        if isinstance(said, Complaint):
            return self._complained(TOKEN, said, recipient)
        if said.kind is not NoticeKind.FAILED:
            unknown = said.kind is NoticeKind.UNKNOWN
            return _Reading(TOKEN, _nothing(FeedbackResult.NOT_UNDERSTOOD if unknown else said.kind))
        bounce = LateBounce(
            mail.received_at, said.code, said.words or said.status or "", said.bounce_class or BounceClass.OTHER
        )
        step = self.store.feedback.late_bounce(
            recipient, bounce, suppresses=said.recipient_fault, waits=mail.tries < TRIES
        )
        note = {"smtp_code": bounce.code, "reply": bounce.response[:200], "bounce_class": bounce.bounce_class.value}
        return _Reading(TOKEN, step, _note(recipient) | note)

    async def _read_unsubscription(self, mail: FeedbackMail, address: FeedbackAddress, number: int) -> _Reading:
        recipient = await self._recipient(address, mail.received_at)
        if recipient is None or number >= len(recipient.lists):
            return _Reading(UNSUBSCRIBE_ADDRESS, _nothing(FeedbackResult.UNMATCHED))
        mail_list = recipient.lists[number]
        step = self.store.feedback.unsubscription(recipient, mail_list)
        return _Reading(UNSUBSCRIBE_ADDRESS, step, _note(recipient) | {"list": mail_list})

    async def _read_complaint(self, mail: FeedbackMail, name: str) -> _Reading:
        kind = ReportAddress.COMPLAINTS
        said = await self._on_thread(partial(read_complaint, attached=True), mail.mime)
        if said is None:
            return await self._keep(mail, kind, name, FeedbackResult.NOT_UNDERSTOOD)
        if not said.is_complaint:
            return _Reading(kind, _nothing(FeedbackResult.NO_COMPLAINT))
        recipient = await self._complainant(said, name, mail.received_at)
        if recipient is None:
            return await self._keep(mail, kind, name, FeedbackResult.NOT_VERIFIED)
        return self._complained(kind, said, recipient)

    async def _keep(
        self, mail: FeedbackMail, kind: ReportAddress, name: str, result: FeedbackResult, *, forwards: bool = False
    ) -> _Reading:
        """Keep a mail in the inbox; `forwards`: also send it to the operator, unless that could loop or flood."""
        sender, subject, is_automatic = await self._on_thread(_shown_fields, mail.mime)
        kept = KeptMail(mail.id, kind, f"{kind}@{name}", sender, subject, mail.received_at, mail.mime)
        forward_to = self.forward_to if forwards and not is_automatic and len(mail.mime) <= FORWARDED_BYTES else ""
        if forward_to:
            try:
                self.forwarding_rate.take(forward_to)
            except Refused:
                forward_to = ""
        return _Reading(kind, self.store.feedback_inbox.keep(kept, result, forward_to), keeps_mail=True)

    def _complained(self, kind: str, said: Complaint, recipient: FeedbackRecipient) -> _Reading:
        if not said.is_complaint:
            return _Reading(kind, _nothing(FeedbackResult.NO_COMPLAINT))
        step = self.store.feedback.complaint(recipient, NewComplaint(said.feedback_type, said.reporter))
        return _Reading(kind, step, _note(recipient) | {"feedback_type": said.feedback_type, "reporter": said.reporter})

    async def _report(
        self, mail: FeedbackMail, read: Callable[[bytes], DmarcCounts | TlsCounts]
    ) -> DmarcCounts | TlsCounts | None:
        began = trio.current_time()
        try:
            return await self._on_thread(read, mail.mime)
        except UnreadableReport:
            return None
        finally:
            await trio.sleep(REPORT_REST * (trio.current_time() - began))

    # ---- recipients

    async def _recipient(self, address: FeedbackAddress, at: int) -> FeedbackRecipient | None:
        ids = self.return_paths.check(address.token, address.domain, at) if address.token else None
        if not isinstance(ids, RecipientIds):
            return None
        recipient = await _stored(partial(self.store.feedback.recipient, ids.first, ids.last, address.domain))
        if recipient is not None:
            parse(recipient.address, "recipient")  # a refusal in the transaction would undo the other steps
        return recipient

    async def _complainant(self, complaint: Complaint, name: str, at: int) -> FeedbackRecipient | None:
        for path in complaint.return_paths:
            address = read_address(path)
            if address is not None and (recipient := await self._recipient(address, at)) is not None:
                return recipient
        message_id = _OUR_MESSAGE_ID.fullmatch(complaint.message_id)
        if message_id is None or not complaint.signatures:
            return None
        recipients = await _stored(partial(self.store.feedback.recipients_of, f"msg_{message_id[1]}", name))
        if len(recipients) != 1:  # with several, any of them could blame another
            return None
        is_signed = any([await self._is_ours(signature, recipients[0]) for signature in complaint.signatures])
        return recipients[0] if is_signed else None

    async def _is_ours(self, signature: HeaderSignature, recipient: FeedbackRecipient) -> bool:
        if b"message-id" not in signature.signed_names:
            return False
        keys = await _stored(partial(self.store.dkim_keys.of, recipient.account_id, signature.domain))
        records = [key.record for key in keys if key.selector == signature.selector]
        return await self._on_thread(lambda: any(signature.verifies(record) for record in records))

    async def _on_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await trio.to_thread.run_sync(partial(work, *arguments), limiter=self._thread)


_READERS: Final[dict[ReportAddress, Callable[[bytes], DmarcCounts | TlsCounts]]] = {
    ReportAddress.DMARC: dmarc_counts,
    ReportAddress.TLS: tls_counts,
}


def forwarding_rate(env: Environment) -> RequestRate:
    """Limit the mail to the operator; the inbox keeps every mail."""
    return RequestRate(FORWARDED_PER_HOUR / 3_600, env, burst=FORWARDED_PER_HOUR)


def _shown_fields(mime: bytes) -> tuple[str, str, bool]:
    """Return sender and subject, and whether a program sent the mail (RFC 3834 2) and might reply again."""
    headers = read_header(mime)
    sender, subject, submitted, kind = (
        one_line(first_value(headers, name))[:INBOX_FIELD_CHARACTERS]
        for name in ("from", "subject", "auto-submitted", "content-type")
    )
    word = submitted.partition(";")[0].strip().lower()
    return sender, subject, word not in ("", "no") or kind.lower().startswith("multipart/report")


def _record_report(now: int, name: str, report: DmarcCounts | TlsCounts, tx: Tx) -> tuple[str, set[str]]:
    if isinstance(report, DmarcCounts):
        return record_dmarc_report(tx, now, name, report), set()
    return record_tls_report(tx, now, name, report), set()


def _note(recipient: FeedbackRecipient) -> dict[str, Any]:
    return {"message_id": recipient.message_id, "recipient_id": recipient.id, "domain": recipient.domain}
