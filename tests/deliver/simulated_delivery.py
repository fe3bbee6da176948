"""A whole delivery on a virtual clock, without sockets: a real store, a zone in a dict, servers over memory streams."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from ipaddress import ip_address, ip_network
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import trio
import trio.testing
import trustme
from msgspec.structs import replace

from appliance.config.load import parse
from appliance.config.settings import Config, WarmupSettings
from appliance.deliver.attempt import Deliverer
from appliance.deliver.outcome import Retries
from appliance.deliver.pending import DueMail
from appliance.deliver.pool_limiters import PoolLimiters, ProviderServers
from appliance.deliver.preparing import LARGE_MESSAGE, Preparing, Signing, Unsigned
from appliance.deliver.providers import PoolLimits, ProviderPools
from appliance.deliver.ramp import Ramp, follow
from appliance.deliver.route import RouteCache, Router, configured_relays
from appliance.deliver.scheduler import Scheduler
from appliance.deliver.smtp.connection import Connections
from appliance.deliver.sources import Sources
from appliance.deliver.tls_policy import NoPolicy, TlsChoice, TlsPolicies
from appliance.deliver.upkeep import Intervals
from appliance.deliver.warmup import Warmup
from appliance.environment import Environment
from appliance.feedback.return_path import ReturnPaths
from appliance.model.accounts import Role
from appliance.model.mail import NewMessage, NewRecipient, Source
from appliance.model.ramp import bucket_of
from appliance.model.sources import SourceTable
from appliance.net.address_policy import Address
from appliance.store import Store, open_store
from appliance.store.new_mail import NewMail
from tests.fakes.dns import Zone, ZoneResolver
from tests.fakes.mx import FakeMx

T = TypeVar("T")
START = 1_750_000_000_000_000  # microseconds, on a summer's day
DELAYS = (300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, 28800.0, 43200.0, 43200.0)  # seconds: 48 hours
OK = b"250 2.0.0 queued\r\n"
INSTALLATION_KEY = b"k" * 32
SIGNATURE = b"DKIM-Signature: v=1\r\n"
NETWORKS = (ip_network("127.0.0.0/8"), ip_network("fd00::/8"))  # where the servers are
SOURCES: dict[int, Address] = {4: ip_address("192.0.2.1"), 6: ip_address("2001:db8::1")}  # where mail leaves from
MIME = b"From: shop@example.com\r\nTo: ada@example.net\r\nSubject: s\r\n\r\nHello.\r\n"


class FixedSigner:
    def __init__(self) -> None:
        self.signed = 0
        self.threads = 2
        self.return_path: str | None = None  # of every domain
        self._made: dict[str, bytes] = {}

    def made(self, message_id: str) -> bytes | None:
        return self._made.get(message_id)

    def known(self, account_id: str, domain: str) -> Signing | None:
        return None

    async def find(self, account_id: str, domain: str) -> Signing:
        await trio.lowlevel.checkpoint()
        return Signing([], self.return_path)

    def sign_here(self, message: Unsigned) -> bytes:
        self.signed += 1
        self._made[message.message_id] = SIGNATURE
        return SIGNATURE

    async def sign(self, messages: Sequence[Unsigned]) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        self.signed += len(messages)
        self._made |= {message.message_id: SIGNATURE for message in messages}
        return [SIGNATURE for _ in messages]


@cache
def trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trustme.CA().configure_trust(context)
    return context


@cache
def parsed(settings: str) -> Config:
    return parse(settings, Path("config.toml"))


async def no_policy(domain: str) -> str:
    raise NoPolicy("none here")


@dataclass
class Stage:
    """What tests play on; `servers` are by the address at which they are dialled."""

    store: Store
    env: Environment
    scheduler: Scheduler
    servers: dict[str, FakeMx]
    resolver: ZoneResolver
    signer: FixedSigner
    accounts: dict[str, str]
    nursery: trio.Nursery
    dialled: list[tuple[float, str]] = field(default_factory=list)
    left_from: list[str] = field(default_factory=list)  # the addresses of this machine that were bound; "": none

    def message(self, *addresses: str, account: str = "demo", mime: bytes = MIME) -> NewMessage:
        new = message(self.env, self.accounts[account], *addresses, mime=mime)
        if self.store.ramping.plan is None:
            return new
        return replace(new, recipients=tuple(replace(to, bucket=bucket_of(to.key)) for to in new.recipients))

    async def send(self, *addresses: str, account: str = "demo", delay: float = 0.0) -> str:
        new = self.message(*addresses, account=account)
        await self.store.messages.accept(new)
        if delay:
            later = self.env.now() + round(delay * 1_000_000)
            sql = "UPDATE recipients SET next_attempt_at = :later WHERE message_id = :id"
            await self.change(sql, later=later, id=new.id)
        self.scheduler.new_mail.request_poll()
        return new.id

    async def offer(self, *addresses: str, account: str = "demo", mime: bytes = MIME) -> str:
        """Accept a message and hand it over in memory."""
        new = self.message(*addresses, account=account, mime=mime)
        self.scheduler.new_mail.offer(new, await self.store.messages.accept(new))
        return new.id

    async def change(self, sql: str, **bindings: object) -> None:
        await self.store.engine.change(sql, bindings)

    async def rows(self, sql: str, **bindings: object) -> list[tuple[Any, ...]]:
        return await self.store.engine.rows(sql, bindings)

    async def recipient(self, message_id: str) -> tuple[str, int]:
        query = "SELECT status, attempt_count FROM recipients WHERE message_id = :id ORDER BY id LIMIT 1"
        (found,) = await self.rows(query, id=message_id)
        return found[0], found[1]

    async def until(
        self, read: Callable[[], Awaitable[T]], condition: Callable[[T], bool], within: float = 3 * 86_400
    ) -> None:
        began = trio.current_time()
        while not condition(await read()):
            passed = trio.current_time() - began
            assert passed < within, "waited too long"
            await trio.sleep(max(0.01, passed / 100))

    async def final(self, *messages: str, within: float = 3 * 86_400) -> None:
        query = "SELECT count(*) FROM recipients WHERE message_id = :id AND next_attempt_at IS NOT NULL"
        waiting = set(messages)

        async def are_final() -> bool:
            waiting.difference_update([each for each in waiting if await self.rows(query, id=each) == [(0,)]])
            return not waiting

        await self.until(are_final, bool, within)


def message(env: Environment, account_id: str, *addresses: str, mime: bytes = MIME) -> NewMessage:
    recipients = tuple(
        NewRecipient(env.identifier("rcp"), address, address.lower(), address.rpartition("@")[2])
        for address in addresses
    )
    return NewMessage(
        id=env.identifier("msg"),
        account_id=account_id,
        request_id=env.identifier("req"),
        source=Source.API,
        simulated=False,
        sender="shop@example.com",
        envelope_from="shop@example.com",
        subject="s",
        tags=(),
        template_alias=None,
        template_version=None,
        mime=mime,
        receipt=b"{}",
        recipients=recipients,
        credits=len(recipients),
        created_at=env.now(),
        idempotency=None,
    )


@asynccontextmanager
async def stage(
    directory: Path,
    zone: Zone,
    servers: dict[str, FakeMx],
    *,
    limits: PoolLimits | None = None,
    running: bool = True,
    warmup: WarmupSettings | None = None,
    names: Sequence[str] = ("demo", "other"),
    intervals: Intervals | None = None,
    large_message: int = LARGE_MESSAGE,
    sources: SourceTable | None = None,
    trouble: Callable[[Address], str | None] = lambda _: None,
    settings: str = "",
) -> AsyncIterator[Stage]:
    """Delivery over this zone to these servers, with these accounts; it runs unless told otherwise.

    Played again in the same directory, it is the same installation after a restart. A server under "ADDRESS from
    SOURCE" gets the connections that leave from that address.
    """
    dialled: list[tuple[float, str]] = []
    left_from: list[str] = []
    async with trio.open_nursery() as nursery:

        async def dial(address: str, port: int, source: str = "") -> trio.abc.Stream:
            await trio.lowlevel.checkpoint()
            dialled.append((trio.current_time(), address))
            left_from.append(source)
            server = servers.get(f"{address} from {source}") or servers.get(address)
            if server is None:
                raise ConnectionRefusedError(111, "Connection refused")
            ours, theirs = trio.testing.memory_stream_pair()
            nursery.start_soon(server.serve, ours)
            return theirs

        random = Random(7)
        env = Environment(
            now=lambda: START + round(trio.current_time() * 1_000_000), random=random.random, dial=dial, dial_from=dial
        )
        async with open_store(directory, env, inline=True) as store:
            accounts = {}
            for name in names:
                if not (known := [each.id for each in await store.accounts.all() if each.name == name]):
                    made = await store.accounts.create(name, f"{name}@example.org", "hash", Role.CUSTOMER, 1_000_000)
                    await store.access.add_domain(made.id, "example.com", usable=True)
                    known = [made.id]
                (accounts[name],) = known
            resolver, signer = ZoneResolver(zone), FixedSigner()
            limiters = PoolLimiters(store, env, ProviderServers(ProviderPools(others=limits or PoolLimits())))
            config, relays = parsed(settings), configured_relays(parsed(settings).delivery)
            ramp = Ramp(store, config, resolver, limiters.servers.pools, relays, random.random, limiters.publish_pool)
            await follow(store, config)
            source_of, known_as = lambda target: SOURCES[target.version], limiters.servers.known_as
            slowly = Warmup(warmup or WarmupSettings(), store, env, known_as, source_of)
            deliverer = Deliverer(
                store=store,
                env=env,
                connections=Connections(),
                tls=TlsChoice(TlsPolicies(resolver, no_policy), trusting()),
                hello_name="mail.example.com",
                retries=Retries(DELAYS, env.random),
                limiters=limiters,
                warmup=slowly,
                return_paths=ReturnPaths(INSTALLATION_KEY),
                sources=Sources(
                    store, env, limiters, sources or SourceTable(), is_relayed=ramp.is_relayed, trouble=trouble
                ),
                ramp=ramp,
            )
            new_mail, routes = NewMail(), RouteCache(Router(resolver, random.random, allowed=NETWORKS, relays=relays))
            due_mail = partial(DueMail, store, env, new_mail, via_of=ramp.via, lanes_of=ramp.lanes)
            scheduler = Scheduler(
                new_mail=new_mail,
                due_mail=(due_mail(low=0), due_mail(low=1)),
                preparing=Preparing(store, routes, signer, ramp, large_message),  # type: ignore[arg-type]  # a fake
                deliverer=deliverer,
                intervals=intervals or Intervals(),
            )
            async with trio.open_nursery() as inner:
                if running:
                    inner.start_soon(scheduler.run)
                yield Stage(store, env, scheduler, servers, resolver, signer, accounts, inner, dialled, left_from)
                inner.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


def domain_zone(*names: str) -> tuple[dict[str, dict[str, list[str]]], dict[str, str]]:
    """A zone in which each domain has one server of its own pool, and their addresses by domain."""
    zone: dict[str, dict[str, list[str]]] = {}
    addresses = {}
    for number, name in enumerate(names, 1):
        addresses[name] = f"127.0.{number // 250}.{number % 250}"
        zone[name] = {"MX": [f"10 mx.{name}."]}
        zone[f"mx.{name}"] = {"A": [addresses[name]]}
    return zone, addresses


def domains(servers: Mapping[str, FakeMx]) -> tuple[dict[str, dict[str, list[str]]], dict[str, FakeMx]]:
    """A zone in which each domain has one server of its own pool, and the servers by address."""
    zone, addresses = domain_zone(*servers)
    return zone, {addresses[name]: server for name, server in servers.items()}


def one(server: FakeMx, name: str = "a.test") -> tuple[dict[str, dict[str, list[str]]], dict[str, FakeMx]]:
    return domains({name: server})
