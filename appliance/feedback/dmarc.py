"""DMARC: reads aggregate reports (RFC 7489 appendix C and its successor), and proposes the next policy of a domain.

No I/O; reading raises only UnreadableReport. expat parses the XML as a stream: a document type or an entity declaration
ends it, depth, elements and attributes are bounded, and only the recorded texts are kept, cut. expat gets the document
in pieces, because it calls no Python inside a comment or a tag and would hold the interpreter lock. A comment or tag
longer than a piece is refused: expat before 2.6 parses it again with every piece. Only listed charsets are decoded.
"""

import ipaddress
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import StrEnum
from math import floor
from typing import Final
from xml.parsers import expat

from msgspec import Struct
from msgspec.structs import astuple

from appliance.feedback.mime import EXPANDED_BYTES, UnreadableReport, report_file
from appliance.message.decoding import codec_of, decode_pieces, one_line
from appliance.model.reports import OTHER_SOURCES, DmarcCounts, DmarcSource, DmarcStanding, SeenSource
from appliance.times import SECOND

DMARC_ROWS: Final = 2_500
SOURCES_PER_REPORT: Final = 200  # recorded separately
MESSAGES_PER_ROW: Final = 10**9  # so that no sum of reports overflows in a database
_DEPTH: Final = 16  # a report needs six
_ELEMENTS: Final = 100_000  # DMARC_ROWS of forty elements
_ATTRIBUTES: Final = 25_000  # expat keeps each name until the end; a report has hardly any
_TEXT: Final = 255  # characters kept of one element
_PIECE: Final = 16 * 1024  # bytes per call of expat, which takes up to 50 ns for each
_TOKEN: Final = _PIECE  # bytes of a comment, a tag with its attributes, or a processing instruction

_ENCODING: Final = re.compile(rb"""<\?xml[^>]{0,100}?encoding=["']([A-Za-z0-9._-]{1,40})["']""")
_NUMBER: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
_KINDS: Final = frozenset(
    ("application/gzip", "application/x-gzip", "application/zip", "application/x-zip-compressed", "application/x-zip",
     "application/xml", "text/xml", "application/dmarc+xml", "application/dmarc+gzip")
)  # fmt: skip
_ENDINGS: Final = (".xml", ".gz", ".zip", ".xml.gz", ".gzip")
_DISPOSITIONS: Final = frozenset(("none", "quarantine", "reject"))

# Paths of the recorded texts, below the root.
_REPORT: Final = frozenset(
    ("report_metadata/org_name", "report_metadata/report_id", "report_metadata/date_range/begin",
     "report_metadata/date_range/end", "policy_published/domain", "policy_published/p", "policy_published/pct")
)  # fmt: skip
_ROW: Final = frozenset(
    ("record/row/source_ip", "record/row/count", "record/row/policy_evaluated/disposition",
     "record/row/policy_evaluated/dkim", "record/row/policy_evaluated/spf")
)  # fmt: skip


def dmarc_counts(mime: bytes) -> DmarcCounts:
    """Return the counts of the report in a message. Raises UnreadableReport."""
    return parse_dmarc_report(report_file(mime, _KINDS, _ENDINGS))


