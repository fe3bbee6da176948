"""Whether an SPF record permits an address, evaluated as receivers do it (RFC 7208).

Macros are not expanded: a term with one matches no address here, because it depends on the single message.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import TypeVar

from appliance.dns.resolver import DnsAnswer, Resolver, records_of
from appliance.dns.wire import Mx
from appliance.net.address_policy import Address, Network

SPF_LOOKUPS = 10  # terms that need a DNS lookup, RFC 7208 4.6.4
SPF_VOID_LOOKUPS = 2  # of them may find nothing
SPF_EXCHANGERS = 10  # hosts of one `mx`
SHOWN_CHARACTERS = 80  # of a term in an error text

PASS, NEUTRAL = "+", "?"

T = TypeVar("T", Mx, IPv4Address, IPv6Address, str)

_DIRECTIVE = re.compile(r"([+?~-]?)([a-z0-9]+)(?::(.+?))?(?:/(\d{1,3}))?(?://(\d{1,3}))?")
_MODIFIER = re.compile(r"([a-z][a-z0-9._-]*)=(.*)")
_NEED_VALUE = {"include", "ip4", "ip6", "exists"}
_TAKE_LENGTH = {"a", "mx", "ip4", "ip6"}
_MECHANISMS = _NEED_VALUE | {"all", "a", "mx", "ptr"}


class SpfPermError(Exception):
    """A permanent error (RFC 7208 2.6.7): receivers ignore the record; the text says why."""


def is_spf(text: str) -> bool:
    return text.lower() == "v=spf1" or text.lower().startswith("v=spf1 ")


async def permits(resolver: Resolver, domain: str, text: str, address: Address) -> bool:
    """Whether the domain's record `text` permits this address; raises SpfPermError, or LookupFailed."""
    return await _Evaluation(resolver, address).evaluate(domain, text) == PASS


@dataclass(frozen=True, slots=True)
class _Directive:
    """`sign` is the qualifier; `prefixes` are the prefix lengths for IPv4 and IPv6."""

    sign: str
    mechanism: str
    value: str
    prefixes: tuple[int, int]
    network: Network | None = None


def _read(text: str) -> tuple[list[_Directive], str]:
    """The directives, and the name of a redirect; any fault makes the whole record an error (RFC 7208 4.6)."""
    directives, redirect = [], ""
    for term in text.lower().split()[1:]:
        if modifier := _MODIFIER.fullmatch(term):
            if modifier[1] == "redirect":
                if redirect or not modifier[2].strip("."):
                    raise SpfPermError(f"redirect is there twice, or without a name: {_short(term)}")
                redirect = modifier[2].rstrip(".")
            continue
        directives.append(_directive(term))
    return directives, redirect


def _directive(term: str) -> _Directive:
    read = _DIRECTIVE.fullmatch(term)
    if read is None or not _is_in_order(read):
        raise SpfPermError(f"{_short(term)} is no term of SPF")
    mechanism, value = read[2], (read[3] or "").rstrip(".")
    prefixes = int(read[4] or 32), int(read[5] or 128)
    if mechanism in ("ip4", "ip6"):
        try:
            network = ip_network(read[3] if read[4] is None else f"{read[3]}/{read[4]}", strict=False)
        except ValueError:
            raise SpfPermError(f"{_short(term)} is no network") from None
        if f"ip{network.version}" != mechanism:
            raise SpfPermError(f"{_short(term)} must be ip{network.version}")
        return _Directive(read[1] or PASS, mechanism, value, (32, 128), network)
    if prefixes[0] > 32 or prefixes[1] > 128:
        raise SpfPermError(f"{_short(term)} has a length that no network has")
    return _Directive(read[1] or PASS, mechanism, value, prefixes)


def _is_in_order(read: re.Match[str]) -> bool:
    mechanism, value, length = read[2], read[3], read[4] or read[5]
    if length and mechanism not in _TAKE_LENGTH and "%" not in read[0]:
        return False
    if value is None:
        return mechanism in _MECHANISMS - _NEED_VALUE
    return mechanism in _MECHANISMS - {"all"} and bool(value.strip("."))


def _short(text: str) -> str:
    return repr(text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…")


class _Evaluation:
    """The evaluation of one address, and its count of lookups."""

    def __init__(self, resolver: Resolver, address: Address) -> None:
        self._resolver, self._address = resolver, address
        self._lookups = self._voids = 0

    async def evaluate(self, domain: str, text: str) -> str:
        """The qualifier of the first directive that matches."""
        directives, redirect = _read(text)
        for each in directives:
            if await self._matches(domain, each):
                return each.sign
        if not redirect:
            return NEUTRAL
        self._count()
        return NEUTRAL if "%" in redirect else await self.evaluate(redirect, await self._record(redirect))

    async def _matches(self, domain: str, each: _Directive) -> bool:
        if each.mechanism == "all":
            return True
        if each.network is not None:
            return self._address in each.network
        self._count()
        name = each.value or domain
        if "%" in name or each.mechanism == "ptr":
            return False
        if each.mechanism == "include":
            return await self.evaluate(name, await self._record(name)) == PASS
        if each.mechanism == "exists":
            return bool(await self._found(self._resolver.ipv4, name))
        if each.mechanism == "a":
            return await self._matches_host(name, each)
        exchangers = await self._found(self._resolver.mx, name)
        if len(exchangers) > SPF_EXCHANGERS:
            raise SpfPermError(f"{_short(name)} has more than {SPF_EXCHANGERS} mail exchangers")
        for exchanger in exchangers:
            if exchanger.host and await self._matches_host(exchanger.host, each):
                return True
        return False

    async def _matches_host(self, host: str, each: _Directive) -> bool:
        """Whether the host has the address, or one in the same network."""
        addresses: tuple[Address, ...]
        if self._address.version == 4:
            addresses, length = await self._found(self._resolver.ipv4, host), each.prefixes[0]
        else:
            addresses, length = await self._found(self._resolver.ipv6, host), each.prefixes[1]
        return any(self._address in ip_network(f"{one}/{length}", strict=False) for one in addresses)

    async def _record(self, domain: str) -> str:
        records = [text for text in await self._found(self._resolver.txt, domain) if is_spf(text)]
        if len(records) != 1:
            count = "several SPF records" if records else "no SPF record"
            raise SpfPermError(f"it leads to {_short(domain)}, which has {count}")
        return records[0]

    async def _found(self, ask: Callable[[str], Awaitable[DnsAnswer[T]]], name: str) -> tuple[T, ...]:
        if records := await records_of(ask, name):
            return records
        self._voids += 1
        if self._voids > SPF_VOID_LOOKUPS:
            raise SpfPermError(f"more than {SPF_VOID_LOOKUPS} of its names lead nowhere, {_short(name)} too")
        return ()

    def _count(self) -> None:
        self._lookups += 1
        if self._lookups > SPF_LOOKUPS:
            raise SpfPermError(f"receivers would have to ask DNS more than {SPF_LOOKUPS} times")
