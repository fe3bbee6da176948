"""Nodes on one database have one certificate: one at a time requests it, and any of them answers the authority."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import ec
from trio.testing import MockClock

from appliance.acme import shared
from appliance.acme.issuance import Issuance
from appliance.acme.messages import NotIssued
from appliance.acme.records import ACCOUNT_KEY, STATE, AcmeState, read_files
from appliance.acme.renewal import Renewer
from appliance.acme.shared import CHALLENGE_READ_PAUSE, SharedChallenges, SharedRecords, announced, wanted_by_all
from appliance.config.settings import AcmeSettings
from appliance.environment import Environment
from appliance.errors import StorageUnavailable
from appliance.store import Store
from appliance.store.installation import ACME_CHORE
from appliance.store.postgresql.engine import PostgresEngine, prepare
from appliance.store.postgresql.nodes import NodeIdentity
from appliance.tls.certificate import ACME_FILE
from tests.acme.authority import DIRECTORY, Authority
from tests.postgresql_server import PostgresServer, empty
from tests.programs import needs

KEY = b"k" * 32
SITE = "mail.example.com"


def settings(*names: str, directory: str = DIRECTORY, email: str = "") -> AcmeSettings:
    return AcmeSettings(enabled=True, names=names, directory=directory, email=email)


# ---- what is wanted


def test_the_names_of_all_nodes_are_wanted() -> None:
    first, second = settings("mail1.example.com", SITE), settings("mail2.example.com", SITE)
    for own in (first, second):
        for both in ([first, second], [second, first]):
            found = wanted_by_all([announced(each) for each in both], own)
            assert found == replace(own, names=(SITE, "mail1.example.com", "mail2.example.com"))


@pytest.mark.parametrize("more", [{"directory": "https://ca.test/staging"}, {"email": "postmaster@example.com"}])
def test_the_node_that_started_last_decides(more: dict[str, str]) -> None:
    """Two nodes with different authorities would replace each other's certificate again and again."""
    old, new = settings("mail1.example.com"), settings("mail2.example.com", **more)
    wanted = [announced(new), announced(old)]
    assert wanted_by_all(wanted, old) is None
    assert wanted_by_all(wanted, new) == replace(new, names=("mail1.example.com", "mail2.example.com"))
    assert wanted_by_all([], old) is None


# ---- challenges


@dataclass
class Table:
    """The challenges of the database, and when they were read; a read takes its time."""

    rows: dict[str, str] = field(default_factory=dict)
    reads: list[float] = field(default_factory=list)
    away: bool = False

    async def read(self) -> dict[str, str]:
        self.reads.append(trio.current_time())
        found = dict(self.rows)
        await trio.sleep(0.1)
        if self.away:
            raise StorageUnavailable("away")
        return found


async def test_a_challenge_is_found_at_once(autojump_clock: MockClock) -> None:
    table = Table({"a": "a.text"})
    challenges, found = SharedChallenges(table.read), list[str | None]()

    async def ask(token: str) -> None:
        found.append(await challenges.text_of(token))

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, "a")
        await trio.sleep(0.05)
        table.rows["b"] = "b.text"  # not seen by the read that is under way
        nursery.start_soon(ask, "b")
    assert found == ["a.text", "b.text"]
    assert trio.current_time() - began == pytest.approx(CHALLENGE_READ_PAUSE + 0.1)
    assert await challenges.text_of("a") == "a.text"
    assert len(table.reads) == 2


async def test_unknown_tokens_cost_a_few_reads_a_second(autojump_clock: MockClock) -> None:
    table = Table()
    challenges, waits = SharedChallenges(table.read), list[float]()

    async def ask(token: str) -> None:
        began = trio.current_time()
        assert await challenges.text_of(token) == table.rows.get(token)
        waits.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        for number in range(1000):
            nursery.start_soon(ask, f"unknown{number}")
            await trio.sleep(0.01)
            if number == 500:
                table.rows["a"] = "a.text"
                nursery.start_soon(ask, "a")
    assert len(table.reads) <= 10 / CHALLENGE_READ_PAUSE + 2
    assert max(waits) <= 2 * CHALLENGE_READ_PAUSE + 0.1


async def test_a_database_that_is_away_knows_no_new_token(autojump_clock: MockClock) -> None:
    table = Table({"a": "a.text"})
    challenges = SharedChallenges(table.read)
    assert await challenges.text_of("a") == "a.text"
    table.away = True
    assert await challenges.text_of("b") is None
    assert await challenges.text_of("a") == "a.text"
    table.away = False
    table.rows["b"] = "b.text"
    with trio.move_on_after(0.05):
        await challenges.text_of("b")
    assert await challenges.text_of("b") == "b.text"


