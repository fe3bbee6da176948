"""A whole examination: everything is observed concurrently, within one timeout, and turned into findings."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import trio

from appliance.config.settings import Config, DeliveryMode
from appliance.dns import check as dns_check
from appliance.dns.records import records_for, sending_host
from appliance.dns.resolver import Resolver
from appliance.doctor import Finding, database_server, domains, machine, names, ok, relays, warning
from appliance.doctor.complaints import COMPLAINTS_SINCE, judge_complaints
from appliance.environment import Environment
from appliance.errors import StorageUnavailable
from appliance.feedback.dmarc_policy import PROPOSAL_DAYS
from appliance.keys.dkim_keys import open_sealed as open_signing_key
from appliance.keys.keyfile import KEY_BYTES, KEY_FILE, UnsealError
from appliance.keys.webhook_secrets import open_sealed as open_webhook_secret
from appliance.model.accounts import Domain, StoredDkimKey
from appliance.model.feedback import ComplaintRate
from appliance.model.queue import PoolHold
from appliance.model.reports import DmarcStanding
from appliance.model.warmup import WarmupStatus
from appliance.store import FILE_NAME, DatabaseRefused, Store, examine_server, newest_known, open_store, quick_check
from appliance.times import DAY, SECOND
from appliance.tls.certificate_files import by_acme

# Lookups of domains at once: each opens some sockets, of which a shell often allows 1024, and resolvers drop bursts.
DOMAINS_AT_ONCE = 40
EXAMINATION_TIMEOUT = 30.0  # seconds for everything
DATABASE_TIMEOUT = 10.0  # seconds of them for the integrity check of the database
WARMUPS_READ = 1_000  # counted; few of them get a line

ORDER = (
    *("server", "listener", "database", "disk", "clock", "certificate", "hostname", "ptr", "port", "relay"),
    *("blocklist", "dkim", "spf", "dmarc", "return_path", "tls_rpt", "mx", "queue", "warmup", "complaints"),
)
OF_MACHINE = ("server", "hostname", "port", "relay")  # the checks that need neither a database nor a running server


Check = Callable[[], Awaitable[list[Finding]]]
Tell = Callable[[list[Finding]], None]


@dataclass(slots=True)
class Stored:
    """What an examination needs of the database."""

    senders: list[tuple[Domain, list[StoredDkimKey]]] = field(default_factory=list)  # From domains and their keys
    reports: dict[str, DmarcStanding] = field(default_factory=dict)  # what DMARC reports say, by domain
    nodes: tuple[str, ...] = ()  # host names of those that share the database
    unopened_keys: list[str] = field(default_factory=list)  # domains whose signing keys the key file does not open
    unopened_secrets: list[str] = field(default_factory=list)  # accounts whose webhook secret it does not open
    holds: Sequence[PoolHold] = ()
    newest_message_at: int | None = None
    warmups: Sequence[WarmupStatus] = ()
    complaints: Sequence[ComplaintRate] = ()


@dataclass(slots=True)
class Examination:
    """One examination; `blocklists` may be empty."""

    config: Config
    env: Environment
    resolver: Resolver
    blocklists: Sequence[str] = ()
    timeout: float = EXAMINATION_TIMEOUT
    _findings: list[Finding] = field(default_factory=list)
    _lookups: trio.CapacityLimiter = field(default_factory=partial(trio.CapacityLimiter, DOMAINS_AT_ONCE))

    async def run(self) -> list[Finding]:
        """Every finding, in the order of a report."""
        deadline = trio.current_time() + self.timeout
        found, stored = await (self._database_server() if self.config.store.url else self._database_file())
        await self._observe(self._checks(stored), deadline, self._findings.extend)
        now = self.env.now()
        self._findings += found
        self._findings += machine.check_clock(now, stored.newest_message_at) + machine.check_disk(self.config)
        self._findings += machine.judge_held(stored.holds) + machine.judge_warmups(stored.warmups, now)
        self._findings += judge_complaints(stored.complaints)
        return in_order(self._findings)

    async def of_machine(self, tell: Tell) -> None:
        """Tell of the machine, its name, port 25 and blocklists, each as soon as it is found; without the database."""
        tell(machine.check_clock(self.env.now(), None) + machine.check_disk(self.config))
        checks = {name: check for name, check in self._checks(Stored()).items() if name.partition(" ")[0] in OF_MACHINE}
        await self._observe(checks, trio.current_time() + self.timeout, tell)

    async def _observe(self, checks: dict[str, Check], deadline: float, tell: Tell) -> None:
        """Run all concurrently until the deadline, and tell of each as it ends."""
        open_checks = set(checks)

        async def one(name: str, check: Check) -> None:
            found = await check()
            open_checks.discard(name)
            tell(found)

        with trio.CancelScope(deadline=deadline):
            async with trio.open_nursery() as nursery:
                for name, check in checks.items():
                    nursery.start_soon(one, name, check)
        for name in open_checks:
            text = f"could not be found out within {self.timeout:.0f} s"
            tell([warning(name.partition(" ")[0], name.partition(" ")[2] or "-", text)])

    def _checks(self, stored: Stored) -> dict[str, Check]:
        """The checks that take time, by name; they run concurrently."""
        checks: dict[str, Check] = {
            "certificate": self._certificates,
            "server": partial(machine.check_name, self.config),
            "listener": partial(machine.check_listeners, self.config),
            "hostname": self._names,
        }
        if self.config.delivery.mode is not DeliveryMode.SANDBOX:
            checks["port"] = partial(names.check_port, self.resolver, self.config, self.env)
            for relay in relays.with_login(self.config):
                name = f"relay {relay.username} at {relay.host}:{relay.port}"
                checks[name] = partial(relays.check_login, self.resolver, self.config, self.env, relay)
        for domain, keys in stored.senders:
            checks[f"dkim {domain.name}"] = partial(self._records, domain, keys, stored)
            checks[f"mx {domain.name}"] = partial(self._mx, domain.name)
        return checks

    async def _certificates(self) -> list[Finding]:
        config, now = self.config, datetime.fromtimestamp(self.env.now() / SECOND, UTC)
        found = []
        if not by_acme(config, "http"):
            found += machine.check_certificate(config, "http", now)
        if (config.smtp.bind or config.smtp.bind_tls) and not by_acme(config, "smtp"):
            found += machine.check_certificate(config, "smtp", now)
        if config.inbound.bind and config.inbound.tls_cert is not None:
            found += machine.check_certificate(config, "inbound", now)
        return found + machine.check_acme(config, now) if config.acme.enabled else found

    async def _names(self) -> list[Finding]:
        """The server's name, and then what its addresses lead to."""
        hostname, mode = self.config.server.hostname, self.config.delivery.mode
        if mode is DeliveryMode.SANDBOX:
            advice = 'Set delivery.mode to "direct", or to "relay".'
            return [warning("hostname", hostname, "nothing leaves: delivery.mode is sandbox", advice)]
        if mode is DeliveryMode.RELAY:
            return [ok("hostname", hostname, "mail leaves through a relay")]
        leaving = names.leaving_addresses(self.config)
        finding, addresses = await names.check_host(self.resolver, hostname, leaving)
        found, leaving = [finding], leaving or tuple(addresses)
        for address in leaving:
            found += await names.check_ptr(self.resolver, address, hostname)
        return found + await names.check_blocklists(self.resolver, self.blocklists, leaving)

    async def _records(self, sender: Domain, keys: Sequence[StoredDkimKey], stored: Stored) -> list[Finding]:
        domain, host, found = sender.name, sending_host(self.config), []
        if all(key.retired_at is not None for key in keys):
            text = "has no signing keys yet: they are made with its first message"
            advice = "Make them now, and publish what is shown: appliance domain records."
            found.append(warning("dkim", domain, text, advice))
        wanted = records_for(self.config, sender, keys, self.env.now(), stored.nodes)
        async with self._lookups:
            checked = await dns_check.check(self.resolver, host, wanted, for_operator=True)
        standing = stored.reports.get(domain, DmarcStanding())
        policy = domains.judge_policy(sender, standing, checked, receives=bool(self.config.inbound.bind))
        return found + domains.judge_records(domain, checked) + policy

    async def _mx(self, domain: str) -> list[Finding]:
        async with self._lookups:
            return await domains.check_mx(self.resolver, domain)

    # ---- the database

    async def _database_file(self) -> tuple[list[Finding], Stored]:
        data_dir = self.config.server.data_dir
        path, looked, stored = data_dir / FILE_NAME, None, Stored()
        if path.exists():
            looked = await trio.to_thread.run_sync(quick_check, path, DATABASE_TIMEOUT)
            if not looked.damage and looked.schema == newest_known():  # else reading it would fail, or change it
                async with open_store(data_dir, self.env, inline=True, may_upgrade=False) as store:
                    stored = await self._stored(store)
        return machine.judge_database(data_dir, looked, stored.unopened_keys, stored.unopened_secrets), stored

    async def _database_server(self) -> tuple[list[Finding], Stored]:
        data_dir, url, stored = self.config.server.data_dir, self.config.store.url, Stored()
        try:
            facts = await examine_server(url, self.env)
            if facts.can_be_read:
                async with open_store(data_dir, self.env, url=url, inline=True, may_upgrade=False) as store:
                    stored = await self._stored(store)
        except (DatabaseRefused, StorageUnavailable) as refused:
            return [database_server.judge_unusable(str(refused))], stored
        wrong_key = database_server.judge_key_file(data_dir, facts.key_fingerprint)
        found = database_server.judge_server(facts) + wrong_key + machine.judge_modes(data_dir, data_dir / KEY_FILE)
        # With another key file nothing opens: that is said once.
        secrets = [] if wrong_key else machine.judge_secrets(stored.unopened_keys, stored.unopened_secrets)
        return found + secrets, stored

    async def _stored(self, store: Store) -> Stored:
        key, found = self._key(), Stored()
        for account in await store.accounts.all():
            webhook = await store.webhooks.of(account.id)
            if webhook is not None and not _opens(partial(open_webhook_secret, key, webhook.id, webhook.secret)):
                found.unopened_secrets.append(account.name)
            for sender in (domain for domain in await store.access.domains(account.id) if domain.usable):
                name = sender.name
                keys = await store.dkim_keys.of(account.id, name)
                found.senders.append((sender, keys))
                signing = [each for each in keys if each.retired_at is None]  # of others only the records are needed
                opening = partial(open_signing_key, key, account.id, name)
                if not all(_opens(partial(opening, each.selector, each.private_key)) for each in signing):
                    found.unopened_keys.append(name)
            since = self.env.now() - (PROPOSAL_DAYS - 1) * DAY
            found.reports |= {each.domain: each.dmarc for each in await store.reports.of(account.id, since)}
        found.nodes = await store.engine.hosts()
        found.holds = await store.pools.all_holds()
        found.newest_message_at = await store.messages.newest_at()
        found.warmups = await store.warmups.told(self.config.warmup, WARMUPS_READ)
        found.complaints = await store.feedback.complaint_rates(self.env.now() - COMPLAINTS_SINCE)
        return found

    def _key(self) -> bytes:
        """The installation's key; zeros, which open nothing, where it cannot be read."""
        try:
            key = (self.config.server.data_dir / KEY_FILE).read_bytes()
        except OSError:
            key = b""
        return key if len(key) == KEY_BYTES else bytes(KEY_BYTES)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """In the order of a report."""
    return sorted(findings, key=lambda each: ORDER.index(each.check))


def _opens(work: Callable[[], bytes]) -> bool:
    try:
        work()
    except UnsealError:
        return False
    return True
