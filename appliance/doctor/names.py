"""Checks how other servers see this machine: its name and addresses in DNS, port 25, logins at relays, blocklists."""

from collections.abc import Callable, Sequence
from functools import partial

import trio
from msgspec import Struct

from appliance.config.settings import Config, DeliveryMode, RelayTls
from appliance.deliver.route import Host, Relay, Route, configured_relays
from appliance.deliver.smtp.connection import DeadlineWatch, SmtpConnection
from appliance.deliver.smtp.protocol import NotOpened, RelayCredentials, ResultKind, Stage, Verdict
from appliance.deliver.tls_policy import NoPolicy, TlsChoice, TlsPolicies
from appliance.dns.blocklists import Listing, look_up
from appliance.dns.check import addresses_of
from appliance.dns.resolver import DnsFault, LookupFailed, Resolver
from appliance.doctor import Finding, RecordToPublish, fault, not_looked_up, ok, warning
from appliance.environment import Environment
from appliance.errors import error_text
from appliance.net.address_policy import Address, refusal
from appliance.net.local_addresses import UNASSIGNED, source_address
from appliance.report.explain import encryption
from appliance.tls.certificate import verifying_context

PROBED_DOMAINS = ("gmail.com", "outlook.com", "yahoo.com")  # their mail servers are reliably up
PROBE_TIMEOUT = 8.0  # seconds for a connection and its greeting
LOGIN_TIMEOUT = 10.0  # seconds for a connection, TLS and the login
GREETING_BYTES = 512
UNDER_TLS = "220 (implicit TLS, not started)"  # such a server greets only after the handshake


def leaving_addresses(config: Config) -> tuple[Address, ...]:
    """Return the source addresses of mail, from the settings or the routing table; none behind NAT."""
    if config.delivery.own_addresses:
        return config.delivery.own_addresses
    addresses = [address for unassigned in UNASSIGNED if (address := source_address(unassigned)) is not None]
    return tuple(address for address in addresses if refusal(address) is None)


async def check_host(resolver: Resolver, name: str, leaving: Sequence[Address]) -> tuple[Finding, Sequence[Address]]:
    """Check that the HELO name is fully qualified and has the source addresses; also return its addresses in DNS."""
    try:
        addresses = await addresses_of(resolver, name)
    except LookupFailed as failed:
        return _unqualified(name) or not_looked_up("hostname", name, failed.text), ()
    return _unqualified(name) or _judge_host(name, addresses, leaving), addresses


def _unqualified(name: str) -> Finding | None:
    advice = 'Set server.hostname to a name such as "mail.example.com".'
    return None if "." in name else fault("hostname", name, "is not a fully qualified name", advice)


def _judge_host(name: str, addresses: Sequence[Address], leaving: Sequence[Address]) -> Finding:
    if not addresses:
        records = _address_records(name, leaving) or [RecordToPublish(name, "A", "ADDRESS")]
        advice = "Publish the address of this machine under this name."
        return fault("hostname", name, "has no address in DNS", advice, *records)
    shown, missing = ", ".join(map(str, addresses)), [address for address in leaving if address not in addresses]
    if missing:
        text = f"resolves to {shown}, but mail leaves from {', '.join(map(str, missing))}"
        advice = "Publish that address under this name too, or list the public ones in delivery.own_addresses."
        return fault("hostname", name, text, advice, *_address_records(name, missing))
    return ok("hostname", name, f"resolves to {shown}")


def _address_records(name: str, addresses: Sequence[Address]) -> list[RecordToPublish]:
    return [RecordToPublish(name, "A" if address.version == 4 else "AAAA", str(address)) for address in addresses]


async def check_ptr(resolver: Resolver, address: Address, hostname: str) -> list[Finding]:
    """Check the reverse name: large providers refuse mail from an address whose name does not resolve back to it."""
    subject, record = str(address), RecordToPublish(address.reverse_pointer, "PTR", f"{hostname}.")
    rented = "The provider of the address sets it (reverse DNS)."
    names: tuple[str, ...] = ()
    try:
        names = (await resolver.ptr(address.reverse_pointer)).records
    except LookupFailed as failed:
        if failed.fault is DnsFault.TEMPORARY:
            return [not_looked_up("ptr", subject, failed.text)]
    if not names:
        advice = f"Point it to {hostname}. {rented}"
        return [fault("ptr", subject, "has no reverse name (PTR)", advice, record)]
    confirmed = []
    for name in names:
        try:
            if address in await addresses_of(resolver, name):
                confirmed.append(name)
        except LookupFailed:
            pass  # not confirmed, whatever the cause
    if not confirmed and hostname in names:
        return []  # the PTR is correct; the name that does not resolve to it is another finding
    if not confirmed:
        text = f"its reverse name {', '.join(names)} does not resolve back to it"
        return [fault("ptr", subject, text, f"Point it to {hostname}. {rented}", record)]
    if hostname not in confirmed:
        text = f"its reverse name is {', '.join(names)}, but HELO says {hostname}"
        advice = f"Point it to {hostname}, or set server.hostname to {confirmed[0]}. {rented}"
        return [warning("ptr", subject, text, advice, record)]
    return [ok("ptr", subject, f"resolves to {hostname} and back")]


