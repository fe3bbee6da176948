"""The queue for operators: its size by pool, immediate retries and cancellation. Its lanes let mail pass a backlog.

The queue may hold a million recipients. Sums read only the index of lanes, in its order. Statements change many rows in
slices, so that a running server can write in between.
"""

from functools import partial
from typing import NamedTuple

from msgspec import Struct

from appliance.environment import identifier_from, identifier_time
from appliance.errors import Code, Refused
from appliance.model.database import CancelAnswer, CancelRequest
from appliance.model.mail import DueRecipient, FailureReason, Outcome, RecipientStatus
from appliance.model.queue import AllWaiting, WaitingMail
from appliance.model.ramp import RampLane
from appliance.store.engine import (
    START,
    RecordAnswer,
    Row,
    StorePart,
    Tx,
    Work,
    any_owner,
    changed,
    distinct,
    one,
    owned,
    rows,
    run,
    transaction,
)
from appliance.store.queue import SELECT_DUE, UnderDelivery, record
from appliance.store.scheduled import forget_scheduled
from appliance.store.webhooks import WebhookPosts

MADE_DUE_TOGETHER = 1_000  # recipients made due per transaction: some ten milliseconds
LANES_READ = 1_000  # looked for at a time
CANCELLED_TOGETHER = 50  # messages in one transaction
RETRY_REST = 60_000_000  # microseconds between an attempt and the next one that the account may request
SAME_TIME = 60_000_000  # microseconds between the ids of a message and its recipients

_WAITING = "SELECT id FROM recipients WHERE message_id = :message_id AND next_attempt_at IS NOT NULL"

# Reads the index alone. Ids sort by time, so the oldest message has the smallest id.
_SUMMARY = """
WITH lanes AS (
    SELECT domain, count(*) AS waiting, count(CASE WHEN next_attempt_at > :now THEN 1 END) AS deferred,
        min(message_id) AS oldest, min(CASE WHEN next_attempt_at > :now THEN next_attempt_at END) AS next_attempt_at
    FROM recipients WHERE simulated = 0 AND next_attempt_at IS NOT NULL GROUP BY low, account_id, domain
), by_domain AS (
    SELECT coalesce(d.pool, '') AS pool, l.domain, sum(l.waiting) AS waiting, sum(l.deferred) AS deferred,
        min(l.oldest) AS oldest, min(l.next_attempt_at) AS next_attempt_at
    FROM lanes l LEFT JOIN destinations d ON d.domain = l.domain GROUP BY 1, 2
), by_pool AS (
    SELECT pool, sum(waiting) AS waiting, sum(deferred) AS deferred, min(oldest) AS oldest,
        min(next_attempt_at) AS next_attempt_at
    FROM by_domain GROUP BY pool ORDER BY 2 DESC, 1 LIMIT :pools
), ranked AS (
    SELECT d.*, row_number() OVER (PARTITION BY d.pool ORDER BY d.waiting DESC, d.domain) AS place
    FROM by_domain d JOIN by_pool p ON p.pool = d.pool
)
SELECT pool, '' AS domain, waiting, deferred, oldest, next_attempt_at FROM by_pool
UNION ALL
SELECT pool, domain, waiting, deferred, oldest, next_attempt_at FROM ranked WHERE place <= :domains
"""

_SIMULATED = "SELECT count(*) FROM recipients WHERE simulated = 1 AND low = 0 AND next_attempt_at IS NOT NULL"
_TOTALS = """SELECT count(*), count(CASE WHEN next_attempt_at > :now THEN 1 END), min(message_id)
    FROM recipients WHERE next_attempt_at IS NOT NULL"""
_OVERDUE = """SELECT count(*), min(s.message_id) FROM scheduled_messages s
    CROSS JOIN recipients r ON r.message_id = s.message_id AND r.status = 'queued' WHERE s.due_at <= :now"""
_SCHEDULED = ("due_at <= :due", "due_at IS NULL")  # each uses an index
_SCHEDULED_MESSAGES = """SELECT account_id, message_id FROM scheduled_messages
    WHERE {condition} AND message_id < :before LIMIT :most"""
_WAITING_MESSAGES = f"""SELECT DISTINCT message_id FROM recipients
    WHERE simulated = :simulated AND low IN (0, 1) AND next_attempt_at IS NOT NULL AND message_id < :before
        AND {owned("recipients")}
    LIMIT :most"""

# Lanes with mail that is not due yet, after the last one that was read.
_LANES = """SELECT low, account_id, domain FROM recipients
    WHERE simulated = 0 AND next_attempt_at > :now AND (low, account_id, domain) > (:low, :account_id, :domain)
        AND {condition}
    GROUP BY low, account_id, domain ORDER BY low, account_id, domain LIMIT :most"""
