"""Two nodes that write the same at the same moment: what one of them has read is no longer true when it writes."""

from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec
import outcome
import psycopg
import pytest
from psycopg import errors

from appliance.errors import Code, Refused
from appliance.model.accounts import Account
from appliance.model.mail import DueRecipient, MessageStatus, Outcome, RecipientStatus, Suppression
from appliance.store import KeyTaken, Store
from appliance.store.body_parts import IN_HAND, INLINE, PART, of_message
from appliance.store.engine import Tx, rows, run
from appliance.store.feedback import take_out
from appliance.store.messages import accept
from appliance.store.new_mail import Acceptance
from appliance.store.postgresql.transactions import LOCKED_FROM, RERUNS
from appliance.telemetry.metrics import STORE_RERUNS
from tests.store.postgresql.stepping import (
    FIRST,
    SECOND,
    Barrier,
    Meet,
    check_books,
    nodes,
    stopping,
)
from tests.store.samples import CREDITS, DAY, HASH, Clock, Messages, existing
from tests.store.samples import outcome as result_of
from tests.store.test_body_parts_stored_bytes import counted, recounted

DELIVERED, BOUNCED, DEFERRED = RecipientStatus.DELIVERED, RecipientStatus.BOUNCED, RecipientStatus.DEFERRED
Nodes = tuple[Store, Store]


@pytest.fixture
async def two(url: str, clock: Clock) -> AsyncIterator[Nodes]:
    async with nodes(url, clock, FIRST, SECOND) as (one, other):
        yield one, other
        await check_books(one)
        assert await counted(one) == await recounted(one)


@pytest.fixture
async def account(two: Nodes) -> Account:
    return await two[0].accounts.create("demo", "demo@example.org", HASH, credit=CREDITS)


def refused(result: outcome.Outcome[object], code: Code) -> bool:
    return isinstance(result, outcome.Error) and isinstance(result.error, Refused) and result.error.code is code


async def count(store: Store, table: str) -> int:
    ((found,),) = await store.engine.rows(f"SELECT count(*) FROM {table}", {})
    return int(found)


# ---- idempotency keys

CLAIM = "INSERT INTO idempotency_keys"


@pytest.mark.parametrize("expired", [False, True])
async def test_a_key_that_was_taken_since_it_was_looked_for(
    two: Nodes, messages: Messages, clock: Clock, meet: Meet, expired: bool
) -> None:
    if expired:
        await two[0].messages.accept(messages.new(key="k"))
        clock.now += 2 * DAY
    ours, theirs = messages.new(key="k"), messages.new(key="k")
    first, second = await meet(CLAIM, lambda: two[0].messages.accept(ours), lambda: two[1].messages.accept(theirs))
    assert second.unwrap() == Acceptance(1)
    assert isinstance(first, outcome.Error)
    assert isinstance(first.error, KeyTaken)
    assert await count(two[0], "messages") == 1 + expired
    found = existing(await two[0].messages.remembered(messages.account_id, "key:1", "k"))
    assert found.message_id == theirs.id


@pytest.mark.parametrize("expired", [False, True])
async def test_a_key_being_taken(two: Nodes, messages: Messages, clock: Clock, meet: Meet, expired: bool) -> None:
    if expired:
        await two[0].messages.accept(messages.new(key="k"))
        clock.now += 2 * DAY
    ours, theirs = messages.new(key="k"), messages.new(key="k")
    first, second = await meet(
        CLAIM, lambda: two[0].messages.accept(ours), lambda: two[1].messages.accept(theirs), queued=True
    )
    assert first.unwrap() == Acceptance(1)
    assert isinstance(second, outcome.Error)
    assert isinstance(second.error, KeyTaken)
    assert await count(two[0], "messages") == 1 + expired


# ---- the account

CHARGE = "UPDATE accounts SET credits = credits -"


async def test_credits_that_were_spent_since_they_were_looked_for(two: Nodes, messages: Messages, meet: Meet) -> None:
    """Two messages that together cost more than there is: one is refused."""
    ours = messages.new(*[f"{number}@example.net" for number in range(60)])
    theirs = messages.new(*[f"{number}@example.net" for number in range(60)])
    first, second = await meet(CHARGE, lambda: two[0].messages.accept(ours), lambda: two[1].messages.accept(theirs))
    assert second.unwrap() == Acceptance(1)
    assert refused(first, Code.INSUFFICIENT_CREDITS)
    assert (await two[0].accounts.find(messages.account_id)).credits == CREDITS - 60
    assert await count(two[0], "messages") == 1