# ---- mail servers
class MailServerProbe(Struct, frozen=True):
    """An attempt to reach a mail server: its greeting, or the failure."""

    target: str
    greeting: str | None
    trouble: str = ""
    dialled: bool = True  # False: the name lookup failed


def judge_port(probes: Sequence[MailServerProbe], port: int, *, relay: bool = False) -> list[Finding]:
    for probe in probes:
        if probe.greeting is not None and probe.greeting.startswith("220"):
            return [ok("port", str(port), f"{probe.target} answers")]
    tried = "; ".join(
        f"{probe.target}: {probe.trouble if probe.greeting is None else probe.greeting[:60]}" for probe in probes
    )
    if relay and any(probe.dialled for probe in probes):
        advice = "Check delivery.relay_host and relay_port, and that the relay accepts this machine."
        return [fault("port", str(port), f"the relay does not accept mail ({tried})", advice)]
    if any(probe.greeting is not None for probe in probes):
        advice = "Its address may have a bad reputation: check blocklists, or use another address."
        return [fault("port", str(port), f"mail servers refuse this machine ({tried})", advice)]
    if not any(probe.dialled for probe in probes):
        text = f"was not tested: the lookup of mail servers failed ({tried})"
        return [warning("port", str(port), text, "Check dns.resolvers, then run this again.")]
    advice = f"Ask the machine's provider to open outgoing port {port}, or send through a relay (delivery.mode)."
    return [fault("port", str(port), f"no mail server can be reached ({tried})", advice)]


async def check_port(resolver: Resolver, config: Config, env: Environment, *, to_relay: bool = True) -> list[Finding]:
    """Read the greetings of large providers' mail servers, concurrently, or in mode relay the relay's."""
    delivery = config.delivery
    relay = to_relay and delivery.mode is DeliveryMode.RELAY
    port = delivery.relay_port if relay else delivery.mx_port
    if relay and delivery.relay_host:
        # Like delivery: the operator configured the relay, so its address may be private.
        under_tls = delivery.relay_tls is RelayTls.IMPLICIT
        probe = await _probe(resolver, env, delivery.relay_host, port, lambda _: None, under_tls=under_tls)
        return judge_port([probe], port, relay=True)
    return await probe_mail_servers(
        resolver, env, delivery.mx_port, partial(refusal, allowed=delivery.allow_networks), relay=relay
    )


async def probe_mail_servers(
    resolver: Resolver, env: Environment, port: int, refused: Callable[[Address], str | None], *, relay: bool = False
) -> list[Finding]:
    probes: dict[str, MailServerProbe] = {}

    async def one(domain: str) -> None:
        try:
            best = min((await resolver.mx(domain)).records, key=lambda mx: mx.preference)
        except LookupFailed as failed:
            probes[domain] = MailServerProbe(domain, None, failed.text, dialled=False)
        else:
            probes[domain] = await _probe(resolver, env, best.host, port, refused)

    async with trio.open_nursery() as nursery:
        for domain in PROBED_DOMAINS:
            nursery.start_soon(one, domain)
    return judge_port([probes[domain] for domain in PROBED_DOMAINS], port, relay=relay)


async def _probe(
    resolver: Resolver,
    env: Environment,
    host_name: str,
    port: int,
    refused: Callable[[Address], str | None],
    *,
    under_tls: bool = False,
) -> MailServerProbe:
    try:
        addresses = await addresses_of(resolver, host_name)
    except LookupFailed as failed:
        return MailServerProbe(host_name, None, failed.text, dialled=False)
    reason = "it has no address"
    for address in addresses[:2]:
        if forbidden := refused(address):
            reason = forbidden
            continue
        try:
            with trio.fail_after(PROBE_TIMEOUT):
                async with await env.dial(str(address), port) as stream:
                    if under_tls:
                        return MailServerProbe(host_name, UNDER_TLS)
                    greeting = bytes(await stream.receive_some(GREETING_BYTES)).decode("ascii", "replace").strip()
                    return MailServerProbe(host_name, greeting or "it closed the connection")
        except trio.TooSlowError:
            reason = f"no response from {address} within {PROBE_TIMEOUT:.0f} s"
        except OSError as error:
            reason = f"{address}: {error_text(error)}"
        except trio.BrokenResourceError:
            reason = f"{address}: the connection was closed"
    return MailServerProbe(host_name, None, reason)


