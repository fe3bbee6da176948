"""How other servers see this machine: its name and addresses in DNS, port 25, blocklists."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address

import trio

from appliance.config.settings import Config, DeliveryMode, RelayTls
from appliance.dns.check import addresses_of
from appliance.dns.resolver import DnsFault, LookupFailed, Resolver
from appliance.doctor import Finding, RecordToPublish, fault, not_looked_up, ok, warning
from appliance.environment import Environment
from appliance.errors import error_text
from appliance.net.address_policy import Address, refusal
from appliance.net.local_addresses import UNASSIGNED, source_address

PROBED_DOMAINS = ("gmail.com", "outlook.com", "yahoo.com")  # whose mail servers are known to be up
PROBE_TIMEOUT = 8.0  # seconds for a connection and its greeting
GREETING_BYTES = 512  # read of it
UNDER_TLS = "220 (under TLS, which was not begun)"  # such a server greets only after the handshake
REFUSED_RESOLVER = "127.255.255."  # the answer of blocklists to a resolver that they do not serve


def leaving_addresses(config: Config) -> tuple[Address, ...]:
    """The source addresses of mail: by the settings, else by the routing table if public; none behind a NAT."""
    if config.delivery.own_addresses:
        return config.delivery.own_addresses
    found = [address for nobodys in UNASSIGNED if (address := source_address(nobodys)) is not None]
    return tuple(address for address in found if refusal(address) is None)


async def check_host(resolver: Resolver, name: str, leaving: Sequence[Address]) -> tuple[Finding, Sequence[Address]]:
    """The HELO name, fully qualified and with the addresses that mail leaves from; and its addresses in DNS."""
    try:
        addresses = await addresses_of(resolver, name)
    except LookupFailed as failed:
        return _unqualified(name) or not_looked_up("hostname", name, failed.text), ()
    return _unqualified(name) or _judge_host(name, addresses, leaving), addresses


def _unqualified(name: str) -> Finding | None:
    advice = 'Set server.hostname to a name such as "mail.example.com".'
    return None if "." in name else fault("hostname", name, "is not a full name", advice)


def _judge_host(name: str, addresses: Sequence[Address], leaving: Sequence[Address]) -> Finding:
    if not addresses:
        records = _address_records(name, leaving) or [RecordToPublish(name, "A", "ADDRESS")]
        advice = "Publish the address of this machine at this name."
        return fault("hostname", name, "has no address in DNS", advice, *records)
    shown, missing = ", ".join(map(str, addresses)), [address for address in leaving if address not in addresses]
    if missing:
        text = f"leads to {shown}, but mail leaves from {', '.join(map(str, missing))}"
        advice = "Publish that address at this name, too, or list the public ones in delivery.own_addresses."
        return fault("hostname", name, text, advice, *_address_records(name, missing))
    return ok("hostname", name, f"leads to {shown}")


def _address_records(name: str, addresses: Sequence[Address]) -> list[RecordToPublish]:
    return [RecordToPublish(name, "A" if each.version == 4 else "AAAA", str(each)) for each in addresses]


async def check_ptr(resolver: Resolver, address: Address, hostname: str) -> list[Finding]:
    """The reverse name of an address: large providers refuse mail from one without a name that leads back to it."""
    subject, record = str(address), RecordToPublish(address.reverse_pointer, "PTR", f"{hostname}.")
    rented = "It is set where the address was rented (reverse DNS)."
    names: tuple[str, ...] = ()
    try:
        names = (await resolver.ptr(address.reverse_pointer)).records
    except LookupFailed as failed:
        if failed.fault is DnsFault.TEMPORARY:
            return [not_looked_up("ptr", subject, failed.text)]
    if not names:
        advice = f"Let it lead to {hostname}. {rented}"
        return [fault("ptr", subject, "has no reverse name (PTR)", advice, record)]
    confirmed = []
    for name in names:
        try:
            if address in await addresses_of(resolver, name):
                confirmed.append(name)
        except LookupFailed:
            pass  # not confirmed, whatever the cause
    if not confirmed and hostname in names:
        return []  # the PTR is right; that the name does not lead here is another finding
    if not confirmed:
        text = f"its reverse name {', '.join(names)} does not lead back to it"
        return [fault("ptr", subject, text, f"Let it lead to {hostname}. {rented}", record)]
    if hostname not in confirmed:
        text = f"its reverse name is {', '.join(names)}, in HELO we say {hostname}"
        advice = f"Let it lead to {hostname}, or set server.hostname to {confirmed[0]}. {rented}"
        return [warning("ptr", subject, text, advice, record)]
    return [ok("ptr", subject, f"leads to {hostname} and back")]


# ---- mail servers


@dataclass(frozen=True, slots=True)
class MailServerProbe:
    """An attempt to reach a mail server: its greeting, or why there is none."""

    target: str
    greeting: str | None
    trouble: str = ""
    dialled: bool = True  # False: its name could not be looked up


def judge_port(probes: Sequence[MailServerProbe], port: int, *, relay: bool = False) -> list[Finding]:
    """Whether mail servers can be reached, of which one is enough; or the relay."""
    for probe in probes:
        if probe.greeting is not None and probe.greeting.startswith("220"):
            return [ok("port", str(port), f"{probe.target} answers")]
    tried = "; ".join(
        f"{probe.target}: {probe.trouble if probe.greeting is None else probe.greeting[:60]}" for probe in probes
    )
    if relay and any(probe.dialled for probe in probes):
        advice = "Check delivery.relay_host and relay_port, and whether the relay lets this machine in."
        return [fault("port", str(port), f"the relay does not take mail ({tried})", advice)]
    if any(probe.greeting is not None for probe in probes):
        advice = "Its address may have a bad reputation: see the blocklists, or take another address."
        return [fault("port", str(port), f"mail servers do not want to talk to this machine ({tried})", advice)]
    if not any(probe.dialled for probe in probes):
        text = f"was not tried, because no mail server could be looked up ({tried})"
        return [warning("port", str(port), text, "Check dns.resolvers, then ask again.")]
    advice = f"Ask where the machine was rented to open outgoing port {port}, or send through a relay (delivery.mode)."
    return [fault("port", str(port), f"no mail server can be reached ({tried})", advice)]


async def check_port(resolver: Resolver, config: Config, env: Environment) -> list[Finding]:
    """Read the greetings of the mail servers of large providers, all at once, or that of the relay."""
    delivery = config.delivery
    relay = delivery.mode is DeliveryMode.RELAY
    port = delivery.relay_port if relay else delivery.mx_port
    if relay and delivery.relay_host:
        # As delivery does: the operator named the relay, so its address may be a private one.
        under_tls = delivery.relay_tls is RelayTls.IMPLICIT
        probe = await _probe(resolver, env, delivery.relay_host, port, lambda _: None, under_tls=under_tls)
        return judge_port([probe], port, relay=True)
    found: dict[str, MailServerProbe] = {}

    async def one(domain: str) -> None:
        try:
            best = min((await resolver.mx(domain)).records, key=lambda each: each.preference)
        except LookupFailed as failed:
            found[domain] = MailServerProbe(domain, None, failed.text, dialled=False)
        else:
            refused = partial(refusal, allowed=delivery.allow_networks)
            found[domain] = await _probe(resolver, env, best.host, delivery.mx_port, refused)

    async with trio.open_nursery() as nursery:
        for domain in PROBED_DOMAINS:
            nursery.start_soon(one, domain)
    return judge_port([found[domain] for domain in PROBED_DOMAINS], port, relay=relay)


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
        found = await addresses_of(resolver, host_name)
    except LookupFailed as failed:
        return MailServerProbe(host_name, None, failed.text, dialled=False)
    reason = "it has no address"
    for address in found[:2]:
        if no := refused(address):
            reason = no
            continue
        try:
            with trio.fail_after(PROBE_TIMEOUT):
                async with await env.dial(str(address), port) as stream:
                    if under_tls:
                        return MailServerProbe(host_name, UNDER_TLS)
                    greeting = bytes(await stream.receive_some(GREETING_BYTES)).decode("ascii", "replace").strip()
                    return MailServerProbe(host_name, greeting or "it hung up")
        except trio.TooSlowError:
            reason = f"no answer from {address} within {PROBE_TIMEOUT:.0f} s"
        except OSError as error:
            reason = f"{address}: {error_text(error)}"
        except trio.BrokenResourceError:
            reason = f"{address}: the connection was closed"
    return MailServerProbe(host_name, None, reason)


# ---- blocklists


async def check_blocklists(
    resolver: Resolver, blocklists: Sequence[str], addresses: Sequence[Address]
) -> list[Finding]:
    """Whether a blocklist names an address; all are asked at once."""
    asked: dict[tuple[str, Address], Finding] = {}

    async def one(blocklist: str, address: Address) -> None:
        asked[blocklist, address] = await _listing(resolver, blocklist, address)

    async with trio.open_nursery() as nursery:
        for blocklist in blocklists:
            for address in addresses:
                nursery.start_soon(one, blocklist, address)
    return [asked[blocklist, address] for blocklist in blocklists for address in addresses]


async def _listing(resolver: Resolver, blocklist: str, address: Address) -> Finding:
    subject, name = f"{address} at {blocklist}", query_name(blocklist, str(address))
    try:
        codes = [str(code) for code in (await resolver.ipv4(name)).records]
    except LookupFailed as failed:
        if failed.fault is DnsFault.TEMPORARY:
            return warning("blocklist", subject, f"could not be asked: {failed.text}")
        codes = []
    if not codes:
        return ok("blocklist", subject, "not listed")
    if any(code.startswith(REFUSED_RESOLVER) for code in codes):
        advice = "Use a resolver of your own (dns.resolvers), not a public one."
        return warning("blocklist", subject, "does not answer this resolver", advice)
    try:
        reason = "; ".join((await resolver.txt(name)).records)
    except LookupFailed:
        reason = ""
    text = f"listed ({', '.join(codes)}){': ' + reason if reason else ''}"
    return fault("blocklist", subject, text, "Find out why, mend it, and ask the list to remove the address.")


def query_name(blocklist: str, text: str) -> str:
    """The name to look up for an address in a blocklist (RFC 5782 2.1)."""
    reverse = ip_address(text).reverse_pointer.removesuffix(".in-addr.arpa").removesuffix(".ip6.arpa")
    return f"{reverse}.{blocklist}"