async def test_credits_that_are_being_spent(two: Nodes, messages: Messages, meet: Meet) -> None:
    ours, theirs = messages.new("a@example.net"), messages.new("b@example.net", "c@example.net")
    first, second = await meet(
        CHARGE, lambda: two[0].messages.accept(ours), lambda: two[1].messages.accept(theirs), queued=True
    )
    assert (first.unwrap(), second.unwrap()) == (Acceptance(1), Acceptance(1))
    lines = await two[0].accounts.ledger(messages.account_id)
    assert [line.balance for line in lines] == [CREDITS - 3, CREDITS - 1, CREDITS]


async def test_a_grant_while_credits_are_spent(two: Nodes, messages: Messages, meet: Meet) -> None:
    first, second = await meet(
        CHARGE,
        lambda: two[0].messages.accept(messages.new()),
        lambda: two[1].accounts.set_credits(messages.account_id, 7),
        queued=True,
    )
    first.unwrap()
    second.unwrap()
    assert (await two[0].accounts.find(messages.account_id)).credits == 7


async def test_a_daily_cap_that_was_reached_since_it_was_looked_for(two: Nodes, messages: Messages, meet: Meet) -> None:
    """Two messages that together are more than the day's cap: one is refused."""
    await two[0].accounts.set_daily_cap(messages.account_id, 5)
    ours = messages.new(*[f"{number}@example.net" for number in range(3)])
    theirs = messages.new(*[f"{number}@example.net" for number in range(3)])
    first, second = await meet(CHARGE, lambda: two[0].messages.accept(ours), lambda: two[1].messages.accept(theirs))
    second.unwrap()
    assert refused(first, Code.WARMUP_LIMITED)
    assert await two[0].engine.rows("SELECT recipients FROM daily_volume", {}) == [(3,)]


@pytest.mark.parametrize("by_itself", ["capped", "suppressed"])
async def test_mail_of_several_accounts_in_two_orders(two: Nodes, meet: Meet, by_itself: str) -> None:
    """Messages that are accepted by themselves, in one transaction: no node waits for one that waits for it."""
    accounts = [await two[0].accounts.create(f"a{each}", f"a{each}@example.org", HASH) for each in range(2)]
    for account in accounts:
        if by_itself == "capped":
            await two[0].accounts.set_daily_cap(account.id, 5)
        else:
            await two[0].suppressions.add(account.id, "b@example.net", "manual")

    async def send(store: Store, order: list[Account]) -> list[object]:
        env = store.messages.env
        news = [Messages(env, account.id).new() for account in order]
        return list(await store.engine.write(lambda tx: accept(tx, env, news), locks=True))

    reruns = STORE_RERUNS.values[""]
    ended = await meet(CHARGE, lambda: send(two[0], accounts[::-1]), lambda: send(two[1], accounts), queued=True)
    accepted = Acceptance(0) if by_itself == "capped" else Acceptance(0, has_suppressed=True)
    assert [result.unwrap() for result in ended] == [[accepted] * 2] * 2
    assert STORE_RERUNS.values[""] == reruns


async def test_a_capped_message_and_one_among_others(two: Nodes, messages: Messages, meet: Meet) -> None:
    await two[0].accounts.set_daily_cap(messages.account_id, 5)
    env, several = messages.env, [messages.new(), messages.new()]
    reruns = STORE_RERUNS.values[""]
    ended = await meet(
        "accounts WHERE id IN",
        lambda: two[0].engine.write(lambda tx: accept(tx, env, several), locks=True),
        lambda: two[1].messages.accept(messages.new()),
        queued=True,
    )
    assert all(isinstance(each, outcome.Value) for each in ended), ended
    assert STORE_RERUNS.values[""] == reruns


