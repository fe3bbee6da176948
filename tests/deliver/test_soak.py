"""A day and more of delivery through random trouble, on a virtual clock; what must hold in every such world.

The seed decides all: who sends when, how each server behaves and for how long, holds, pauses, restarts, shortages of
this machine. `SOAK_SEEDS=17` or `SOAK_SEEDS=0-199` runs other worlds than the one that the suite runs.
"""

import errno
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest
import trio
from msgspec.structs import force_setattr
from trio.testing import MockClock

from appliance.config.settings import WarmupSettings
from appliance.deliver.attempt import ActiveAttempt, Deliverer
from appliance.deliver.preparing import Envelope
from appliance.deliver.providers import PoolLimits
from appliance.deliver.scheduler import Scheduler
from appliance.deliver.upkeep import Intervals
from appliance.errors import Refused
from appliance.model.mail import Outcome
from appliance.report.explain import standing
from appliance.store.pools import EVERY
from appliance.store.queue import Queue
from appliance.store.queue_control import Lanes
from tests.deliver.simulated_delivery import START, Stage, domain_zone, message, stage
from tests.fakes.dns import Trouble
from tests.fakes.mx import Answer, FakeMx, HangUp, hang_up, say_and_hang_up, silence

SECOND = 1_000_000
HOUR, DAY = 3_600.0, 86_400.0
SESSIONS = 24
ONE_ACCOUNT = SESSIONS * 4 // 5 + 1  # see `fair_share.Shares`
PER_SERVER = 3
ACCOUNTS = ("innocent", "evil", "mad", "sad")
INNOCENT_WAIT = 25.0  # seconds until an innocent account's mail to a good server is delivered
UNEXPLAINED = ("takes it next", "not been looked up yet", "as soon as a server runs")
STAGES = ("greeting", "EHLO", "MAIL", "RCPT", "DATA", ".")
REPLIES = (
    b"451 4.3.0 later\r\n",
    b"452 4.2.2 mailbox full\r\n",
    b"421 4.7.0 slow down\r\n",
    b"450 4.7.1 greylisted\r\n",
    b"550 5.1.1 no such user\r\n",
    b"550 5.7.1 blocked\r\n",
    b"554 5.6.0 bad content\r\n",
)
MOODS = (
    "good",
    "good",
    "good",
    "slow",
    "silent",
    "drip",
    "reply",
    "reply",
    "reply",
    "hang up",
    "refuse",
    "away",
    "mixed",
)


def seeds() -> list[int]:
    first, _, last = os.environ.get("SOAK_SEEDS", "1").partition("-")
    return list(range(int(first), int(last or first) + 1))


# ---- servers


@dataclass
class Server:
    random: Random
    address: str
    steady: bool = False  # always good, but for one account's mail
    mood: str = "good"
    at: str = "greeting"  # the stage of its trouble
    reply: bytes = b""
    delay: float = 0.0
    mx: FakeMx = field(init=False)

    def __post_init__(self) -> None:
        self.mx = FakeMx(answers=_Script(self))

    def change(self) -> None:
        self.mood = self.random.choice(MOODS)
        self.at, self.reply = self.random.choice(STAGES), self.random.choice(REPLIES)
        self.delay = self.random.uniform(0.1, 20)

    def answer(self, name: str, usual: bytes) -> Answer:
        mood, at, reply = self.mood, self.at, self.reply
        if mood == "mixed" and self.random.random() < 0.3:
            mood, at, reply = self.random.choice(MOODS), name, self.random.choice(REPLIES)
        if mood == "slow":
            return _later(self.delay, usual)
        if name != at:
            return usual
        if mood == "reply":
            return say_and_hang_up(reply) if reply.startswith(b"421") else reply
        if mood == "drip":
            return _drip(usual[:3] + b"-")
        return {"silent": silence, "hang up": hang_up}.get(mood, usual)


class _Script(dict[str, Any]):
    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server

    def __contains__(self, name: object) -> bool:
        return str(name).startswith("RCPT evil") and self._server.steady

    def get(self, name: str, default: Any = None) -> Any:
        if name.startswith("RCPT evil"):
            return self._server.reply
        return default if self._server.steady or name in ("RSET", "QUIT") else self._server.answer(name, default)


def _later(seconds: float, data: bytes) -> Answer:
    async def act(stream: trio.abc.Stream) -> bytes:
        await trio.sleep(seconds)
        await stream.send_all(data)
        return data

    return act