def parse_dmarc_report(document: bytes) -> DmarcCounts:
    """Return the counts of an expanded document. Raises UnreadableReport."""
    reader = _Reader()
    try:
        for piece in _utf8_pieces(document):
            reader.feed(piece)
        reader.parser.Parse(b"", True)
    except expat.ExpatError as cause:
        raise UnreadableReport(f"the XML is malformed: {expat.ErrorString(cause.code)}") from cause
    return reader.counts()


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
    def __init__(self) -> None:
        self._path: list[str] = []
        self._text: list[str] = []
        self._kept = self._elements = self._attributes = self._fed = self._rows = 0
        self._report: dict[str, str] = {}
        self._row: dict[str, str] = {}
        # By source: messages, and how many passed, passed DKIM, passed SPF, were quarantined, and were rejected.
        self._sums: defaultdict[str, list[int]] = defaultdict(lambda: [0] * 6)
        self.parser = expat.ParserCreate("utf-8", " ")  # overrides the charset that the document names
        self.parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.StartDoctypeDeclHandler = self._refuse
        self.parser.EntityDeclHandler = self._refuse
        self.parser.ExternalEntityRefHandler = self._refuse

    def feed(self, piece: bytes) -> None:
        self._fed += len(piece)
        self._attributes += piece.count(b"=")
        if self._fed > EXPANDED_BYTES:  # in UTF-8, which may have three times the bytes of the file
            raise UnreadableReport(f"the report expands to more than {EXPANDED_BYTES} bytes")
        if self._attributes > _ATTRIBUTES:
            raise UnreadableReport("the XML has too many attributes")
        self.parser.Parse(piece, False)
        unfinished = self.parser.CurrentByteIndex  # the start of the current token; below 0 before expat reads it
        if 0 <= unfinished < self._fed - _TOKEN:
            raise UnreadableReport("the XML has a comment or a tag that is too long")

    def _refuse(self, *_declared: object) -> int:
        raise UnreadableReport("the XML has a document type or declares entities")

    def _start(self, name: str, _attributes: object) -> None:
        self._elements += 1
        if len(self._path) >= _DEPTH or self._elements > _ELEMENTS:
            raise UnreadableReport("the XML has too many or too deep elements")
        name = name.rpartition(" ")[2][:_TEXT]  # without the namespace
        if not self._path and name != "feedback":
            raise UnreadableReport("the XML is not a DMARC report")
        self._path.append(name)
        self._text.clear()
        self._kept = 0

    def _characters(self, text: str) -> None:
        if self._kept < _TEXT:
            self._text.append(text[:_TEXT])
            self._kept += len(text)

    def _end(self, _name: str) -> None:
        path = "/".join(self._path[1:])
        texts = self._row if path in _ROW else self._report if path in _REPORT else None
        if texts is not None:
            texts.setdefault(self._path[-1], one_line("".join(self._text))[:_TEXT])
        elif path == "record":
            self._add_row(self._row)
            self._row = {}
        self._path.pop()
        self._text.clear()
        self._kept = 0

    def _add_row(self, row: dict[str, str]) -> None:
        """Sum up a row; skip one without a source or a count, and rows over the limit."""
        count = _number(row.get("count", ""))
        try:
            source = str(ipaddress.ip_address(row.get("source_ip", "")))
        except ValueError:
            return
        if count is None or self._rows >= DMARC_ROWS:
            return
        self._rows += 1
        dkim, spf = (row.get(name, "").lower() == "pass" for name in ("dkim", "spf"))
        disposition = _disposition(row.get("disposition", ""))
        # DMARC passes if either is aligned (RFC 7489 3.1).
        which = (True, dkim or spf, dkim, spf, disposition == "quarantine", disposition == "reject")
        sums = self._sums[source]
        for at, counts in enumerate(which):
            sums[at] += min(count, MESSAGES_PER_ROW) if counts else 0

    def counts(self) -> DmarcCounts:
        """Of many sources, keep those with the most failures separate, then those with the most mail."""
        texts = self._report
        domain, percentage = texts.get("domain", "").lower().strip("."), _number(texts.get("pct", ""))
        begins, ends = _number(texts.get("begin", "")), _number(texts.get("end", ""))
        if not domain or begins is None or ends is None:
            raise UnreadableReport("the report names no domain or no time")
        sources = [DmarcSource(address, *sums) for address, sums in self._sums.items()]
        sources.sort(key=lambda source: (-source.failed, -source.messages, source.address))
        kept, others = sources[:SOURCES_PER_REPORT], sources[SOURCES_PER_REPORT:]
        if others:
            numbers = zip(*(astuple(source)[1:] for source in others), strict=True)
            kept.append(DmarcSource(OTHER_SOURCES, *map(sum, numbers)))
        return DmarcCounts(
            org=texts.get("org_name", ""),
            report_id=texts.get("report_id", ""),
            begins_at=begins * SECOND,
            domain=domain,
            policy=_disposition(texts.get("p", "")),
            percentage=100 if percentage is None else min(percentage, 100),
            sources=tuple(kept),
        )


def _disposition(value: str) -> str:
    return value.lower() if value.lower() in _DISPOSITIONS else "none"


def _number(value: str) -> int | None:
    match = _NUMBER.match(value)
    return int(match[0]) if match else None


