"""A database that is lost, hangs, restarts or refuses: callers get 503, nothing is stored twice, the engine goes on."""

from collections.abc import AsyncIterator, Iterator
from time import monotonic
from typing import NoReturn

import psycopg
import pytest
import trio
import trio.testing
from psycopg import errors

from appliance.environment import Environment
from appliance.errors import Code, StorageUnavailable
from appliance.model.accounts import Account
from appliance.store import WRITABLE_WITHIN, KeyTaken, Store
from appliance.store.engine import Tx, rows, run
from appliance.store.new_mail import Acceptance
from appliance.store.postgresql import connection as connection_module
from appliance.store.postgresql.engine import PostgresEngine
from appliance.store.postgresql.transactions import RECONNECT_PAUSE, RERUNS, WRITER_CLOSING
from tests.postgresql_server import USER, PostgresServer
from tests.store.postgresql.proxy import Cut, Proxy, proxy
from tests.store.postgresql.stepping import check_books
from tests.store.samples import CREDITS, HASH, Clock, Messages, at_once, existing

TIMEOUT = 1  # seconds for a statement
CONNECTING = 3  # seconds, at most


@pytest.fixture
def between(server: PostgresServer) -> Iterator[Proxy]:
    with proxy(int(server.settings["port"])) as running:
        yield running


@pytest.fixture
def far_url(url: str, between: Proxy) -> str:
    database = url.partition("?")[0].rpartition("/")[2]
    return f"postgresql://{USER}@127.0.0.1:{between.port}/{database}?sslmode=disable&gssencmode=disable&application_name=far"


@pytest.fixture
async def store(far_url: str, clock: Clock) -> AsyncIterator[Store]:
    opened = Store(PostgresEngine(far_url, statement_timeout=TIMEOUT), Environment(now=clock))
    yield opened
    with trio.CancelScope(shield=True):
        await opened.engine.close()


async def refused(store: Store, work: object = None) -> StorageUnavailable:
    with pytest.raises(StorageUnavailable) as caught:
        await store.engine.write(work or (lambda tx: rows(tx, "SELECT count(*) FROM accounts", {})))  # type: ignore[arg-type]
    assert caught.value.code is Code.TEMPORARY_FAILURE
    return caught.value


async def until_it_writes(store: Store) -> None:
    with trio.fail_after(15):
        while True:
            try:
                await store.check_writable()
                return
            except StorageUnavailable:
                await trio.sleep(0.1)


async def test_whether_it_can_be_written_is_known_within_a_second(store: Store, between: Proxy) -> None:
    await store.check_writable()
    between.blackhole, before, answers = True, store.engine.ordinary_writes, list[StorageUnavailable]()

    async def ask() -> None:
        with pytest.raises(StorageUnavailable) as caught:
            await store.check_writable()
        answers.append(caught.value)

    for _ in range(2):
        began = trio.current_time()
        await at_once(ask, [()] * 20)
        assert trio.current_time() < began + 2 * WRITABLE_WITHIN
    assert {(answer.code, answer.retry_after) for answer in answers} == {(Code.TEMPORARY_FAILURE, 2)}
    assert store.engine.ordinary_writes == before + 1
    between.blackhole = False
    await until_it_writes(store)


# ---- lost during COMMIT
@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER, Cut.SWALLOW])
async def test_a_connection_lost_during_commit(store: Store, between: Proxy, messages: Messages, cut: Cut) -> None:
    await store.messages.accept(messages.new())
    ours = messages.new(key="k")
    between.cut = cut
    with pytest.raises(StorageUnavailable, match="may be stored or not") as caught:
        await store.messages.accept(ours)
    assert caught.value.code is Code.TEMPORARY_FAILURE
    assert between.cuts == 1
    again = messages.new(key="k")
    if cut is Cut.BEFORE:
        assert await store.messages.accept(again) == Acceptance(1)
    else:
        with pytest.raises(KeyTaken):
            await store.messages.accept(again)
    found = existing(await store.messages.remembered(messages.account_id, "key:1", "k"))
    assert found.message_id == (again.id if cut is Cut.BEFORE else ours.id)
    assert await store.engine.rows("SELECT count(*) FROM messages", {}) == [(2,)]
    await check_books(store)


