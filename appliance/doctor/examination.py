"""A whole examination: everything is observed concurrently, within one timeout, and turned into findings."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from appliance.config.settings import Config, DeliveryMode
from appliance.dns import check as dns_check
from appliance.dns.records import records, sending_host
from appliance.dns.resolver import Resolver
from appliance.doctor import domains, machine, names, observe_machine, observe_names
from appliance.doctor.facts import DatabaseFacts, Finding, ok, warning
from appliance.keys.dkim_keys import open_sealed as open_signing_key
from appliance.keys.keyfile import KEY_BYTES, KEY_FILE, UnsealError
from appliance.keys.webhook_secrets import open_sealed as open_webhook_secret
from appliance.model.mail import StoredDkimKey
from appliance.model.queue import PoolHold
from appliance.model.warmup import WarmupStatus
from appliance.net.address_policy import Address
from appliance.net.listeners import binds
from appliance.outside import Outside
from appliance.store import FILE_NAME, Store, open_store
from appliance.store.integrity import QuickCheck, quick_check
from appliance.store.migrate import newest_known
from appliance.system.instance_lock import is_running
from appliance.tls.certificate_files import by_acme

# Lookups of domains at once: each opens some sockets, of which a shell often allows 1024, and resolvers drop bursts.
DOMAINS_AT_ONCE = 40
EXAMINATION_TIMEOUT = 30.0  # seconds for everything
DATABASE_TIMEOUT = 10.0  # seconds of them for the integrity check of the database
WARMUPS_READ = 1_000  # counted; few of them get a line

ORDER = (
    *("server", "listener", "database", "disk", "clock", "certificate", "hostname", "ptr", "port", "blocklist"),
    *("dkim", "spf", "dmarc", "mx", "queue", "warmup"),
)


@dataclass(frozen=True, slots=True)
class SendingDomain:
    """A From domain with its keys, and whether all of those that sign can be opened."""

    domain: str
    keys: tuple[StoredDkimKey, ...]
    opened: bool


@dataclass(frozen=True, slots=True)
class Stored:
    """What an examination needs of the database."""

    senders: tuple[SendingDomain, ...] = ()
    holds: tuple[PoolHold, ...] = ()
    newest_message_at: int | None = None
    unopened_secrets: tuple[str, ...] = ()  # accounts whose webhook secret the key file does not open
    warmups: tuple[WarmupStatus, ...] = ()


@dataclass(slots=True)
class Examination:
    """One examination; `blocklists` may be empty."""

    config: Config
    outside: Outside
    resolver: Resolver
    blocklists: Sequence[str] = ()
    timeout: float = EXAMINATION_TIMEOUT
    _findings: list[Finding] = field(default_factory=list)
    _lookups: trio.CapacityLimiter = field(default_factory=partial(trio.CapacityLimiter, DOMAINS_AT_ONCE))

    async def run(self) -> list[Finding]:
        """Every finding, in the order of a report."""
        deadline = trio.current_time() + self.timeout
        looked, stored = await self._database()
        checks = self._checks(stored)
        open_checks = set(checks)
        with trio.CancelScope(deadline=deadline):
            async with trio.open_nursery() as nursery:
                for name, check in checks.items():
                    nursery.start_soon(self._one, name, check, open_checks)
        self._findings += machine.judge_database(self._database_facts(looked, stored))
        self._findings += self._machine(stored)
        self._findings += machine.judge_held(stored.holds)
        self._findings += machine.judge_warmups(stored.warmups, self.outside.now())
        for name in open_checks:
            text = f"could not be found out within {self.timeout:.0f} s"
            self._findings.append(warning(name.partition(" ")[0], name.partition(" ")[2] or "-", text))
        return sorted(self._findings, key=lambda each: ORDER.index(each.check))

    async def _one(self, name: str, check: "Check", still_open: set[str]) -> None:
        self._findings += await check()
        still_open.discard(name)

    def _checks(self, stored: Stored) -> "dict[str, Check]":
        """The checks that take time, by name; they run concurrently."""
        checks: dict[str, Check] = {
            "certificate": self._certificates,
            "listener": self._listeners,
            "hostname": self._names,
        }
        if self.config.delivery.mode is not DeliveryMode.SANDBOX:
            checks["port"] = self._port
        for sender in stored.senders:
            checks[f"dkim {sender.domain}"] = lambda sender=sender: self._records(sender)  # type: ignore[misc]
            checks[f"mx {sender.domain}"] = lambda sender=sender: self._mx(sender)  # type: ignore[misc]
        return checks

    # ---- the machine

    def _machine(self, stored: Stored) -> list[Finding]:
        clock = machine.judge_clock(self.outside.now(), observe_machine.synchronised(), stored.newest_message_at)
        return clock + machine.judge_disk(observe_machine.disk(self.config))

    async def _certificates(self) -> list[Finding]:
        http, smtp, now = self.config.http, self.config.smtp, machine.today(self.outside.now())
        shown = []
        if not by_acme(self.config, "http"):
            exposed = any(map(observe_machine.is_exposed, http.bind))
            shown.append(replace(observe_machine.certificate("http", http.tls_cert, http.tls_key), exposed=exposed))
        if (smtp.bind or smtp.bind_tls) and not by_acme(self.config, "smtp"):
            shown.append(observe_machine.certificate("smtp", smtp.tls_cert, smtp.tls_key))
        hostname = self.config.server.hostname
        found = [finding for each in shown for finding in machine.judge_certificate(each, hostname, now)]
        return found + (
            machine.judge_acme(observe_machine.by_acme(self.config), now) if self.config.acme.enabled else []
        )

    async def _listeners(self) -> list[Finding]:
        running = is_running(self.config.server.data_dir)
        facts = [
            await observe_machine.listener(key, address, running=running)
            for key, address in binds(self.config)
            if address.port  # 0 is any free one
        ]
        return machine.judge_listeners(running, facts)

    # ---- the world

    async def _names(self) -> list[Finding]:
        """The server's name, and then what its addresses lead to."""
        if self.config.delivery.mode is DeliveryMode.SANDBOX:
            text = "nothing leaves: delivery.mode is sandbox"
            return [warning("hostname", self.config.server.hostname, text, _DIRECT)]
        if self.config.delivery.mode is DeliveryMode.RELAY:
            return [ok("hostname", self.config.server.hostname, "mail leaves through a relay")]
        facts = await observe_names.host(self.resolver, self.config)
        found = names.judge_host(facts)
        leaving = facts.leaving or facts.addresses or ()
        for address in leaving:
            ptr = await observe_names.ptr(self.resolver, address, facts.hostname)
            found += names.judge_ptr(ptr)
        return found + await self._listed(leaving)

    async def _listed(self, leaving: Sequence[Address]) -> list[Finding]:
        found = await observe_names.listings(self.resolver, self.blocklists, leaving)
        return [finding for each in found for finding in names.judge_listing(each)]

    async def _port(self) -> list[Finding]:
        delivery = self.config.delivery
        relay = delivery.mode is DeliveryMode.RELAY
        port = delivery.relay_port if relay else delivery.mx_port
        probes = await observe_names.probes(self.resolver, self.config, self.outside)
        return names.judge_port(probes, port, relay=relay)

    async def _records(self, sender: SendingDomain) -> list[Finding]:
        host = sending_host(self.config)
        found = domains.judge_keys(sender.domain, any(key.retired_at is None for key in sender.keys))
        wanted = records(sender.domain, host, sender.keys, self.outside.now())
        async with self._lookups:
            for checked in await dns_check.check(self.resolver, host, wanted, for_operator=True):
                found += domains.judge_record(sender.domain, checked)
        return found

    async def _mx(self, sender: SendingDomain) -> list[Finding]:
        async with self._lookups:
            return domains.judge_mx(await observe_names.mx(self.resolver, sender.domain))

    # ---- the database

    async def _database(self) -> tuple[QuickCheck | None, Stored]:
        path = self.config.server.data_dir / FILE_NAME
        if not path.exists():
            return None, Stored()
        looked = await trio.to_thread.run_sync(quick_check, path, DATABASE_TIMEOUT)
        if looked.damage or looked.schema != newest_known():
            return looked, Stored()  # reading it would fail, or change it
        async with open_store(path.parent, self.outside, inline=True) as store:
            return looked, self._stored(store)

    def _stored(self, store: Store) -> Stored:
        key = self._key()
        senders, unopened = [], []
        for account in store.accounts.all():
            webhook = store.webhooks.of(account.id)
            if webhook is not None and not _opens(partial(open_webhook_secret, key, webhook.id, webhook.secret)):
                unopened.append(account.name)
            for domain in store.access.domains(account.id):
                if domain.usable:
                    keys = tuple(store.dkim_keys.of(account.id, domain.name))
                    senders.append(SendingDomain(domain.name, keys, _all_open(key, account.id, domain.name, keys)))
        holds = tuple(store.pools.holds().values())
        warmups = tuple(store.warmups.told(self.config.warmup, WARMUPS_READ))
        return Stored(tuple(senders), holds, store.messages.newest_at(), tuple(unopened), warmups)

    def _key(self) -> bytes:
        """The installation's key; zeros, which open nothing, where it cannot be read."""
        try:
            key = (self.config.server.data_dir / KEY_FILE).read_bytes()
        except OSError:
            key = b""
        return key if len(key) == KEY_BYTES else bytes(KEY_BYTES)

    def _database_facts(self, looked: QuickCheck | None, stored: Stored) -> DatabaseFacts:
        data_dir = self.config.server.data_dir
        if looked is None:
            return DatabaseFacts(data_dir / FILE_NAME, exists=False)
        return DatabaseFacts(
            data_dir / FILE_NAME,
            damage=looked.damage,
            finished=looked.finished,
            schema=looked.schema,
            newest_schema=newest_known(),
            open_to_others=observe_machine.open_to_others(data_dir),
            unopened_keys=tuple(sender.domain for sender in stored.senders if not sender.opened),
            unopened_secrets=stored.unopened_secrets,
        )


Check = Callable[[], Awaitable[list[Finding]]]

_DIRECT = 'Set delivery.mode to "direct", or to "relay".'


def _all_open(key: bytes, account_id: str, domain: str, keys: Sequence[StoredDkimKey]) -> bool:
    """Whether the keys that sign can be opened; of retired ones only the records are needed."""
    return all(
        _opens(partial(open_signing_key, key, account_id, domain, each.selector, each.private_key))
        for each in keys
        if each.retired_at is None
    )


def _opens(work: Callable[[], bytes]) -> bool:
    try:
        work()
    except UnsealError:
        return False
    return True
