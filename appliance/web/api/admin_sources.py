"""The source addresses of the installation, for administrators: /v1/admin/sources."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated

import msgspec
import trio
from msgspec import Meta, Struct, field

from appliance.config.values import Address
from appliance.dns.blocklists import look_up
from appliance.dns.check import addresses_of, public_addresses
from appliance.dns.resolver import DnsResolver, LookupFailed, records_of
from appliance.model.accounts import User
from appliance.model.queue import PoolHold
from appliance.model.sources import OutgoingSource, PoolDay, SourceState, configured_sources, pool_and_source
from appliance.net.address_policy import refusal
from appliance.report.queue import WarmingAddress, warming
from appliance.times import DAY, rfc3339
from appliance.web.app import Routes
from appliance.web.exchange import ApiAnswer, SinglePage
from appliance.web.operations import Tag, for_admins

SOURCE_DAYS = 30  # shown, including today
SOURCE_LOOKUP_TIMEOUT = 3.0  # seconds for all lookups of a request
WARMUPS_LISTED = 1_000


class SourceHold(msgspec.Struct):
    """A provider that refuses mail from the source."""

    pool: Annotated[str, Meta(description="Provider pool.")]
    node: Annotated[str, Meta(description="Node whose mail is refused; empty for all.")]
    since: Annotated[str, Meta(description="Time since when the source is out there.")]
    reason: Annotated[str, Meta(description="Why the source is out there.")]
    next_probe_at: Annotated[str | None, Meta(description="Time of the next test message; null if none is planned.")]


class SourcePtr(msgspec.Struct):
    """The reverse name of one address."""

    address: Annotated[str, Meta(description="IP address.")]
    names: Annotated[list[str], Meta(description="Reverse names (PTR) in DNS.")]
    matches: Annotated[
        bool | None, Meta(description="Whether the hostname is a reverse name and has the address; null: no answer.")
    ]


class SourceListing(msgspec.Struct):
    """What one blocklist of `dns.blocklists` says about one address."""

    address: Annotated[str, Meta(description="IP address.")]
    blocklist: Annotated[str, Meta(description="Name of the blocklist.")]
    listed: Annotated[bool | None, Meta(description="Whether it lists the address; null: no answer.")]
    detail: Annotated[str, Meta(description="The reason that the blocklist gives, or why there is no answer.")]


class SourceDay(msgspec.Struct):
    """Recipients of one day's attempts."""

    date: Annotated[str, Meta(description="Day (UTC).")]
    delivered: Annotated[int, Meta(description="Recipients delivered.")]
    deferred: Annotated[int, Meta(description="Attempts that were deferred.")]
    blocked: Annotated[int, Meta(description="Attempts refused because of the source's reputation or a policy.")]


class SourceProvider(msgspec.Struct):
    """The results at one provider over the last 30 days. `other` sums all pools without a name in the settings."""

    provider: Annotated[str, Meta(description="Provider pool, or `other`.")]
    delivered: Annotated[int, Meta(description="Recipients delivered.")]
    deferred: Annotated[int, Meta(description="Attempts that were deferred.")]
    blocked: Annotated[int, Meta(description="Attempts refused because of the source's reputation or a policy.")]
    last_reply: Annotated[str | None, Meta(description="Last reply that deferred or refused mail.")]
    last_reply_at: Annotated[str | None, Meta(description="Time of that reply.")]
    days: Annotated[list[SourceDay], Meta(description="Days with results, oldest first.")]


class SourceObject(msgspec.Struct):
    """A source address of the settings."""

    name: Annotated[str, Meta(description="Name in the settings.")]
    ipv4: Annotated[str | None, Meta(description="IPv4 address.")]
    ipv6: Annotated[str | None, Meta(description="IPv6 address.")]
    hostname: Annotated[str, Meta(description="Host name in EHLO.")]
    node: Annotated[str | None, Meta(description="Node that has the addresses; null: every node that can bind them.")]
    streams: Annotated[list[str], Meta(description="Streams that use it.")]
    state: Annotated[
        str, Meta(description="`in_use`, `taken_out` (no node can bind to it) or `unknown` (no node tested it yet).")
    ]
    reason: Annotated[str | None, Meta(description="Why it, or one of its addresses, is out.")]
    held: Annotated[list[SourceHold], Meta(description="Providers that refuse mail from it.")]
    ptr: Annotated[list[SourcePtr], Meta(description="Reverse names of its addresses; behind NAT of its public ones.")]
    blocklists: Annotated[list[SourceListing], Meta(description="Answers of blocklists about these addresses.")]
    warmups: Annotated[list[WarmingAddress], Meta(description="Warm-ups of its addresses.")]
    providers: Annotated[list[SourceProvider], Meta(description="Results by provider, those with most mail first.")]


