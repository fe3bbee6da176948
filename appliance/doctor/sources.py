"""Checks of the source addresses: on this machine, name and reverse name in DNS, blocklists, and port 25 from each.

The SPF records of the domains that use them are checked with the domains.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import trio
from msgspec.structs import replace

from appliance.config.settings import Config
from appliance.dns.check import public_addresses
from appliance.dns.resolver import Resolver
from appliance.doctor import Finding, fault, ok
from appliance.doctor.names import check_blocklists, check_host, check_ptr, probe_mail_servers
from appliance.environment import Environment
from appliance.model.sources import OutgoingSource, SourceTable
from appliance.net.address_policy import Address, refusal
from appliance.net.local_addresses import bind_trouble

SOURCE = "source"


async def check_source(
    resolver: Resolver, config: Config, env: Environment, source: OutgoingSource, *, blocklists: Sequence[str] = ()
) -> list[Finding]:
    """Check one source of this node; `blocklists` may be empty."""
    findings, here = [], list[Address]()
    for address in source.addresses:
        if (trouble := bind_trouble(address)) is None:
            here.append(address)
        else:
            advice = f"Add the address to this machine, or correct delivery.sources.{source.name}."
            findings.append(fault(SOURCE, source.name, f"{address} {trouble}", advice))
    if here and not findings:
        findings.append(ok(SOURCE, source.name, f"{', '.join(map(str, here))} can be used here"))
    public = [address for address in here if refusal(address) is None]
    finding, _ = await check_host(resolver, source.hostname, public)
    findings.append(replace(finding, subject=f"{source.hostname} of source {source.name}"))
    if not public:  # behind NAT; `check_host` reported a failed lookup
        public = await public_addresses(resolver, source.hostname)
    for address in public:
        findings += await check_ptr(resolver, address, source.hostname)
    findings += await check_blocklists(resolver, blocklists, public)
    ports: dict[Address, list[Finding]] = {}

    async def check_from(address: Address) -> None:
        ports[address] = await _check_port(resolver, config, env, source, address)

    async with trio.open_nursery() as nursery:
        for address in here:
            nursery.start_soon(check_from, address)
    return findings + [finding for address in here for finding in ports[address]]


async def _check_port(
    resolver: Resolver, config: Config, env: Environment, source: OutgoingSource, address: Address
) -> list[Finding]:
    """Read the greetings of large providers' mail servers on connections from a source's address."""

    async def dial(target: str, port: int) -> trio.abc.Stream:
        return await env.dial_from(target, port, str(address))

    def refused(target: Address) -> str | None:
        if target.version != address.version:
            return f"it has no IPv{address.version} address"
        return refusal(target, config.delivery.allow_networks)

    findings = await probe_mail_servers(resolver, replace(env, dial=dial), config.delivery.mx_port, refused)
    return [replace(finding, subject=f"{finding.subject} from {address} ({source.name})") for finding in findings]


def judge_streams(table: SourceTable, own: Mapping[str, Mapping[str, tuple[str, ...]]], node: str) -> list[Finding]:
    """Return a fault for each stream, of all accounts or of one, whose sources are all missing on this machine."""
    is_here, findings = partial(_is_here, table, node), []
    for account, by_stream in {"": table.by_stream, **own}.items():
        for stream, names in by_stream.items():
            if not any(map(is_here, names)):
                text = f"none of its sources can be used here ({', '.join(names)}): its mail stays queued"
                subject = f"stream {stream}" + (f" of {account}" if account else "")
                findings.append(fault(SOURCE, subject, text, "Add an address to this machine, or change its sources."))
    return findings


def _is_here(table: SourceTable, node: str, name: str) -> bool:
    source = table.by_name.get(name)
    if source is None or source.node not in ("", node):
        return False
    return any(bind_trouble(address) is None for address in source.addresses)