# ---- the next policy: p=none, then p=quarantine, then p=reject
#
# The first rule that applies decides:
#
# 1. No report in PROPOSAL_DAYS: ask for reports.
# 2. The policy is p=reject for all mail: done.
# 3. Reports for fewer than DAYS_NEEDED days under the current policy: collect more.
# 4. Less than OWN_SHARE of the domain's own mail passes: fix that first, because a stricter policy would lose it.
# 5. Propose the next policy; if the policy applies to part of the mail only (`pct`), the same policy for all mail.
#
# A source counts as the domain's own if any of its mail passed: it has the domain's keys or its permission by SPF. The
# owner must judge the other sources, so the text names them.

PROPOSAL_DAYS: Final = 30  # covered by the proposal
DAYS_NEEDED: Final = 14  # with reports: two weeks, so that weekly mail is included
OWN_SHARE: Final = 0.99
STRANGERS_NAMED: Final = 5

_STRICTER: Final = {"none": "quarantine", "quarantine": "reject"}


class DmarcState(StrEnum):
    """What to do about a domain's policy."""

    NO_REPORTS = "no_reports"
    COLLECT = "collect"  # more reports
    MEND = "mend"  # own mail that fails
    STEP = "step"  # to a stricter policy
    DONE = "done"


class DmarcStep(Struct, frozen=True):
    """The next step, its reason in words, and the numbers behind it."""

    state: DmarcState
    text: str
    policy: str | None = None  # the current one
    percentage: int = 100
    proposed: str | None = None
    days: int = 0  # with reports under this policy
    own_messages: int = 0
    own_passed: int = 0
    failing: tuple[SeenSource, ...] = ()  # own sources for MEND, otherwise strangers; most failures first


def next_step(standing: DmarcStanding, return_path: str, published: tuple[str, int] | None = None) -> DmarcStep:
    """Return the next step, by the reports of PROPOSAL_DAYS. `published`: policy and percentage in DNS, if known."""
    if not standing.days:
        text = (
            f"No DMARC report came in {PROPOSAL_DAYS} days. Put rua=mailto:dmarc@{return_path} into the DMARC record:"
        )
        return DmarcStep(DmarcState.NO_REPORTS, f"{text} large receivers then send a report once a day.")
    policy, percentage = published or (standing.days[-1].policy, standing.days[-1].percentage)
    days = sum((day.policy, day.percentage) == (policy, percentage) for day in standing.days)
    own, passed = standing.own_messages, standing.own_passed
    failing = [seen for seen in standing.sources if seen.counts.failed and seen.counts.address != OTHER_SOURCES]
    strangers = tuple(seen for seen in failing if not seen.counts.passed)[:STRANGERS_NAMED]
    shown_days = "1 day" if days == 1 else f"{days} days"
    summary = f"{_share(passed, own)} of {own:,} own messages passed, in reports of {shown_days} under p={policy}"
    summary += "." if percentage == 100 else f" for {percentage} % of the mail."

    def step(state: DmarcState, text: str, named: tuple[SeenSource, ...], proposed: str | None = None) -> DmarcStep:
        return DmarcStep(state, f"{summary} {text}", policy, percentage, proposed, days, own, passed, named)

    if policy == "reject" and percentage == 100:
        return step(DmarcState.DONE, "There is no stricter policy.", strangers)
    if days < DAYS_NEEDED:
        return step(DmarcState.COLLECT, f"The next step needs {DAYS_NEEDED} days.", strangers)
    if own == 0 or passed / own < OWN_SHARE:
        named = tuple(seen for seen in failing if seen.counts.passed)[:STRANGERS_NAMED] or strangers
        text = f"Before a stricter policy {_share(OWN_SHARE, 1)} should pass: set up DKIM or SPF at {_names(named)}."
        return step(DmarcState.MEND, text, named)
    proposed = policy if percentage < 100 else _STRICTER[policy]
    text = f"Change the record to p={proposed}" + (", without pct" if percentage < 100 else "")
    if strangers:
        text += f", unless one of these sources, of which nothing passed, is yours: {_names(strangers)}"
    return step(DmarcState.STEP, f"{text}.", strangers, proposed)


def _share(part: float, whole: int) -> str:
    return f"{floor(1000 * part / whole) / 10:g} %" if whole else "None"


def _names(sources: tuple[SeenSource, ...]) -> str:
    return ", ".join(f"{seen.counts.address} ({seen.counts.failed:,} failed)" for seen in sources) or "its senders"
