"""Sessions are shared: no account's slow servers keep other mail waiting, and none is ended after its final dot."""

import errno
from pathlib import Path

import pytest
import trio
from msgspec.structs import force_setattr
from trio.testing import MockClock

from appliance.config.settings import WarmupSettings
from appliance.deliver.attempt import ActiveAttempt, Deliverer, Holder
from appliance.deliver.in_flight import SLOW as SLOW_AFTER
from appliance.deliver.in_flight import STALLED, STALLED_LONG, SlowSessions
from appliance.deliver.preparing import Envelope
from appliance.deliver.providers import PoolLimits, Provider, ProviderPools, by_suffix
from appliance.deliver.smtp.connection import SHORT_TIMEOUT
from appliance.model.mail import Outcome
from appliance.report.explain import clock, standing
from tests.deliver.simulated_delivery import MIME, OK, START, Stage, domain_zone, domains, one, stage
from tests.fakes.mx import Answer, FakeMx, drip, silence, wait_and_say

DRIPPING = drip(b"220-" + b"welcome " * 60, 5.0)
SLOW = [f"slow{number}.test" for number in range(30)]


def tarpits(answers: dict[str, Answer], *good: str) -> tuple[dict[str, dict[str, list[str]]], dict[str, FakeMx]]:
    """Thirty domains whose servers answer like this, and some good ones."""
    zone, addresses = domain_zone(*SLOW, *good)
    servers = {addresses[name]: FakeMx(answers=dict(answers) if name in SLOW else {}) for name in (*SLOW, *good)}
    return zone, servers


async def words(played: Stage, message_id: str) -> str:
    record = await played.store.records.of(message_id)
    assert record is not None
    (recipient,) = record.recipients
    views = await played.store.pools.views([recipient.domain], WarmupSettings(), record.account_id)
    return standing(recipient, views[recipient.domain], played.env.now(), 12)


async def begin(played: Stage, sessions: int) -> None:
    played.scheduler.sessions = sessions
    played.nursery.start_soon(played.scheduler.run)
    await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    "answers",
    [{"greeting": silence}, {"greeting": DRIPPING}, {"EHLO": silence}, {"RCPT": silence}, {".": silence}],
    ids=["silent", "dripping", "no ehlo", "no rcpt", "after the dot"],
)
async def test_tarpits_of_one_account_leave_room_for_others(
    tmp_path: Path, autojump_clock: MockClock, answers: dict[str, Answer]
) -> None:
    async with stage(tmp_path, *tarpits(answers, "good.test"), running=False) as played:
        await begin(played, 20)
        for name in SLOW:
            await played.offer(f"ada@{name}")
        for _ in range(20):
            await trio.sleep(3)
            began = trio.current_time()
            await played.final(await played.offer("ada@good.test", account="other"), within=2)
            assert trio.current_time() - began < 0.2


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize(
    "answers",
    [{"greeting": silence}, {"greeting": DRIPPING}, {"EHLO": silence}, {"RCPT": silence}],
    ids=["silent", "dripping", "no ehlo", "no rcpt"],
)
async def test_an_account_s_own_mail_gets_past_its_tarpits(
    tmp_path: Path, autojump_clock: MockClock, answers: dict[str, Answer], copies: int
) -> None:
    """Mail to a server that was never tried takes the place of a session with a slow one, at once.

    No message to a slow server loses an attempt by that, and none is ever given to a server twice.
    """
    good = [f"good{number}.test" for number in range(20)]
    async with stage(tmp_path, *tarpits(answers, *good), running=False) as played:
        await begin(played, 20)
        slow = [await played.offer(f"ada{copy}@{name}") for name in SLOW for copy in range(copies)]
        await trio.sleep(SLOW_AFTER + 2)
        for name in good:
            began = trio.current_time()
            await played.final(await played.offer(f"ada@{name}"), within=2)
            assert trio.current_time() - began < 0.2
            await trio.sleep(0.5)
        assert {await played.recipient(each) for each in slow} == {("queued", 0)}
        assert await played.rows("SELECT count(*) FROM attempts") == [(len(good),)]


