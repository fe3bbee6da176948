"""Parses DNS packets (RFC 1035 4.1) into our own types. No I/O.

The owner of a domain chooses the content of its records, so parsing time grows with the size of a packet and no faster:
dnspython takes a fifth of a second for a reply of 1,200 bytes with long names.
"""

import re
import struct
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final, NamedTuple

import dns.flags
import dns.rcode
import dns.rdataclass
import dns.rdatatype
from msgspec import Struct

# These may come without the question.
_NO_QUESTION = (dns.rcode.FORMERR, dns.rcode.SERVFAIL, dns.rcode.NOTIMP, dns.rcode.REFUSED)


class Mx(Struct, frozen=True):
    """A mail exchanger; `host` is lower case without a final dot, "" for the root (a null MX, RFC 7505)."""

    preference: int
    host: str


class Tlsa(Struct, frozen=True):
    """A certificate association, as published (RFC 6698 2.1)."""

    usage: int
    selector: int
    matching: int
    data: bytes


class BadDnsReply(Exception):
    """A packet that is not a well-formed reply to the query."""


_HEADER: Final = struct.Struct(
    "!HHHHHH"
)  # id, flags, and the numbers of questions, answers, authorities, additional records
_RECORD: Final = struct.Struct("!HHIH")  # after the name: type, class, TTL, length of the data
_SOA: Final = struct.Struct("!IIIII")  # after its two names; the last is the TTL of negative answers
_QUESTION_TAIL: Final = 4  # bytes of type and class
_ROOT: Final = b"\0"
_NAME_BYTES: Final = 255
_PLAIN: Final = re.compile(rb"[a-z0-9_.-]+")  # matches a dot within a label as well
_ESCAPED: Final = {value: f"\\{value:03d}" for value in range(256)}
_ESCAPED.update({value: chr(value) for value in range(0x21, 0x7F)})
_ESCAPED.update({value: "\\" + chr(value) for value in b'"().;\\@$'})


class WireRecord(NamedTuple):
    name: bytes
    kind: int
    ttl: int
    begin: int  # of its data in the packet
    end: int


