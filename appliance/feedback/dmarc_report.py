"""DMARC aggregate reports (RFC 7489 appendix C, and its successor): who sent in a domain's name, and what passed. No
I/O; raises UnreadableReport only.

The XML is read by expat, as a stream of elements and without a tree: a document type or an entity declaration ends it
(so nothing is ever expanded or fetched), depth, elements and attributes are bounded, and only the texts that are wanted
are kept, each cut. The document is handed over in pieces: expat calls no Python within a comment or a tag, so a single
call for a long one would keep the interpreter lock, and the event loop would stand still. A comment or a tag that has
not ended after as many bytes as a piece has is refused, also because expat before 2.6 reads it from its start with each
piece. The charset that the document names is one of our list, or the document is taken for UTF-8: expat would otherwise
look up any codec of Python's.
"""

import ipaddress
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass
from itertools import starmap
from typing import Final
from xml.parsers import expat

from appliance.feedback.report_file import EXPANDED_BYTES, UnreadableReport, report_file
from appliance.message.decoding import codec_of, decode_pieces, one_line
from appliance.message.reader import ContentPart
from appliance.model.reports import OTHER_SOURCES, DmarcCounts, DmarcSource
from appliance.times import SECOND

DMARC_ROWS: Final = 2_500
SOURCES_PER_REPORT: Final = 200  # that are recorded apart
MESSAGES_PER_ROW: Final = 10**9  # so that no sum of reports is too large for a database
_DEPTH: Final = 16  # a report needs six
_ELEMENTS: Final = 100_000  # that many rows of forty elements
_ATTRIBUTES: Final = 25_000  # expat keeps each name that it has seen, and frees all at once; a report has hardly any
_TEXT: Final = 255  # characters kept of one element
_PIECE: Final = 16 * 1024  # bytes given to one call of expat, which takes up to 50 ns for each
_TOKEN: Final = _PIECE  # bytes of a comment, a tag with its attributes, or a processing instruction

_ENCODING: Final = re.compile(rb"""<\?xml[^>]{0,100}?encoding=["']([A-Za-z0-9._-]{1,40})["']""")
_NUMBER: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
_KINDS: Final = frozenset(
    ("application/gzip", "application/x-gzip", "application/zip", "application/x-zip-compressed", "application/x-zip",
     "application/xml", "text/xml", "application/dmarc+xml", "application/dmarc+gzip")
)  # fmt: skip
_ENDINGS: Final = (".xml", ".gz", ".zip", ".xml.gz", ".gzip")
_DISPOSITIONS: Final = frozenset(("none", "quarantine", "reject"))

# Where a wanted text stands, below the root.
_REPORT: Final = {
    "report_metadata/org_name": "org",
    "report_metadata/report_id": "report_id",
    "report_metadata/date_range/begin": "begin",
    "report_metadata/date_range/end": "end",
    "policy_published/domain": "domain",
    "policy_published/p": "p",
    "policy_published/sp": "sp",
    "policy_published/pct": "pct",
}
_ROW: Final = {
    "record/row/source_ip": "source_ip",
    "record/row/count": "count",
    "record/row/policy_evaluated/disposition": "disposition",
    "record/row/policy_evaluated/dkim": "dkim",
    "record/row/policy_evaluated/spf": "spf",
    "record/identifiers/header_from": "header_from",
}


@dataclass(frozen=True, slots=True)
class DmarcRow:
    """Messages of one source with one result; `dkim` and `spf` say whether it passed and was aligned."""

    source_ip: str
    count: int
    disposition: str  # none, quarantine, reject
    dkim: bool
    spf: bool
    header_from: str

    @property
    def passed(self) -> bool:
        return self.dkim or self.spf


@dataclass(frozen=True, slots=True, kw_only=True)
class DmarcReport:
    """One receiver's report about one domain; `left_out` counts rows over the limit or without a source or a count."""

    org: str
    report_id: str
    begins_at: int  # microseconds
    ends_at: int
    domain: str
    policy: str
    subdomain_policy: str | None
    percentage: int
    rows: tuple[DmarcRow, ...]
    left_out: int


def read_dmarc_report(mime: bytes) -> DmarcReport:
    """The report that a message carries. Raises UnreadableReport."""
    return parse_dmarc_report(report_file(mime, _may_be_report))


def dmarc_counts(mime: bytes) -> DmarcCounts:
    """What is recorded of the report that a message carries. Raises UnreadableReport."""
    return summed(read_dmarc_report(mime))


def summed(report: DmarcReport) -> DmarcCounts:
    """A report by source. Of many sources those with the most failures are kept apart, then those with most mail."""
    by_source: defaultdict[str, list[int]] = defaultdict(lambda: [0] * 6)
    for row in report.rows:
        which = (True, row.passed, row.dkim, row.spf, row.disposition == "quarantine", row.disposition == "reject")
        sums, count = by_source[row.source_ip], min(row.count, MESSAGES_PER_ROW)
        for at, counts in enumerate(which):
            sums[at] += count if counts else 0
    sources = sorted(starmap(_source, by_source.items()), key=lambda each: (-each.failed, -each.messages, each.address))
    kept, others = sources[:SOURCES_PER_REPORT], sources[SOURCES_PER_REPORT:]
    if others:
        kept.append(_source(OTHER_SOURCES, [sum(each) for each in zip(*map(_numbers, others), strict=True)]))
    return DmarcCounts(
        org=report.org,
        report_id=report.report_id,
        begins_at=report.begins_at,
        domain=report.domain,
        policy=report.policy,
        percentage=report.percentage,
        sources=tuple(kept),
    )


def _source(address: str, numbers: Iterable[int]) -> DmarcSource:
    return DmarcSource(address, *numbers)