class SourcesAnswer(ApiAnswer):
    """The source addresses, in the order of the settings."""

    sources: Annotated[list[SourceObject], Meta(description="Source addresses.")]
    next: SinglePage


class SourceRoutes(Routes):
    tag = Tag.ADMINISTRATION

    @for_admins("GET /v1/admin/sources", SourcesAnswer)
    async def list_sources(self, _admin: User) -> SourcesAnswer:
        """List the source addresses with their state, reverse names, warm-up and results by provider."""
        config, now = self.services.config, self.services.env.now()
        table = configured_sources(config)
        if not table.by_name:
            return SourcesAnswer([], None)
        states = await self.store.sources.states()
        days = await self.store.sources.days(now // DAY - SOURCE_DAYS + 1)
        holds = await self.store.pools.all_holds()
        warmups = warming(await self.store.warmups.told(config.warmup, WARMUPS_LISTED))
        looked_up = await _look_up(DnsResolver(config.dns.resolvers), table.by_name.values(), config.dns.blocklists)
        sources = []
        for name, source in table.by_name.items():
            addresses = set(map(str, source.addresses))
            of_pools = {pool: by_day for (of, pool), by_day in days.items() if of == name}
            sources.append(
                SourceObject(
                    name,
                    _text(source.address(4)),
                    _text(source.address(6)),
                    source.hostname,
                    source.node or None,
                    [stream for stream, names in table.by_stream.items() if name in names],
                    *_state([state for state in states if state.source == name]),
                    [_hold(hold) for hold in holds if pool_and_source(hold.pool)[1] == name],
                    looked_up[name].ptr,
                    looked_up[name].listings,
                    [warmup for warmup in warmups if warmup.address in addresses],
                    sorted((_provider(*item) for item in of_pools.items()), key=_volume, reverse=True),
                )
            )
        return SourcesAnswer(sources, None)


def _text(address: Address | None) -> str | None:
    return None if address is None else str(address)


def _state(states: list[SourceState]) -> tuple[str, str | None]:
    reason = next((state.detail for state in states if state.detail), None)
    if not states:
        return "unknown", None
    return "in_use" if any(state.is_here for state in states) else "taken_out", reason


def _hold(hold: PoolHold) -> SourceHold:
    probe_at = None if hold.probe_at is None else rfc3339(hold.probe_at)
    return SourceHold(pool_and_source(hold.pool)[0], hold.node, rfc3339(hold.held_at), hold.reason, probe_at)


def _provider(pool: str, by_day: Mapping[int, PoolDay]) -> SourceProvider:
    total = PoolDay()
    for day in by_day.values():
        total = total.plus(day)
    days = [
        SourceDay(rfc3339(number * DAY)[:10], day.delivered, day.deferred, day.blocked)
        for number, day in sorted(by_day.items())
    ]
    reply_at = None if total.reply_at is None else rfc3339(total.reply_at)
    return SourceProvider(pool, total.delivered, total.deferred, total.blocked, total.reply, reply_at, days)


def _volume(provider: SourceProvider) -> int:
    return provider.delivered + provider.deferred + provider.blocked


class _InDns(Struct, frozen=True):
    """What DNS says about the addresses of a source."""

    ptr: list[SourcePtr] = field(default_factory=list)
    listings: list[SourceListing] = field(default_factory=list)


async def _look_up(
    resolver: DnsResolver, sources: Iterable[OutgoingSource], blocklists: Sequence[str]
) -> dict[str, _InDns]:
    """Look up the reverse names of all addresses and the blocklists, at once. Without an answer in time: null."""
    results = {source.name: _InDns() for source in sources}

    async def reverse(source: OutgoingSource, address: Address, row: SourcePtr) -> None:
        with suppress(LookupFailed):
            names = list(await records_of(resolver.ptr, address.reverse_pointer))
            leads_back = source.hostname in names and address in await addresses_of(resolver, source.hostname)
            row.names, row.matches = names, leads_back

    async def listed(address: Address, row: SourceListing) -> None:
        listing = await look_up(resolver, row.blocklist, address)
        row.listed, row.detail = listing.is_listed, listing.text

    async def about(source: OutgoingSource, tasks: trio.Nursery) -> None:
        rows, addresses = results[source.name], list(source.addresses)
        if all(refusal(address) for address in addresses):  # behind NAT
            addresses = await public_addresses(resolver, source.hostname) or addresses
        for address in addresses:
            rows.ptr.append(SourcePtr(str(address), [], None))
            tasks.start_soon(reverse, source, address, rows.ptr[-1])
            for blocklist in () if refusal(address) else blocklists:
                rows.listings.append(SourceListing(str(address), blocklist, None, "no answer"))
                tasks.start_soon(listed, address, rows.listings[-1])

    with trio.move_on_after(SOURCE_LOOKUP_TIMEOUT):
        async with trio.open_nursery() as tasks:
            for source in sources:
                tasks.start_soon(about, source, tasks)
    return results