def _drip(start: bytes) -> Answer:
    async def act(stream: trio.abc.Stream) -> None:
        await stream.send_all(start)
        for _ in range(300):
            await trio.sleep(4.7)
            await stream.send_all(b"x")
        raise HangUp

    return act


# ---- what is counted


class CountingDeliverer(Deliverer):
    """Counts what is under way at once: by account, by server, and in all."""

    __slots__ = ()
    under_way: ClassVar[Counter[str]] = Counter()
    most: ClassVar[Counter[str]] = Counter()

    @contextmanager
    def _counted(self, key: str) -> Iterator[None]:
        self.under_way[key] += 1
        self.most[key] = max(self.most[key], self.under_way[key])
        try:
            yield
        finally:
            self.under_way[key] -= 1

    async def _deliver(self, active: ActiveAttempt, envelope: Envelope) -> list[Outcome] | None:
        with self._counted("all"), self._counted(envelope.account_id):
            return await super()._deliver(active, envelope)

    async def _try(self, active: ActiveAttempt, transaction: Any, host: Any, dialled: str) -> Any:
        with self._counted(dialled):
            return await super()._try(active, transaction, host, dialled)


@contextmanager
def counted_polls(polls: Counter[str]) -> Iterator[None]:
    """Count the polls of the store, and the rounds of the loop.

    A loop that never sleeps would stop the virtual clock, so it ends here.
    """
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((Queue, "due"), (Queue, "next_due"), (Lanes, "accounts"), (Scheduler, "_take_new")):
            patch.setattr(owner, name, _counting(name, getattr(owner, name), polls))
        yield


def _counting(name: str, do: Callable[..., Any], polls: Counter[str]) -> Callable[..., Any]:
    def count(*given: Any, **named: Any) -> Any:
        polls[name] += 1
        assert polls[name] < 200_000, "delivery never rests"
        return do(*given, **named)

    return count


# ---- a world