async def test_mail_to_a_server_that_answers_needs_no_session_to_end(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with stage(tmp_path, *tarpits({".": silence}, "good.test"), running=False) as played:
        await begin(played, 20)
        await played.final(await played.offer("ada@good.test"), within=2)
        for name in SLOW:
            await played.offer(f"ada@{name}")
        for _ in range(20):
            await trio.sleep(3)
            began = trio.current_time()
            await played.final(await played.offer("bob@good.test"), within=2)
            assert trio.current_time() - began < 0.2


async def test_slow_sessions_that_make_no_room_are_searched_once_for_all_pools(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = [f"good{number}.test" for number in range(30)]
    zone, servers = tarpits({"greeting": silence}, *good)
    async with stage(tmp_path, zone, servers, running=False) as played:
        await begin(played, 20)
        await played.final(*[await played.offer(f"ada@{name}") for name in good], within=60)
        for name in SLOW[:6]:
            await played.offer(f"ada@{name}")
        await trio.sleep(0.1)
        for server in servers.values():
            server.answers = {".": wait_and_say(300, OK), **server.answers}
        for name in good:
            await played.offer(f"ada@{name}")
        await trio.sleep(3)
        asked: list[ActiveAttempt] = []
        makes_room = SlowSessions._makes_room

        def counted(self: SlowSessions, active: ActiveAttempt, holder: Holder, *, needs_large: bool) -> bool:
            asked.append(active)
            return makes_room(self, active, holder, needs_large=needs_large)

        monkeypatch.setattr(SlowSessions, "_makes_room", counted)
        assert len(played.scheduler.pending.queues) > 10
        await played.scheduler.runner.start_all()
        assert 0 < len(asked) <= 6


async def test_a_slow_server_gets_its_mail_when_there_is_room(tmp_path: Path, autojump_clock: MockClock) -> None:
    zone, servers = tarpits(
        {"greeting": wait_and_say(40, b"220 hello\r\n")}, *(good := [f"good{n}.test" for n in range(40)])
    )
    async with stage(tmp_path, zone, servers, running=False) as played:
        await begin(played, 20)
        sent = [await played.offer(f"ada@{name}") for name in SLOW]
        for name in good:
            await trio.sleep(1)
            sent.append(await played.offer(f"ada@{name}"))
        await played.final(*sent, within=300)
        assert {await played.recipient(each) for each in sent} == {("delivered", 1)}
        assert [server.commands.count("DATA") for server in servers.values()] == [1] * len(servers)


async def test_a_session_that_gives_way_is_a_deferral(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with stage(tmp_path, *tarpits({"greeting": silence}), running=False) as played:
        await begin(played, 4)
        sent = [await played.offer(f"ada@{name}") for name in SLOW[:5]]
        await trio.sleep(STALLED_LONG + 3)
        # The fifth took the place of one of the four. That one got a session again once two others gave way.
        states = [await played.recipient(each) for each in sent]
        assert sorted(states) == [("deferred", 1)] * 2 + [("queued", 0)] * 3
        (text, host, decision), _ = await played.rows("SELECT smtp_response, mx_host, decision FROM attempts")
        assert text.startswith("no answer for 6")
        assert host.startswith("mx.slow")
        assert decision.startswith("deferred: attempt 2")
        gave_way = sent[states.index(("deferred", 1))]
        await played.until(lambda: played.recipient(gave_way), lambda found: found[1] == 2, within=1_000)
        query = "SELECT finished_at - started_at FROM attempts WHERE recipient_id = :id ORDER BY started_at DESC"
        ((recipient,),) = await played.rows("SELECT id FROM recipients WHERE message_id = :id", id=gave_way)
        assert (await played.rows(query, id=recipient))[0][0] == SHORT_TIMEOUT * 1_000_000


async def test_a_session_told_to_give_way_as_it_ends_carries_on(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = Deliverer.attempt

    async def told_too_late(self: Deliverer, active: ActiveAttempt) -> list[Outcome] | None:
        outcomes = await attempt(self, active)
        active.give_way()
        return outcomes

    monkeypatch.setattr(Deliverer, "attempt", told_too_late)
    server = FakeMx(answers={".": wait_and_say(1, OK)})
    async with stage(tmp_path, *one(server, "good.test"), limits=PoolLimits(concurrency=2)) as played:
        sent = [await played.offer(f"ada{number}@good.test") for number in range(6)]
        await played.final(*sent, within=10)
        assert {await played.recipient(each) for each in sent} == {("delivered", 1)}
        assert server.sessions == 2


async def test_a_bug_beside_a_cancellation_ends_no_other_session(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("a bug")

    async def stuck(self: Deliverer, active: ActiveAttempt, envelope: Envelope) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_when_cancelled)
            await trio.sleep_forever()

    monkeypatch.setattr(Deliverer, "_deliver", stuck)
    async with stage(tmp_path, *tarpits({}), running=False) as played:
        await begin(played, 4)
        sent = [await played.offer(f"ada@{name}") for name in SLOW[:5]]
        await trio.sleep(STALLED_LONG + 3)
        assert sorted([await played.recipient(each) for each in sent]) == [("deferred", 1)] * 2 + [("queued", 0)] * 3
        monkeypatch.undo()
        await played.final(await played.offer(f"ada@{SLOW[6]}", account="other"), within=5)
        assert "delivery failed" in [record.getMessage() for record in caplog.records]


async def test_nothing_gives_way_while_there_is_room(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Without everything waiting a server has the full time of the RFC to greet."""
    zone, servers = tarpits({"greeting": wait_and_say(290, b"220 hello\r\n")})
    async with stage(tmp_path, zone, servers) as played:
        sent = [await played.offer(f"ada@{name}") for name in SLOW]
        await played.final(*sent, within=300)
        assert {await played.recipient(each) for each in sent} == {("delivered", 1)}


async def test_nothing_gives_way_after_the_final_dot(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A server that has the whole message keeps its session until it answers: ending it could send the mail twice."""
    zone, servers = tarpits({".": wait_and_say(500, OK)}, "good.test")
    async with stage(tmp_path, zone, servers, running=False) as played:
        await begin(played, 4)
        sent = [await played.offer(f"ada@{name}") for name in SLOW[:4]]
        await trio.sleep(1)
        waiting = await played.offer("ada@good.test")
        await played.final(*sent, waiting, within=1_000)
        assert {await played.recipient(each) for each in (*sent, waiting)} == {("delivered", 1)}
        assert [server.commands.count("DATA") for server in servers.values() if server.sessions] == [1] * 5


@pytest.mark.parametrize(
    ("at", "awaited"),
    [("greeting", "its greeting"), ("RCPT", "its answer to RCPT"), (".", "its answer to the message")],
)
async def test_a_session_with_a_silent_server_is_explained(
    tmp_path: Path, autojump_clock: MockClock, at: str, awaited: str
) -> None:
    """While it lasts `explain` says with which server, since when and for what it waits; not afterwards."""
    async with stage(tmp_path, *tarpits({at: silence})) as played:
        sent = await played.offer(f"ada@{SLOW[0]}")
        await trio.sleep(10)
        began = clock(START, played.env.now())
        server = f"mx.{SLOW[0]} (127.0.0.1)"
        session = f"a session with {server} is under way since {began}, waiting for {awaited} since {began}"
        assert await words(played, sent) == f"waiting: {session}"
        await played.until(lambda: played.recipient(sent), lambda found: found[1] == 1, within=610)
        await trio.sleep(2)
        assert (await words(played, sent)).startswith("deferred: try 2 of 12")
        assert await played.rows("SELECT count(*) FROM smtp_sessions") == [(0,)]


async def test_mail_that_waits_for_a_session_is_explained(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with stage(tmp_path, *tarpits({".": silence}, "good.test"), running=False) as played:
        await begin(played, 20)
        for name in SLOW[:16]:
            await played.offer(f"ada@{name}")
        await trio.sleep(5)
        slow = await played.offer(f"bob@{SLOW[0]}")
        good = await played.offer("ada@good.test")
        await trio.sleep(5)
        sessions = "but this account has 16 of 20 sessions, 16 of them waiting for slow servers"
        assert await words(played, good) == f"waiting: pool good.test has room, 0 of 10 in use, {sessions}"
        last = "; its servers are slow, so mail to others goes first"
        assert await words(played, slow) == f"waiting: pool {SLOW[0]} has room, 1 of 10 in use, {sessions}{last}"


async def test_a_stopped_server_has_no_session_under_way(tmp_path: Path, autojump_clock: MockClock) -> None:
    count = "SELECT count(*) FROM smtp_sessions"
    async with stage(tmp_path, *tarpits({"RCPT": silence}), running=False) as played:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(played.scheduler.run)
            await played.offer(f"ada@{SLOW[0]}")
            await trio.sleep(10)
            assert await played.rows(count) == [(1,)]
            nursery.cancel_scope.cancel()
        assert await played.rows(count) == [(0,)]


# ---- large messages


async def test_large_messages_to_tarpits_block_no_other(tmp_path: Path, autojump_clock: MockClock) -> None:
    zone, addresses = domain_zone("tar1.test", "tar2.test", "good.test")
    tar = FakeMx(answers={"greeting": silence})
    servers = {addresses["tar1.test"]: tar, addresses["tar2.test"]: tar, addresses["good.test"]: FakeMx()}
    large = MIME + b"x" * 200 + b"\r\n"
    async with stage(tmp_path, zone, servers, large_message=200) as played:
        for number in range(16):
            await played.offer(f"ada@tar{number % 2 + 1}.test", mime=large)
        held_back = await played.offer("ada@good.test", mime=large)  # the account has no more large slots
        await trio.sleep(1)
        began = trio.current_time()
        await played.final(await played.offer("bob@good.test"), within=2)
        await played.final(await played.offer("bob@good.test", account="other"), within=2)
        await played.final(await played.offer("bob@good.test", account="other", mime=large), within=2)
        assert trio.current_time() - began < 0.5
        await played.final(held_back, within=STALLED_LONG + 5)


async def test_small_and_large_messages_take_turns(tmp_path: Path, autojump_clock: MockClock) -> None:
    server = FakeMx(answers={".": wait_and_say(1, OK)})
    limits = PoolLimits(concurrency=1)
    async with stage(tmp_path, *one(server), limits=limits, large_message=200) as played:
        for number in range(50):
            await played.offer(f"user{number}@a.test")
        large = await played.offer("ada@a.test", mime=MIME + b"x" * 200 + b"\r\n")
        await played.final(large, within=5)


# ---- one pool


async def test_another_account_s_stalled_sessions_leave_a_full_pool(tmp_path: Path, autojump_clock: MockClock) -> None:
    servers = {"tar.test": FakeMx(answers={"greeting": silence}), "good.test": FakeMx()}
    async with stage(tmp_path, *domains(servers), running=False) as played:
        shared = Provider("shared", ("test",), PoolLimits(concurrency=3), is_built_in=False)
        played.scheduler.deliverer.limiters.servers.pools = ProviderPools(by_suffix([shared]))
        await begin(played, 500)
        for number in range(10):
            await played.offer(f"user{number}@tar.test")
        await trio.sleep(1)
        began = trio.current_time()
        await played.final(await played.offer("ada@good.test", account="other"), within=300)
        assert trio.current_time() - began < STALLED + 3


async def test_mail_for_the_same_silent_server_ends_no_session(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The next message would find it no better, so each has its full time."""
    server = FakeMx(answers={"greeting": wait_and_say(200, b"220 hello\r\n")})
    async with stage(tmp_path, *one(server, "tar.test"), limits=PoolLimits(concurrency=1)) as played:
        first = await played.offer("ada@tar.test")
        second = await played.offer("bob@tar.test", account="other")
        await played.final(first, second, within=500)
        assert {await played.recipient(each) for each in (first, second)} == {("delivered", 1)}


# ---- what comes before a session


async def test_silent_name_servers_of_one_account_leave_room_for_others(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """Beside a thousand domains whose DNS never answers, another account's mail to new domains goes at once."""
    good = [f"good{number}.test" for number in range(40)]
    async with stage(tmp_path, *domains({name: FakeMx() for name in good}), running=False) as played:
        answer = played.resolver.mx

        async def mx(name: str) -> object:
            if name.startswith("silent"):
                await trio.sleep(15)
            return await answer(name)

        played.resolver.mx = mx  # type: ignore[method-assign, assignment]  # a resolver that waits
        await begin(played, 500)
        for number in range(1_000):
            await played.offer(f"ada@silent{number}.test")
        await trio.sleep(1)
        began = trio.current_time()
        sent = [await played.offer(f"ada@{name}", account="other") for name in good]
        await played.final(*sent, within=5)
        assert trio.current_time() - began < 0.5


# ---- a machine that is short of something


@pytest.mark.parametrize("lack", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL])
async def test_a_lack_of_this_machine_uses_no_attempt(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, lack: int
) -> None:
    """Out of descriptors, ports or memory, mail waits, then goes with its first attempt; one line tells of it."""
    async with stage(tmp_path, *domains({name: FakeMx() for name in SLOW}), running=False) as played:
        good, short = played.env.dial, True

        async def dial(address: str, port: int) -> trio.abc.Stream:
            await trio.lowlevel.checkpoint()
            if short:
                raise OSError(lack, "the machine's own words")
            return await good(address, port)

        force_setattr(played.env, "dial", dial)
        await begin(played, 500)
        sent = [await played.offer(f"ada@{name}") for name in SLOW]
        await trio.sleep(60)
        assert {await played.recipient(each) for each in sent} == {("queued", 0)}
        short = False
        await played.final(*sent, within=60)
        assert {await played.recipient(each) for each in sent} == {("delivered", 1)}
        assert await played.rows("SELECT count(*) FROM attempts") == [(len(SLOW),)]
        await trio.sleep(60)
        await played.final(await played.offer(f"bob@{SLOW[0]}"), within=1)
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == [
        "delivery paused: out of local resources"
    ]


async def test_idle_connections_make_room_when_descriptors_are_short(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with stage(tmp_path, *domains({name: FakeMx() for name in SLOW}), running=False) as played:
        good = played.env.dial

        async def dial(address: str, port: int) -> trio.abc.Stream:
            if len(played.scheduler.deliverer.connections) >= 10:
                raise OSError(errno.EMFILE, "Too many open files")
            return await good(address, port)

        force_setattr(played.env, "dial", dial)
        await begin(played, 500)
        for name in SLOW:
            await played.final(await played.offer(f"ada@{name}"), within=5)


async def test_sessions_come_back_with_time_after_a_shortage(tmp_path: Path, autojump_clock: MockClock) -> None:
    servers = {name: FakeMx(answers={".": wait_and_say(5, OK)}) for name in SLOW}
    async with stage(tmp_path, *domains(servers), running=False) as played:
        good, short = played.env.dial, True

        async def dial(address: str, port: int) -> trio.abc.Stream:
            if short:
                raise OSError(errno.EMFILE, "Too many open files")
            return await good(address, port)

        force_setattr(played.env, "dial", dial)
        await begin(played, 100)
        first = await played.offer(f"ada@{SLOW[0]}")
        await trio.sleep(3)
        short = False
        await played.final(first, within=10)
        await trio.sleep(120)
        began = trio.current_time()
        sent = [await played.offer(f"bob@{name}") for name in SLOW]
        await played.final(*sent, within=60)
        assert trio.current_time() - began < 6
