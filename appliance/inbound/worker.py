"""Reads the mail that the listener took: what it says of a recipient or of a domain is recorded, the mail deleted.

Every mail comes to an end: it is recorded, understood as nothing, or given up after `TRIES`. A bounce may come before
our own record of the delivery: it is tried again, some seconds in all, until its recipient has a result. Parsing has a
thread of its own, so that no client waits for it, and is bounded by the readers of `feedback/`; reports, which anyone
can send, take a fifth of that thread's time at most. On several nodes one at a time reads.

| sent to | read as | leads to |
|---|---|---|
| a token | complaint, else bounce | the token's recipient |
| a token to unsubscribe | nothing: what it says does not matter | the token's recipient and its list |
| `fbl@` | complaint | the recipient of a token in it, else that of its Message-ID |
| `dmarc@`, `tlsrpt@` | report | the domains of that return path |

A complaint counts only for a recipient that is proven by a token, or by the id of a message that has no other, which
only those know who have the message; not for an address that anyone could name.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import trio

from appliance.errors import Refused
from appliance.feedback.arf import Complaint, read_complaint
from appliance.feedback.dmarc_report import dmarc_counts
from appliance.feedback.dsn import Notice, NoticeKind, read_notice
from appliance.feedback.report_file import UnreadableReport
from appliance.feedback.return_path import FeedbackAddress, RecipientIds, ReportAddress, ReturnPaths, read_address
from appliance.feedback.tls_report import tls_counts
from appliance.model.feedback import FeedbackMail, FeedbackRecipient, FeedbackResult, NewComplaint
from appliance.model.mail import BounceClass, LateBounce
from appliance.model.reports import DmarcCounts, TlsCounts
from appliance.store import Store
from appliance.store.engine import Tx
from appliance.store.feedback import FeedbackStep, ResultPending
from appliance.store.reports import record_dmarc_report, record_tls_report
from appliance.telemetry.log import MESSAGE_LOG, get_logger
from appliance.telemetry.metrics import BOUNCES, FEEDBACK, REPORTS_READ

TRIES: Final = 5  # at reading one mail; each is one that ended with an error, or with the process
FEEDBACK_CHORE_EVERY: Final = 10.0  # seconds; what one node does at a time is another's when it is not asked for in 30
FEEDBACK_POLL: Final = 10.0  # seconds; another node may have taken mail
REPORT_REST: Final = 4.0  # times as long as a report took nothing else is read on that thread
FEEDBACK_PAUSE: Final = 2.0  # seconds until what the storage refused, or what has no result yet, is tried again

TOKEN: Final = "bounce"  # noqa: S105 - the kind of address, in metrics
UNSUBSCRIBE_ADDRESS: Final = "unsubscribe"  # also a kind of address
NOTED: Final = (FeedbackResult.LATE_BOUNCED, FeedbackResult.COMPLAINED, FeedbackResult.UNSUBSCRIBED)
REPORT_KINDS: Final[dict[str, str]] = {ReportAddress.DMARC: "dmarc", ReportAddress.TLS: "tls"}  # in metrics
_OUR_MESSAGE_ID: Final = re.compile(r"([0-9a-f]{32})@.+", re.ASCII)  # see intake/accept.py

T = TypeVar("T")

log = get_logger("inbound")


@dataclass(frozen=True, slots=True)
class _Read:
    """What one address of a mail leads to."""

    kind: str  # of the address
    step: FeedbackStep
    note: dict[str, Any] = field(default_factory=dict)  # for the log of the message it is about


@dataclass(slots=True)
class FeedbackWorker:
    store: Store
    return_paths: ReturnPaths
    _thread: trio.CapacityLimiter = field(default_factory=partial(trio.CapacityLimiter, 1))
    _pending: dict[str, float] = field(default_factory=dict)  # mails that wait for a result, and until when

    async def run(self) -> None:
        """Read what comes until cancelled."""
        while True:
            try:
                if await self.store.engine.has_chore("feedback"):
                    until = trio.current_time() + FEEDBACK_CHORE_EVERY
                    while await self.read_next():
                        if trio.current_time() > until:
                            break
                    else:
                        await self.store.feedback.arrived.wait(FEEDBACK_POLL)
                else:
                    await self.store.feedback.arrived.wait(FEEDBACK_POLL)
            except Refused as refused:
                log.warning("feedback waits for the storage", reason=refused.text)
                await trio.sleep(FEEDBACK_PAUSE)

    async def read_next(self) -> bool:
        """Read one mail; False when none waits."""
        mail = await self.store.feedback.next()
        if mail is None:
            return False
        if (until := self._pending.pop(mail.id, None)) is not None:
            await trio.sleep_until(until)  # nothing else waits but what has been tried as often
        try:
            found = [_Read(TOKEN, _nothing(FeedbackResult.GIVEN_UP))]
            if mail.tries <= TRIES:
                reports: dict[ReportAddress, DmarcCounts | TlsCounts | None] = {}
                found = [await self._read(mail, address, reports) for address in mail.addresses]
            else:
                log.error("feedback given up: it could not be read", mail_id=mail.id, bytes=len(mail.mime))
            results = await _patiently(partial(self.store.feedback.finish, mail.id, [each.step for each in found]))
        except ResultPending:
            self._pending[mail.id] = trio.current_time() + FEEDBACK_PAUSE
            return True
        except Exception:
            log.exception("feedback not read", mail_id=mail.id, tries=mail.tries)
            return True
        for each, result in zip(found, results or (), strict=False):  # none: another node has done it
            if each.kind in REPORT_KINDS:
                REPORTS_READ.add((REPORT_KINDS[each.kind], result))
            else:
                FEEDBACK.add((each.kind, result))
            if result == FeedbackResult.LATE_BOUNCED:
                BOUNCES.add((result, each.note["bounce_class"]))
            if each.note and result in NOTED:
                MESSAGE_LOG.note(result, **each.note)
        log.info("feedback read", mail_id=mail.id, results=results or [])
        return True

    async def _read(
        self, mail: FeedbackMail, address: str, reports: dict[ReportAddress, DmarcCounts | TlsCounts | None]
    ) -> _Read:
        """What one address leads to; `reports` are those that the mail was read as for others, None if it is none."""
        found = read_address(address)
        if found is None:
            return _Read(TOKEN, _nothing(FeedbackResult.UNMATCHED))
        if found.list_number is not None:
            return await self._read_unsubscription(mail, found, found.list_number)
        if found.token is not None:
            return await self._read_at_token(mail, found)
        if found.report is ReportAddress.COMPLAINTS:
            return await self._read_complaint(mail, found.domain)
        assert found.report is not None  # noqa: S101
        if found.report not in reports:
            reports[found.report] = await self._report(mail, _READERS[found.report])
        if (report := reports[found.report]) is None:
            return _Read(found.report, _nothing(FeedbackResult.NOT_UNDERSTOOD))
        return _Read(found.report, partial(_record_report, mail.received_at, found.domain, report))

    async def _read_at_token(self, mail: FeedbackMail, address: FeedbackAddress) -> _Read:
        recipient = await self._recipient(address, mail.received_at)
        if recipient is None:
            return _Read(TOKEN, _nothing(FeedbackResult.UNMATCHED))
        said = await self._on_thread(_complaint_or_notice, mail.mime, recipient.address)
        if isinstance(said, Complaint):
            return self._complained(TOKEN, said, recipient)
        if said.kind is not NoticeKind.FAILED:
            unknown = said.kind is NoticeKind.UNKNOWN
            return _Read(TOKEN, _nothing(FeedbackResult.NOT_UNDERSTOOD if unknown else said.kind))
        bounce = LateBounce(
            mail.received_at, said.code, said.words or said.status or "", said.bounce_class or BounceClass.OTHER
        )
        step = self.store.feedback.late_bounce(
            recipient, bounce, suppresses=said.recipient_fault, waits=mail.tries < TRIES
        )
        note = {"smtp_code": bounce.code, "reply": bounce.response[:200], "bounce_class": bounce.bounce_class.value}
        return _Read(TOKEN, step, _note(recipient) | note)

    async def _read_unsubscription(self, mail: FeedbackMail, address: FeedbackAddress, number: int) -> _Read:
        recipient = await self._recipient(address, mail.received_at)
        if recipient is None or number >= len(recipient.lists):
            return _Read(UNSUBSCRIBE_ADDRESS, _nothing(FeedbackResult.UNMATCHED))
        mail_list = recipient.lists[number]
        step = self.store.feedback.unsubscription(recipient, mail_list)
        return _Read(UNSUBSCRIBE_ADDRESS, step, _note(recipient) | {"list": mail_list})

    async def _read_complaint(self, mail: FeedbackMail, name: str) -> _Read:
        kind = ReportAddress.COMPLAINTS
        said = await self._on_thread(partial(read_complaint, attached=True), mail.mime)
        if said is None:
            return _Read(kind, _nothing(FeedbackResult.NOT_UNDERSTOOD))
        recipient = await self._complainant(said, name, mail.received_at)
        if recipient is None:
            return _Read(kind, _nothing(FeedbackResult.UNMATCHED))
        return self._complained(kind, said, recipient)

    def _complained(self, kind: str, said: Complaint, recipient: FeedbackRecipient) -> _Read:
        if not said.is_complaint:
            return _Read(kind, _nothing(FeedbackResult.NO_COMPLAINT))
        step = self.store.feedback.complaint(recipient, NewComplaint(said.feedback_type, said.reporter))
        return _Read(kind, step, _note(recipient) | {"feedback_type": said.feedback_type, "reporter": said.reporter})

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

    # ---- whose it is

    async def _recipient(self, address: FeedbackAddress, at: int) -> FeedbackRecipient | None:
        """The recipient of a token that was valid then."""
        ids = self.return_paths.check(address.token, address.domain, at) if address.token else None
        if not isinstance(ids, RecipientIds):
            return None
        return await _patiently(partial(self.store.feedback.recipient, ids.first, ids.last, address.domain))

    async def _complainant(self, complaint: Complaint, name: str, at: int) -> FeedbackRecipient | None:
        for path in complaint.return_paths:
            address = read_address(path)
            if address is not None and (recipient := await self._recipient(address, at)) is not None:
                return recipient
        found = _OUR_MESSAGE_ID.fullmatch(complaint.message_id)
        if found is None:
            return None
        recipients = await _patiently(partial(self.store.feedback.recipients_of, f"msg_{found[1]}", name))
        return recipients[0] if len(recipients) == 1 else None  # of several, each could name another

    async def _on_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await trio.to_thread.run_sync(partial(work, *arguments), limiter=self._thread)


_READERS: Final[dict[ReportAddress, Callable[[bytes], DmarcCounts | TlsCounts]]] = {
    ReportAddress.DMARC: dmarc_counts,
    ReportAddress.TLS: tls_counts,
}


def _complaint_or_notice(mime: bytes, address: str) -> Complaint | Notice:
    return read_complaint(mime) or read_notice(mime, address)


def _record_report(now: int, name: str, report: DmarcCounts | TlsCounts, tx: Tx) -> tuple[str, set[str]]:
    if isinstance(report, DmarcCounts):
        return record_dmarc_report(tx, now, name, report), set()
    return record_tls_report(tx, now, name, report), set()


def _nothing(result: str) -> FeedbackStep:
    return lambda _: (result, set())


def _note(recipient: FeedbackRecipient) -> dict[str, Any]:
    return {"message_id": recipient.message_id, "recipient_id": recipient.id, "domain": recipient.domain}


async def _patiently(work: Callable[[], Awaitable[T]]) -> T:
    """Do it, again and again while the storage refuses: that is no fault of the mail."""
    while True:
        try:
            return await work()
        except Refused as refused:
            log.warning("feedback waits", reason=refused.text)
            await trio.sleep(FEEDBACK_PAUSE)
