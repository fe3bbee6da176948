"""Two fakes of the DNS, from one kind of zone: a resolver without sockets, and a server that speaks real packets.

A zone is a dict of names to a dict of record types to texts as in a zone file: `{"example.com": {"MX": ["10 mx."]}}`.
Instead of texts a `Trouble` may stand, for what goes wrong with that question. Names not in the zone do not exist.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import trio

from appliance.config.values import Endpoint
from appliance.dns.resolver import DnsAnswer, DnsFault, DnsResolver, LookupFailed, Resolver
from appliance.dns.wire import READERS, DnsPacket

TTL = 300  # seconds, of every record unless told otherwise
CHAIN = 8  # CNAMEs the server puts into one answer


class Trouble(Enum):
    SERVFAIL = "SERVFAIL"
    REFUSED = "REFUSED"
    SILENCE = "no answer at all"
    SILENCE_ONCE = "no answer the first time"
    GARBAGE = "bytes that are no DNS packet"
    STRANGER = "first a reply to another question"
    NO_EDNS = "FORMERR to a query with EDNS"
    CONTRADICTION = "NXDOMAIN with records"
    CUT_TCP = "truncated over UDP, closed over TCP"


Records = Sequence[str] | Trouble
Zone = Mapping[str, Mapping[str, Records]]

SPOILED = {  # what is put where a trouble needs records beside it
    Trouble.SILENCE_ONCE: ["192.0.2.1"],
    Trouble.STRANGER: ["192.0.2.2"],
    Trouble.NO_EDNS: ["192.0.2.3"],
    Trouble.CONTRADICTION: ["192.0.2.4"],
}


class ZoneResolver(Resolver):
    """A resolver that knows one zone and nothing of packets; counts what it is asked, and remembers that.

    `authentic` are the names whose answers a validator vouches for: all with True.
    """

    def __init__(self, zone: Zone, *, authentic: bool | frozenset[str] = False) -> None:
        self.zone = {name.lower(): kinds for name, kinds in zone.items()}
        self.authentic = authentic
        self.asked: Counter[tuple[str, str]] = Counter()

    def remembers_addresses(self, name: str) -> bool:
        return False

    def remembered(self, name: str, kind: str) -> DnsAnswer[Any] | LookupFailed | None:
        name = name.lower().rstrip(".")
        if not self.asked[name, kind]:
            return None
        try:
            return self._find(name, kind)
        except LookupFailed as failed:
            return failed

    async def lookup(self, name: str, kind: str) -> DnsAnswer[Any]:
        await trio.lowlevel.checkpoint()
        name = name.lower().rstrip(".")
        self.asked[name, kind] += 1
        return self._find(name, kind)

    def _find(self, name: str, kind: str) -> DnsAnswer[Any]:
        authentic = self.authentic if isinstance(self.authentic, bool) else name in self.authentic
        seen, target = set(), name
        while "CNAME" in self.zone.get(target, {}) and target not in seen:
            seen.add(target)
            target = self.zone[target]["CNAME"][0].rstrip(".")  # type: ignore[index]
        if target in seen:
            raise LookupFailed(DnsFault.TEMPORARY, f"{name} is a loop of CNAME records")
        if target not in self.zone:
            raise LookupFailed(DnsFault.NXDOMAIN, f"{name} does not exist", authentic=authentic)
        records = self.zone[target].get(kind, ())
        if isinstance(records, Trouble):
            raise LookupFailed(DnsFault.TEMPORARY, f"the resolver answered {records.value} for {kind} of {name}")
        if not records:
            raise LookupFailed(DnsFault.NODATA, f"{name} has no {kind} record", authentic=authentic)
        return DnsAnswer(tuple(_read(kind, text) for text in records), TTL, authentic, bool(seen))


def zone_text(value: str) -> str:
    """The value of a TXT record as a zone file holds it: quoted strings of at most 255 octets (RFC 1035 3.3)."""
    return " ".join(f'"{value[at : at + 255]}"' for at in range(0, len(value), 255))


def _rdata(kind: str, text: str) -> dns.rdata.Rdata:
    return dns.rdata.from_text("IN", kind, text, origin=dns.name.root, relativize=False)


def _read(kind: str, text: str) -> Any:
    wire = _rdata(kind, text).to_wire()
    assert wire is not None
    return READERS[kind](DnsPacket(wire), 0, len(wire))


class DnsServer:
    """A DNS server on loopback, over UDP and TCP with real packets; `asked` counts (name, type, "udp" or "tcp").

    `await nursery.start(server.run)` gives its endpoint. The zone may be changed while it runs.
    """

    def __init__(
        self, zone: Zone, *, ttl: int = TTL, negative_ttl: int = 60, authentic: bool = False, follows: bool = True
    ) -> None:
        self.zone = dict(zone)
        self.ttl = ttl
        self.negative_ttl = negative_ttl
        self.authentic = authentic  # sets AD, as a validator would when asked for it
        self.follows = follows  # False: answers with one CNAME and leaves the rest to the asker
        self.outage: Trouble | None = None  # with whatever is asked
        self.asked: Counter[tuple[str, str, str]] = Counter()
        self.queries: list[dns.message.Message] = []

    def count(self, name: str, kind: str) -> int:
        return self.asked[name, kind, "udp"] + self.asked[name, kind, "tcp"]

    async def run(
        self,
        address: str = "127.0.0.1",
        port: int = 0,
        *,
        task_status: trio.TaskStatus[Endpoint] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        (listener,) = await trio.open_tcp_listeners(port, host=address)
        port = listener.socket.getsockname()[1]
        with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as datagrams:
            await datagrams.bind((address, port))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._serve_udp, datagrams)
                nursery.start_soon(trio.serve_listeners, self._serve_tcp, [listener])
                task_status.started(Endpoint("127.0.0.1", port))

    async def _serve_udp(self, datagrams: trio.socket.SocketType) -> None:
        while True:
            wire, asker = await datagrams.recvfrom(65535)
            for reply in self.replies(wire, "udp"):
                await datagrams.sendto(reply, asker)

    async def _serve_tcp(self, stream: trio.SocketStream) -> None:
        async with stream:
            buffer = b""
            while len(buffer) < 2 or len(buffer) < 2 + int.from_bytes(buffer[:2], "big"):
                chunk = await stream.receive_some()
                if not chunk:
                    return
                buffer += chunk
            for reply in self.replies(buffer[2:], "tcp"):
                await stream.send_all(len(reply).to_bytes(2, "big") + reply)

    def replies(self, wire: bytes, transport: str) -> list[bytes]:
        """The packets that answer this one: mostly one, at times none or two."""
        query = dns.message.from_wire(wire)
        question = query.question[0]
        name, kind = question.name.to_text(omit_final_dot=True).lower(), dns.rdatatype.to_text(question.rdtype)
        self.asked[name, kind, transport] += 1
        self.queries.append(query)
        trouble = self.outage or self.zone.get(name, {}).get(kind)
        if isinstance(trouble, Trouble):
            return self._troubled(query, trouble, transport, times=self.count(name, kind))
        return [self._sized(query, self._answer(query), transport)]

    def _troubled(self, query: dns.message.Message, trouble: Trouble, transport: str, times: int) -> list[bytes]:
        good = self._answer(query)
        match trouble:
            case Trouble.SERVFAIL | Trouble.REFUSED:
                good = dns.message.make_response(query)
                good.set_rcode(dns.rcode.from_text(trouble.value))
            case Trouble.SILENCE:
                return []
            case Trouble.SILENCE_ONCE if times == 1:
                return []
            case Trouble.GARBAGE:
                return [query.to_wire()[:2] + b"\x84\x00" + b"\xff" * 40]
            case Trouble.STRANGER:
                strange = self._answer(query)
                strange.id = query.id ^ 1
                return [strange.to_wire(), good.to_wire()]
            case Trouble.NO_EDNS if query.edns >= 0:
                good = dns.message.Message(id=query.id)  # a header alone, as from servers of another century
                good.flags = dns.flags.QR
                good.question = query.question
                good.set_rcode(dns.rcode.FORMERR)
            case Trouble.CONTRADICTION:
                good.set_rcode(dns.rcode.NXDOMAIN)
            case Trouble.CUT_TCP:
                return [] if transport == "tcp" else [self._truncated(query)]
        return [good.to_wire()]

    def _answer(self, query: dns.message.Message) -> dns.message.Message:
        question = query.question[0]
        reply = dns.message.make_response(query, recursion_available=True)
        if self.authentic and query.flags & dns.flags.AD:
            reply.flags |= dns.flags.AD
        name, kind = question.name, dns.rdatatype.to_text(question.rdtype)
        for _ in range(CHAIN):
            alias = self._records(name, "CNAME")
            if not alias:
                break
            reply.answer.append(self._rrset(name, "CNAME", alias))
            name = dns.name.from_text(alias[0])
            if not self.follows:
                return reply
        if records := self._records(name, kind):
            reply.answer.append(self._rrset(name, kind, records))
            return reply
        soa = f"ns.invalid. hostmaster.invalid. 1 3600 600 86400 {self.negative_ttl}"
        reply.authority.append(dns.rrset.from_text(dns.name.root, 86400, "IN", "SOA", soa))
        if name.to_text(omit_final_dot=True).lower() not in self.zone:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        return reply

    def _records(self, name: dns.name.Name, kind: str) -> Sequence[str]:
        records = self.zone.get(name.to_text(omit_final_dot=True).lower(), {}).get(kind, ())
        return SPOILED.get(records, ()) if isinstance(records, Trouble) else records

    def _rrset(self, name: dns.name.Name, kind: str, records: Sequence[str]) -> dns.rrset.RRset:
        return dns.rrset.from_rdata_list(name, self.ttl, [_rdata(kind, text) for text in records])

    def _sized(self, query: dns.message.Message, reply: dns.message.Message, transport: str) -> bytes:
        wire = reply.to_wire(max_size=65535)
        limit = max(512, query.payload) if transport == "udp" else 65535
        return wire if len(wire) <= limit else self._truncated(query)

    def _truncated(self, query: dns.message.Message) -> bytes:
        reply = dns.message.make_response(query)
        reply.flags |= dns.flags.TC
        return reply.to_wire()


@asynccontextmanager
async def serving(server: DnsServer) -> AsyncIterator[DnsResolver]:
    async with trio.open_nursery() as nursery:
        endpoint = await nursery.start(server.run)
        yield DnsResolver([endpoint])
        nursery.cancel_scope.cancel()
