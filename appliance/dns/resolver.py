"""The DNS resolver: lookups that mail needs, with answers in our own types, cached for their TTL.

dnspython reads and writes the packets; none of its names leave this file. Its own resolver class is not used: it
measures time by the wall clock (a jump could stretch a wait to days), has no limit on tries, and does not share one
query between tasks that look up the same name.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import chain, zip_longest
from typing import Any, Generic, TypeVar

import dns.asyncbackend
import dns.asyncquery
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdata
import dns.rdatatype
import dns.resolver
import trio

from appliance.concurrency.ttl_cache import SingleFlight, TtlCache
from appliance.config.values import DNS_PORT, Endpoint
from appliance.errors import error_text
from appliance.net.address_policy import Address
from appliance.net.dial import lack_behind

QUERY_TIMEOUT = 5.0  # seconds for one exchange, by UDP or by TCP
QUERY_TRIES = 3  # for one question, going round the resolvers
QUERY_RETRY_PAUSE = 0.1  # seconds before the same resolver is asked again
NO_ANSWER = "the DNS gave no usable answer in time"  # what customers see
TTL_LIMIT = 3600  # seconds; so that a corrected record is seen within an hour
NEGATIVE_TTL_LIMIT = 300  # seconds; a domain just set up should not bounce for an hour (RFC 2308 5)
FAILURE_TTL = 1  # second: the least that RFC 9520 3.2 asks for
OTHER_FAMILY_TIMEOUT = 1.0  # for the second family of addresses once the first is there: some servers never answer
CACHE_SIZE = 10_000  # answers; a few megabytes
ALIAS_LIMIT = 8  # CNAMEs followed in one lookup; a longer chain is taken for a loop
UDP_PAYLOAD = 1232  # bytes that pass any network without fragments (DNS flag day 2020)

# dnspython's own timeouts use the wall clock. This bound, on Trio's clock, is for one UDP and one TCP exchange.
_EXCHANGE_LIMIT = 2 * QUERY_TIMEOUT + 1

_NO_EDNS = (dns.rcode.FORMERR, dns.rcode.NOTIMP, dns.rcode.BADVERS)  # from a server without EDNS, RFC 6891 6.1.3, 7


class DnsFault(StrEnum):
    NXDOMAIN = "nxdomain"  # the name does not exist
    NODATA = "nodata"  # the name exists, with no record of this kind
    TEMPORARY = "temporary"  # SERVFAIL, REFUSED, no reply, a broken packet, a loop of CNAMEs


class LookupFailed(Exception):
    """A lookup without records; `authentic` as in `DnsAnswer`, for NXDOMAIN and NODATA.

    `text` is for the operator and may name a resolver; `public` is for customers and does not.
    """

    def __init__(
        self, fault: DnsFault, text: str, *, public: str = "", ttl: float = 0, authentic: bool = False
    ) -> None:
        super().__init__(text)
        self.fault, self.text, self.public = fault, text, public or text
        self.ttl, self.authentic = ttl, authentic

    def again(self) -> "LookupFailed":
        """A copy to raise: an exception object collects the traceback of every place that raises it."""
        return LookupFailed(self.fault, self.text, public=self.public, ttl=self.ttl, authentic=self.authentic)


class NotAsked(LookupFailed):
    """A lookup that this machine could not make for want of descriptors or the like; says nothing about the name.

    Delivery and webhooks wait and repeat it, see `net.dial`; for all others it is a temporary failure.
    """

    def __init__(self, lack: str) -> None:
        super().__init__(DnsFault.TEMPORARY, f"the resolver could not be asked: {lack}", public=NO_ANSWER)
        self.lack = lack

    def again(self) -> "NotAsked":
        return NotAsked(self.lack)


@dataclass(frozen=True, slots=True)
class Mx:
    """A mail exchanger; `host` is lower case without a final dot, "" for the root (a null MX, RFC 7505)."""

    preference: int
    host: str


@dataclass(frozen=True, slots=True)
class Tlsa:
    """A certificate association, as published (RFC 6698 2.1)."""

    usage: int
    selector: int
    matching: int
    data: bytes


Record = TypeVar("Record", Mx, IPv4Address, IPv6Address, str, Tlsa, covariant=True)


@dataclass(frozen=True, slots=True)
class DnsAnswer(Generic[Record]):
    """The records of a name; `authentic` when a trusted validator has verified them (DNSSEC)."""

    records: tuple[Record, ...]
    ttl: float  # seconds
    authentic: bool


class Resolver(ABC):
    """Makes lookups. Each returns one record or more, or raises `LookupFailed`."""

    @abstractmethod
    async def lookup(self, name: str, kind: str) -> DnsAnswer[Any]:
        """The records of a kind that `READERS` has."""

    @abstractmethod
    def remembers_addresses(self, name: str) -> bool:
        """Whether both families of a host's addresses are cached."""

    async def mx(self, name: str) -> DnsAnswer[Mx]:
        """The mail exchangers of a domain, in no order."""
        return await self.lookup(name, "MX")

    async def ipv4(self, name: str) -> DnsAnswer[IPv4Address]:
        return await self.lookup(name, "A")

    async def ipv6(self, name: str) -> DnsAnswer[IPv6Address]:
        return await self.lookup(name, "AAAA")

    async def txt(self, name: str) -> DnsAnswer[str]:
        """The TXT records of a name, each joined from its strings."""
        return await self.lookup(name, "TXT")

    async def tlsa(self, name: str) -> DnsAnswer[Tlsa]:
        """The certificate associations at a name such as `_25._tcp.mx.example.com`."""
        return await self.lookup(name, "TLSA")

    async def ptr(self, name: str) -> DnsAnswer[str]:
        """The host names at a name such as `1.2.0.192.in-addr.arpa`."""
        return await self.lookup(name, "PTR")