@dataclass
class World:
    directory: Path
    random: Random
    servers: dict[str, Server] = field(default_factory=dict)  # by address
    zone: dict[str, dict[str, Any]] = field(default_factory=dict)
    domains: list[str] = field(default_factory=list)
    polls: Counter[str] = field(default_factory=Counter)
    sent: dict[str, tuple[float, str]] = field(default_factory=dict)  # by recipient: when, and the account
    disturbed: list[list[float]] = field(default_factory=list)  # when no bound holds: from, to
    short: bool = False  # of descriptors
    short_until: float = 0.0  # with its effects, of which nothing is told but in the log
    number: int = 0
    intervals: Intervals = field(default_factory=Intervals)

    def __post_init__(self) -> None:
        bad = [f"bad{number}.test" for number in range(5)]
        zone, addresses = domain_zone("good.test", *bad, "a.shared.test", "b.shared.test")
        self.zone |= zone
        self.zone["bad4.test"] = {"MX": ["10 mx.bad4.test.", "20 mx.bad0.test."]}
        self.zone["sha.test"], self.zone["shb.test"] = (
            {"MX": ["10 mx.a.shared.test."]},
            {"MX": ["10 mx.b.shared.test."]},
        )
        self.zone["servfail.test"] = {"MX": Trouble.SERVFAIL}
        self.domains = [*bad, *bad, "sha.test", "sha.test", "shb.test", "good.test", "servfail.test", "missing.test"]
        for name, address in addresses.items():
            self.servers[address] = Server(self.random, address, steady=name == "good.test")
        self.servers[addresses["good.test"]].reply = self.random.choice((b"550 5.7.1 spam\r\n", b"421 4.7.0 slow\r\n"))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Stage]:
        mxs = {address: server.mx for address, server in self.servers.items()}
        limits = PoolLimits(PER_SERVER, self.random.choice((2, 100)), self.random.choice((None, None, 30)))
        CountingDeliverer.under_way, CountingDeliverer.most = Counter(), Counter()
        async with stage(
            self.directory, self.zone, mxs, limits=limits, running=False, names=ACCOUNTS, intervals=self.intervals
        ) as played:
            dial = played.env.dial

            async def trouble(address: str, port: int) -> trio.abc.Stream:
                server = self.servers[address]
                if self.short:
                    raise OSError(errno.EMFILE, "Too many open files")
                if server.mood == "refuse":
                    raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
                if server.mood == "away":
                    await trio.sleep(150)
                return await dial(address, port)

            force_setattr(played.env, "dial", trouble)
            force_setattr(played.env, "random_bits", lambda: self.random.getrandbits(74))
            for hold in (await played.store.pools.holds()).values():  # of an operator who was stopped with the program
                if hold.probe_at is None:
                    await played.store.pools.release(hold.pool)
            was = played.scheduler.deliverer
            played.scheduler.deliverer = CountingDeliverer(
                **{each.name: getattr(was, each.name) for each in fields(was) if each.init}
            )
            played.scheduler.sessions = SESSIONS
            played.scheduler.grace = self.random.choice((0.0, 10.0))
            played.nursery.start_soon(played.scheduler.run)
            yield played
        self.disturb(20)
        for key, most in CountingDeliverer.most.items():
            assert most <= (SESSIONS if key == "all" else PER_SERVER if key in self.servers else ONE_ACCOUNT), (
                key,
                most,
            )

    def disturb(self, seconds: float) -> None:
        self.disturbed.append([trio.current_time() - 40, trio.current_time() + seconds])

    # ---- what goes on

    async def change_moods(self, least: float, most: float) -> None:
        async with trio.open_nursery() as nursery:
            for server in self.servers.values():
                nursery.start_soon(self._change_mood, server, least, most)

    async def _change_mood(self, server: Server, least: float, most: float) -> None:
        while not server.steady:
            server.change()
            await trio.sleep(self.random.uniform(least, most))

    async def send(self, played: Stage, account: str, *domains: str) -> str:
        addresses = []
        for domain in domains:
            self.number += 1
            addresses.append(f"{account}{self.number}@{domain}")
            self.sent[addresses[-1]] = trio.current_time(), account
        new = message(played.env, played.accounts[account], *addresses)
        charged = await played.store.messages.accept(new)
        if self.random.random() < 0.8:
            played.scheduler.new_mail.offer(new, charged)
        else:
            played.scheduler.new_mail.request_poll()
        return new.id

    async def send_bursts(self, played: Stage, account: str, pause: float) -> None:
        while True:
            await trio.sleep(self.random.expovariate(1 / pause))
            for _ in range(self.random.choice((1, 1, 2, 8))):
                sent = await self.send(
                    played, account, *self.random.sample(self.domains, self.random.choice((1, 1, 2, 4)))
                )
            if self.random.random() < 0.1:
                await trio.sleep(self.random.uniform(0, 30))
                with suppress(Refused):  # every recipient is final
                    await played.store.queue_control.cancel(sent, "not wanted")

    async def send_innocently(self, played: Stage, pause: float) -> None:
        while True:
            await trio.sleep(self.random.expovariate(1 / pause))
            await self.send(played, "innocent", "good.test")

    async def operate(self, played: Stage) -> None:
        """What an operator does, and what happens to the machine."""
        while True:
            await trio.sleep(self.random.uniform(30, 300))
            seconds = self.random.uniform(5, 90)
            match self.random.choice(("hold", "pause", "retry", "short")):
                case "hold":
                    pool = self.random.choice(
                        [name for name in await played.store.pools.names() if name != "good.test"] or ["x"]
                    )
                    await played.store.pools.hold(pool, "an operator's hold")
                    await trio.sleep(seconds)
                    await played.store.pools.release(pool)
                case "pause":
                    self.disturb(seconds + 20)
                    await played.store.pools.hold(EVERY, "a pause")
                    await trio.sleep(seconds)
                    await played.store.pools.release(EVERY)
                case "retry":
                    await played.store.queue_control.retry()
                    played.scheduler.new_mail.request_poll()
                case "short":
                    self.disturb(seconds + 80)
                    self.short, self.short_until = True, trio.current_time() + seconds + 60
                    await trio.sleep(seconds)
                    self.short = False

    # ---- what must hold

    async def ask_for_reasons(self, played: Stage) -> None:
        while True:
            await trio.sleep(self.random.uniform(20, 60))
            first = await self.unexplained(played)
            await trio.sleep(4)
            left = {key: why for key, why in (await self.unexplained(played)).items() if key in first}
            assert not left or trio.current_time() < self.short_until, (left, trio.current_time())

    async def unexplained(self, played: Stage) -> dict[str, str]:
        """By address: what is told of recipients that are due for some seconds, and says nothing."""
        now, found = played.env.now(), {}
        query = "SELECT DISTINCT message_id FROM recipients WHERE next_attempt_at < :before"
        for (message_id,) in await played.rows(query, before=now - 5 * SECOND):
            record = await played.store.records.of(message_id)
            assert record is not None
            views = await played.store.pools.views(
                {each.domain for each in record.recipients}, WarmupSettings(), record.account_id
            )
            for tried in record.recipients:
                if tried.next_attempt_at is not None and tried.next_attempt_at < now - 5 * SECOND:
                    words = standing(tried, views[tried.domain], now, 12)
                    if any(each in words for each in UNEXPLAINED):
                        found[tried.recipient.email] = words
        return found

    async def check_waiting(self, played: Stage) -> None:
        now = played.env.now()
        query = "SELECT address, status, next_attempt_at FROM recipients"
        for address, status, again in await played.rows(query):
            assert (again is None) == (status in ("delivered", "bounced", "failed")), (address, status, again)
            assert again is None or again <= now + 2 * DAY * SECOND, (address, again)

    async def check_end(self, played: Stage) -> None:
        took = Counter(
            each for server in self.servers.values() for mail in server.mx.messages for each in mail.recipients
        )
        query = "SELECT id, address, status, attempt_count, delivered_at FROM recipients"
        attempts: Counter[str] = Counter()
        for (recipient,) in await played.rows("SELECT recipient_id FROM attempts"):
            attempts[recipient] += 1
        found = await played.rows(query)
        assert len(found) == len(self.sent)
        for recipient, address, status, tried, at in found:
            assert status in ("delivered", "bounced", "failed"), (address, status)
            assert took[address] == (status == "delivered"), (address, status, took[address])
            assert tried == attempts[recipient], (address, tried, attempts[recipient])
            sent_at, account = self.sent[address]
            if account == "innocent":
                assert status == "delivered", (address, status)
                waited = (at - START) / SECOND - sent_at
                calm = not any(first <= sent_at <= last for first, last in self.disturbed)
                assert not calm or waited <= INNOCENT_WAIT, (address, sent_at, waited)
        events = [row for row in await played.rows("SELECT type FROM events") if row[0] != "email.deferred"]
        assert len(events) == len(found), (len(events), len(found))