_ANY = "TRUE"
_TO_DOMAIN = "domain = :target"
_THROUGH_POOL = "domain IN (SELECT d.domain FROM destinations d WHERE d.pool = :target)"
_LATER = f"""SELECT message_id, id FROM recipients
    WHERE simulated = 0 AND low = :low AND account_id = :account_id AND domain = :domain AND next_attempt_at > :now
        AND lower(address) = lower(coalesce(:address, address)) AND {any_owner("recipients")}
    ORDER BY next_attempt_at LIMIT :most"""
_MAKE_DUE = """UPDATE recipients SET next_attempt_at = :now
    WHERE message_id = :message_id AND id = :id AND next_attempt_at > :now"""
_MAKE_MESSAGE_DUE = """UPDATE recipients SET next_attempt_at = :now
    WHERE message_id = :message_id AND next_attempt_at > :now AND coalesce(failed_at, 0) <= :tried_before"""
_BEYOND = f"""SELECT 1 FROM recipients
    WHERE simulated = :simulated AND low IN (0, 1) AND next_attempt_at > :beyond AND {owned("recipients")} LIMIT 1"""
_BRING_FORWARD = f"""UPDATE recipients SET next_attempt_at = :now WHERE (message_id, id) IN
        (SELECT message_id, id FROM recipients
        WHERE simulated = :simulated AND low IN (0, 1) AND next_attempt_at > :beyond AND {owned("recipients")}
        LIMIT :most)
    RETURNING 1"""
_ANY_RECIPIENT = "SELECT account_id FROM recipients WHERE message_id = :message_id LIMIT 1"
_MESSAGE_OF = "SELECT message_id FROM recipients WHERE message_id BETWEEN :earliest AND :latest AND id = :id"
_STILL_WAITING = f"""{SELECT_DUE} WHERE r.message_id = :message_id AND r.status IN ('queued', 'deferred')
    AND (r.next_attempt_at IS NULL OR {owned("r")}) ORDER BY r.id"""
_WAITING_FROM = """SELECT DISTINCT message_id FROM recipients
    WHERE next_attempt_at IS NOT NULL AND message_id > :after AND message_id < :before
    ORDER BY message_id LIMIT :most"""

_DEPTH = f"""SELECT count(CASE WHEN next_attempt_at <= :now THEN 1 END), count(*), min(next_attempt_at)
    FROM recipients WHERE simulated = :simulated AND low IN (0, 1) AND next_attempt_at IS NOT NULL
        AND {owned("recipients")}"""
_HELD = "SELECT pool FROM pool_holds ORDER BY pool LIMIT 100"
_HELD_ON_NODE = """SELECT pool FROM pool_holds UNION SELECT pool FROM node_holds WHERE node = :node
    ORDER BY pool LIMIT 100"""


class Cancelled(NamedTuple):
    recipients: int
    accounts: set[str]  # with new posts


NOTHING_CANCELLED = Cancelled(0, set())


class Depth(Struct, frozen=True):
    due: int
    deferred: int
    overdue: float  # seconds since the first was due
    held: tuple[str, ...]  # pools