# ---- nodes


@pytest.fixture(scope="module")
def _prepared(postgres: PostgresServer) -> str:
    url = postgres.new_database()
    trio.run(prepare, url, 0)
    return url


@pytest.fixture
def url(_prepared: str) -> str:
    empty(_prepared)
    return _prepared


@dataclass
class Node:
    """One that renews in the background until it is stopped."""

    store: Store
    directory: Path
    records: SharedRecords
    renewer: Renewer
    running: trio.CancelScope = field(default_factory=trio.CancelScope)

    async def run(self) -> None:
        with self.running:
            await self.renewer.run()

    @property
    def certificate(self) -> bytes:
        file = self.directory / ACME_FILE
        return file.read_bytes() if file.exists() else b""

    @property
    def names(self) -> frozenset[str]:
        held = read_files(self.directory)[1]
        return frozenset() if held is None else held.names

    @property
    def state(self) -> AcmeState:
        return read_files(self.directory)[0]


@dataclass
class Nodes:
    """Nodes on one database, and an authority that all of them ask."""

    directory: Path
    url: str
    nursery: trio.Nursery
    authority: Authority = field(default_factory=Authority)
    requests: list[tuple[str, tuple[str, ...], str]] = field(default_factory=list)  # node, names, account
    failure: Exception | None = None
    made: list[Node] = field(default_factory=list)

    async def join(self, name: str, given: AcmeSettings, hang: trio.Event | None = None) -> Node:
        identity = NodeIdentity(name, name, f"home of {name}", "", "", 1)
        env = Environment()
        store = Store(PostgresEngine(self.url, await prepare(self.url, 0, None, lambda: identity)), env)

        async def issue(issuance: Issuance, key: ec.EllipticCurvePrivateKey) -> bytes:
            self.requests.append((name, tuple(issuance.names), issuance.account))
            await records.publish("token", f"of {name}")
            if hang is not None:
                hang.set()
                await trio.sleep_forever()
            if self.failure is not None:
                raise self.failure
            made = Authority(life=self.authority.life, signer=issuance.key.public_key())
            return made.play(issuance.certificate(key))

        records = SharedRecords(given, store, KEY, self.directory / name, patience=0.05, settled=0.3)
        node = Node(store, self.directory / name, records, Renewer(records, issue, env))
        self.made.append(node)
        self.nursery.start_soon(node.run)
        return node

    async def until(self, condition: Callable[[], bool], within: float = 60.0) -> None:
        with trio.fail_after(within):
            for _ in iter(condition, True):
                await trio.sleep(0.02)

    async def lost(self, node: Node) -> None:
        node.running.cancel()
        sql = "UPDATE nodes SET lease_until = 0, adopted_by = '' WHERE owner = :owner"
        await self.made[-1].store.engine.change(sql, {"owner": node.store.engine._membership.identity.owner})  # type: ignore[attr-defined]


@pytest.fixture
async def nodes(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Nodes]:
    monkeypatch.setattr("appliance.store.postgresql.nodes.LEASE", 120.0)  # these nodes never renew it
    made: list[Node] = []
    try:
        async with trio.open_nursery() as nursery:
            yield Nodes(tmp_path, url, nursery, made=made)
            nursery.cancel_scope.cancel()
    finally:  # once no node can open a connection any more
        with trio.CancelScope(shield=True):
            for node in made:
                await node.store.engine.close()


FIRST, SECOND = settings("mail1.example.com", SITE), settings("mail2.example.com", SITE)
BOTH = frozenset({"mail1.example.com", "mail2.example.com", SITE})


@needs("postgresql")
async def test_nodes_have_one_certificate(nodes: Nodes) -> None:
    first, second = await nodes.join("first", FIRST), await nodes.join("second", SECOND)
    await nodes.until(lambda: first.names == second.names == BOTH)
    await trio.sleep(0.5)
    assert len(nodes.requests) == 1
    assert first.certificate == second.certificate
    assert {file.name for file in second.directory.iterdir()} == {ACME_FILE, STATE}
    assert {file.stat().st_mode & 0o077 for file in (first.directory, *first.directory.iterdir())} == {0}
    records = (await first.store.shared_certificates.look()).records
    assert set(records) == {ACME_FILE, STATE, ACCOUNT_KEY}
    assert not any(b"PRIVATE" in sealed or b"issued" in sealed for sealed in records.values())


