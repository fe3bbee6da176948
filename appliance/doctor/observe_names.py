"""In charge of observing what the world shows of this machine: DNS, mail servers, blocklists."""

from collections.abc import Awaitable, Callable, Sequence

import trio

from appliance.config.load import Config, RelayTls
from appliance.config.settings import DeliveryMode
from appliance.dns.check import addresses_of
from appliance.dns.resolver import DnsFault, LookupFailed, Resolver
from appliance.doctor.facts import HostFacts, Knock, Listing, MxFacts, PtrFacts
from appliance.doctor.names import query_name
from appliance.errors import error_text
from appliance.net.address_policy import Address, refusal
from appliance.net.local_addresses import UNASSIGNED, source_address
from appliance.outside import Outside

TARGETS = ("gmail.com", "outlook.com", "yahoo.com")  # whose mail servers are known to be up
KNOCK_TIMEOUT = 8.0  # seconds for a connection and its first words
GREETING = 512  # bytes read of them
UNDER_TLS = "220 (under TLS, which was not begun)"  # of a server that takes the connection, and speaks only then


async def host(resolver: Resolver, config: Config) -> HostFacts:
    """The server's name and addresses."""
    name, leaving = config.server.hostname, leaving_addresses(config)
    try:
        return HostFacts(name, tuple(await addresses_of(resolver, name)), leaving)
    except LookupFailed as failed:
        return HostFacts(name, None, leaving, failed.text)


def leaving_addresses(config: Config) -> tuple[Address, ...]:
    """Where mail leaves from: as the settings say, else as the routing table does, if that is public at all."""
    if config.delivery.own_addresses:
        return config.delivery.own_addresses
    found = [address for nobodys in UNASSIGNED if (address := source_address(nobodys)) is not None]
    return tuple(address for address in found if refusal(address) is None)


async def ptr(resolver: Resolver, address: Address, hostname: str) -> PtrFacts:
    """The reverse names of an address, and which of them lead back."""
    try:
        names = (await resolver.ptr(address.reverse_pointer)).records
    except LookupFailed as failed:
        if failed.fault is DnsFault.TEMPORARY:
            return PtrFacts(address, hostname, None, trouble=failed.text)
        return PtrFacts(address, hostname, ())
    confirmed = []
    for name in names:
        try:
            if address in await addresses_of(resolver, name):
                confirmed.append(name)
        except LookupFailed:
            pass  # not confirmed, whatever the cause: receivers will see no more
    return PtrFacts(address, hostname, names, tuple(confirmed))


async def mx(resolver: Resolver, domain: str) -> MxFacts:
    """Who takes mail for a domain."""
    try:
        return MxFacts(domain, (await resolver.mx(domain)).records)
    except LookupFailed as failed:
        if failed.fault is DnsFault.TEMPORARY:
            return MxFacts(domain, None, trouble=failed.text)
    try:
        return MxFacts(domain, (), bool(await addresses_of(resolver, domain)))
    except LookupFailed as failed:
        return MxFacts(domain, None, trouble=failed.text)


# ---- mail servers


async def knocks(resolver: Resolver, config: Config, outside: Outside) -> list[Knock]:
    """What the mail servers of large providers say, or the relay; all are asked at once."""
    if config.delivery.mode is DeliveryMode.RELAY and config.delivery.relay_host:
        return [await _knock_at_relay(resolver, config, outside)]
    found: dict[str, Knock] = {}

    async def one(target: str) -> None:
        found[target] = await _knock_at_domain(resolver, config, outside, target)

    async with trio.open_nursery() as nursery:
        for target in TARGETS:
            nursery.start_soon(one, target)
    return [found[target] for target in TARGETS]


async def _knock_at_domain(resolver: Resolver, config: Config, outside: Outside, domain: str) -> Knock:
    try:
        exchangers = (await resolver.mx(domain)).records
    except LookupFailed as failed:
        return Knock(domain, None, failed.text, dialled=False)
    best = min(exchangers, key=lambda each: each.preference)

    async def greeting(address: Address) -> str:
        return await _greeting(outside, str(address), config.delivery.mx_port)

    return await _knock(resolver, best.host, lambda address: refusal(address, config.delivery.allow_networks), greeting)


async def _knock_at_relay(resolver: Resolver, config: Config, outside: Outside) -> Knock:
    """As delivery does: the operator named the relay, so its address may be a private one."""
    delivery = config.delivery

    async def greeting(address: Address) -> str:
        if delivery.relay_tls is not RelayTls.IMPLICIT:
            return await _greeting(outside, str(address), delivery.relay_port)
        await (await outside.dial(str(address), delivery.relay_port)).aclose()
        return UNDER_TLS

    return await _knock(resolver, delivery.relay_host, lambda _: None, greeting)


async def _knock(
    resolver: Resolver,
    host_name: str,
    refused: Callable[[Address], str | None],
    greeting: Callable[[Address], Awaitable[str]],
) -> Knock:
    try:
        found = await addresses_of(resolver, host_name)
    except LookupFailed as failed:
        return Knock(host_name, None, failed.text, dialled=False)
    reason = "it has no address"
    for address in found[:2]:
        if no := refused(address):
            reason = no
            continue
        try:
            with trio.fail_after(KNOCK_TIMEOUT):
                return Knock(host_name, await greeting(address))
        except trio.TooSlowError:
            reason = f"no answer from {address} within {KNOCK_TIMEOUT:.0f} s"
        except OSError as error:
            reason = f"{address}: {error_text(error)}"
        except trio.BrokenResourceError:
            reason = f"{address}: the connection was closed"
    return Knock(host_name, None, reason)


async def _greeting(outside: Outside, address: str, port: int) -> str:
    stream = await outside.dial(address, port)
    async with stream:
        said = await stream.receive_some(GREETING)
        return bytes(said).decode("ascii", "replace").strip() or "it hung up"


# ---- blocklists


async def listings(resolver: Resolver, blocklists: Sequence[str], found: Sequence[Address]) -> list[Listing]:
    """What each blocklist says of each address."""
    asked: dict[tuple[str, Address], Listing] = {}

    async def one(blocklist: str, address: Address) -> None:
        asked[blocklist, address] = await _listing(resolver, blocklist, address)

    async with trio.open_nursery() as nursery:
        for blocklist in blocklists:
            for address in found:
                nursery.start_soon(one, blocklist, address)
    return [asked[blocklist, address] for blocklist in blocklists for address in found]


async def _listing(resolver: Resolver, blocklist: str, address: Address) -> Listing:
    name = query_name(blocklist, str(address))
    try:
        codes = tuple(str(code) for code in (await resolver.ipv4(name)).records)
    except LookupFailed as failed:
        if failed.fault is DnsFault.TEMPORARY:
            return Listing(blocklist, address, None, failed.text)
        return Listing(blocklist, address, ())
    try:
        reason = "; ".join((await resolver.txt(name)).records)
    except LookupFailed:
        reason = ""
    return Listing(blocklist, address, codes, reason)
