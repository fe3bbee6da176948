"""The DNS resolver: lookups that mail needs, with answers in our own types, cached for their TTL.

dnspython writes the queries; none of its names leave this file. Replies are read here, in time that grows with their
size alone: the owner of a domain chooses what its records say, and a reply of 1,200 bytes with long names takes
dnspython a fifth of a second. Its resolver class is not used either: it measures time by the wall clock (a jump could
stretch a wait to days), has no limit on tries, and does not share one query between tasks that look up the same name.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import chain, islice, zip_longest
from struct import Struct
from struct import error as StructError
from typing import Any, Final, Generic, NamedTuple, TypeVar

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.resolver
import trio

from appliance.concurrency.ttl_cache import SingleFlight, TtlCache
from appliance.config.values import DNS_PORT, Endpoint
from appliance.errors import error_text
from appliance.net.address_policy import Address
from appliance.net.dial import shortage_in

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
REPLY_BYTES = 16 * 1024  # the largest reply that is read, over TCP; TCP itself would allow 64 KB
RECORDS_KEPT = 100  # of one answer; more than any name needs, and few enough to be checked one by one

_NO_EDNS = (dns.rcode.FORMERR, dns.rcode.NOTIMP, dns.rcode.BADVERS)  # from a server without EDNS, RFC 6891 6.1.3, 7
_NO_QUESTION = (dns.rcode.FORMERR, dns.rcode.SERVFAIL, dns.rcode.NOTIMP, dns.rcode.REFUSED)  # may come without it


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


# ---- the reply to a query; no I/O


class BadDnsReply(Exception):
    """A packet that is no reply to the query, or not a well-formed one."""


_HEADER: Final = Struct("!HHHHHH")  # id, flags, and how many questions, answers, authorities and additional records
_RECORD: Final = Struct("!HHIH")  # type, class, TTL, and the length of the data, behind the name
_SOA: Final = Struct("!IIIII")  # behind its two names; the last is the TTL of negative answers
_QUESTION_TAIL: Final = 4  # bytes of type and class
_ROOT: Final = b"\0"
_NAME_BYTES: Final = 255
_PLAIN: Final = re.compile(rb"[a-z0-9_.-]+")  # a dot within a label looks like one between two
_ESCAPED: Final = {value: f"\\{value:03d}" for value in range(256)}
_ESCAPED.update({value: chr(value) for value in range(0x21, 0x7F)})
_ESCAPED.update({value: "\\" + chr(value) for value in b'"().;\\@$'})


class _Record(NamedTuple):
    name: bytes
    kind: int
    ttl: int
    begin: int  # where its data is in the packet
    end: int


class DnsPacket:
    """A DNS packet (RFC 1035 4.1). A name is its uncompressed form in lower case, so that equal names are equal."""

    def __init__(self, wire: bytes) -> None:
        self.wire = wire
        self._names: dict[int, bytes] = {}  # by where they begin: each label and each pointer is followed once

    def name(self, at: int) -> bytes:
        """The name that begins here; what it points to stands before it."""
        wire, names, steps, least = self.wire, self._names, [], at
        while (name := names.get(at)) is None:
            size = wire[at]
            if size == 0:
                name = _ROOT
                break
            steps.append(at)
            if size < 0x40:
                at += 1 + size
            elif size >= 0xC0:
                at = (size & 0x3F) << 8 | wire[at + 1]
                if at >= least:
                    raise BadDnsReply("a name that points forwards")
                least = at
            else:
                raise BadDnsReply("an unknown kind of label")
        for step in reversed(steps):
            if wire[step] < 0x40:
                name = wire[step : step + 1 + wire[step]].lower() + name
                if len(name) > _NAME_BYTES:
                    raise BadDnsReply("a name that is too long")
            names[step] = name
        return name

    def behind_name(self, at: int) -> int:
        """Where the name that begins here ends."""
        wire, most = self.wire, at + _NAME_BYTES
        while 0 < wire[at] < 0x40 and at < most:
            at += 1 + wire[at]
        return at + (1 if wire[at] == 0 else 2)

    def records(self, at: int, number: int) -> tuple[list[_Record], int]:
        """So many records from here on, and where the next would begin."""
        wire, found = self.wire, []
        for _ in range(number):
            name, begin = self.name(at), self.behind_name(at)
            kind, group, ttl, size = _RECORD.unpack_from(wire, begin)
            begin += _RECORD.size
            at = begin + size
            if at > len(wire):
                raise BadDnsReply("a record beyond the end")
            # The class of an OPT record is a size, RFC 6891 6.1.2; a TTL with its first bit set is 0, RFC 2181 8.
            if kind != dns.rdatatype.OPT:
                ttl = ttl if ttl < 1 << 31 else 0
                if group != dns.rdataclass.IN:
                    raise BadDnsReply("a record of another class")
            found.append(_Record(name, kind, ttl, begin, at))
        return found, at

    # One reader for each type of data, from its first byte to behind its last.

    def host(self, begin: int, end: int) -> bytes:
        """A name that is all of the data."""
        if self.behind_name(begin) != end:
            raise BadDnsReply("a name that is not all of its record")
        return self.name(begin)

    def mx(self, begin: int, end: int) -> Mx:
        return Mx(int.from_bytes(self.wire[begin : begin + 2]), host_text(self.host(begin + 2, end)))

    def ipv4(self, begin: int, end: int) -> IPv4Address:
        return IPv4Address(self._exactly(begin, end, 4))

    def ipv6(self, begin: int, end: int) -> IPv6Address:
        return IPv6Address(self._exactly(begin, end, 16))

    def txt(self, begin: int, end: int) -> str:
        """The strings, joined; what is not UTF-8 is of no use here."""
        strings = []
        while begin < end:
            behind = begin + 1 + self.wire[begin]
            strings.append(self.wire[begin + 1 : behind])
            begin = behind
        if begin > end or not strings:
            raise BadDnsReply("a text without strings, or beyond its end")
        return b"".join(strings).decode("utf-8", "replace")

    def tlsa(self, begin: int, end: int) -> Tlsa:
        usage, selector, matching = self._exactly(begin, min(begin + 3, end), 3)
        return Tlsa(usage, selector, matching, self.wire[begin + 3 : end])

    def negative_ttl(self, record: _Record) -> int:
        """How long a denial with this SOA record holds (RFC 2308 5)."""
        behind_names = self.behind_name(self.behind_name(record.begin))
        return min(record.ttl, int(_SOA.unpack(self.wire[behind_names : record.end])[4]))

    def _exactly(self, begin: int, end: int, size: int) -> bytes:
        if end - begin != size:
            raise BadDnsReply(f"data of {end - begin} bytes instead of {size}")
        return self.wire[begin:end]


@lru_cache(maxsize=256)  # a hostile reply names one host of many labels in each of its records
def host_text(name: bytes) -> str:
    """A name as text without a final dot, as in a zone file: `\\.` is a dot within a label. "" for the root."""
    labels, at = [], 0
    while size := name[at]:
        labels.append(name[at + 1 : at + 1 + size])
        at += 1 + size
    joined = b".".join(labels)
    if _PLAIN.fullmatch(joined) and joined.count(b".") == len(labels) - 1:
        return joined.decode("ascii")
    return ".".join("".join(map(_ESCAPED.__getitem__, label)) for label in labels)


READERS: Final[dict[str, Callable[[DnsPacket, int, int], Any]]] = {
    "MX": DnsPacket.mx,
    "A": DnsPacket.ipv4,
    "AAAA": DnsPacket.ipv6,
    "TXT": DnsPacket.txt,
    "PTR": lambda packet, begin, end: host_text(packet.host(begin, end)),
    "TLSA": DnsPacket.tlsa,
}


@dataclass(frozen=True, slots=True)
class DnsReply:
    """A reply, whole and well-formed, to a query for the records of one name."""

    packet: DnsPacket
    flags: int
    rcode: int
    name: bytes  # that was asked for
    answers: tuple[_Record, ...]
    authorities: tuple[_Record, ...]


def read_reply(query: bytes, wire: bytes) -> DnsReply:
    """The reply in a packet; raises `BadDnsReply` if it is none to this query."""
    packet = DnsPacket(wire)
    try:
        number, flags, questions, answers, authorities, additional = _HEADER.unpack_from(wire)
        if number != _HEADER.unpack_from(query)[0] or not flags & dns.flags.QR or flags & 0x7800:
            raise BadDnsReply("no reply to this query")
        rcode, at = flags & 0xF, _HEADER.size
        if questions or rcode not in _NO_QUESTION:
            at = DnsPacket(query).behind_name(at) + _QUESTION_TAIL
            if questions != 1 or wire[_HEADER.size : at].lower() != query[_HEADER.size : at].lower():
                raise BadDnsReply("a reply to another question")
        found, at = packet.records(at, answers)
        authority, at = packet.records(at, authorities)
        more, at = packet.records(at, additional)
        if at != len(wire):
            raise BadDnsReply("bytes behind the last record")
    except (IndexError, StructError) as cause:
        raise BadDnsReply("a packet that ends too early") from cause
    for record in more:
        if record.kind == dns.rdatatype.OPT:
            rcode |= record.ttl >> 24 << 4  # RFC 6891 6.1.3
    return DnsReply(packet, flags, rcode, DnsPacket(query).name(_HEADER.size), tuple(found), tuple(authority))


def _chained(reply: DnsReply, kind: str) -> tuple[tuple[Any, ...], bytes, int]:
    """The records, the name that has them or should have them at the end of the CNAMEs, and how long this holds."""
    packet, wanted, name, ttl = reply.packet, dns.rdatatype.from_text(kind), reply.name, TTL_LIMIT
    by_name: dict[tuple[bytes, int], list[_Record]] = {}
    for record in reply.answers:
        by_name.setdefault((record.name, record.kind), []).append(record)
    for _ in range(ALIAS_LIMIT + 1):
        if found := by_name.get((name, wanted)):
            read, ttl = READERS[kind], min(ttl, *(record.ttl for record in found))
            records = dict.fromkeys(read(packet, record.begin, record.end) for record in islice(found, RECORDS_KEPT))
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


_Found = tuple[DnsAnswer[Any], bytes | None]  # an answer, or the target of a CNAME still to be looked up


def read_answer(reply: DnsReply, kind: str, *, validated: bool) -> _Found:
    """The answer in a reply; raises LookupFailed if there is none."""
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
    answer = DnsAnswer(records, min(ttl, TTL_LIMIT), authentic)
    if records:
        return answer, None
    ttl = min(ttl, NEGATIVE_TTL_LIMIT)
    if rcode == dns.rcode.NXDOMAIN:
        raise LookupFailed(DnsFault.NXDOMAIN, f"{name} does not exist", ttl=ttl, authentic=authentic)
    if target != reply.name and not reply.authorities:
        return answer, target
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
            target, _ = dns.name.from_wire(alias, 0)
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
    """Send a query and read its reply, over TCP when UDP was too small; any fault on the way is temporary."""
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
    """The first packet that is a reply to this query; all others are ignored: any host may send them."""
    family = trio.socket.AF_INET6 if ":" in server.host else trio.socket.AF_INET
    with trio.socket.socket(family, trio.socket.SOCK_DGRAM) as socket:
        # Not connected: a resolver that is being restarted is waited for, rather than told as refused.
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
            raise BadDnsReply(f"it has {size:,} bytes, and at most {REPLY_BYTES:,} are read")
        reply = read_reply(query, await _receive_exactly(stream, size))
    if reply.flags & dns.flags.TC:
        raise BadDnsReply("it is cut short over TCP, too")
    return reply


async def _receive_exactly(stream: trio.SocketStream, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = await stream.receive_some(size - len(received))
        if not chunk:
            raise BadDnsReply("the connection ended before the reply")
        received += chunk
    return received