# ---- relays
def relays_with_login(config: Config) -> list[Relay]:
    known = configured_relays(config.delivery)
    every = [*([known.default] if known.default else []), *known.by_domain.values()]
    return list(dict.fromkeys(relay for relay in every if relay.username))


async def check_login(resolver: Resolver, config: Config, env: Environment, relay: Relay) -> list[Finding]:
    """Log in to a relay as delivery does, at the first address that answers: no mail, and no password without TLS."""
    try:
        addresses = await addresses_of(resolver, relay.host)
    except LookupFailed as failed:
        return [not_looked_up("relay", relay.host, failed.text)]
    trouble = "it has no address"
    for address in addresses[:2]:
        try:
            with trio.fail_after(LOGIN_TIMEOUT):
                tls = await _log_in(resolver, config, env, relay, address)
        except NotOpened as failure:
            return [judge_login(relay, failure.verdict)]
        except trio.TooSlowError:
            trouble = f"no login at {address} within {LOGIN_TIMEOUT:.0f} s"
        except OSError as error:
            trouble = f"{address}: {error_text(error)}"
        else:
            return [ok("relay", relay.host, f"accepts our login, {encryption(tls)}")]
    return [fault("relay", relay.host, f"login failed: {trouble}", "Check its name, port and firewall.")]


def judge_login(relay: Relay, verdict: Verdict) -> Finding:
    if verdict.stage is Stage.AUTH and verdict.kind is ResultKind.REJECTED:
        advice = "Check relay_username and relay_password, or username and password of the domain's relay."
        return fault("relay", relay.host, f"rejects our login: {verdict.text}", advice)
    advice = "Its mail stays queued; check the relay's settings, TLS first."
    kind = warning if verdict.kind is ResultKind.DEFERRED else fault
    return kind("relay", relay.host, f"login failed: {verdict.text}", advice)


async def _log_in(resolver: Resolver, config: Config, env: Environment, relay: Relay, address: Address) -> str | None:
    """Open and close a session; return its encryption. Raises NotOpened or OSError."""
    host = Host(relay.host, (address,))
    route = Route("", (host,), relay.port, relay=relay)
    choice = TlsChoice(TlsPolicies(resolver, _no_policy), verifying_context(config.delivery.ca_file))
    connection = await SmtpConnection.open(
        await env.dial(str(address), relay.port),
        config.server.hostname,
        watch=DeadlineWatch(),
        tls=choice.plan(await choice.policies.demand(route, host), route, host),
        credentials=RelayCredentials(relay.username, relay.password),
    )
    await connection.quit()
    return str(connection.tls) if connection.tls else None


async def _no_policy(domain: str) -> str:
    raise NoPolicy("the operator chooses a relay's TLS")


# ---- blocklists
async def check_blocklists(
    resolver: Resolver, blocklists: Sequence[str], addresses: Sequence[Address]
) -> list[Finding]:
    """Check whether a blocklist lists an address, with all lookups concurrent."""
    listings: dict[tuple[str, Address], Finding] = {}

    async def one(blocklist: str, address: Address) -> None:
        listings[blocklist, address] = _judge_listing(await look_up(resolver, blocklist, address))

    async with trio.open_nursery() as nursery:
        for blocklist in blocklists:
            for address in addresses:
                nursery.start_soon(one, blocklist, address)
    return [listings[blocklist, address] for blocklist in blocklists for address in addresses]


def _judge_listing(listing: Listing) -> Finding:
    subject = f"{listing.address} at {listing.blocklist}"
    if listing.is_listed:
        return fault(
            "blocklist", subject, listing.text, "Find and fix the cause, then ask the list to remove the address."
        )
    if listing.is_listed is None:
        advice = "Use your own resolver (dns.resolvers), not a public one." if listing.refuses_resolver else ""
        return warning("blocklist", subject, listing.text, advice)
    return ok("blocklist", subject, listing.text)