class QueueControl(StorePart):
    posts: WebhookPosts
    under_delivery: UnderDelivery
    made_due_together: int = MADE_DUE_TOGETHER
    lanes_read: int = LANES_READ

    # ---- for the running server

    async def version(self) -> int:
        return await self.engine.version()

    async def waiting(self, message_id: str) -> frozenset[str]:
        return frozenset(await self.engine.all(str, _WAITING, {"message_id": message_id}))

    async def bring_forward(self, beyond: int, *, simulated: bool = False) -> int:
        """Make recipients of this node due that are due after `beyond`; return how many."""
        total, bindings = 0, {"simulated": int(simulated), "beyond": beyond}
        while await self.engine.one(int, _BEYOND, bindings):
            change = bindings | {"now": self.env.now(), "most": self.made_due_together}
            total += len(await self.engine.change(_BRING_FORWARD, change))
        return total

    # ---- the size of the queue

    async def summary(self, pools: int, domains: int) -> list[WaitingMail]:
        """Return the pools with most mail, each followed by its domains with most mail. Runs on a thread."""
        return await self.engine.scan(lambda tx: _summary(tx, self.env.now(), pools, domains))

    async def simulated(self) -> int:
        """Count the queued recipients of the sandbox, which are in no pool, on a thread."""
        return await self.engine.scan(lambda tx: one(tx, int, _SIMULATED, {}) or 0)

    async def totals(self) -> AllWaiting:
        """Count queued recipients; overdue recipients of scheduled messages count as due."""
        now = {"now": self.env.now()}
        ((waiting, deferred, oldest),) = await self.engine.rows(_TOTALS, now)
        ((overdue, first),) = await self.engine.rows(_OVERDUE, now)
        oldest = min((message_id for message_id in (oldest, first) if message_id is not None), default=None)
        oldest_at = None if oldest is None else identifier_time(oldest)
        return AllWaiting(waiting - deferred + overdue, deferred, oldest_at)

    async def depth(self) -> Depth:
        held, node = _HELD_ON_NODE if self.engine.is_shared else _HELD, {"node": self.engine.node}
        return await self.engine.scan(lambda tx: _depth(tx, self.env.now(), rows(tx, held, node)))

    # ---- retry now: no attempt is used, and recipients that are due keep their time

    async def retry(self, *, pool: str | None = None, domain: str | None = None, address: str | None = None) -> int:
        """Make deferred recipients due now: all, or only for a pool or domain; return how many."""
        condition = _THROUGH_POOL if pool else _TO_DOMAIN if domain else _ANY
        now, total, after = self.env.now(), 0, (0, "", "")
        bindings = {"target": pool or domain, "now": now, "most": self.lanes_read}
        query = _LANES.format(condition=condition)
        while lanes := await self.engine.rows(
            query, {**bindings, **dict(zip(("low", "account_id", "domain"), after, strict=True))}
        ):
            after = lanes[-1]
            while lanes:
                work = partial(_make_due, lanes=lanes, address=address, now=now, most=self.made_due_together)
                count, passed = await self.engine.write(work)
                total, lanes = total + count, lanes[passed:]
        return total

    @transaction
    def retry_message(self, tx: Tx, message_id: str) -> int:
        _must_exist(tx, message_id)
        now = self.env.now()
        return changed(tx, _MAKE_MESSAGE_DUE, {"message_id": message_id, "now": now, "tried_before": now})

    @transaction
    def retry_own_message(self, tx: Tx, message_id: str, account_id: str) -> int:
        """Likewise for the message's account, but not within RETRY_REST of an attempt: attempts are limited."""
        _must_exist(tx, message_id, account_id)
        if not rows(tx, _WAITING, {"message_id": message_id}):
            raise Refused(Code.CONFLICT, "No recipient of this message is queued. There is nothing to retry.")
        now = self.env.now()
        bindings = {"message_id": message_id, "now": now, "tried_before": now - RETRY_REST}
        return changed(tx, _MAKE_MESSAGE_DUE, bindings)

    @transaction
    def retry_recipient(self, tx: Tx, recipient_id: str) -> int:
        if (message_id := _message_of(tx, recipient_id)) is None:
            raise Refused(Code.NOT_FOUND, f"there is no recipient {recipient_id!r}")
        return changed(tx, _MAKE_DUE, {"message_id": message_id, "id": recipient_id, "now": self.env.now()})

    # ---- cancel

    async def cancel(self, message_id: str, reason: str, account_id: str | None = None) -> int:
        """Cancel a message's queued recipients and release their credits; return how many. Those in a session stay."""
        elsewhere = await self.engine.cancel_elsewhere(message_id, account_id, reason)
        count = sum(answer.cancelled for answer in elsewhere)
        work = partial(self._cancel, message_id=message_id, reason=reason, account_id=account_id)
        try:
            return count + await self._write_cancellation(message_id, work)
        except Refused as refused:
            if count:
                return count
            for answer in elsewhere:
                if answer.refusal is not None and refused.code is not Code.NOT_FOUND:
                    raise Refused(Code.CONFLICT, answer.refusal) from None
            if refused.code is Code.CONFLICT and await self._waits_for_a_node(message_id):
                text = f"The node of message {message_id} is gone. Another node is taking it over. Retry in seconds."
                raise Refused(Code.TEMPORARY_FAILURE, text, retry_after=10) from None
            raise

    async def _waits_for_a_node(self, message_id: str) -> bool:
        """Whether recipients are queued that this node is not delivering."""
        waiting = await self.waiting(message_id) if self.engine.is_shared else frozenset()
        return bool(waiting) and not any(item in self.under_delivery for item in waiting)

    async def answer_others(self) -> None:
        async def cancel(request: CancelRequest, record_answer: RecordAnswer) -> None:
            def work(tx: Tx) -> Cancelled:
                try:
                    cancelled = self._cancel(tx, request.message_id, request.reason, request.account_id)
                    answer = CancelAnswer(cancelled.recipients)
                except Refused as refused:
                    cancelled, answer = NOTHING_CANCELLED, CancelAnswer(0, refused.text)
                record_answer(tx, answer)
                return cancelled

            await self._write_cancellation(request.message_id, work)

        await self.engine.answer_cancellations(cancel)

    async def _write_cancellation(self, message_id: str, work: Work[Cancelled]) -> int:
        with self.under_delivery.cancelling(message_id):
            cancelled = await self.engine.write(work, large=True, locks=True)
        self.posts.add_new(cancelled.accounts)
        return cancelled.recipients

    async def cancel_older(self, before: int, reason: str) -> int:
        """The same for every message that was accepted before a time; a few of them in each transaction.

        A scheduled message is cancelled if it was due by then or is held; the others are sent when they are due.
        """
        total = await self._cancel_overdue(before, reason)
        for simulated in (False, True):
            bindings = {"simulated": simulated, "before": identifier_from("msg", before), "most": CANCELLED_TOGETHER}
            while count := await self._cancel_found(partial(rows, sql=_WAITING_MESSAGES, bindings=bindings), reason):
                total += count
        return total + await self._cancel_others(identifier_from("msg", before), reason)

    async def _cancel_overdue(self, before: int, reason: str) -> int:
        total, row = 0, {"due": before, "before": identifier_from("msg", before), "most": CANCELLED_TOGETHER}
        for condition in _SCHEDULED:
            query = _SCHEDULED_MESSAGES.format(condition=condition)
            while scheduled := await self.engine.rows(query, row):
                # Only messages whose row still exists: another node may have queued the others, and owns them.
                total += await self._cancel_found(partial(forget_scheduled, messages=scheduled), reason)
        return total

    async def _cancel_found(self, find: Work[list[Row]], reason: str) -> int:
        work = partial(self._cancel_each, find=find, reason=reason)
        cancelled = await self.engine.write(work, large=True, locks=True)
        self.posts.add_new(cancelled.accounts)
        return cancelled.recipients

    async def _cancel_others(self, before: str, reason: str) -> int:
        """Ask the other nodes to cancel their recipients."""
        total, after, bindings = 0, START, {"before": before, "most": CANCELLED_TOGETHER}
        while self.engine.is_shared and (waiting := await self.engine.rows(_WAITING_FROM, bindings | {"after": after})):
            for (after,) in waiting:
                total += sum(item.cancelled for item in await self.engine.cancel_elsewhere(after, None, reason))
        return total

    def _cancel(self, tx: Tx, message_id: str, reason: str, account_id: str | None) -> Cancelled:
        owner = _must_exist(tx, message_id, account_id)
        forget_scheduled(tx, [(owner, message_id)])  # first: another node could queue it, and then own it
        if not (cancelled := self._cancel_waiting(tx, message_id, reason)).recipients:
            raise Refused(Code.CONFLICT, f"Nothing is left to cancel: every recipient of {message_id} is final.")
        return cancelled

    def _cancel_waiting(self, tx: Tx, message_id: str, reason: str) -> Cancelled:
        waiting = [DueRecipient(*row) for row in rows(tx, _STILL_WAITING, {"message_id": message_id})]
        if not waiting:
            return NOTHING_CANCELLED
        left = [recipient for recipient in waiting if recipient.id not in self.under_delivery]
        if not left:
            text = f"message {message_id} is being handed to a server just now; should it be deferred, cancel it then"
            raise Refused(Code.CONFLICT, text)
        now, note = self.env.now(), f"cancelled: {reason}"
        failed = partial(Outcome, status=RecipientStatus.FAILED, attempts=(), at=now, failure=FailureReason.CANCELLED)
        return Cancelled(len(left), record(tx, self.env, [failed(recipient, note=note) for recipient in left]))

    def _cancel_each(self, tx: Tx, find: Work[list[Row]], reason: str) -> Cancelled:
        results = [self._cancel_waiting(tx, message_id, reason) for (message_id,) in find(tx)]
        accounts = set[str]().union(*(item.accounts for item in results))
        return Cancelled(sum(item.recipients for item in results), accounts)