async def test_a_batch_that_is_lost_during_commit(store: Store, between: Proxy, messages: Messages) -> None:
    news = [messages.new(key=f"k{number}") for number in range(40)]
    results: list[str] = []

    async def send(number: int) -> None:
        try:
            await store.messages.accept(news[number])
        except StorageUnavailable as error:
            results.append(error.text)

    between.cut = Cut.AFTER
    await at_once(send, ((number,) for number in range(len(news))))
    assert results
    assert all("Retry with the same key" in text for text in results)
    for number in range(len(news)):
        with pytest.raises(KeyTaken):
            await store.messages.accept(messages.new(key=f"k{number}"))
    assert await store.engine.rows("SELECT count(*) FROM messages", {}) == [(len(news),)]
    await check_books(store)


# ---- lost at other times
async def test_a_connection_that_was_lost_while_idle(store: Store, between: Proxy, messages: Messages) -> None:
    """No caller notices: what had not come to its commit is run again, and a read is repeated."""
    await store.messages.accept(messages.new())
    before = between.accepted
    between.reset()
    await store.messages.accept(messages.new())
    assert (await store.accounts.find(messages.account_id)).credits == CREDITS - 2
    between.reset()
    assert (await store.engine.snapshot(lambda tx: rows(tx, "SELECT count(*) FROM messages", {}))) == [(2,)]
    assert between.accepted >= before + 3


async def test_a_connection_that_is_lost_within_a_transaction(store: Store, between: Proxy) -> None:
    runs = 0

    def losing(tx: Tx, times: int) -> int:
        nonlocal runs
        runs += 1
        run(tx, "SELECT 1", {})
        if runs <= times:
            between.reset()
            run(tx, "SELECT 1", {})
        return runs

    assert await store.engine.write(lambda tx: losing(tx, 1)) == 2
    runs = 0
    assert "cannot be reached" in (await refused(store, lambda tx: losing(tx, 5))).text
    assert runs == 2
    runs = 0
    assert await store.engine.read(lambda tx: losing(tx, 1)) == 2
    runs = 0
    with pytest.raises(StorageUnavailable, match="cannot be reached"):
        await store.engine.read(lambda tx: losing(tx, 5))
    assert runs == 2
    await until_it_writes(store)


async def test_a_connection_that_hangs(store: Store, between: Proxy, messages: Messages) -> None:
    """Its TCP lives on, but no answer comes: writers and readers give it up in time, and go on when it is back."""
    await store.messages.accept(messages.new())
    await store.accounts.find(messages.account_id)
    between.blackhole = True
    within = TIMEOUT + connection_module.ANSWER_GRACE + CONNECTING + 1
    began = monotonic()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(refused, store)

        async def read() -> None:
            with pytest.raises(StorageUnavailable, match="cannot be reached"):
                await store.accounts.find(messages.account_id)

        nursery.start_soon(read)
    assert TIMEOUT < monotonic() - began < within
    between.blackhole = False
    await until_it_writes(store)
    await store.messages.accept(messages.new())


async def test_a_slow_connection(store: Store, between: Proxy, messages: Messages) -> None:
    """It takes longer, and nothing else."""
    between.delay = 0.05
    assert await store.messages.accept(messages.new(key="k")) == Acceptance(1)
    await check_books(store)


