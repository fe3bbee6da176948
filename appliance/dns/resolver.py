"""The DNS resolver: the lookups that mail needs, cached for their TTL.

dnspython writes the queries, and `wire.py` parses the replies. dnspython's resolver class is not used: it measures time
by the wall clock (a clock jump could stretch a wait to days), does not limit tries, and does not share a query between
tasks.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import chain, islice, zip_longest
from struct import error as StructError
from typing import Any, Generic, TypeVar

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.resolver
import trio
from msgspec import Struct

from appliance.concurrency.ttl_cache import SingleFlight, TtlCache
from appliance.config.values import DNS_PORT, Endpoint
from appliance.dns.wire import READERS, BadDnsReply, DnsReply, Mx, Tlsa, WireRecord, host_text, read_reply
from appliance.errors import error_text
from appliance.net.address_policy import Address
from appliance.net.dial import shortage_in

QUERY_TIMEOUT = 5.0  # seconds for one exchange, by UDP or by TCP
QUERY_TRIES = 3  # of one query, at the resolvers in turn
QUERY_RETRY_PAUSE = 0.1  # seconds before a query to the same resolver again
NO_ANSWER = "the DNS gave no usable answer in time"  # for customers
TTL_LIMIT = 3600  # seconds; a corrected record takes effect within an hour
NEGATIVE_TTL_LIMIT = 300  # seconds; a new domain should not bounce for an hour (RFC 2308 5)
FAILURE_TTL = 1  # second: the minimum of RFC 9520 3.2
OTHER_FAMILY_TIMEOUT = 1.0  # seconds for the second address family after the first: some servers never answer
CACHE_SIZE = 10_000  # answers; a few megabytes
ALIAS_LIMIT = 8  # CNAMEs followed in one lookup; a longer chain counts as a loop
UDP_PAYLOAD = 1232  # bytes that pass any network without fragments (DNS flag day 2020)
REPLY_BYTES = 16 * 1024  # of a reply; TCP would allow 64 KB
RECORDS_KEPT = 100  # of one answer; more than any name needs, and few enough to check one by one

_NO_EDNS = (dns.rcode.FORMERR, dns.rcode.NOTIMP, dns.rcode.BADVERS)  # from a server without EDNS, RFC 6891 6.1.3, 7


class DnsFault(StrEnum):
    NXDOMAIN = "nxdomain"  # the name does not exist
    NODATA = "nodata"  # the name exists, with no record of this kind
    TEMPORARY = "temporary"  # SERVFAIL, REFUSED, no reply, a malformed packet, a loop of CNAMEs


class LookupFailed(Exception):
    """A lookup returned no records; `authentic` as in `DnsAnswer`, for NXDOMAIN and NODATA.

    `text` is for the operator and may name a resolver; `public` is for customers.
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
    """This machine lacked resources, such as descriptors, for a lookup; delivery and webhooks retry it."""

    def __init__(self, lack: str) -> None:
        super().__init__(DnsFault.TEMPORARY, f"the resolver could not be asked: {lack}", public=NO_ANSWER)
        self.lack = lack

    def again(self) -> "NotAsked":
        return NotAsked(self.lack)


Record = TypeVar("Record", Mx, IPv4Address, IPv6Address, str, Tlsa, covariant=True)


class DnsAnswer(Struct, Generic[Record], frozen=True):
    """The records of a name; `authentic`: a trusted validator verified them (DNSSEC)."""

    records: tuple[Record, ...]
    ttl: float  # seconds
    authentic: bool
    aliased: bool = False  # the records of another name, by CNAME


class Resolver(ABC):
    """Each lookup returns at least one record, or raises `LookupFailed`."""

    @abstractmethod
    async def lookup(self, name: str, kind: str) -> DnsAnswer[Any]:
        """The records of a kind in `READERS`."""

    @abstractmethod
    def remembers_addresses(self, name: str) -> bool:
        """Whether both families of a host's addresses are cached."""

    def remembered(self, name: str, kind: str) -> "DnsAnswer[Any] | LookupFailed | None":
        """The cached result of a lookup."""
        return None

    async def mx(self, name: str) -> DnsAnswer[Mx]:
        return await self.lookup(name, "MX")

    async def ipv4(self, name: str) -> DnsAnswer[IPv4Address]:
        return await self.lookup(name, "A")

    async def ipv6(self, name: str) -> DnsAnswer[IPv6Address]:
        return await self.lookup(name, "AAAA")

    async def txt(self, name: str) -> DnsAnswer[str]:
        return await self.lookup(name, "TXT")

    async def tlsa(self, name: str) -> DnsAnswer[Tlsa]:
        """The certificate associations at a name such as `_25._tcp.mx.example.com`."""
        return await self.lookup(name, "TLSA")

    async def ptr(self, name: str) -> DnsAnswer[str]:
        """The host names at a name such as `1.2.0.192.in-addr.arpa`."""
        return await self.lookup(name, "PTR")


class NotRemembered(Exception):
    """A lookup has no cached result."""