async def test_a_daily_cap_that_comes_while_mail_is_accepted(two: Nodes, messages: Messages, meet: Meet) -> None:
    first, second = await meet(
        CHARGE,
        lambda: two[0].messages.accept(messages.new()),
        lambda: two[1].accounts.set_daily_cap(messages.account_id, 5),
    )
    first.unwrap()
    second.unwrap()
    assert await two[0].engine.rows("SELECT recipients FROM daily_volume", {}) == [(1,)]


async def test_an_account_that_is_changed_again_and_again_while_mail_is_accepted(
    two: Nodes, url: str, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    caps = iter([1_001, 1_002, 1_003])

    class Overtaking(Barrier):
        def stop(self, node: str, statement: str, *, after: bool) -> None:
            if node == FIRST and not after and CHARGE in statement and (cap := next(caps, None)) is not None:
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute("UPDATE accounts SET daily_cap = %s", (cap,))

    with stopping(monkeypatch, Overtaking(FIRST, CHARGE)):
        assert await two[0].messages.accept(messages.new()) == Acceptance(1)
    assert next(caps, None) is None


async def test_an_account_that_was_suspended_since_it_was_looked_at(two: Nodes, messages: Messages, meet: Meet) -> None:
    first, second = await meet(
        CHARGE,
        lambda: two[0].messages.accept(messages.new()),
        lambda: two[1].accounts.set_suspended(messages.account_id, True),
    )
    second.unwrap()
    assert refused(first, Code.ACCOUNT_SUSPENDED)
    assert await count(two[0], "messages") == 0


async def test_a_quota_that_was_used_since_it_was_looked_at(two: Nodes, messages: Messages, meet: Meet) -> None:
    """Two messages that together are more than the account may keep: one is refused."""
    ours, theirs = messages.new(), messages.new()
    ours = msgspec.structs.replace(ours, may_store=of_message(ours) + 10)
    first, second = await meet(CHARGE, lambda: two[0].messages.accept(ours), lambda: two[1].messages.accept(theirs))
    second.unwrap()
    assert refused(first, Code.RATE_LIMITED)
    assert await count(two[0], "messages") == 1


# ---- outcomes
async def due(store: Store, messages: Messages, *addresses: str) -> list[DueRecipient]:
    await store.messages.accept(messages.new(*addresses))
    return sorted(await store.queue.due(simulated=True, most=10), key=lambda each: each.id)


async def status(store: Store, messages: Messages, recipient: DueRecipient) -> MessageStatus:
    message = existing(await store.messages.read(messages.account_id, recipient.message_id))
    return message.status


async def test_two_nodes_finish_the_last_recipients(two: Nodes, messages: Messages, clock: Clock, meet: Meet) -> None:
    one, other = await due(two[0], messages, "a@example.net", "b@example.net")
    first, second = await meet(
        "GROUP BY status",
        lambda: two[0].queue.record([result_of(one, DELIVERED, clock())]),
        lambda: two[1].queue.record([result_of(other, BOUNCED, clock())]),
        queued=True,
    )
    first.unwrap()
    second.unwrap()
    assert await status(two[0], messages, one) is MessageStatus.PARTIAL


async def test_an_outcome_while_the_rest_is_cancelled(two: Nodes, messages: Messages, clock: Clock, meet: Meet) -> None:
    one, other = await due(two[0], messages, "a@example.net", "b@example.net")
    two[0].under_delivery.begin([one.id])
    first, second = await meet(
        "ORDER BY r.id",
        lambda: two[0].queue_control.cancel(one.message_id, "a test"),
        lambda: two[1].queue.record([result_of(one, DELIVERED, clock())]),
        after=True,
    )
    assert first.unwrap() == 1
    second.unwrap()
    assert await status(two[0], messages, other) is MessageStatus.PARTIAL


@pytest.mark.parametrize("theirs", [DELIVERED, DEFERRED])
async def test_an_outcome_that_another_has_recorded_before(
    two: Nodes, messages: Messages, clock: Clock, meet: Meet, theirs: RecipientStatus
) -> None:
    (recipient,) = await due(two[0], messages)
    first, second = await meet(
        "UPDATE recipients SET status",
        lambda: two[0].queue.record([result_of(recipient, BOUNCED, clock())]),
        lambda: two[1].queue.record([result_of(recipient, theirs, clock())]),
    )
    first.unwrap()
    second.unwrap()
    found = await two[0].engine.rows("SELECT status, attempt_count FROM recipients", {})
    assert found == [(theirs.value, 1)]
    assert await count(two[0], "attempts") == 1
    assert (await two[0].accounts.find(messages.account_id)).credits == CREDITS - 1


async def test_an_outcome_that_another_is_recording(two: Nodes, messages: Messages, clock: Clock, meet: Meet) -> None:
    (recipient,) = await due(two[0], messages)
    first, second = await meet(
        "UPDATE recipients SET status",
        lambda: two[0].queue.record([result_of(recipient, BOUNCED, clock())]),
        lambda: two[1].queue.record([result_of(recipient, BOUNCED, clock())]),
        queued=True,
    )
    first.unwrap()
    second.unwrap()
    assert await count(two[0], "attempts") == await count(two[0], "events") == 1
    assert (await two[0].accounts.find(messages.account_id)).credits == CREDITS


async def test_two_bounces_of_one_address(two: Nodes, messages: Messages, clock: Clock, meet: Meet) -> None:
    (one,) = await due(two[0], messages)
    *_, other = await due(two[0], messages)

    def bounce(recipient: DueRecipient) -> Outcome:
        return result_of(recipient, BOUNCED, clock(), suppress=Suppression("b@example.net", "bounce", clock()))

    first, second = await meet(
        "INSERT INTO suppressions",
        lambda: two[0].queue.record([bounce(one)]),
        lambda: two[1].queue.record([bounce(other)]),
        queued=True,
    )
    first.unwrap()
    second.unwrap()
    assert await count(two[0], "suppressions") == 1


# ---- parts of large messages
async def test_parts_that_another_node_clears_while_their_message_is_accepted(
    two: Nodes, messages: Messages, clock: Clock, meet: Meet
) -> None:
    new = messages.new(size=INLINE + 10 * PART)

    async def clear() -> bool:
        clock.now += 2 * IN_HAND
        return (await two[1].body_parts.clear(1)).deleted > 0

    first, second = await meet("sum(length(content))", lambda: two[0].messages.accept(new), clear, queued=True)
    assert first.unwrap() == Acceptance(1)
    assert second.unwrap() is False
    assert await two[0].messages.mime(new.id) == new.mime


async def test_parts_of_another_node_are_left_alone(two: Nodes, messages: Messages, meet: Meet) -> None:
    new = messages.new(size=INLINE + 10 * PART)
    first, second = await meet(
        "FROM loose_parts WHERE message_id IN",
        lambda: two[0].messages.accept(new),
        lambda: two[1].body_parts.clear(1_000),
    )
    assert first.unwrap() == Acceptance(1)
    assert second.unwrap().deleted == 0


# ---- a hot account
async def test_an_account_that_is_always_written_can_still_be_changed(two: Nodes, url: str, account: Account) -> None:
    runs = 0
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("SET lock_timeout = '300ms'")

        def change(tx: Tx) -> None:
            nonlocal runs
            runs += 1
            rows(tx, "SELECT credits FROM accounts", {})  # from now on it sees this state
            with suppress(errors.LockNotAvailable):
                other.execute("UPDATE accounts SET stored_bytes = stored_bytes + 0")
            run(tx, "UPDATE accounts SET suspended = 1", {})

        await two[0].engine.write(change)
    assert LOCKED_FROM < runs < RERUNS
    assert (await two[0].accounts.find(account.id)).suspended


async def test_feedback_can_be_finished_while_other_feedback_always_comes(two: Nodes, url: str) -> None:
    store, runs = two[0].feedback, 0
    mail_id = await store.add(["b+token@bounces.example.com"], b"mail")
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("SET lock_timeout = '300ms'")

        def finish(tx: Tx) -> None:
            nonlocal runs
            runs += 1
            rows(tx, "SELECT id FROM feedback_mail", {})  # from now on it sees this state
            with suppress(errors.LockNotAvailable):
                other.execute("UPDATE feedback_counts SET mails = mails + 0")
            assert take_out(tx, [mail_id]) == {mail_id}

        await two[0].engine.write(finish)
    assert LOCKED_FROM < runs < RERUNS
    assert await store.engine.rows("SELECT 1 FROM feedback_counts", {}) == []
