"""Writing many messages in one batch ends as if they had come one by one, whatever the batch is made of."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import apsw
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from appliance.errors import Code, Refused
from appliance.model.mail import Account, DueRecipient, NewMessage, RecipientStatus, Source
from appliance.outside import Outside
from appliance.store import KeyTaken, Store, open_store
from appliance.store.connection import open_writer
from appliance.store.engine import JOBS_PER_COMMIT, Engine, GroupCommit, Inline
from appliance.store.messages import WRITTEN_ON_LOOP, accept
from appliance.store.migrate import migrate
from appliance.store.queue import SELECT_DUE, record
from tests.store.samples import CREDITS, HASH, Clock, Messages, outcome
from tests.store.test_engine import Broken

# ---- items in the engine


class Numbers:
    """Writes numbers: refuses those under zero, and breaks half-way at thirteen."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def write(self, connection: apsw.Connection, numbers: Sequence[int]) -> list[Exception | None]:
        """Write them all."""
        self.calls.append(list(numbers))
        refusals: list[Exception | None] = []
        for number in numbers:
            refusals.append(ValueError(number) if number < 0 else None)
            if number >= 0:
                connection.execute("INSERT INTO numbers (number) VALUES (?)", (number,))
            if number == 13:
                raise Broken
        return refusals


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with one table."""
    file = tmp_path / "data" / "numbers.db"
    connection = open_writer(file)
    connection.execute("CREATE TABLE numbers (number INTEGER NOT NULL) STRICT")
    connection.close()
    return file


async def write_all(engine: Engine, numbers: Numbers, wanted: Sequence[int]) -> dict[int, str]:
    """Write all of these at once; how each of them fared."""
    results: dict[int, str] = {}

    async def write(number: int) -> None:
        try:
            await engine.write_item(numbers.write, number)
            results[number] = "written"
        except (ValueError, Broken) as error:
            results[number] = type(error).__name__

    async with trio.open_nursery() as nursery:
        for number in wanted:
            nursery.start_soon(write, number)
    return results


def stored(engine: Engine) -> list[int]:
    """The numbers on disk."""
    found = engine.read(lambda c: c.execute("SELECT number FROM numbers ORDER BY number").fetchall())
    return [int(number) for (number,) in found]  # type: ignore[arg-type]  # a strict column


async def test_items_that_wait_are_written_together(path: Path) -> None:
    """Of many items at once, all come to their work in a few calls, and each refusal goes to its own."""
    engine, numbers = Engine(path, GroupCommit(path, lambda _: None)), Numbers()
    results = await write_all(engine, numbers, [-3, *range(20, 20 + JOBS_PER_COMMIT), -2])
    assert len(numbers.calls) <= 3
    assert {number for number, result in results.items() if result == "ValueError"} == {-3, -2}
    assert stored(engine) == list(range(20, 20 + JOBS_PER_COMMIT))
    await engine.close()


async def test_one_that_breaks_breaks_alone(path: Path) -> None:
    """When the work fails over one item, the others are written one by one, and nothing of that one is there."""
    engine, numbers = Engine(path, GroupCommit(path, lambda _: None)), Numbers()
    results = await write_all(engine, numbers, [1, 13, -1, 2])
    assert results == {1: "written", 13: "Broken", -1: "ValueError", 2: "written"}
    assert stored(engine) == [1, 2]
    await engine.close()


async def test_items_meet_plain_functions_in_one_commit(path: Path) -> None:
    """A function among the items is run once, with its own result."""
    engine, numbers = Engine(path, GroupCommit(path, lambda _: None)), Numbers()
    counts: list[int] = []

    def count(connection: apsw.Connection) -> int:
        return int(connection.execute("SELECT count(*) FROM numbers").get)

    async def ask() -> None:
        counts.append(await engine.write(count))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await write_all(engine, numbers, range(5))
        nursery.start_soon(ask)
    assert len(counts) == 2
    assert counts[-1] == 5
    await engine.close()


async def test_items_are_written_one_by_one_inline(path: Path) -> None:
    """Without the thread each is its own commit, with the same results."""
    engine, numbers = Engine(path, Inline(path)), Numbers()
    assert await write_all(engine, numbers, [1, -1, 13]) == {1: "written", -1: "ValueError", 13: "Broken"}
    assert stored(engine) == [1]
    await engine.close()


# ---- messages


async def test_credits_are_counted_through_the_batch(tmp_path: Path, clock: Clock) -> None:
    """The ledger of messages accepted together names every balance from the first to the last credit, in order."""
    async with open_store(tmp_path / "data", Outside(now=clock)) as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=CREDITS)
        messages, refused = Messages(Outside(now=clock), account.id), []

        async def send(recipients: int) -> None:
            try:
                await store.messages.accept(messages.new(*(f"{number}@x.example" for number in range(recipients))))
            except Refused as refusal:
                refused.append(refusal.code)

        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(send, 1 + number % 3)
        lines = store.accounts.ledger(account.id, 1000)[::-1]
        assert [line.balance for line in lines] == [
            sum(each.amount for each in lines[: n + 1]) for n in range(len(lines))
        ]
        assert store.accounts.named("demo").credits == lines[-1].balance
        assert 0 <= lines[-1].balance < 3
        assert set(refused) == {Code.INSUFFICIENT_CREDITS}


async def test_a_message_to_an_unknown_account_fails_alone(tmp_path: Path, clock: Clock) -> None:
    """Its neighbours in the batch are accepted."""
    async with open_store(tmp_path / "data", Outside(now=clock)) as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=CREDITS)
        messages = Messages(Outside(now=clock), account.id)

        async def send(new: NewMessage) -> None:
            await store.messages.accept(new)

        async def fail() -> None:
            with pytest.raises(LookupError):
                await store.messages.accept(replace(messages.new(), account_id="acc_unknown"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, messages.new())
            nursery.start_soon(fail)
            nursery.start_soon(send, messages.new())
        assert store.accounts.named("demo").credits == CREDITS - 2


async def test_unusual_text_is_stored_as_it_is(store: Store, messages: Messages, account: Account) -> None:
    """Quotes, a NUL, braces and characters of any plane come back as they went in."""
    subject = "it's {rows} ?1 \0 \u2028 \U0001f4e8 'x'; --"
    news = [replace(messages.new(), subject=subject), replace(messages.new(), subject="{}")]
    assert await store.engine.write(lambda c: accept(c, messages.outside, news)) == [1, 1]
    found = [store.messages.read(account.id, new.id) for new in news]
    assert [message.subject for message in found if message] == [subject, "{}"]


async def test_text_that_cannot_be_stored_fails_alone(tmp_path: Path, clock: Clock) -> None:
    """A lone surrogate fails its own message only."""
    async with open_store(tmp_path / "data", Outside(now=clock)) as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=CREDITS)
        messages, results = Messages(Outside(now=clock), account.id), []

        async def send(subject: str) -> None:
            try:
                await store.messages.accept(replace(messages.new(), subject=subject))
                results.append("accepted")
            except UnicodeEncodeError:
                results.append("failed")

        async with trio.open_nursery() as nursery:
            for subject in ("one", "\udc80", "two"):
                nursery.start_soon(send, subject)
        assert sorted(results) == ["accepted", "accepted", "failed"]
        assert store.accounts.named("demo").credits == CREDITS - 2


# ---- the same as one by one

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


def rows_of(connection: apsw.Connection, tables: dict[str, str]) -> dict[str, list[tuple[object, ...]]]:
    """What the tables hold, apart from internal ids."""
    return {
        table: sorted(connection.execute(f"SELECT {columns} FROM {table}").fetchall(), key=repr)
        for table, columns in tables.items()
    }


def ledger_adds_up(connection: apsw.Connection) -> bool:
    """Whether the ledger leads from nothing to the balance of every account that has one."""
    accounts = connection.execute("SELECT id, credits FROM accounts WHERE credits IS NOT NULL").fetchall()
    for account_id, balance in accounts:
        query = "SELECT amount, balance FROM credit_ledger WHERE account_id = ? ORDER BY id"
        amounts, balances = zip(*connection.execute(query, (account_id,)).fetchall(), strict=True)
        if list(accumulate(amounts)) != list(balances) or balances[-1] != balance:
            return False
    return True


def database() -> apsw.Connection:
    """Accounts with few credits, without a limit, with a daily cap, and suspended; the first and third suppress one."""
    connection = apsw.Connection(":memory:")
    migrate(connection, 0)
    for number, credit, cap, suspended in ((0, 4, None, 0), (1, None, None, 0), (2, 9, 3, 0), (3, 9, None, 1)):
        account_id = f"acc_{number}"
        connection.execute(
            "INSERT INTO accounts (id, name, credits, daily_cap, suspended, created_at) VALUES (?, ?, ?, ?, ?, 0)",
            (account_id, account_id, credit, cap, suspended),
        )
        if credit is not None:
            connection.execute(
                "INSERT INTO credit_ledger (account_id, id, kind, amount, balance, created_at)"
                " VALUES (?, 'led_0', 'grant', ?, ?, 0)",
                (account_id, credit, credit),
            )
    for account_id in ("acc_0", "acc_2"):
        connection.execute("INSERT INTO suppressions VALUES (?, 'gone@x.example', 'manual', 0)", (account_id,))
    return connection


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
        st.sampled_from([status for status in RecipientStatus if status is not RecipientStatus.QUEUED]),
        st.integers(0, 2),  # attempts
        st.sampled_from([None, b"signature"]),
    ),
    max_size=30,
)


def told(results: Sequence[int | Exception | None]) -> list[object]:
    """What each was told, without the numbers in the text."""
    return [result.code if isinstance(result, Refused) else type(result) for result in results]


def both(work: Callable[[apsw.Connection, bool], object]) -> tuple[apsw.Connection, apsw.Connection]:
    """The same work on two new databases, once with all together and once one by one."""
    connections = []
    for together in (True, False):
        connection = database()
        work(connection, together)
        connections.append(connection)
    return connections[0], connections[1]


def news_of(sends: list[Send], clock: Clock) -> list[NewMessage]:
    """The messages themselves, some of them large."""
    news = []
    for account, addresses, key, test in sends:
        messages = Messages(Outside(now=clock), f"acc_{account}")
        size = 2 * WRITTEN_ON_LOOP if key == "two" else 10
        news.append(messages.new(*sorted(addresses), key=key, test=test, size=size))
    return news


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SENDS)
def test_messages_together_break_no_rule(sends: list[Send]) -> None:
    """No credit and no key is used twice, no refused message leaves a trace, no accepted one misses a row."""
    clock = Clock()
    connection = database()
    news = news_of(sends, clock)
    results = accept(connection, Outside(now=clock), news)
    written = {new.id for new, result in zip(news, results, strict=True) if not isinstance(result, Exception)}
    assert {row[0] for row in connection.execute("SELECT id FROM messages")} == written
    assert {row[0] for row in connection.execute("SELECT message_id FROM message_bodies")} == written
    assert {row[0] for row in connection.execute("SELECT message_id FROM recipients")} == written
    keys = [new.idempotency.key for new in news if new.id in written and new.idempotency is not None]
    assert len(keys) == len(set(keys))
    assert ledger_adds_up(connection)
    assert connection.execute("SELECT min(credits) FROM accounts").get >= 0
    for new, result in zip(news, results, strict=True):
        if new.account_id == "acc_3":
            assert isinstance(result, (Refused, KeyTaken))
        elif new.account_id == "acc_1":
            assert result == 0 or isinstance(result, KeyTaken)
        elif not isinstance(result, Exception):
            listed = any(each.address == "gone@x.example" for each in new.recipients)
            assert result == (None if listed else int(new.source is not Source.TEST))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SENDS)
def test_simple_messages_end_as_one_by_one(sends: list[Send]) -> None:
    """Of accounts without caps and with no address suppressed, every answer and every row is the same either way."""
    simple: list[Send] = []
    for account, addresses, key, test in sends:
        if account != 2:
            simple.append((account, addresses - {"gone@x.example"} or {"a@x.example"}, key, test))
    news = news_of(simple, Clock())
    answers = []

    def work(connection: apsw.Connection, together: bool) -> None:
        outside = Outside(now=Clock())
        refusals = (
            accept(connection, outside, news) if together else [accept(connection, outside, [n])[0] for n in news]
        )
        answers.append((told(refusals), [str(refusal) for refusal in refusals]))

    first, second = both(work)
    assert answers[0] == answers[1]
    assert rows_of(first, TABLES) == rows_of(second, TABLES)
    ledger = {"credit_ledger": "account_id, kind, amount, balance, message_id"}
    assert rows_of(first, ledger) == rows_of(second, ledger)
    assert ledger_adds_up(first)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SENDS, RESULTS)
def test_results_together_end_as_one_by_one(
    sends: list[Send],
    results: list[tuple[int, RecipientStatus, int, bytes | None]],
) -> None:
    """Whatever is recorded, for whomever and however often, leaves the same rows either way."""
    news = news_of(sends, Clock())

    def work(connection: apsw.Connection, together: bool) -> None:
        clock = Clock()
        outside = Outside(now=clock)
        for new in news:
            accept(connection, outside, [new])
        due: list[DueRecipient] = [DueRecipient(*row) for row in connection.execute(SELECT_DUE + " ORDER BY r.id")]
        outcomes = [
            outcome(due[which % len(due)], status, clock(), tries=tries, signature=signature)
            for which, status, tries, signature in results
            if due
        ]
        for batch in [outcomes] if together else [[each] for each in outcomes]:
            record(connection, outside, batch)

    first, second = both(work)
    assert rows_of(first, TABLES) == rows_of(second, TABLES)
    assert ledger_adds_up(first)
    assert ledger_adds_up(second)
