"""Writing many messages in one batch ends as if they had come one by one, whatever the batch is made of."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import TypeVar

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.model.mail import DueRecipient, NewMessage, RecipientStatus, Source
from appliance.store import KeyTaken, Store
from appliance.store.engine import Row, Tx, rows, run
from appliance.store.messages import accept
from appliance.store.new_mail import Acceptance
from appliance.store.queue import SELECT_DUE, WRITTEN_ON_LOOP, record
from tests.store.samples import CREDITS, HASH, REPLIES, Clock, Database, Messages, at_once, outcome


async def test_credits_are_counted_through_the_batch(database: Database) -> None:
    async with database.open() as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=CREDITS)
        messages, refused = Messages(database.env, account.id), []

        async def send(recipients: int) -> None:
            try:
                await store.messages.accept(messages.new(*(f"{number}@x.example" for number in range(recipients))))
            except Refused as refusal:
                refused.append(refusal.code)

        await at_once(send, ((1 + number % 3,) for number in range(60)))
        lines = (await store.accounts.ledger(account.id, 1000))[::-1]
        assert [line.balance for line in lines] == [
            sum(each.amount for each in lines[: n + 1]) for n in range(len(lines))
        ]
        assert (await store.accounts.named("demo")).credits == lines[-1].balance
        assert 0 <= lines[-1].balance < 3
        assert set(refused) == {Code.INSUFFICIENT_CREDITS}


async def test_a_message_to_an_unknown_account_fails_alone(database: Database) -> None:
    async with database.open() as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=CREDITS)
        messages = Messages(database.env, account.id)

        async def send(new: NewMessage) -> None:
            await store.messages.accept(new)

        async def fail() -> None:
            with pytest.raises(LookupError):
                await store.messages.accept(replace(messages.new(), account_id="acc_unknown"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, messages.new())
            nursery.start_soon(fail)
            nursery.start_soon(send, messages.new())
        assert (await store.accounts.named("demo")).credits == CREDITS - 2


async def test_unusual_text_is_stored_as_it_is(store: Store, messages: Messages, database: Database) -> None:
    subject = "it's {rows} ?1 \0 \u2028 \U0001f4e8 'x'; --"
    news = [replace(messages.new(), subject=subject), replace(messages.new(), subject="{}")]
    assert await store.engine.write(lambda tx: accept(tx, messages.env, news)) == [Acceptance(1)] * 2
    found = [await store.messages.read(messages.account_id, new.id) for new in news]
    kept = subject.replace("\0", "\ufffd") if database.url else subject
    assert [message.subject for message in found if message] == [kept, "{}"]


async def test_text_that_cannot_be_stored_fails_alone(database: Database) -> None:
    async with database.open() as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=CREDITS)
        messages, results = Messages(database.env, account.id), []

        async def send(subject: str) -> None:
            try:
                await store.messages.accept(replace(messages.new(), subject=subject))
                results.append("accepted")
            except UnicodeEncodeError:
                results.append("failed")

        await at_once(send, ((subject,) for subject in ("one", "\udc80", "two")))
        assert sorted(results) == ["accepted", "accepted", "failed"]
        assert (await store.accounts.named("demo")).credits == CREDITS - 2


# ---- the same as one by one

T = TypeVar("T")
ADDRESSES = ("a@x.example", "b@x.example", "gone@x.example")
TABLES = {
    "accounts": "id, credits",
    "messages": "id, status, billing_status, credits_reserved",
    "message_bodies": "message_id, mime, receipt, signature",
    "recipients": "id, status, billing_status, charged, attempt_count, last_smtp_code, next_attempt_at, delivered_at",
    "attempts": "recipient_id, number, smtp_code",
    "events": "recipient_id, type",
    "idempotency_keys": "scope, key, message_id",
    "daily_volume": "account_id, recipients",
    "suppressions": "account_id, address",
}
WRITTEN = ("SELECT id FROM messages", "SELECT message_id FROM message_bodies", "SELECT message_id FROM recipients")


def rows_of(tx: Tx, tables: dict[str, str]) -> dict[str, list[Row]]:
    return {
        table: sorted(rows(tx, f"SELECT {columns} FROM {table}", {}), key=repr) for table, columns in tables.items()
    }


def ledger_adds_up(tx: Tx) -> bool:
    for account_id, balance in rows(tx, "SELECT id, credits FROM accounts WHERE credits IS NOT NULL", {}):
        query = "SELECT amount, balance FROM credit_ledger WHERE account_id = :account_id ORDER BY id"
        amounts, balances = zip(*rows(tx, query, {"account_id": account_id}), strict=True)
        if list(accumulate(amounts)) != list(balances) or balances[-1] != balance:
            return False
    return True


ADD_ACCOUNT = """INSERT INTO accounts (id, name, credits, daily_cap, suspended, created_at)
    VALUES (:id, :id, :credit, :cap, :suspended, 0)"""
ADD_GRANT = """INSERT INTO credit_ledger (account_id, id, kind, amount, balance, created_at)
    VALUES (:id, 'led_0', 'grant', :credit, :credit, 0)"""
ADD_SUPPRESSION = """INSERT INTO suppressions (account_id, address, reason, created_at)
    VALUES (:id, 'gone@x.example', 'manual', 0)"""


def add_accounts(tx: Tx) -> None:
    for number, credit, cap, suspended in ((0, 4, None, 0), (1, None, None, 0), (2, 9, 3, 0), (3, 9, None, 1)):
        account_id = f"acc_{number}"
        run(tx, ADD_ACCOUNT, {"id": account_id, "credit": credit, "cap": cap, "suspended": suspended})
        if credit is not None:
            run(tx, ADD_GRANT, {"id": account_id, "credit": credit})
    for account_id in ("acc_0", "acc_2"):
        run(tx, ADD_SUPPRESSION, {"id": account_id})


class Undone(Exception):
    """Ends a transaction of which nothing is to stay, with what it has found."""


async def found_by(store: Store, work: Callable[[Tx], T]) -> T:
    """What `work` finds in a database with those accounts; nothing of it stays."""

    def and_undo(tx: Tx) -> None:
        add_accounts(tx)
        raise Undone(work(tx))

    with pytest.raises(Undone) as undone:
        await store.engine.write(and_undo)
    found: T = undone.value.args[0]
    return found


Send = tuple[int, set[str], str | None, bool]
SENDS = st.lists(
    st.tuples(
        st.integers(0, 3),  # whose
        st.sets(st.sampled_from(ADDRESSES), min_size=1),
        st.sampled_from([None, "one", "two"]),  # its key
        st.booleans(),  # a test
    ),
    min_size=1,
    max_size=25,
)
RESULTS = st.lists(
    st.tuples(
        st.integers(0, 60),  # which recipient
        st.sampled_from([*REPLIES]),
        st.integers(0, 2),  # attempts
        st.sampled_from([None, b"signature"]),
    ),
    max_size=30,
)


def told(results: Sequence[Acceptance | Exception]) -> list[object]:
    return [result.code if isinstance(result, Refused) else type(result) for result in results]


def news_of(sends: list[Send], clock: Clock) -> list[NewMessage]:
    news = []
    for account, addresses, key, test in sends:
        messages = Messages(Environment(now=clock), f"acc_{account}")
        size = 2 * WRITTEN_ON_LOOP if key == "two" else 10
        news.append(messages.new(*sorted(addresses), key=key, test=test, size=size))
    return news


# Each example opens the database of the test anew, and finds nothing of the example before.
many_examples = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


@many_examples
@given(sends=SENDS)
async def test_messages_together_break_no_rule(database: Database, sends: list[Send]) -> None:
    news = news_of(sends, Clock())

    def work(tx: Tx) -> tuple[list[Acceptance | Exception], list[set[str]], bool, int]:
        results = accept(tx, Environment(now=Clock()), news)
        written = [{row[0] for row in rows(tx, query, {})} for query in WRITTEN]
        ((least,),) = rows(tx, "SELECT min(credits) FROM accounts", {})
        return results, written, ledger_adds_up(tx), least

    async with database.open(inline=True) as store:
        results, written, adds_up, least = await found_by(store, work)
    accepted = {new.id for new, result in zip(news, results, strict=True) if not isinstance(result, Exception)}
    assert written == [accepted] * len(WRITTEN)
    keys = [new.idempotency.key for new in news if new.id in accepted and new.idempotency is not None]
    assert len(keys) == len(set(keys))
    assert adds_up
    assert least >= 0
    for new, result in zip(news, results, strict=True):
        if new.account_id == "acc_3":
            assert isinstance(result, (Refused, KeyTaken))
        elif new.account_id == "acc_1":
            assert result == Acceptance(0) or isinstance(result, KeyTaken)
        elif not isinstance(result, Exception):
            listed = any(each.address == "gone@x.example" for each in new.recipients)
            assert result == Acceptance(int(new.source is not Source.TEST), listed)


@many_examples
@given(sends=SENDS)
async def test_simple_messages_end_as_one_by_one(database: Database, sends: list[Send]) -> None:
    simple: list[Send] = []
    for account, addresses, key, test in sends:
        if account != 2:
            simple.append((account, addresses - {"gone@x.example"} or {"a@x.example"}, key, test))
    news = news_of(simple, Clock())
    ledger = {"credit_ledger": "account_id, kind, amount, balance, message_id"}

    def work(tx: Tx, together: bool) -> tuple[object, ...]:
        env = Environment(now=Clock())
        refusals = accept(tx, env, news) if together else [accept(tx, env, [new])[0] for new in news]
        assert ledger_adds_up(tx)
        return told(refusals), [str(refusal) for refusal in refusals], rows_of(tx, TABLES | ledger)

    async with database.open(inline=True) as store:
        first, second = [await found_by(store, partial(work, together=together)) for together in (True, False)]
    assert first == second


@many_examples
@given(sends=SENDS, results=RESULTS)
async def test_results_together_end_as_one_by_one(
    database: Database, sends: list[Send], results: list[tuple[int, RecipientStatus, int, bytes | None]]
) -> None:
    news = news_of(sends, Clock())

    def work(tx: Tx, together: bool) -> dict[str, list[Row]]:
        clock = Clock()
        env = Environment(now=clock)
        for new in news:
            accept(tx, env, [new])
        due = [DueRecipient(*row) for row in rows(tx, SELECT_DUE + " ORDER BY r.id", {})]
        outcomes = [
            outcome(due[which % len(due)], status, clock(), tries=tries, signature=signature)
            for which, status, tries, signature in results
            if due
        ]
        for batch in [outcomes] if together else [[each] for each in outcomes]:
            record(tx, env, batch)
        assert ledger_adds_up(tx)
        return rows_of(tx, TABLES)

    async with database.open(inline=True) as store:
        first, second = [await found_by(store, partial(work, together=together)) for together in (True, False)]
    assert first == second
