"""Accepts messages into the store, hands them to delivery, and reads them back.

One transaction writes all rows of a message. It writes all waiting messages, with one or two statements per table;
the result is the same as writing them one after the other. Delivery gets a message after its commit.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from appliance.concurrency.ttl_cache import RecentBytes
from appliance.concurrency.wake import Wake
from appliance.environment import Environment, identifier_time
from appliance.errors import Code, Refused
from appliance.model.accounts import LedgerKind
from appliance.model.database import Feature
from appliance.model.mail import (
    KEY_LIFETIME,
    BounceClass,
    FailureReason,
    Message,
    NewMessage,
    Outcome,
    RecipientStatus,
    RememberedSend,
    Source,
)
from appliance.store.accounts import LedgerLine, write_ledger
from appliance.store.body_parts import HEAD, INLINE, BodyParts, are_there, insert, of_message, over_quota, written_bytes
from appliance.store.engine import Bulk, StorePart, T, Tx, busy, first
from appliance.store.message_records import READ_ON_LOOP, TO_SEND, ToSend, read_message, read_mime
from appliance.store.new_mail import Acceptance, Fresh, NewMail, due_recipients
from appliance.store.queue import WRITTEN_ON_LOOP, record
from appliance.store.scheduled import forget_scheduled
from appliance.store.suppressions import suppression_notes
from appliance.store.webhooks import WebhookPosts
from appliance.times import DAY, SECOND

# Everything that may forbid a message, read before anything is written: a refusal has nothing to roll back. An expired
# key counts as none.
_MAY_SEND = Bulk("""WITH new (number, account_id, scope, key, now, day) AS (VALUES {(?i, ?, ?, ?, ?i, ?i)})
SELECT new.number, a.credits, a.daily_cap, a.suspended, a.stored_bytes,
    EXISTS (SELECT 1 FROM suppressions s WHERE s.account_id = a.id),
    EXISTS (SELECT 1 FROM unsubscriptions u WHERE u.account_id = a.id),
    EXISTS (SELECT 1 FROM idempotency_keys k WHERE k.scope = new.scope AND k.key = new.key AND k.expires_at > new.now),
    (SELECT recipients FROM daily_volume v WHERE v.account_id = a.id AND v.day = new.day)