def _summary(tx: Tx, now: int, pools: int, domains: int) -> list[WaitingMail]:
    results = [_waiting_mail(*row) for row in rows(tx, _SUMMARY, {"now": now, "pools": pools, "domains": domains})]
    size = {mail.pool: mail.due + mail.deferred for mail in results if mail.domain is None}

    def order(mail: WaitingMail) -> tuple[int, str, int, str]:
        """Pools before their domains, since no domain has more mail than its pool."""
        return -size[mail.pool], mail.pool or "", -(mail.due + mail.deferred), mail.domain or ""

    return sorted(results, key=order)


def _waiting_mail(
    pool: str, domain: str, waiting: int, deferred: int, oldest: str, next_attempt_at: int | None
) -> WaitingMail:
    oldest_at = identifier_time(oldest)
    return WaitingMail(pool or None, domain or None, waiting - deferred, deferred, oldest_at, next_attempt_at)


def _make_due(tx: Tx, lanes: list[Row], address: str | None, now: int, most: int) -> tuple[int, int]:
    """Make one slice due; return the number of recipients, and of finished lanes."""
    count = 0
    for passed, (low, account_id, domain) in enumerate(lanes):
        bindings = {"low": low, "account_id": account_id, "domain": domain, "address": address, "now": now}
        selected = rows(tx, _LATER, bindings | {"most": most - count})
        for message_id, recipient_id in selected:
            run(tx, _MAKE_DUE, {"message_id": message_id, "id": recipient_id, "now": now})
        count += len(selected)
        if count == most:
            return count, passed
    return count, len(lanes)


