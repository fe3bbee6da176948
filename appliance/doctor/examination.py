"""A complete examination: runs all checks concurrently, within one timeout, and returns their findings."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial

import trio
from msgspec import Struct, field
from msgspec.structs import replace

from appliance.config.settings import Config, DeliveryMode
from appliance.dns import check as dns_check
from appliance.dns.records import records_for
from appliance.dns.resolver import Resolver
from appliance.doctor import Finding, FindingLevel, database_server, domains, machine, names, ok, sources, warning
from appliance.environment import Environment
from appliance.errors import StorageUnavailable
from appliance.feedback.dmarc import PROPOSAL_DAYS
from appliance.keys.dkim_keys import open_signing_key
from appliance.keys.keyfile import KEY_BYTES, KEY_FILE, UnsealError
from appliance.keys.secrets import open_webhook_secret
from appliance.model.accounts import Domain, StoredDkimKey
from appliance.model.feedback import ComplaintRate
from appliance.model.queue import PoolHold
from appliance.model.ramp import RampPlan, in_force, sources_in_use
from appliance.model.reports import DmarcStanding
from appliance.model.sources import OutgoingSource, configured_sources, node_name
from appliance.model.warmup import WarmupStatus
from appliance.store import FILE_NAME, DatabaseRefused, Store, examine_server, newest_known, open_store, quick_check
from appliance.times import DAY, SECOND
from appliance.tls.certificate import by_acme

# Concurrent domain lookups: each opens sockets, which a shell often limits to 1024, and resolvers drop bursts.
DOMAINS_AT_ONCE = 40
EXAMINATION_TIMEOUT = 30.0  # seconds for everything
DATABASE_TIMEOUT = 10.0  # seconds of it for the integrity check of the database
WARMUPS_READ = 1_000  # counted; only a few are listed

ORDER = (
    *("server", "listener", "database", "disk", "clock", "certificate", "hostname", "source", "ptr", "port", "relay"),
    *("blocklist", "dkim", "spf", "dmarc", "return_path", "tls_rpt", "mx", "receiving_mx"),
    *("queue", "warmup", "complaints"),
)
# The checks that need neither a database nor a running server.
OF_MACHINE = ("server", "hostname", "source", "port", "relay")

Check = Callable[[], Awaitable[list[Finding]]]
Report = Callable[[list[Finding]], None]


class Stored(Struct):
    senders: list[tuple[Domain, list[StoredDkimKey]]] = field(default_factory=list)  # From domains and their keys
    reports: dict[str, DmarcStanding] = field(default_factory=dict)  # what DMARC reports say, by domain
    nodes: tuple[str, ...] = ()  # host names of those that share the database
    unopened_keys: list[str] = field(default_factory=list)  # domains whose signing keys the key file does not open
    unopened_secrets: list[str] = field(default_factory=list)  # accounts whose webhook secret it does not open
    holds: Sequence[PoolHold] = ()
    newest_message_at: int | None = None
    warmups: Sequence[WarmupStatus] = ()
    complaints: Sequence[ComplaintRate] = ()
    ramp: RampPlan | None = None  # None: off, or not read
    own_sources: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)  # by account name and stream
    sources_of: dict[str, list[OutgoingSource]] = field(default_factory=dict)  # by domain
    receiving_domains: dict[str, list[str]] = field(default_factory=dict)  # by sending domain


class Examination(Struct):
    """One examination; `blocklists` may be empty."""

    config: Config
    env: Environment
    resolver: Resolver
    blocklists: Sequence[str] = ()
    timeout: float = EXAMINATION_TIMEOUT
    _findings: list[Finding] = field(default_factory=list)
    _lookups: trio.CapacityLimiter = field(default_factory=partial(trio.CapacityLimiter, DOMAINS_AT_ONCE))

    async def run(self) -> list[Finding]:
        deadline = trio.current_time() + self.timeout
        findings, stored = await (self._database_server() if self.config.store.url else self._database_file())
        await self._observe(self._checks(stored), deadline, self._findings.extend)
        now = self.env.now()
        self._findings += findings
        self._findings += machine.check_clock(now, stored.newest_message_at) + machine.check_disk(self.config)
        self._findings += machine.judge_held(stored.holds) + machine.judge_warmups(stored.warmups, now)
        self._findings += machine.judge_complaints(stored.complaints)
        table = sources_in_use(self.config, stored.ramp or in_force(None, self.config))
        if table is not None:
            self._findings += sources.judge_streams(table, stored.own_sources, node_name(self.config))
        return in_order(self._findings)

    async def of_machine(self, report: Report) -> None:
        """Check the machine, its name, port 25 and blocklists, without the database; report each finding at once."""
        report(machine.check_clock(self.env.now(), None) + machine.check_disk(self.config))
        checks = {name: check for name, check in self._checks(Stored()).items() if name.partition(" ")[0] in OF_MACHINE}
        await self._observe(checks, trio.current_time() + self.timeout, report)

    async def of_server(self, holds: Sequence[PoolHold], newest_message_at: int | None) -> list[Finding]:
        """Check the server, its listeners, certificates, disk, clock and pauses: what needs no DNS."""
        findings = machine.check_disk(self.config) + machine.check_clock(self.env.now(), newest_message_at)
        findings += machine.judge_held(holds) + await self._certificates()
        return in_order(findings + await machine.check_listeners(self.config))

    async def _observe(self, checks: dict[str, Check], deadline: float, report: Report) -> None:
        """Run all checks concurrently until the deadline, and report the findings of each when it ends."""
        open_checks = set(checks)

        async def one(name: str, check: Check) -> None:
            findings = await check()
            open_checks.discard(name)
            report(findings)

        with trio.CancelScope(deadline=deadline):
            async with trio.open_nursery() as nursery:
                for name, check in checks.items():
                    nursery.start_soon(one, name, check)
        for name in open_checks:
            text = f"no result within {self.timeout:.0f} s"
            report([warning(name.partition(" ")[0], name.partition(" ")[2] or "-", text)])

    def _checks(self, stored: Stored) -> dict[str, Check]:
        ramp = stored.ramp or in_force(None, self.config)
        goes_direct = self.config.delivery.mode is DeliveryMode.DIRECT or (ramp is not None and ramp.goes_direct)
        checks: dict[str, Check] = {
            "certificate": self._certificates,
            "server": partial(machine.check_name, self.config),
            "listener": partial(machine.check_listeners, self.config),
            "hostname": partial(self._names, goes_direct),
        }
        if ramp is not None and goes_direct:
            checks["port of mail servers"] = partial(
                names.check_port, self.resolver, self.config, self.env, to_relay=False
            )
        if self.config.delivery.mode is not DeliveryMode.SANDBOX:
            checks["port"] = partial(names.check_port, self.resolver, self.config, self.env)
            for relay in names.relays_with_login(self.config):
                name = f"relay {relay.username} at {relay.host}:{relay.port}"
                checks[name] = partial(names.check_login, self.resolver, self.config, self.env, relay)
        if goes_direct:
            for source in configured_sources(self.config).of_node(node_name(self.config)):
                name = f"source {source.name}"
                known = self.resolver, self.config, self.env, source
                checks[name] = partial(sources.check_source, *known, blocklists=self.blocklists)
        for domain, keys in stored.senders:
            checks[f"dkim {domain.name}"] = partial(self._records, domain, keys, stored)
            checks[f"mx {domain.name}"] = partial(self._mx, domain.name)
        return checks

    async def _certificates(self) -> list[Finding]:
        config, now = self.config, datetime.fromtimestamp(self.env.now() / SECOND, UTC)
        findings = []
        if not by_acme(config, "http"):
            findings += machine.check_certificate(config, "http", now)
        if (config.smtp.bind or config.smtp.bind_tls) and not by_acme(config, "smtp"):
            findings += machine.check_certificate(config, "smtp", now)
        if config.inbound.bind and config.inbound.tls_cert is not None:
            findings += machine.check_certificate(config, "inbound", now)
        return findings + machine.check_acme(config, now) if config.acme.enabled else findings

    async def _names(self, goes_direct: bool) -> list[Finding]:
        hostname, mode = self.config.server.hostname, self.config.delivery.mode
        if mode is DeliveryMode.SANDBOX:
            advice = 'Set delivery.mode to "direct" or "relay".'
            return [warning("hostname", hostname, "no mail leaves: delivery.mode is sandbox", advice)]
        if not goes_direct:
            return [ok("hostname", hostname, "mail leaves through a relay")]
        leaving = names.leaving_addresses(self.config)
        finding, addresses = await names.check_host(self.resolver, hostname, leaving)
        findings, leaving = [finding], leaving or tuple(addresses)
        for address in leaving:
            findings += await names.check_ptr(self.resolver, address, hostname)
        return findings + await names.check_blocklists(self.resolver, self.blocklists, leaving)

    async def _records(self, sender: Domain, keys: Sequence[StoredDkimKey], stored: Stored) -> list[Finding]:
        domain, findings = sender.name, []
        if all(key.retired_at is not None for key in keys):
            text = "has no signing keys yet: its first message creates them"
            advice = "Create them now, and publish their records: appliance domain records."
            findings.append(warning("dkim", domain, text, advice))
        async with self._lookups:
            known = self.config, stored.nodes
            on_ramp, used = stored.ramp is not None, stored.sources_of.get(domain, [])
            sending = await dns_check.find_senders(self.resolver, *known, ramp=on_ramp, sources=used)
            receives = stored.receiving_domains.get(domain, [])
            records = records_for(self.config, sender, keys, self.env.now(), sending, stored.nodes, receives)
            checked = await dns_check.check(self.resolver, records, for_operator=True)
        standing = stored.reports.get(domain, DmarcStanding())
        policy = domains.judge_policy(sender, standing, checked, receives=bool(self.config.inbound.bind))
        if receives and not self.config.inbound.bind:
            advice = 'Set inbound.bind, for example to ["0.0.0.0:25"].'
            findings += [warning("receiving_mx", name, "the server listens for no mail", advice) for name in receives]
        findings += domains.judge_records(domain, checked) + policy
        if self.config.delivery.mode is DeliveryMode.SANDBOX:  # no mail leaves, so no record stops mail
            findings = [
                replace(finding, level=FindingLevel.WARNING) if finding.level is FindingLevel.FAULT else finding
                for finding in findings
            ]
        return findings

    async def _mx(self, domain: str) -> list[Finding]:
        async with self._lookups:
            return await domains.check_mx(self.resolver, domain)

    # ---- the database

    async def _database_file(self) -> tuple[list[Finding], Stored]:
        data_dir = self.config.server.data_dir
        path, looked, stored = data_dir / FILE_NAME, None, Stored()
        if path.exists():
            looked = await trio.to_thread.run_sync(quick_check, path, DATABASE_TIMEOUT)
            if not looked.damage and looked.schema == newest_known():  # otherwise reading it would fail or change it
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
        findings = database_server.judge_server(facts) + wrong_key + machine.judge_modes(data_dir, data_dir / KEY_FILE)
        # With another key file no secret opens: one finding is enough.
        secrets = [] if wrong_key else machine.judge_secrets(stored.unopened_keys, stored.unopened_secrets)
        return findings + secrets, stored

    async def _stored(self, store: Store) -> Stored:
        key, stored = self._key(), Stored()
        for account in await store.accounts.all():
            webhook = await store.webhooks.of(account.id)
            if webhook is not None and not _opens(partial(open_webhook_secret, key, webhook.id, webhook.secret)):
                stored.unopened_secrets.append(account.name)
            if own := await store.sources.own_of(account.id):
                stored.own_sources[account.name] = own
            used = configured_sources(self.config).of_account(own)
            for sender in (domain for domain in await store.access.domains(account.id) if domain.usable):
                stored.sources_of.setdefault(sender.name, []).extend(used)
                keys = await store.dkim_keys.of(account.id, sender.name)
                stored.senders.append((sender, keys))
                if receiving := await store.receiving.domains(account.id, sender.name):
                    stored.receiving_domains[sender.name] = receiving
                signing = [one for one in keys if one.retired_at is None]  # of retired keys only the records matter
                opening = partial(open_signing_key, key, account.id, sender.name)
                if not all(_opens(partial(opening, one.selector, one.private_key)) for one in signing):
                    stored.unopened_keys.append(sender.name)
            since = self.env.now() - (PROPOSAL_DAYS - 1) * DAY
            stored.reports |= {report.domain: report.dmarc for report in await store.reports.of(account.id, since)}
        stored.nodes = await store.engine.hosts()
        stored.ramp = in_force(await store.ramp.stored(), self.config)
        stored.holds = await store.pools.all_holds()
        stored.newest_message_at = await store.messages.newest_at()
        stored.warmups = await store.warmups.told(self.config.warmup, WARMUPS_READ)
        stored.complaints = await store.feedback.complaint_rates(self.env.now() - machine.COMPLAINTS_SINCE)
        return stored

    def _key(self) -> bytes:
        """Return the installation's key; zeros, which open nothing, if it cannot be read."""
        try:
            key = (self.config.server.data_dir / KEY_FILE).read_bytes()
        except OSError:
            key = b""
        return key if len(key) == KEY_BYTES else bytes(KEY_BYTES)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: ORDER.index(finding.check))


def _opens(work: Callable[[], bytes]) -> bool:
    try:
        work()
    except UnsealError:
        return False
    return True