FROM new CROSS JOIN accounts a ON a.id = new.account_id""")
# Each of these three succeeds only if no other transaction has taken the key, the daily volume or the credits since
# they were read. A statement does not return the rows that it did not write.
_CLAIM_KEYS = Bulk(f"""INSERT INTO idempotency_keys (scope, key, fingerprint, message_id, expires_at)
    VALUES {{(?, ?, ?b, ?, ?i)}} ON CONFLICT (scope, key) DO UPDATE SET fingerprint = excluded.fingerprint,
        message_id = excluded.message_id, expires_at = excluded.expires_at
    WHERE idempotency_keys.expires_at <= excluded.expires_at - {KEY_LIFETIME} RETURNING scope, key""")
_COUNT_DAY = """INSERT INTO daily_volume (account_id, day, recipients) VALUES (:account_id, :day, :recipients)
    ON CONFLICT (account_id, day) DO UPDATE SET recipients = daily_volume.recipients + excluded.recipients
    WHERE daily_volume.recipients + excluded.recipients <= :cap RETURNING recipients"""
_CHARGE = """UPDATE accounts SET credits = credits - :amount, stored_bytes = stored_bytes + :stored
    WHERE id = :account_id AND coalesce(credits, 0) >= :amount RETURNING credits, daily_cap, suspended, stored_bytes"""
_LOCK_ACCOUNTS = Bulk("SELECT id FROM accounts WHERE id IN ({?}) ORDER BY id")


# ---- accepting
class KeyTaken(Exception):
    """Another message took this idempotency key first; nothing was written."""


class _Standing(Struct):
    """The account as this transaction sees it, not as it was at authentication."""

    balance: int | None
    daily_cap: int | None
    suspended: int
    stored_bytes: int
    has_suppressions: int
    has_unsubscriptions: int
    key_taken: int
    sent_today: int | None
    suppressed: dict[str, str] = field(default_factory=dict)  # reasons by recipient id
    size: int = 0  # that this message adds to stored_bytes


_Accepted = tuple[NewMessage, _Standing, int]  # with the credits for each recipient


class NewBatch(Struct, frozen=True):
    """Messages of one request. The first accepted one gets the key and the receipt."""

    messages: Sequence[NewMessage]
    skip: bool  # accept those that are not refused
    receipt: Callable[[Sequence[Acceptance | Exception]], bytes]  # the 202 as JSON

    def accepts(self, results: Sequence[Acceptance | Exception]) -> bool:
        """Whether anything is written."""
        return (any if self.skip else all)(isinstance(result, Acceptance) for result in results)


def accept(tx: Tx, env: Environment, news: Sequence[NewMessage]) -> list[Acceptance | Exception]:
    """Write these messages. Return one result per message: the refusal, which writes nothing, or the acceptance."""
    standings, earlier = _standings(tx, news), _Earlier()
    results: list[Acceptance | Exception] = [busy()] * len(news)
    accepted, by_themselves = list[_Accepted](), list[int]()
    for number, (new, standing) in enumerate(zip(news, standings, strict=True)):
        if len(news) > 1 and standing is not None and (standing.daily_cap is not None or standing.suppressed):
            by_themselves.append(number)  # it changes more of its account than the balance
        else:
            results[number] = _decide(new, standing, earlier, accepted) if are_there(tx, new) else busy()
    if not _claim_keys(tx, accepted):
        if len(news) > 1:
            raise busy()  # all run again, one by one: later ones counted on it
        return [KeyTaken()]
    if by_themselves:  # each locks its account: lock all now, in the order that others use
        tx.lock(_LOCK_ACCOUNTS, [(account_id,) for account_id in sorted({new.account_id for new in news})])
    _write(tx, env, accepted)
    for number in by_themselves:
        (results[number],) = accept(tx, env, [news[number]])
    return results


def accept_batch(tx: Tx, env: Environment, batch: NewBatch) -> list[Acceptance | Exception]:
    """Write these messages, or with `skip` those that are not refused, else nothing. All credits are needed at once."""
    results, accepted = _decide_batch(tx, batch)
    if not batch.accepts(results):
        return results
    if not all(are_there(tx, new) for new, _, _ in accepted):
        raise busy()
    receipt = batch.receipt(results)
    (new, standing, charged), (_, last, _) = accepted[0], accepted[-1]
    if new.may_store is not None and last.stored_bytes + last.size + len(receipt) > new.may_store:
        raise over_quota(last.stored_bytes, new.may_store)
    standing.size += len(receipt)
    accepted[0] = replace(new, receipt=receipt, idempotency=batch.messages[0].idempotency), standing, charged
    if not _claim_keys(tx, accepted):
        raise KeyTaken
    _write(tx, env, accepted)
    return results


def _decide_batch(tx: Tx, batch: NewBatch) -> tuple[list[Acceptance | Exception], list[_Accepted]]:
    earlier, accepted = _Earlier(), list[_Accepted]()
    pairs = zip(batch.messages, _standings(tx, batch.messages), strict=True)
    results = [_decide(new, standing, earlier, accepted) for new, standing in pairs]
    for result in results:
        if not isinstance(result, Acceptance | Refused):
            raise result
    return results, accepted


def refusal_now(tx: Tx, new: NewMessage) -> Exception | None:
    """Why a message would be refused now: checked before its parts are written, and again on acceptance."""
    (standing,) = _standings(tx, [new])
    result = _decide(new, standing, _Earlier(), [])
    return result if isinstance(result, Exception) else None


# ---- what decides
def _standings(tx: Tx, news: Sequence[NewMessage]) -> list[_Standing | None]:
    bindings = []
    for number, new in enumerate(news):
        claim = new.idempotency
        scope, key = (None, None) if claim is None else (claim.scope, claim.key)
        bindings.append((number, new.account_id, scope, key, new.created_at, new.created_at // DAY))
    results: list[_Standing | None] = [None] * len(news)
    for number, *columns in _MAY_SEND.run(tx, bindings):
        results[number] = _Standing(*columns)
    _note_suppressed(tx, [(new, item) for new, item in zip(news, results, strict=True) if item is not None])
    return results


def _note_suppressed(tx: Tx, pairs: Sequence[tuple[NewMessage, _Standing]]) -> None:
    of_suppressing = [new for new, standing in pairs if standing.has_suppressions]
    of_unsubscribed = [new for new, standing in pairs if standing.has_unsubscriptions]
    if not (of_suppressing or of_unsubscribed):
        return
    notes = suppression_notes(tx, of_suppressing, of_unsubscribed)
    for new, standing in pairs if notes else ():
        standing.suppressed = {to.id: notes[to.id] for to in new.recipients if to.id in notes}


def _decide(
    new: NewMessage, standing: _Standing | None, earlier: "_Earlier", accepted: list[_Accepted]
) -> Acceptance | Exception:
    if standing is None:
        return LookupError(f"there is no account {new.account_id}")
    earlier.change(standing, new)
    if (refusal := _refusal(new, standing)) is not None:
        return refusal
    charged = 0 if new.source is Source.TEST or standing.balance is None or not new.credits else 1
    accepted.append((new, standing, charged))
    earlier.add(new, standing, charged)
    return Acceptance(charged, bool(standing.suppressed))


class _Earlier(Struct):
    """What earlier messages of the same transaction have taken."""

    credits: Counter[str] = field(default_factory=Counter)  # by account
    bytes: Counter[str] = field(default_factory=Counter)  # by account
    recipients: Counter[str] = field(default_factory=Counter)  # by account with a daily cap
    keys: dict[tuple[str, str], int] = field(default_factory=dict)  # until when

    def add(self, new: NewMessage, standing: _Standing, charged: int) -> None:
        self.credits[new.account_id] += charged * new.credits
        self.bytes[new.account_id] += standing.size
        if standing.daily_cap is not None and new.source is not Source.TEST:
            self.recipients[new.account_id] += len(new.recipients)
        if new.idempotency is not None:
            self.keys[new.idempotency.scope, new.idempotency.key] = new.idempotency.expires_at

    def change(self, standing: _Standing, new: NewMessage) -> None:
        standing.size = of_message(new)
        standing.stored_bytes += self.bytes[new.account_id]
        if standing.balance is not None:
            standing.balance -= self.credits[new.account_id]
        if standing.daily_cap is not None:
            standing.sent_today = (standing.sent_today or 0) + self.recipients[new.account_id]
        if new.idempotency is not None:
            taken_until = self.keys.get((new.idempotency.scope, new.idempotency.key), 0)
            standing.key_taken |= taken_until > new.created_at


def _refusal(new: NewMessage, standing: _Standing) -> Exception | None:
    if standing.key_taken:
        return KeyTaken()
    if standing.suspended:
        return Refused(Code.ACCOUNT_SUSPENDED, "This account is suspended. Ask the operator to resume it.")
    if new.may_store is not None and standing.stored_bytes + standing.size > new.may_store:
        return over_quota(standing.stored_bytes, new.may_store)
    if new.source is Source.TEST:
        return None
    sent_today = standing.sent_today or 0
    if standing.daily_cap is not None and sent_today + len(new.recipients) > standing.daily_cap:
        text = f"The account may send to {standing.daily_cap} recipients a day (UTC) while it warms up,"
        text += f" and has sent to {sent_today} today. Retry tomorrow."
        seconds = -((new.created_at % DAY - DAY) // SECOND)  # rounded up
        return Refused(Code.WARMUP_LIMITED, text, retry_after=seconds)
    if standing.balance is not None and standing.balance < new.credits:
        text = f"This message needs {new.credits} credits and the account has {standing.balance}."
        return Refused(Code.INSUFFICIENT_CREDITS, f"{text} Add credits and send it again.")
    return None


def _is_large(messages: Sequence[NewMessage]) -> bool:
    recipients = sum(len(new.recipients) for new in messages)
    return recipients >= LARGE_RECIPIENTS or sum(map(written_bytes, messages)) > WRITTEN_ON_LOOP


def _divided(messages: Sequence[NewMessage]) -> list[NewMessage]:
    """Mark the messages to write in parts, beyond what one commit holds (see `body_parts.py`)."""
    divided, inline = [], 0
    for new in messages:
        size = len(new.mime)
        in_parts = size > HEAD and inline + size > INLINE
        inline += HEAD if in_parts else size
        divided.append(replace(new, in_parts=True) if in_parts else new)
    return divided


# ---- writing, as a list of steps
def _claim_keys(tx: Tx, accepted: Sequence[_Accepted]) -> bool:
    """Take the idempotency keys; False if another message took one since the check."""
    keys = sorted(
        (claim.scope, claim.key, claim.fingerprint, new.id, claim.expires_at)
        for new, _, _ in accepted
        if (claim := new.idempotency) is not None
    )
    return len(_CLAIM_KEYS.run(tx, keys)) == len(keys)


def _write(tx: Tx, env: Environment, accepted: Sequence[_Accepted]) -> None:
    """Write all but the keys; accounts late, because other transactions wait for those rows until the commit."""
    insert(tx, [(new, charged) for new, _, charged in accepted])
    _charge(tx, env, accepted)
    for new, standing, _ in accepted:
        if standing.daily_cap is not None and new.source is not Source.TEST:
            row = {"account_id": new.account_id, "day": new.created_at // DAY, "recipients": len(new.recipients)}
            if first(tx, _COUNT_DAY, row | {"cap": standing.daily_cap}) is None:
                raise busy()
    _bounce_suppressed(
        tx, env, [(new, standing, charged) for new, standing, charged in accepted if standing.suppressed]
    )


def _bounce_suppressed(tx: Tx, env: Environment, accepted: Sequence[_Accepted]) -> None:
    outcomes, never_sent = list[Outcome](), list[tuple[str, str]]()
    for new, standing, charged in accepted:
        bounced = partial(Outcome, status=RecipientStatus.BOUNCED, attempts=(), at=new.created_at)
        bounced = partial(bounced, bounce_class=BounceClass.OTHER, failure=FailureReason.SUPPRESSED)
        outcomes += [
            bounced(recipient, note=standing.suppressed[recipient.id])
            for recipient in due_recipients(Fresh(new, charged))
            if recipient.id in standing.suppressed
        ]
        if new.scheduled_at is not None and len(standing.suppressed) == len(new.recipients):
            never_sent.append((new.account_id, new.id))
    if outcomes:
        record(tx, env, outcomes)
    if never_sent:
        forget_scheduled(tx, never_sent)


def _charge(tx: Tx, env: Environment, accepted: Iterable[_Accepted]) -> None:
    """Count bytes and take credits, one statement per account; write a ledger line per message."""
    charged_to, stored = dict[str, list[NewMessage]](), Counter[str]()
    results, may_store = dict[str, tuple[int | None, int]](), dict[str, int]()
    for new, standing, charged in accepted:
        stored[new.account_id] += standing.size
        results[new.account_id] = standing.daily_cap, standing.suspended
        if new.may_store is not None:
            may_store[new.account_id] = new.may_store
        if charged:
            charged_to.setdefault(new.account_id, []).append(new)
    lines: list[LedgerLine] = []
    for account_id in sorted(stored):  # the same order everywhere prevents deadlocks
        news = charged_to.get(account_id, [])
        amount = sum(new.credits for new in news)
        row = first(tx, _CHARGE, {"account_id": account_id, "amount": amount, "stored": stored[account_id]})
        if row is None or row[1:3] != results[account_id] or row[3] > may_store.get(account_id, row[3]):
            raise busy()  # the account has changed since it was read
        balance = (row[0] or 0) + amount
        for new in news:
            balance -= new.credits
            lines.append((account_id, LedgerKind.RESERVE, -new.credits, balance, new.id, None))
    write_ledger(tx, env, lines)


_REMEMBERED = """SELECT k.fingerprint, m.request_id, b.receipt, m.id FROM idempotency_keys k
    JOIN messages m ON m.account_id = :account_id AND m.id = k.message_id
    JOIN message_bodies b ON b.message_id = k.message_id
    WHERE k.scope = :scope AND k.key = :key AND k.expires_at > :now"""
_NEWEST = "SELECT max(message_id) FROM recipients"  # the end of the table: ids sort by time

# ---- the messages of the store

LARGE_RECIPIENTS = 16  # writing so many, all of them suppressed, takes 3 ms: too long for the event loop


class Messages(StorePart):
    parts: BodyParts
    posts: WebhookPosts
    new_mail: NewMail  # for delivery
    new_simulated_mail: Wake  # for its simulation
    # Large messages that were just accepted, by id: delivery does not read them again. Their line ends are checked.
    recent: RecentBytes[str] = field(default_factory=partial(RecentBytes[str], 8 * 2**20))

    async def accept(self, new: NewMessage) -> Acceptance:
        """Write message, recipients, credits and key in one durable transaction, then hand the message to delivery."""
        if new.scheduled_at is not None:
            await self.engine.fence_older_nodes(Feature.SCHEDULE)
        acceptance = await self._announced([new], self._write(new))
        self._hand_over(new, acceptance)
        if acceptance.has_suppressed:
            self.posts.add_new([new.account_id])  # suppressed recipients bounce at once
        return acceptance

    async def _announced(self, news: Sequence[NewMessage], write: Awaitable[T]) -> T:
        """Announce messages for delivery before their commit: a poll between it and the offer leaves them alone."""
        coming = [new for new in news if not new.simulated and new.scheduled_at is None]
        for new in coming:
            self.new_mail.expect(new.id, new.low)
        try:
            return await write
        except BaseException:
            for new in coming:
                self.new_mail.give_up(new.id)
            raise

    def _hand_over(self, new: NewMessage, acceptance: Acceptance) -> None:
        if new.scheduled_at is None and new.simulated:
            self.new_simulated_mail.set()
        elif new.scheduled_at is None:
            self.new_mail.offer(new, acceptance)

    async def _write(self, new: NewMessage) -> Acceptance:
        if len(new.mime) > INLINE:
            return await self._write_in_parts(new)
        return await self.engine.write_item(self._accept, new, large=_is_large([new]))

    async def _write_in_parts(self, new: NewMessage) -> Acceptance:
        if (refusal := await self.engine.snapshot(lambda tx: refusal_now(tx, new))) is not None:
            try:
                raise refusal
            finally:
                del refusal  # or it and this frame would keep each other, and the message, until the collector comes
        async with self.parts.written(new.id, new.mime):
            return await self.engine.write_item(self._accept, new)

    async def accept_batch(self, batch: NewBatch) -> list[Acceptance | Exception]:
        """Write messages in one durable transaction, and hand them to delivery; return the result of each message."""
        batch = NewBatch(_divided(batch.messages), batch.skip, batch.receipt)
        if any(new.scheduled_at is not None for new in batch.messages):
            await self.engine.fence_older_nodes(Feature.SCHEDULE)
        results = await self._announced(batch.messages, self._write_batch(batch))
        is_accepted = batch.accepts(results)
        for new, result in zip(batch.messages, results, strict=True):
            if is_accepted and isinstance(result, Acceptance):
                self._hand_over(new, result)
            else:
                self.new_mail.give_up(new.id)
        if is_accepted and any(isinstance(result, Acceptance) and result.has_suppressed for result in results):
            self.posts.add_new([batch.messages[0].account_id])
        return results

    async def _write_batch(self, batch: NewBatch) -> list[Acceptance | Exception]:
        in_parts = [new for new in batch.messages if new.in_parts]
        if in_parts:
            results, accepted = await self.engine.scan(lambda tx: _decide_batch(tx, batch), in_parts[0].account_id)
            if not batch.accepts(results):
                return results
            in_parts = [new for new, _, _ in accepted if new.in_parts]
        large = _is_large(batch.messages)
        async with AsyncExitStack() as parts:
            for new in in_parts:
                await parts.enter_async_context(self.parts.written(new.id, new.mime))
            return await self.engine.write(lambda tx: accept_batch(tx, self.env, batch), large=large, locks=True)

    def _accept(self, tx: Tx, news: Sequence[NewMessage]) -> list[Acceptance | Exception]:
        return accept(tx, self.env, news)

    async def remembered(self, account_id: str, scope: str, key: str) -> RememberedSend | None:
        bindings = {"account_id": account_id, "scope": scope, "key": key, "now": self.env.now()}
        return await self.engine.one(RememberedSend, _REMEMBERED, bindings)

    async def read(self, account_id: str, message_id: str) -> Message | None:
        return await self.engine.snapshot(lambda tx: read_message(tx, account_id, message_id))

    async def to_send(self, message_id: str) -> ToSend:
        """A message that is not final yet; `content` reads bytes that are too many."""
        return (await self.engine.all(ToSend, TO_SEND, {"id": message_id, "most": READ_ON_LOOP}))[0]

    async def content(self, message_id: str) -> bytes:
        if (mime := await self.engine.scan(lambda tx: read_mime(tx, message_id))) is None:
            raise LookupError(f"there are no bytes of {message_id}")
        return mime

    async def mime(self, message_id: str) -> bytes | None:
        return await self.engine.snapshot(lambda tx: read_mime(tx, message_id))

    async def newest_at(self) -> int | None:
        ((newest,),) = await self.engine.rows(_NEWEST, {})
        return None if newest is None else identifier_time(newest)