# ---- what the server refuses
async def test_a_lock_that_does_not_come_in_time(
    url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, account: Account
) -> None:
    monkeypatch.setitem(connection_module._SETTINGS, "lock_timeout", "300")
    env = Environment(now=clock)
    messages, store = Messages(env, account.id), Store(PostgresEngine(url), env)
    results: list[StorageUnavailable] = []

    async def send() -> None:
        with pytest.raises(StorageUnavailable) as caught:
            await store.messages.accept(messages.new())
        results.append(caught.value)

    with psycopg.connect(url) as other:
        other.execute("SELECT 1 FROM accounts FOR UPDATE")
        began = monotonic()
        await at_once(send, [()] * 20)
        assert monotonic() - began < 3
    assert {error.code for error in results} == {Code.TEMPORARY_FAILURE}
    assert await store.messages.accept(messages.new()) == Acceptance(1)
    await store.engine.close()


async def test_a_statement_that_takes_too_long(store: Store) -> None:
    ((before,),) = await store.engine.rows("SELECT pg_backend_pid()", {})
    sleep = "SELECT pg_sleep(30)"
    assert "cannot take writes" in (await refused(store, lambda tx: run(tx, sleep, {}))).text
    for _ in range(2):
        with pytest.raises(StorageUnavailable):
            await store.engine.read(lambda tx: run(tx, sleep, {}))
    pids = {(await store.engine.rows("SELECT pg_backend_pid()", {}))[0][0] for _ in range(4)}
    assert before in pids
    await store.check_writable()


async def test_a_server_that_turns_read_only(url: str, store: Store, account: Account) -> None:
    await store.accounts.find(account.id)
    try:
        _configure(url, "ALTER SYSTEM SET default_transaction_read_only = on")
        await trio.sleep(1)  # for it to reach the sessions
        assert "cannot be reached" in (await _refused_change(store, account)).text
        with pytest.raises(StorageUnavailable):
            await store.accounts.find(account.id)
        with trio.fail_after(10):
            while await _connections(url):  # noqa: ASYNC110 - the server lists a closed one for a moment
                await trio.sleep(0.05)
        assert "cannot be reached" in (await _refused_change(store, account)).text
    finally:
        _configure(url, "ALTER SYSTEM RESET default_transaction_read_only")
    await until_it_writes(store)
    await store.accounts.set_suspended(account.id, False)


async def test_a_server_that_turns_read_only_is_told_before_anything_is_written(url: str, store: Store) -> None:
    await store.check_writable()
    try:
        _configure(url, "ALTER SYSTEM SET default_transaction_read_only = on")
        await trio.sleep(1)  # for it to reach the sessions
        with pytest.raises(StorageUnavailable, match="cannot be reached"):
            await store.check_writable()
    finally:
        _configure(url, "ALTER SYSTEM RESET default_transaction_read_only")
    await until_it_writes(store)


async def _refused_change(store: Store, account: Account) -> StorageUnavailable:
    with pytest.raises(StorageUnavailable) as caught:
        await store.accounts.set_suspended(account.id, True)
    assert caught.value.code is Code.TEMPORARY_FAILURE
    return caught.value