def _numbers(source: DmarcSource) -> tuple[int, ...]:
    return astuple(source)[1:]


def _may_be_report(part: ContentPart) -> bool:
    return part.kind in _KINDS or part.filename.lower().endswith(_ENDINGS)


def parse_dmarc_report(document: bytes) -> DmarcReport:
    """The report in an expanded document. Raises UnreadableReport."""
    reader = _Reader()
    try:
        for piece in _utf8_pieces(document):
            reader.feed(piece)
        reader.parser.Parse(b"", True)
    except expat.ExpatError as cause:
        raise UnreadableReport(f"the XML is malformed: {expat.ErrorString(cause.code)}") from cause
    return reader.report()


def _utf8_pieces(document: bytes) -> Iterator[bytes]:
    named = _ENCODING.search(document[:200])
    codec = codec_of(named[1].decode("ascii")) if named else None
    if codec is None or codec in ("utf-8", "ascii"):
        decoded: Iterable[bytes] = (document,)
    else:
        decoded = (text.encode("utf-8") for text in decode_pieces(document, codec))
    for data in decoded:
        for at in range(0, len(data), _PIECE):
            yield data[at : at + _PIECE]


class _Reader:
    """The texts of one document so far."""

    def __init__(self) -> None:
        self._path: list[str] = []
        self._text: list[str] = []
        self._kept = self._elements = self._attributes = self._fed = 0
        self._report: dict[str, str] = {}
        self._row: dict[str, str] = {}
        self._rows: list[DmarcRow] = []
        self._left_out = 0
        # "utf-8" overrules what the document says.
        self.parser = expat.ParserCreate("utf-8", " ")
        self.parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.StartDoctypeDeclHandler = self._refuse
        self.parser.EntityDeclHandler = self._refuse
        self.parser.ExternalEntityRefHandler = self._refuse_reference

    def feed(self, piece: bytes) -> None:
        """The next piece of the document, in UTF-8."""
        self._fed += len(piece)
        self._attributes += piece.count(b"=")
        if self._fed > EXPANDED_BYTES:  # in UTF-8, which may have thrice the bytes of the file
            raise UnreadableReport(f"the report expands to more than {EXPANDED_BYTES} bytes")
        if self._attributes > _ATTRIBUTES:
            raise UnreadableReport("the XML has too many attributes")
        self.parser.Parse(piece, False)
        unfinished = self.parser.CurrentByteIndex  # where its token begins; below 0 while expat has not looked at it
        if 0 <= unfinished < self._fed - _TOKEN:
            raise UnreadableReport("the XML has a comment or a tag that is too long")

    def _refuse(self, *_declared: object) -> None:
        raise UnreadableReport("the XML has a document type or declares entities")

    def _refuse_reference(self, *_declared: object) -> int:
        raise UnreadableReport("the XML has a document type or declares entities")

    def _start(self, name: str, _attributes: object) -> None:
        self._elements += 1
        if len(self._path) >= _DEPTH or self._elements > _ELEMENTS:
            raise UnreadableReport("the XML has too many or too deep elements")
        name = name.rpartition(" ")[2][:_TEXT]  # the namespace is in front
        if not self._path and name != "feedback":
            raise UnreadableReport("the XML is no DMARC report")
        self._path.append(name)
        self._text.clear()
        self._kept = 0

    def _characters(self, text: str) -> None:
        if self._kept < _TEXT:
            self._text.append(text[:_TEXT])
            self._kept += len(text)

    def _end(self, _name: str) -> None:
        path = "/".join(self._path[1:])
        if (key := _ROW.get(path)) is not None:
            self._row.setdefault(key, self._value())
        elif (key := _REPORT.get(path)) is not None:
            self._report.setdefault(key, self._value())
        elif path == "record":
            self._end_of_row()
        self._path.pop()
        self._text.clear()
        self._kept = 0

    def _value(self) -> str:
        return one_line("".join(self._text))[:_TEXT]

    def _end_of_row(self) -> None:
        row = _row(self._row)
        self._row = {}
        if row is None or len(self._rows) >= DMARC_ROWS:
            self._left_out += 1
        else:
            self._rows.append(row)

    def report(self) -> DmarcReport:
        found = self._report
        domain = found.get("domain", "").lower().strip(".")
        begins, ends = _number(found.get("begin", "")), _number(found.get("end", ""))
        if not domain or begins is None or ends is None:
            raise UnreadableReport("the report names no domain or no time")
        percentage = _number(found.get("pct", ""))
        return DmarcReport(
            org=found.get("org", ""),
            report_id=found.get("report_id", ""),
            begins_at=begins * SECOND,
            ends_at=ends * SECOND,
            domain=domain,
            policy=_disposition(found.get("p", "")),
            subdomain_policy=_disposition(found["sp"]) if found.get("sp") else None,
            percentage=100 if percentage is None else min(percentage, 100),
            rows=tuple(self._rows),
            left_out=self._left_out,
        )


def _row(found: dict[str, str]) -> DmarcRow | None:
    count = _number(found.get("count", ""))
    try:
        source = str(ipaddress.ip_address(found.get("source_ip", "")))
    except ValueError:
        return None
    if count is None:
        return None
    return DmarcRow(
        source_ip=source,
        count=count,
        disposition=_disposition(found.get("disposition", "")),
        dkim=found.get("dkim", "").lower() == "pass",
        spf=found.get("spf", "").lower() == "pass",
        header_from=found.get("header_from", "").lower().strip("."),
    )


def _disposition(value: str) -> str:
    return value.lower() if value.lower() in _DISPOSITIONS else "none"


def _number(value: str) -> int | None:
    found = _NUMBER.match(value)
    return int(found[0]) if found else None
