"""Mail that came back, stored until it is read, and its effects: late bounces, complaints and unsubscriptions.

A mail is on disk before its sender gets the 250. Its effect and its deletion are one transaction, so it counts once.
Each read counts as a try, so a mail that ends the process is given up. A late bounce changes no status: a ledger line
returns the credit, and the recipient shows the first `late_bounce`.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from appliance.concurrency.wake import Wake
from appliance.environment import Environment, identifier_from, identifier_time
from appliance.errors import Code, Refused
from appliance.message.addresses import parse
from appliance.model.feedback import (
    ComplaintRate,
    FeedbackMail,
    FeedbackRecipient,
    FeedbackResult,
    NewComplaint,
    QueueShare,
    ShareScope,
)
from appliance.model.mail import DsnCondition, LateBounce, SuppressionOrigin, lists_of
from appliance.model.webhooks import EventType
from appliance.store.accounts import return_credits, write_ledger
from appliance.store.body_parts import add as count_bytes
from appliance.store.delivery_reports import Reportable, write_reports
from appliance.store.engine import Bulk, Row, Slice, StorePart, Tx, first, one, run
from appliance.store.message_records import readable_tags
from appliance.store.queue_control import SAME_TIME
from appliance.store.ramp import note_complaint
from appliance.store.search_index import note_changes
from appliance.store.suppressions import suppress, unsubscribe
from appliance.store.webhooks import INSERT_EVENTS, WebhookPosts, event_row, labels_of, post_events
from appliance.times import DAY

LARGE_MAIL = 128 * 1024  # bytes; a larger mail is written in a commit of its own
MATCHED_RECIPIENTS = 50  # of a message, by the interface
REASON_CHARACTERS = 200  # of a bounce, in the reason of a suppression

_ADD = Bulk("""INSERT INTO feedback_mail (id, addresses, mime, received_at, size, shares, without_token, turn, envelope,
        parts_size)
    VALUES {(?, ?, ?b, ?i, ?i, ?, ?i, ?, ?, ?i)}""")
_ANY = "SELECT 1 FROM feedback_mail WHERE turn = '' LIMIT 1"
# Mail about a recipient before reports, which anyone can send and which are slower to read.
NEXT_MAIL = "SELECT id FROM feedback_mail WHERE turn = '' ORDER BY tries, without_token, id LIMIT 1"
_NEXT = f"""UPDATE feedback_mail SET tries = tries + 1 WHERE id = ({NEXT_MAIL})
    RETURNING id, addresses, mime, received_at, tries"""
_TAKE_OUT = Bulk("DELETE FROM feedback_mail WHERE id IN ({?}) RETURNING id, shares, size")

# Ends with the account's domain that has this return path; otherwise NULL.
_COLUMNS = """r.id, r.message_id, r.account_id, r.address, r.domain, m.envelope_from, m.subject, m.tags,
    m.template_alias, m.stream, (SELECT min(d.name) FROM domains d
        WHERE d.account_id = r.account_id AND coalesce(d.return_path, 'bounces.' || d.name) = :name)"""
_TAKEN = "SELECT 1 FROM domains d WHERE coalesce(d.return_path, 'bounces.' || d.name) = :name LIMIT 1"
_ENVELOPE_FROM = 5  # its index in _COLUMNS
_BY_IDS = f"""SELECT {_COLUMNS} FROM recipients r JOIN messages m ON m.account_id = r.account_id AND m.id = r.message_id
    WHERE r.message_id BETWEEN :earliest AND :latest AND r.id BETWEEN :first AND :last LIMIT 2"""
_OF_MESSAGE = f"""SELECT {_COLUMNS} FROM recipients r
    JOIN messages m ON m.account_id = r.account_id AND m.id = r.message_id
    WHERE r.message_id = :message_id ORDER BY r.id LIMIT :most"""

_SET_LATE_BOUNCE = """UPDATE recipients SET late_bounce = :late_bounce
    WHERE message_id = :message_id AND id = :id AND status = 'delivered' AND simulated = 0 AND late_bounce IS NULL
    RETURNING charged, billing_status, dsn"""
_STATE = "SELECT late_bounce, status, simulated FROM recipients WHERE message_id = :message_id AND id = :id"
_COMPLAIN = """INSERT INTO complaints (account_id, recipient_id, message_id, domain, provider, kind, at)
    VALUES (:account_id, :id, :message_id, :sent_from,
        coalesce((SELECT d.pool FROM destinations d WHERE d.domain = :domain), :domain), :kind, :now)
    ON CONFLICT (account_id, recipient_id) DO NOTHING RETURNING provider"""
_FORGET = """DELETE FROM complaints WHERE (account_id, recipient_id) IN
    (SELECT account_id, recipient_id FROM complaints WHERE at < :before ORDER BY at LIMIT :most)"""
_ANY_OLD = "SELECT EXISTS (SELECT 1 FROM complaints WHERE at < :before)"

# As statistics.py counts them.
_RATES = """SELECT provider, sum(CASE WHEN kind = 'complained' THEN recipients ELSE 0 END) AS complaints,
        sum(CASE WHEN kind = 'delivered' THEN recipients ELSE 0 END)
    FROM daily_feedback WHERE day >= :since AND kind IN ('complained', 'delivered')
    GROUP BY provider ORDER BY 2 DESC, 1"""

_encoder = msgspec.json.Encoder()

# ---- the counts of the queue, in all and by client network, account, address and token; each has a share as its limit

QUEUED_MAILS = 10_000
QUEUED_BYTES = 512 * 1024 * 1024
# Each share is one part in this many. The smallest has room for two of the largest mails.
SHARE_PARTS = {
    ShareScope.ALL: 1,
    ShareScope.WITHOUT_TOKEN: 4,  # anyone can send such mail
    ShareScope.NETWORK: 8,
    ShareScope.ACCOUNT: 8,
    ShareScope.ACCOUNT_WITHOUT_TOKEN: 16,
    ShareScope.ADDRESS: 32,
    ShareScope.TOKEN: 64,
    # Of received mail: a network can fill half of an account's share.
    ShareScope.RECEIVED: 2,
    ShareScope.RECEIVED_ACCOUNT: 8,
    ShareScope.RECEIVED_FROM: 16,
    ShareScope.RECEIVED_ADDRESS: 16,
}
RETRY_AFTER = 600  # seconds

_COUNT_SHARES = Bulk("""INSERT INTO feedback_counts (scope, name, mails, bytes) VALUES {(?, ?, ?i, ?i)}
    ON CONFLICT (scope, name) DO UPDATE SET mails = feedback_counts.mails + excluded.mails,
        bytes = feedback_counts.bytes + excluded.bytes RETURNING scope, mails, bytes""")
_READ_SHARES = Bulk("SELECT scope, mails, bytes FROM feedback_counts WHERE (scope, name) IN (VALUES {(?, ?)})")
_READ_ALL = f"SELECT mails, bytes FROM feedback_counts WHERE scope = '{ShareScope.ALL}' AND name = ''"
_DELETE_EMPTY = "DELETE FROM feedback_counts WHERE mails <= 0"
_ANY_COUNT = "SELECT 1 FROM feedback_counts LIMIT 1"
# A node of an older version deletes mail but not its counts; an empty queue corrects them.
_DELETE_STALE = "DELETE FROM feedback_counts WHERE NOT EXISTS (SELECT 1 FROM feedback_mail)"

_stored = msgspec.json.Decoder(list[QueueShare])


class QueueLimits(Struct, frozen=True):
    mails: int = QUEUED_MAILS
    bytes: int = QUEUED_BYTES

    def has_room(self, shares: Iterable[QueueShare], mails: int, size: int) -> bool:
        """Whether each of these shares may have so many mails and bytes."""
        part = max([SHARE_PARTS[ShareScope.WITHOUT_TOKEN], *(SHARE_PARTS[share.scope] for share in shares)])
        return mails <= max(1, self.mails // part) and size <= self.bytes // part

    def check(self, scope: str, mails: int, size: int) -> None:
        part = SHARE_PARTS[ShareScope(scope)]
        if mails > max(1, self.mails // part) or size > self.bytes // part:
            text = "Too much mail is waiting to be read. Try again later."
            # Not TEMPORARY_FAILURE, after which PostgreSQL's writer runs the transaction again.
            raise Refused(Code.SERVICE_UNAVAILABLE, text, retry_after=RETRY_AFTER)


def all_shares(shares: Iterable[QueueShare]) -> list[QueueShare]:
    """Add the shares of the whole queue. Every transaction locks their row first, so none deadlocks."""
    distinct = {QueueShare(ShareScope.ALL, ""), *shares}
    if any(share.scope is ShareScope.RECEIVED_ACCOUNT for share in distinct):
        distinct.add(QueueShare(ShareScope.RECEIVED, ""))
    elif not has_token(distinct):
        distinct.add(QueueShare(ShareScope.WITHOUT_TOKEN, ""))
    return in_order(distinct)


def in_order(shares: Iterable[QueueShare]) -> list[QueueShare]:
    return sorted(shares, key=lambda share: (share.scope is not ShareScope.ALL, share))


def has_token(shares: Iterable[QueueShare]) -> bool:
    return any(share.scope is ShareScope.TOKEN for share in shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedMail:
    """A mail to put into the queue; `turn` and `envelope` only of received mail."""

    id: str
    addresses: Sequence[str]
    mime: bytes = field(repr=False)  # or its beginning
    shares: Iterable[QueueShare]
    parts_size: int = 0  # bytes of it that are written in parts
    turn: str = ""
    envelope: str | None = None


def put(tx: Tx, limits: QueueLimits, mails: Sequence[QueuedMail], now: int) -> None:
    """Put mails into the queue; raises Refused if they are over a limit together."""
    counts, new = defaultdict[QueueShare, list[int]](lambda: [0, 0]), list[Row]()
    for mail in mails:
        counted, size = all_shares(mail.shares), len(mail.mime) + mail.parts_size
        for share in counted:
            counts[share][0] += 1
            counts[share][1] += size
        content = mail.id, " ".join(mail.addresses), mail.mime, now, size
        shares = _encoder.encode(counted).decode(), int(not has_token(counted))
        new.append((*content, *shares, mail.turn, mail.envelope, mail.parts_size))
    for scope, count, total in _COUNT_SHARES.run(tx, _counted(counts)):
        limits.check(scope, count, int(total))
    _ADD.run(tx, new)


def take_out(tx: Tx, ids: Sequence[str]) -> set[str]:
    """Delete mails from the queue; return those that were there."""
    deleted = _TAKE_OUT.run(tx, [(mail_id,) for mail_id in sorted(ids)])
    counts = defaultdict[QueueShare, list[int]](lambda: [0, 0])
    for _, stored, size in deleted:
        for share in _stored.decode(stored):
            counts[share][0] -= 1
            counts[share][1] -= size
    if counts:
        _COUNT_SHARES.run(tx, _counted(counts))
        run(tx, _DELETE_EMPTY, {})
    return {mail_id for mail_id, _, _ in deleted}


def _counted(counts: Mapping[QueueShare, Sequence[int]]) -> list[Row]:
    return [(share.scope.value, share.name, *counts[share]) for share in in_order(counts)]


# The effect of one address of a mail, in the transaction that deletes it: the result, and accounts with new posts.
FeedbackStep = Callable[[Tx], tuple[str, set[str]]]


class ResultPending(Exception):
    """The recipient of a bounce has no result yet: a server may send the bounce before its 250 is recorded."""


class FeedbackStore(StorePart):
    posts: WebhookPosts
    arrived: Wake = msgspec.field(default_factory=Wake)  # there may be mail to read
    limits: QueueLimits = msgspec.field(default_factory=QueueLimits)

    async def check_room(self, shares: Collection[QueueShare]) -> None:
        """Raise Refused over a limit; no share has more than the whole queue, which usually has room for each."""
        ((mails, total),) = await self.engine.rows(_READ_ALL, {}) or [(0, 0)]
        if self.limits.has_room(shares, mails + 1, int(total) + 1):
            return
        keys = [(scope.value, name) for scope, name in all_shares(shares)]
        for scope, mails, total in await self.engine.read(lambda tx: _READ_SHARES.run(tx, keys)):
            self.limits.check(scope, mails + 1, int(total) + 1)

    async def add(self, addresses: Sequence[str], mime: bytes, shares: Iterable[QueueShare] = ()) -> str:
        """Store a mail until it is read; return its id. Raises Refused while a limit of the queue is reached."""
        mail = QueuedMail(id=self.env.identifier("fbm"), addresses=addresses, mime=mime, shares=tuple(shares))
        work = partial(put, limits=self.limits, mails=[mail], now=self.env.now())
        await self.engine.write(work, bulk=len(mime) > LARGE_MAIL, locks=True)
        self.arrived.set()
        return mail.id

    async def next(self) -> FeedbackMail | None:
        """Return the next mail to read and count one more try; None if none is queued."""
        if not await self.engine.rows(_ANY, {}):  # an idle server leaves its disk alone
            if await self.engine.rows(_ANY_COUNT, {}):
                await self.engine.change(_DELETE_STALE, {})
            return None
        return await self.engine.write(lambda tx: one(tx, _mail, _NEXT, {}), large=True)

    async def finish(self, mail_id: str, steps: Sequence[FeedbackStep], *, large: bool = False) -> list[str] | None:
        """Run the steps and delete the mail; None if another node did. `large` steps run off the event loop."""

        def work(tx: Tx) -> tuple[list[str], set[str]] | None:
            if not take_out(tx, [mail_id]):
                return None
            results, accounts = list[str](), set[str]()
            for step in steps:
                result, entries = step(tx)
                results.append(result)
                accounts |= entries
            return results, accounts

        done = await self.engine.write(work, large=large)
        if done is None:
            return None
        if done[1]:
            self.posts.add_new(done[1])
        return done[0]

    async def recipient(self, first_id: str, last_id: str, name: str) -> FeedbackRecipient | None:
        """Return the only recipient with an id of this range, unless the return path belongs to another account."""
        given_at = identifier_time(first_id)
        bindings = {"first": first_id, "last": last_id, "name": name}
        bindings["earliest"] = identifier_from("msg", max(0, given_at - SAME_TIME))
        bindings["latest"] = identifier_from("msg", given_at + SAME_TIME)
        selected = await self.engine.rows(_BY_IDS, bindings)
        if len(selected) != 1:
            return None
        *row, sent_from = selected[0]
        if sent_from is None and await self.engine.rows(_TAKEN, bindings):
            return None
        return _recipient(*row, sent_from or row[_ENVELOPE_FROM].rpartition("@")[2])

    async def recipients_of(self, message_id: str, name: str) -> list[FeedbackRecipient]:
        bindings = {"message_id": message_id, "name": name, "most": MATCHED_RECIPIENTS}
        results = await self.engine.all(_recipient, _OF_MESSAGE, bindings)
        return [item for item in results if item is not None]

    def late_bounce(
        self, recipient: FeedbackRecipient, bounce: LateBounce, *, suppresses: bool, waits: bool = False
    ) -> FeedbackStep:
        """With `waits` the step raises ResultPending for a recipient without a result."""
        step = partial(_record_late_bounce, env=self.env, recipient=recipient, bounce=bounce)
        return partial(step, suppresses=suppresses, waits=waits)

    def complaint(self, recipient: FeedbackRecipient, complaint: NewComplaint) -> FeedbackStep:
        return partial(_record_complaint, env=self.env, recipient=recipient, complaint=complaint)

    def unsubscription(self, recipient: FeedbackRecipient, mail_list: str) -> FeedbackStep:
        return partial(_record_unsubscription, env=self.env, recipient=recipient, mail_list=mail_list)

    async def forget_complaints(self, before: int, most: int) -> Slice:
        return await self.delete_slice(_ANY_OLD, [_FORGET], {"before": before, "most": most})

    async def complaint_rates(self, since: int) -> list[ComplaintRate]:
        return await self.engine.all(ComplaintRate, _RATES, {"since": since // DAY})


def _mail(mail_id: str, addresses: str, mime: bytes, received_at: int, tries: int) -> FeedbackMail:
    return FeedbackMail(mail_id, tuple(addresses.split()), bytes(mime), received_at, tries)


def _recipient(*columns: Any) -> FeedbackRecipient | None:
    *recipient, tags, template_alias, stream, sent_from = columns
    if sent_from is None:
        return None
    # A token names a list by its index, so one unreadable list makes all unusable.
    readable = readable_tags(tags)
    lists = tuple(lists_of(readable, template_alias, stream)) if readable or tags == "[]" else ()
    return FeedbackRecipient(*(*recipient, sent_from, lists))


# ---- steps of a transaction
def _record_late_bounce(
    tx: Tx, *, env: Environment, recipient: FeedbackRecipient, bounce: LateBounce, suppresses: bool, waits: bool
) -> tuple[str, set[str]]:
    whose = {"message_id": recipient.message_id, "id": recipient.id}
    set_now = first(tx, _SET_LATE_BOUNCE, {**whose, "late_bounce": _encoder.encode(bounce).decode()})
    if set_now is None:
        late_bounce, status, _ = first(tx, _STATE, whose) or (None, "", 0)
        if waits and status in ("queued", "deferred"):
            raise ResultPending
        return (FeedbackResult.NOT_DELIVERED if late_bounce is None else FeedbackResult.REPEATED), set()
    note_changes(tx, env, [(recipient.account_id, recipient.message_id)])
    result = bounce.code, bounce.response, bounce.bounce_class
    accounts = _write_event(tx, env, EventType.LATE_BOUNCED, bounce.at, recipient, *result)
    if suppresses:
        reason = f"bounced after delivery: {bounce.response[:REASON_CHARACTERS]}"
        _suppress(tx, recipient, reason, SuppressionOrigin.LATE_BOUNCE, bounce.at)
    charged, billing, dsn = set_now
    if dsn is not None:
        _report(tx, env, recipient, bounce, dsn)
    if charged and billing == "settled":
        write_ledger(tx, env, return_credits(tx, recipient.account_id, [(recipient.message_id, recipient.id)]))
    return FeedbackResult.LATE_BOUNCED, accounts


def _report(tx: Tx, env: Environment, recipient: FeedbackRecipient, bounce: LateBounce, dsn: str) -> None:
    about, said = (DsnCondition.FAILURE, env.now(), recipient.address, dsn), (bounce.code, bounce.response)
    result = Reportable(recipient.message_id, recipient.account_id, recipient.envelope_from, False, *about, *said)
    for account_id, count in write_reports(tx, env, [result]).items():
        count_bytes(tx, account_id, count)


def _record_complaint(
    tx: Tx, *, env: Environment, recipient: FeedbackRecipient, complaint: NewComplaint
) -> tuple[str, set[str]]:
    now = env.now()
    row = {"account_id": recipient.account_id, "id": recipient.id, "message_id": recipient.message_id, "now": now}
    _, status, simulated = first(tx, _STATE, {"message_id": recipient.message_id, "id": recipient.id}) or (None, "", 0)
    if simulated or status in ("bounced", "failed"):
        return FeedbackResult.NOT_DELIVERED, set()
    row |= {"domain": recipient.domain, "sent_from": recipient.sent_from, "kind": complaint.kind}
    if (provider := one(tx, str, _COMPLAIN, row)) is None:
        return FeedbackResult.REPEATED, set()
    note_complaint(tx, env, recipient.message_id, recipient.id, provider)
    result = f"{complaint.kind} reported by {complaint.reporter}" if complaint.reporter else complaint.kind
    note_changes(tx, env, [(recipient.account_id, recipient.message_id)])
    accounts = _write_event(tx, env, EventType.COMPLAINED, now, recipient)
    _suppress(tx, recipient, f"complaint: {result}"[:REASON_CHARACTERS], SuppressionOrigin.COMPLAINT, now)
    return FeedbackResult.COMPLAINED, accounts


def _record_unsubscription(
    tx: Tx, *, env: Environment, recipient: FeedbackRecipient, mail_list: str
) -> tuple[str, set[str]]:
    address = parse(recipient.address, "to").key
    is_new = unsubscribe(tx, recipient.account_id, mail_list, address, env.now())
    return (FeedbackResult.UNSUBSCRIBED if is_new else FeedbackResult.REPEATED), set()


def _write_event(
    tx: Tx, env: Environment, kind: EventType, at: int, recipient: FeedbackRecipient, *result: Any
) -> set[str]:
    labels = labels_of(tx, [(recipient.account_id, recipient.message_id)])
    event = event_row(env.identifier("evt"), kind, at, recipient, labels, *result)
    INSERT_EVENTS.run(tx, [event])
    return post_events(tx, env, [event])


def _suppress(tx: Tx, recipient: FeedbackRecipient, reason: str, origin: SuppressionOrigin, at: int) -> None:
    address = parse(recipient.address, "to").key
    entry = {"account_id": recipient.account_id, "address": address, "reason": reason, "now": at}
    suppress(tx, {**entry, "origin": origin.value})