def _message_of(tx: Tx, recipient_id: str) -> str | None:
    """The message of a recipient. There is no index by recipient, but both ids have the same time."""
    try:
        given_at = identifier_time(recipient_id)
    except ValueError:
        return None
    earliest = identifier_from("msg", max(0, given_at - SAME_TIME))
    latest = identifier_from("msg", given_at + SAME_TIME)
    return one(tx, str, _MESSAGE_OF, {"earliest": earliest, "latest": latest, "id": recipient_id})


def _must_exist(tx: Tx, message_id: str, account_id: str | None = None) -> str:
    owner = one(tx, str, _ANY_RECIPIENT, {"message_id": message_id})
    if owner is None or account_id not in (None, owner):
        raise Refused(Code.NOT_FOUND, f"there is no message {message_id!r}")
    return owner


def _depth(tx: Tx, now: int, held: list[Row]) -> Depth:
    total, total_due, oldest = 0, 0, now
    for simulated in (0, 1):
        ((due, waiting, first_due),) = rows(tx, _DEPTH, {"now": now, "simulated": simulated})
        total, total_due = total + waiting, total_due + due
        oldest = oldest if first_due is None else min(oldest, first_due)
    return Depth(total_due, total - total_due, (now - oldest) / 1_000_000, tuple(str(pool) for (pool,) in held))


# ---- waiting mail by account and domain

_WAITING_HERE = (
    f"recipients WHERE simulated = 0 AND low = :low AND next_attempt_at IS NOT NULL AND {owned('recipients')}"
)
_ACCOUNTS = distinct("account_id", _WAITING_HERE)
_DOMAINS = f"{distinct('domain', f'{_WAITING_HERE} AND account_id = :account_id', ':after')} LIMIT :most"
_LANE = f"""{SELECT_DUE} WHERE r.simulated = 0 AND r.low = :low AND r.account_id = :account_id AND r.domain = :domain
    AND r.next_attempt_at <= :now AND {owned("r")} ORDER BY r.next_attempt_at LIMIT :most"""
_RAMP_LANE = _LANE.replace(
    "ORDER BY",
    """AND CASE WHEN r.bucket IS NULL THEN ''
        ELSE coalesce(r.route, CASE WHEN r.bucket < :percent THEN 'direct' ELSE 'relay' END) END = :via ORDER BY""",
)


class Lanes(StorePart):
    """Accounts, domains and recipients of one priority."""

    async def accounts(self, low: int) -> list[str]:
        return await self.engine.all(str, _ACCOUNTS, {"low": low})

    async def domains(self, low: int, account_id: str, after: str, most: int) -> list[str]:
        bindings = {"low": low, "account_id": account_id, "after": after, "most": most}
        return await self.engine.all(str, _DOMAINS, bindings)

    async def due(
        self, low: int, account_id: str, domain: str, most: int, ramp: RampLane | None = None
    ) -> list[DueRecipient]:
        """Due recipients, oldest first; with `ramp` only those of one route."""
        bindings = {"low": low, "account_id": account_id, "domain": domain, "now": self.env.now(), "most": most}
        if ramp is None:
            return await self.engine.all(DueRecipient, _LANE, bindings)
        via = "" if ramp.via is None else ramp.via.value
        return await self.engine.all(DueRecipient, _RAMP_LANE, bindings | {"via": via, "percent": ramp.percent})