@needs("postgresql")
async def test_a_node_that_joins_gets_the_certificate_and_one_with_its_name(nodes: Nodes) -> None:
    first = await nodes.join("first", FIRST)
    await nodes.until(lambda: first.certificate != b"")
    before = first.certificate
    second = await nodes.join("second", SECOND)
    await nodes.until(lambda: second.certificate == before)
    await nodes.until(lambda: first.names == second.names == BOTH)
    await nodes.lost(first)
    await trio.sleep(0.5)
    assert [names for _, names, _ in nodes.requests] == [tuple(sorted(FIRST.names)), tuple(sorted(BOTH))]
    assert nodes.requests[1][2] == f"{DIRECTORY.removesuffix('/directory')}/account/1"


@needs("postgresql")
async def test_a_renewal_leaves_out_the_name_of_a_node_that_is_away(nodes: Nodes) -> None:
    nodes.authority.life = timedelta(seconds=4)
    first, second = await nodes.join("first", FIRST), await nodes.join("second", SECOND)
    await nodes.until(lambda: first.names == second.names == BOTH)
    await nodes.lost(first)
    await nodes.until(lambda: second.names == set(SECOND.names))
    assert nodes.requests[-1][0] == "second"


@needs("postgresql")
async def test_a_node_that_is_lost_during_an_order_is_followed_by_another(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while it has its turn; then at once, and what it would still write is refused."""
    monkeypatch.setattr(shared, "TURN_RENEWED", 0.2)
    begun = trio.Event()
    first, second = await nodes.join("first", FIRST, begun), await nodes.join("second", FIRST)
    second.running.cancel()
    with trio.fail_after(60):
        await begun.wait()
    second.running = trio.CancelScope()
    nodes.nursery.start_soon(second.run)
    await trio.sleep(0.5)
    assert [node for node, _, _ in nodes.requests] == ["first"]
    await second.store.engine.change("UPDATE chores SET lease_until = 0", {})
    await second.store.engine.change("UPDATE nodes SET adopted_by = 'second' WHERE owner = 'first'", {})
    await nodes.until(lambda: second.certificate != b"")
    assert [node for node, _, _ in nodes.requests] == ["first", "second"]
    await nodes.until(lambda: first.certificate == second.certificate)
    with pytest.raises(NotIssued, match="another node requests"):
        await first.records.publish("late", "late.text")
    assert await first.store.shared_certificates.challenges() == {"token": "of second"}


@needs("postgresql")
async def test_a_failure_counts_for_all_nodes(nodes: Nodes) -> None:
    nodes.failure = NotIssued("port 80 is closed", "Open it.")
    first, second = await nodes.join("first", FIRST), await nodes.join("second", FIRST)
    await nodes.until(lambda: all(node.state.failures == 1 for node in nodes.made))
    await trio.sleep(0.5)
    assert len(nodes.requests) == 1
    nodes.failure = None
    other = second if nodes.requests[0][0] == "first" else first
    other.renewer.try_now()
    await trio.sleep(0.2)  # as long as the chore is the first one's
    await first.store.engine.change("UPDATE chores SET lease_until = 0", {})
    await nodes.until(lambda: first.names == second.names == frozenset(FIRST.names))
    assert len(nodes.requests) == 2
    assert first.state.failures == 0


@needs("postgresql")
async def test_records_that_cannot_be_opened_are_made_anew(nodes: Nodes) -> None:
    first = await nodes.join("first", FIRST)
    await nodes.until(lambda: first.certificate != b"")
    before = first.certificate
    sql = "UPDATE acme_records SET sealed = (SELECT sealed FROM acme_records WHERE name = :name)"
    await first.store.engine.change(sql, {"name": ACCOUNT_KEY})
    await nodes.until(lambda: first.certificate != before)
    assert [account for _, _, account in nodes.requests] == ["", ""]


@needs("postgresql")
async def test_a_node_whose_disk_is_full_goes_on(nodes: Nodes, caplog: pytest.LogCaptureFixture) -> None:
    blocked = nodes.directory / "first"
    blocked.write_text("in the place of the directory")
    first, second = await nodes.join("first", FIRST), await nodes.join("second", SECOND)
    await nodes.until(lambda: second.certificate != b"")
    await trio.sleep(0.3)
    told = [record for record in caplog.records if "not copied from the database" in record.getMessage()]
    assert len(told) == 1
    blocked.unlink()
    await nodes.until(lambda: first.certificate == second.certificate)


@needs("postgresql")
async def test_nothing_is_requested_without_the_chore(nodes: Nodes) -> None:
    first = await nodes.join("first", FIRST)
    first.running.cancel()
    assert await first.store.engine.has_chore(ACME_CHORE)  # before the second node asks for it
    second = await nodes.join("second", SECOND)
    await trio.sleep(0.8)
    assert nodes.requests == []
    await first.store.engine.leave()  # type: ignore[attr-defined]
    await nodes.until(lambda: second.certificate != b"")