# ---- from dnspython's types to ours; no I/O


def _host(name: dns.name.Name) -> str:
    return "" if name == dns.name.root else name.to_text(omit_final_dot=True).lower()


# One converter for each type of record. What is not UTF-8 is of no use here.
READERS: dict[str, Callable[[Any], Any]] = {
    "MX": lambda record: Mx(record.preference, _host(record.exchange)),
    "A": lambda record: IPv4Address(record.address),
    "AAAA": lambda record: IPv6Address(record.address),
    "TXT": lambda record: b"".join(record.strings).decode("utf-8", "replace"),
    "PTR": lambda record: _host(record.target),
    "TLSA": lambda record: Tlsa(record.usage, record.selector, record.mtype, record.cert),
}


_Found = tuple[DnsAnswer[Any], dns.name.Name | None]  # an answer, or the target of a CNAME still to be looked up


def _read(reply: dns.message.QueryMessage, kind: str, *, validated: bool) -> _Found:
    """The answer in a reply; raises LookupFailed if there is none."""
    name = _host(reply.question[0].name) if reply.question else "?"
    rcode = reply.rcode()
    if rcode not in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
        raise LookupFailed(DnsFault.TEMPORARY, f"the resolver answered {dns.rcode.to_text(rcode)} for {kind} of {name}")
    try:
        found = reply.resolve_chaining()
    except dns.message.ChainTooLong:
        raise LookupFailed(DnsFault.TEMPORARY, f"{name} is a loop of CNAME records") from None
    except dns.exception.DNSException as cause:  # such as records in a reply that says there is no such name
        raise LookupFailed(DnsFault.TEMPORARY, f"the answer for {name} contradicts itself") from cause
    authentic = validated and bool(reply.flags & dns.flags.AD)
    records = tuple(READERS[kind](record) for record in found.answer or ())
    answer = DnsAnswer(records, min(found.minimum_ttl, TTL_LIMIT), authentic)
    if found.answer is not None:
        return answer, None
    ttl = min(found.minimum_ttl, NEGATIVE_TTL_LIMIT)
    if rcode == dns.rcode.NXDOMAIN:
        raise LookupFailed(DnsFault.NXDOMAIN, f"{name} does not exist", ttl=ttl, authentic=authentic)
    if found.cnames and not reply.authority:
        return answer, found.canonical_name
    raise LookupFailed(DnsFault.NODATA, f"{name} has no {kind} record", ttl=ttl, authentic=authentic)