def _configure(url: str, command: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(command.encode())
        connection.execute("SELECT pg_reload_conf()")


async def _connections(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        wanted = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'far' AND state = 'idle'"
        row = connection.execute(wanted).fetchone()
    assert row is not None
    return int(row[0])


# ---- transactions that meet others
async def test_a_transaction_that_always_meets_others_is_refused(store: Store) -> None:
    runs = 0

    def meeting(_: Tx) -> NoReturn:
        nonlocal runs
        runs += 1
        raise errors.SerializationFailure("a test")

    await refused(store, meeting)
    assert runs == RERUNS


async def test_a_transaction_that_meets_others_twice(store: Store) -> None:
    runs = 0

    def meeting(tx: Tx) -> int:
        nonlocal runs
        runs += 1
        run(tx, "INSERT INTO counted_until (kind, id) VALUES (:kind, '')", {"kind": str(runs)})
        if runs < 3:
            raise errors.DeadlockDetected("a test")
        return runs

    assert await store.engine.write(meeting) == 3
    assert await store.engine.rows("SELECT kind FROM counted_until", {}) == [("3",)]


@pytest.mark.parametrize("fault", [SystemExit, KeyboardInterrupt, MemoryError, psycopg.InterfaceError])
async def test_whatever_a_function_raises_the_writer_goes_on(store: Store, fault: type[BaseException]) -> None:
    def failing(tx: Tx) -> None:
        run(tx, "INSERT INTO counted_until (kind, id) VALUES ('x', '')", {})
        raise fault

    with pytest.raises((StorageUnavailable, fault)):
        await store.engine.write(failing)
    await store.check_writable()
    assert await store.engine.rows("SELECT kind FROM counted_until", {}) == []


# ---- away
async def test_it_is_closed_while_the_database_is_away(far_url: str, between: Proxy, clock: Clock) -> None:
    store = Store(PostgresEngine(far_url), Environment(now=clock))  # with the time-outs of a server
    await store.check_writable()
    between.blackhole = True
    count = 0

    async def write(*, urgent: bool, large: bool) -> None:
        nonlocal count
        with pytest.raises(StorageUnavailable):
            await store.engine.write(lambda tx: run(tx, "SELECT 1", {}), urgent=urgent, large=large)
        count += 1

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            for urgent, large in ((True, False), (False, True), (False, False)):
                nursery.start_soon(lambda u=urgent, g=large: write(urgent=u, large=g))  # type: ignore[misc]
        await trio.testing.wait_all_tasks_blocked()
        began = monotonic()
        await store.engine.close()
    assert monotonic() - began < WRITER_CLOSING + CONNECTING + 1
    assert count == 300
    with pytest.raises(StorageUnavailable):
        await store.check_writable()


async def test_a_restarted_server(server: PostgresServer, url: str, clock: Clock) -> None:
    store = Store(PostgresEngine(url), Environment(now=clock))
    await store.check_writable()
    await trio.to_thread.run_sync(server.stop)
    try:
        began = monotonic()
        for _ in range(50):
            await refused(store)
            with pytest.raises(StorageUnavailable):
                await store.engine.rows("SELECT 1", {})
        assert monotonic() - began < 3
    finally:
        await trio.to_thread.run_sync(server.start)
    await trio.sleep(RECONNECT_PAUSE)
    await until_it_writes(store)
    await store.engine.close()


@pytest.mark.slow
async def test_ten_crashes_of_the_server_while_mail_is_accepted(server: PostgresServer, url: str, clock: Clock) -> None:
    env = Environment(now=clock)
    stores = [Store(PostgresEngine(url), env) for _ in range(2)]
    account = await stores[0].accounts.create("demo", "demo@example.org", HASH, credit=1_000_000)
    messages, acknowledged, done = Messages(env, account.id), dict[str, str](), trio.Event()
    codes = set[Code]()

    async def send(number: int) -> None:
        for count in range(100_000):
            if done.is_set():
                return
            key, store = f"{number}-{count}", stores[number % 2]
            while True:  # as a client does: the same key until there is an answer
                new = messages.new(key=key)
                try:
                    await store.messages.accept(new)
                    acknowledged[key] = new.id
                    break
                except KeyTaken:
                    break  # the first was stored after all
                except StorageUnavailable as error:
                    codes.add(error.code)
                    await trio.sleep(0.05)

    async with trio.open_nursery() as nursery:
        for number in range(16):
            nursery.start_soon(send, number)
        for _ in range(10):
            await trio.sleep(0.4)
            await trio.to_thread.run_sync(server.stop, "immediate")
            await trio.to_thread.run_sync(server.start)
        await until_it_writes(stores[0])
        await trio.sleep(1.5)
        done.set()
    assert codes == {Code.TEMPORARY_FAILURE}
    stored: dict[str, str] = dict(await stores[0].engine.rows("SELECT key, message_id FROM idempotency_keys", {}))
    assert {key: stored.get(key) for key in acknowledged} == acknowledged
    assert await stores[0].engine.rows("SELECT count(*) FROM messages", {}) == [(len(stored),)]
    await check_books(stores[0])
    for store in stores:
        await store.engine.close()