async def live(world: World) -> None:
    random = world.random
    storm, ends = 0.0, random.uniform(300, 900)
    async with trio.open_nursery() as weather:
        weather.start_soon(world.change_moods, 20.0, 400.0)
        while storm < ends:
            lasts = random.uniform(100, 600)
            async with world.running() as played, trio.open_nursery() as nursery:
                for account in ACCOUNTS[1:]:
                    nursery.start_soon(world.send_bursts, played, account, 60.0)
                nursery.start_soon(world.send_innocently, played, 20.0)
                nursery.start_soon(world.operate, played)
                nursery.start_soon(world.ask_for_reasons, played)
                await trio.sleep(lasts)
                nursery.cancel_scope.cancel()
            world.short = False
            storm += lasts
            await trio.sleep(random.choice((0.0, 30.0)))
        weather.cancel_scope.cancel()
    # From here on the second is no measure: each of the days has many.
    world.intervals = Intervals(poll_all=20.0, publish=600.0, close_idle=600.0)
    world.disturbed.append([trio.current_time() - 40, 10 * DAY])
    async with trio.open_nursery() as weather:
        weather.start_soon(world.change_moods, 0.05 * HOUR, 0.5 * HOUR)
        for _ in range(2):
            async with world.running() as played, trio.open_nursery() as nursery:
                nursery.start_soon(world.send_bursts, played, "mad", HOUR)
                await trio.sleep(0.05 * DAY)
                await world.check_waiting(played)
                nursery.cancel_scope.cancel()
        weather.cancel_scope.cancel()
    for server in world.servers.values():
        server.mood, server.reply = "good", b"250 2.1.5 ok\r\n"
    world.zone["servfail.test"] = world.zone["good.test"]
    async with world.running() as played:
        await trio.sleep(DAY)  # the longest wait of the schedule, or between two probes of a held pool, is shorter
        await world.check_end(played)
        assert await played.store.pools.holds() == {}
        before = world.polls.copy()
        await trio.sleep(HOUR)
        assert max((world.polls - before).values()) <= 125, world.polls - before
    seconds = trio.current_time()
    assert world.polls["due"] < 60 * len(world.sent) + seconds / 30 + 3 * ends, (world.polls, len(world.sent))


@pytest.mark.parametrize("seed", seeds())
async def test_a_world_of_trouble_comes_to_rest(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each recipient is final once, nothing is delivered twice, no limit is passed, and delivery rests at the end."""
    monkeypatch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True)
    trio._core._run._r.seed(seed)
    world = World(tmp_path, Random(seed))
    with counted_polls(world.polls):
        await live(world)