def all_loopback(servers: Sequence[Endpoint]) -> bool:
    """Whether every resolver is on this machine, so that no attacker between can set the AD bit (RFC 7672 2.1.3)."""
    return all(ip_address(server.host).is_loopback for server in servers)


# ---- I/O


def system_resolvers() -> tuple[Endpoint, ...]:
    """The resolvers of /etc/resolv.conf; where it names none, the machine itself, as the C library does."""
    try:
        found = dns.resolver.Resolver(configure=True).nameservers
    except dns.resolver.NoResolverConfiguration:
        found = []
    servers = [server for server in found if isinstance(server, str)] or ["127.0.0.1"]
    return tuple(Endpoint(server, DNS_PORT) for server in servers)


async def records_of(ask: Callable[[str], Awaitable[DnsAnswer[Record]]], name: str) -> tuple[Record, ...]:
    """The records of a name, or none where there are none; raises LookupFailed for a temporary failure only."""
    try:
        return (await ask(name)).records
    except LookupFailed as failed:
        if failed.fault is DnsFault.TEMPORARY:
            raise
        return ()


async def host_addresses(resolver: Resolver, name: str) -> tuple[tuple[Address, ...], bool]:
    """The addresses of a host, IPv6 and IPv4 alternating, and whether all are authentic; one family is enough."""
    answers: dict[int, tuple[tuple[Address, ...], bool]] = {}
    failures: list[LookupFailed] = []

    async def ask(version: int) -> None:
        try:
            answer = await (resolver.ipv6(name) if version == 6 else resolver.ipv4(name))
            answers[version] = answer.records, answer.authentic
        except LookupFailed as failed:
            failures.append(failed)

    if resolver.remembers_addresses(name):  # two tasks would cost ten times as much
        await ask(6)
        await ask(4)
    else:
        async with trio.open_nursery() as nursery:

            async def ask_with_limit(version: int) -> None:
                await ask(version)
                if version in answers:
                    nursery.cancel_scope.deadline = trio.current_time() + OTHER_FAMILY_TIMEOUT

            for version in (6, 4):
                nursery.start_soon(ask_with_limit, version)
    if not answers:
        raise next((failed for failed in failures if failed.fault is DnsFault.TEMPORARY), failures[0])
    families = [answers[version][0] for version in (6, 4) if version in answers]
    alternating = (address for address in chain.from_iterable(zip_longest(*families)) if address is not None)
    return tuple(alternating), all(authentic for _, authentic in answers.values())


_Key = tuple[str, str]  # name and kind
_Result = DnsAnswer[Any] | LookupFailed