class DnsPacket:
    """A DNS packet. Names are uncompressed and in lower case, so that equal names compare equal."""

    def __init__(self, wire: bytes) -> None:
        self.wire = wire
        self._names: dict[int, bytes] = {}  # by offset: each label and each pointer is followed once

    def name(self, at: int) -> bytes:
        """The name at this offset; a pointer leads backwards only."""
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
                    raise BadDnsReply("a name points forwards")
                least = at
            else:
                raise BadDnsReply("unknown label type")
        for step in reversed(steps):
            if wire[step] < 0x40:
                name = wire[step : step + 1 + wire[step]].lower() + name
                if len(name) > _NAME_BYTES:
                    raise BadDnsReply("a name is too long")
            names[step] = name
        return name

    def behind_name(self, at: int) -> int:
        wire, most = self.wire, at + _NAME_BYTES
        while 0 < wire[at] < 0x40 and at < most:
            at += 1 + wire[at]
        return at + (1 if wire[at] == 0 else 2)

    def records(self, at: int, number: int) -> tuple[list[WireRecord], int]:
        """This number of records from an offset, and the offset after them."""
        wire, records = self.wire, []
        for _ in range(number):
            name, begin = self.name(at), self.behind_name(at)
            kind, group, ttl, size = _RECORD.unpack_from(wire, begin)
            begin += _RECORD.size
            at = begin + size
            if at > len(wire):
                raise BadDnsReply("a record exceeds the packet")
            # The class of an OPT record is a size, RFC 6891 6.1.2; a TTL with its first bit set is 0, RFC 2181 8.
            if kind != dns.rdatatype.OPT:
                ttl = ttl if ttl < 1 << 31 else 0
                if group != dns.rdataclass.IN:
                    raise BadDnsReply("a record is not of class IN")
            records.append(WireRecord(name, kind, ttl, begin, at))
        return records, at

    # One parser for each type of data, which spans the offsets from `begin` to `end`.

    def host(self, begin: int, end: int) -> bytes:
        if self.behind_name(begin) != end:
            raise BadDnsReply("a name does not fill its record")
        return self.name(begin)

    def mx(self, begin: int, end: int) -> Mx:
        return Mx(int.from_bytes(self.wire[begin : begin + 2]), host_text(self.host(begin + 2, end)))

    def ipv4(self, begin: int, end: int) -> IPv4Address:
        return IPv4Address(self._exactly(begin, end, 4))

    def ipv6(self, begin: int, end: int) -> IPv6Address:
        return IPv6Address(self._exactly(begin, end, 16))

    def txt(self, begin: int, end: int) -> str:
        """The strings, joined; invalid UTF-8 is replaced."""
        strings = []
        while begin < end:
            behind = begin + 1 + self.wire[begin]
            strings.append(self.wire[begin + 1 : behind])
            begin = behind
        if begin > end or not strings:
            raise BadDnsReply("a text is empty, or exceeds its record")
        return b"".join(strings).decode("utf-8", "replace")

    def tlsa(self, begin: int, end: int) -> Tlsa:
        usage, selector, matching = self._exactly(begin, min(begin + 3, end), 3)
        return Tlsa(usage, selector, matching, self.wire[begin + 3 : end])

    def negative_ttl(self, record: WireRecord) -> int:
        """The TTL of a negative answer with this SOA record (RFC 2308 5)."""
        behind_names = self.behind_name(self.behind_name(record.begin))
        return min(record.ttl, int(_SOA.unpack(self.wire[behind_names : record.end])[4]))

    def _exactly(self, begin: int, end: int, size: int) -> bytes:
        if end - begin != size:
            raise BadDnsReply(f"{end - begin} bytes of data instead of {size}")
        return self.wire[begin:end]


@lru_cache(maxsize=256)  # a hostile reply names one host of many labels in each of its records
def host_text(name: bytes) -> str:
    """A name as text without the final dot, escaped as in a zone file (`\\.`: a dot within a label); root: ""."""
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
    "NS": lambda packet, begin, end: host_text(packet.host(begin, end)),
    "SOA": lambda packet, begin, end: host_text(packet.name(begin)),  # the primary name server
}


class DnsReply(Struct, frozen=True):
    """A complete, well-formed reply to a query for the records of one name."""

    packet: DnsPacket
    flags: int
    rcode: int
    name: bytes  # in the question
    answers: tuple[WireRecord, ...]
    authorities: tuple[WireRecord, ...]


def read_reply(query: bytes, wire: bytes) -> DnsReply:
    packet = DnsPacket(wire)
    try:
        number, flags, questions, answers, authorities, additional = _HEADER.unpack_from(wire)
        if number != _HEADER.unpack_from(query)[0] or not flags & dns.flags.QR or flags & 0x7800:
            raise BadDnsReply("not a reply to this query")
        rcode, at = flags & 0xF, _HEADER.size
        if questions or rcode not in _NO_QUESTION:
            at = DnsPacket(query).behind_name(at) + _QUESTION_TAIL
            if questions != 1 or wire[_HEADER.size : at].lower() != query[_HEADER.size : at].lower():
                raise BadDnsReply("a reply to another question")
        answer_records, at = packet.records(at, answers)
        authority_records, at = packet.records(at, authorities)
        additional_records, at = packet.records(at, additional)
        if at != len(wire):
            raise BadDnsReply("bytes after the last record")
    except (IndexError, struct.error) as cause:
        raise BadDnsReply("the packet ends too early") from cause
    for record in additional_records:
        if record.kind == dns.rdatatype.OPT:
            rcode |= record.ttl >> 24 << 4  # RFC 6891 6.1.3
    name = DnsPacket(query).name(_HEADER.size)
    return DnsReply(packet, flags, rcode, name, tuple(answer_records), tuple(authority_records))