class RememberedAnswers(Resolver):
    """The cached results of another resolver. A lookup never waits; without a cached result it raises NotRemembered."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    def remembers_addresses(self, name: str) -> bool:
        return self._resolver.remembers_addresses(name)

    async def lookup(self, name: str, kind: str) -> DnsAnswer[Any]:
        result = self._resolver.remembered(name, kind)
        if result is None:
            raise NotRemembered
        if isinstance(result, LookupFailed):
            raise result.again()
        return result


# ---- the answer in a reply; no I/O


def _chained(reply: DnsReply, kind: str) -> tuple[tuple[Any, ...], bytes, int]:
    """The records, the name at the end of the CNAMEs, and the TTL of both."""
    packet, type_, name, ttl = reply.packet, dns.rdatatype.from_text(kind), reply.name, TTL_LIMIT
    by_name: dict[tuple[bytes, int], list[WireRecord]] = {}
    for record in reply.answers:
        by_name.setdefault((record.name, record.kind), []).append(record)
    for _ in range(ALIAS_LIMIT + 1):
        if matches := by_name.get((name, type_)):
            read, ttl = READERS[kind], min(ttl, *(record.ttl for record in matches))
            records = dict.fromkeys(read(packet, record.begin, record.end) for record in islice(matches, RECORDS_KEPT))
            return tuple(records), name, ttl
        if not (aliases := by_name.get((name, dns.rdatatype.CNAME))):
            break
        name = packet.host(aliases[-1].begin, aliases[-1].end)
        ttl = min(ttl, *(alias.ttl for alias in aliases))
    else:
        raise LookupFailed(DnsFault.TEMPORARY, f"{host_text(reply.name)} is a loop of CNAME records")
    for record in reply.authorities:
        if record.kind == dns.rdatatype.SOA and name.endswith(record.name):
            return (), name, min(ttl, packet.negative_ttl(record))
    return (), name, ttl


_AnswerOrAlias = tuple[DnsAnswer[Any], bytes | None]  # with the target of a CNAME that is still to be looked up


def read_answer(reply: DnsReply, kind: str, *, validated: bool) -> _AnswerOrAlias:
    name, rcode = host_text(reply.name), reply.rcode
    if rcode not in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
        raise LookupFailed(
            DnsFault.TEMPORARY,
            f"the resolver answered {dns.rcode.to_text(dns.rcode.Rcode.make(rcode))} for {kind} of {name}",
        )
    try:
        records, target, ttl = _chained(reply, kind)
    except (BadDnsReply, IndexError, StructError, ValueError) as cause:
        raise LookupFailed(DnsFault.TEMPORARY, f"the answer for {name} is not well-formed") from cause
    if records and rcode == dns.rcode.NXDOMAIN:
        raise LookupFailed(DnsFault.TEMPORARY, f"the answer for {name} contradicts itself")
    authentic = validated and bool(reply.flags & dns.flags.AD)
    answer = DnsAnswer(records, min(ttl, TTL_LIMIT), authentic, target != reply.name)
    if records:
        return answer, None
    ttl = min(ttl, NEGATIVE_TTL_LIMIT)
    if rcode == dns.rcode.NXDOMAIN:
        raise LookupFailed(DnsFault.NXDOMAIN, f"{name} does not exist", ttl=ttl, authentic=authentic)
    if target != reply.name and not reply.authorities:
        return answer, target
    raise LookupFailed(DnsFault.NODATA, f"{name} has no {kind} record", ttl=ttl, authentic=authentic)


def all_loopback(servers: Sequence[Endpoint]) -> bool:
    """Whether every resolver is on this machine, so that no one on the path can set the AD bit (RFC 7672 2.1.3)."""
    return all(ip_address(server.host).is_loopback for server in servers)


# ---- I/O


def system_resolvers() -> tuple[Endpoint, ...]:
    """The resolvers of /etc/resolv.conf; without any, this machine, as in the C library."""
    try:
        configured = dns.resolver.Resolver(configure=True).nameservers
    except dns.resolver.NoResolverConfiguration:
        configured = []
    servers = [server for server in configured if isinstance(server, str)] or ["127.0.0.1"]
    return tuple(Endpoint(server, DNS_PORT) for server in servers)


async def records_of(ask: Callable[[str], Awaitable[DnsAnswer[Record]]], name: str) -> tuple[Record, ...]:
    """The records of a name, possibly empty; raises LookupFailed for a temporary failure only."""
    try:
        return (await ask(name)).records
    except LookupFailed as failed:
        if failed.fault is DnsFault.TEMPORARY:
            raise
        return ()


async def host_addresses(resolver: Resolver, name: str) -> tuple[tuple[Address, ...], bool]:
    """The addresses of a host, IPv6 and IPv4 alternating, and whether all are authentic. One family is enough."""
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
    def __init__(self, servers: Sequence[Endpoint] = ()) -> None:
        self._servers = tuple(servers) or system_resolvers()
        self._validated = all_loopback(self._servers)
        self._cache: TtlCache[_Key, _Result] = TtlCache(CACHE_SIZE, TTL_LIMIT)
        self._running: SingleFlight[_Key, _Result] = SingleFlight()

    def remembers_addresses(self, name: str) -> bool:
        host = name.rstrip(".").lower()
        return (host, "AAAA") in self._cache and (host, "A") in self._cache

    def remembered(self, name: str, kind: str) -> _Result | None:
        return self._cache.get((name.rstrip(".").lower(), kind))

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
        """Query, and follow a CNAME at the end of the answer: a mere forwarder may not follow it."""
        try:  # literally: a backslash is not an escape
            target = dns.name.Name([label.encode("ascii") for label in name.rstrip(".").split(".")] + [b""])
        except (dns.exception.DNSException, UnicodeEncodeError):
            raise LookupFailed(DnsFault.NXDOMAIN, f"{name!a} is not a valid domain name") from None
        ttl, authentic, aliased = float(TTL_LIMIT), True, False
        for _ in range(ALIAS_LIMIT):
            try:
                answer, alias = await self._try(target, kind)
            except LookupFailed as failed:
                failed.authentic = failed.authentic and authentic
                raise
            ttl, authentic = min(ttl, answer.ttl), authentic and answer.authentic
            aliased = aliased or answer.aliased
            if alias is None:
                return DnsAnswer(answer.records, ttl, authentic, aliased)
            target, _ = dns.name.from_wire(alias, 0)
        raise LookupFailed(DnsFault.TEMPORARY, f"{name} is a loop of CNAME records")

    async def _try(self, name: dns.name.Name, kind: str) -> _AnswerOrAlias:
        """Send a query up to `QUERY_TRIES` times, each time to the next resolver."""
        edns, failure = True, LookupFailed(DnsFault.TEMPORARY, "no resolver is configured")
        for number in range(QUERY_TRIES):
            if number >= len(self._servers):
                await trio.sleep(QUERY_RETRY_PAUSE)
            query = dns.message.make_query(name, kind)
            query.use_edns(0 if edns else False, payload=UDP_PAYLOAD)
            if self._validated:  # RFC 6840 5.7: AD; some validators set AD only if the query also has DO
                query.flags |= dns.flags.AD
                query.want_dnssec(edns)
            server = self._servers[number % len(self._servers)]
            try:
                reply = await _exchange(query.to_wire(), server, f"{server} for {query.question[0].to_text()}")
                edns = edns and reply.rcode not in _NO_EDNS
                return read_answer(reply, kind, validated=self._validated)
            except LookupFailed as failed:
                if failed.fault is not DnsFault.TEMPORARY or isinstance(failed, NotAsked):
                    raise
                failure = failed
        raise failure


async def _exchange(query: bytes, server: Endpoint, asked: str) -> DnsReply:
    """Send a query and read its reply, over TCP if it does not fit into UDP; every fault is temporary."""
    try:
        with trio.fail_after(QUERY_TIMEOUT):
            reply = await _by_udp(query, server)
        if reply.flags & dns.flags.TC:
            with trio.fail_after(QUERY_TIMEOUT):
                reply = await _by_tcp(query, server)
    except trio.TooSlowError as cause:
        raise LookupFailed(DnsFault.TEMPORARY, f"no answer from {asked}", public=NO_ANSWER) from cause
    except (BadDnsReply, OSError, trio.BrokenResourceError) as cause:
        if (lack := shortage_in(cause)) is not None:
            raise NotAsked(lack) from cause
        text = f"no usable answer from {asked}: {error_text(cause)}"
        raise LookupFailed(DnsFault.TEMPORARY, text, public=NO_ANSWER) from cause
    return reply


async def _by_udp(query: bytes, server: Endpoint) -> DnsReply:
    """Return the first reply to this query; ignore other packets, which any host may send."""
    family = trio.socket.AF_INET6 if ":" in server.host else trio.socket.AF_INET
    with trio.socket.socket(family, trio.socket.SOCK_DGRAM) as socket:
        # Not connected: while a resolver restarts, the query times out and is retried instead of being refused.
        await socket.sendto(query, (server.host, server.port))
        while True:
            wire, (host, port, *_) = await socket.recvfrom(REPLY_BYTES)
            if ip_address(host) != ip_address(server.host) or port != server.port:
                continue
            with suppress(BadDnsReply):
                return read_reply(query, wire)


async def _by_tcp(query: bytes, server: Endpoint) -> DnsReply:
    async with await trio.open_tcp_stream(server.host, server.port) as stream:
        await stream.send_all(len(query).to_bytes(2) + query)
        size = int.from_bytes(await _receive_exactly(stream, 2))
        if size > REPLY_BYTES:
            raise BadDnsReply(f"it has {size:,} bytes; the limit is {REPLY_BYTES:,}")
        reply = read_reply(query, await _receive_exactly(stream, size))
    if reply.flags & dns.flags.TC:
        raise BadDnsReply("it is truncated over TCP")
    return reply


async def _receive_exactly(stream: trio.SocketStream, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = await stream.receive_some(size - len(received))
        if not chunk:
            raise BadDnsReply("the connection ended before the reply")
        received += chunk
    return received