class DnsResolver(Resolver):
    """Queries the given resolvers, or the system's, and caches the answers."""

    def __init__(self, servers: Sequence[Endpoint] = (), cache_size: int = CACHE_SIZE) -> None:
        self._servers = tuple(servers) or system_resolvers()
        self._validated = all_loopback(self._servers)
        self._backend = dns.asyncbackend.get_backend("trio")
        self._cache: TtlCache[_Key, _Result] = TtlCache(cache_size, TTL_LIMIT)
        self._running: SingleFlight[_Key, _Result] = SingleFlight()

    def remembers_addresses(self, name: str) -> bool:
        host = name.rstrip(".").lower()
        return (host, "AAAA") in self._cache and (host, "A") in self._cache

    async def lookup(self, name: str, kind: str) -> DnsAnswer[Any]:
        key = (name.rstrip(".").lower(), kind)
        result = self._cache.get(key)
        if result is None:
            result = await self._running.run(key, partial(self._ask, key))
        if isinstance(result, LookupFailed):
            raise result.again()
        return result

    async def _ask(self, key: _Key) -> _Result:
        try:
            result: _Result = await self._follow(*key)
        except LookupFailed as failed:
            result = failed.again()
        if not isinstance(result, NotAsked):
            temporary = isinstance(result, LookupFailed) and result.fault is DnsFault.TEMPORARY
            self._cache.put(key, result, FAILURE_TTL if temporary else result.ttl)
        return result

    async def _follow(self, name: str, kind: str) -> DnsAnswer[Any]:
        """Query, and follow a CNAME where the answer ends with one (resolvers follow them, mere forwarders may not)."""
        try:  # taken literally: a backslash is no escape
            target = dns.name.Name([label.encode("ascii") for label in name.rstrip(".").split(".")] + [b""])
        except (dns.exception.DNSException, UnicodeEncodeError):
            raise LookupFailed(DnsFault.NXDOMAIN, f"{name!a} cannot be a domain name") from None
        ttl, authentic = float(TTL_LIMIT), True
        for _ in range(ALIAS_LIMIT):
            try:
                answer, alias = await self._try(target, kind)
            except LookupFailed as failed:
                failed.authentic = failed.authentic and authentic
                raise
            ttl, authentic = min(ttl, answer.ttl), authentic and answer.authentic
            if alias is None:
                return DnsAnswer(answer.records, ttl, authentic)
            target = alias
        raise LookupFailed(DnsFault.TEMPORARY, f"{name} is a loop of CNAME records")

    async def _try(self, name: dns.name.Name, kind: str) -> _Found:
        """One query, up to `QUERY_TRIES` times, each time to the next resolver."""
        edns, failure = True, LookupFailed(DnsFault.TEMPORARY, "no resolver was asked")
        for number in range(QUERY_TRIES):
            if number >= len(self._servers):
                await trio.sleep(QUERY_RETRY_PAUSE)
            query = dns.message.make_query(name, kind)
            query.use_edns(0 if edns else False, payload=UDP_PAYLOAD)
            if self._validated:  # RFC 6840 5.7 asks for AD; some validators answer with AD only if DO is set, too
                query.flags |= dns.flags.AD
                query.want_dnssec(edns)
            try:
                reply = await self._exchange(query, self._servers[number % len(self._servers)])
                edns = edns and reply.rcode() not in _NO_EDNS
                return _read(reply, kind, validated=self._validated)
            except LookupFailed as failed:
                if failed.fault is not DnsFault.TEMPORARY or isinstance(failed, NotAsked):
                    raise
                failure = failed
        raise failure

    async def _exchange(self, query: dns.message.QueryMessage, server: Endpoint) -> dns.message.QueryMessage:
        """Send a query and read its reply, over TCP when UDP was too small; any fault on the way is temporary.

        Packets that are no reply to this query are ignored: any host may send them.
        """
        asked = f"{server} for {query.question[0].to_text()}"
        try:
            with trio.fail_after(_EXCHANGE_LIMIT):
                reply, _ = await dns.asyncquery.udp_with_fallback(
                    query,
                    server.host,
                    QUERY_TIMEOUT,
                    server.port,
                    ignore_unexpected=True,
                    ignore_errors=True,
                    backend=self._backend,
                )
        except (dns.exception.Timeout, trio.TooSlowError) as cause:
            raise LookupFailed(DnsFault.TEMPORARY, f"no answer from {asked}", public=NO_ANSWER) from cause
        except Exception as cause:  # whatever a hostile packet causes in a parser, or a socket reports
            if (lack := lack_behind(cause)) is not None:
                raise NotAsked(lack) from cause
            text = f"no usable answer from {asked}: {error_text(cause)}"
            raise LookupFailed(DnsFault.TEMPORARY, text, public=NO_ANSWER) from cause
        if not isinstance(reply, dns.message.QueryMessage) or reply.flags & dns.flags.TC:
            raise LookupFailed(DnsFault.TEMPORARY, f"no usable answer from {asked}", public=NO_ANSWER)
        return reply
