"""Classifies a mail server's reply by the table `reply_rules.toml`: bounce class, party at fault, consequence. No I/O.

Delivery classifies SMTP replies, and `dsn.py` late bounces, so both agree. The first rule that matches decides; the
last ones match every 4xx and 5xx. Matching searches the first `JUDGED_CHARACTERS` of a text for fixed words, in linear
time.
"""

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from string import ascii_lowercase, digits, punctuation
from typing import Final, Literal, NamedTuple

import msgspec

from appliance.model.mail import BounceClass

JUDGED_CHARACTERS: Final = 1_000  # of a reply's text
GAP: Final = 80  # characters that ` ... ` of a phrase may stand for
_OCCURRENCES: Final = 20  # of a phrase's first part that are tried
_BEGINNING: Final = 4  # letters by which phrases such as `spam*` are found; none is shorter
_KNOWN_HEADS: Final = 2_048  # pairs of code and status whose rules are remembered; servers choose both
_KNOWN_REPLIES: Final = 256  # whose rule is remembered
TABLE: Final = Path(__file__).with_suffix(".toml")

_STATUS: Final = re.compile(r"[245]\.[0-9]{1,3}\.[0-9]{1,3}", re.ASCII)  # RFC 3463 2
_NO_STATUS: Final = "none"
_DOMAIN: Final = f"{ascii_lowercase}{digits}-."
_LOCAL_PART: Final = _DOMAIN + "+!#$%&'*/=?^_`{|}~"
_PUNCTUATION: Final = str.maketrans({**dict.fromkeys(punctuation + "…–—", " "), **dict.fromkeys("'’")})


class Fault(StrEnum):
    RECIPIENT = "recipient"
    SENDER = "sender"
    SERVER = "server"
    NONE = "none"


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"bounce_class": "class"}):
    """One row of the table; `reply_rules.toml` explains the columns."""

    name: str
    provider: str
    codes: tuple[int, ...]
    status: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    bounce_class: BounceClass
    fault: Fault
    suppress: bool = False
    hold: bool | Literal["if repeated"]
    source: str
    examples: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return self.hold is True


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    rule: tuple[Rule, ...]


class ParsedReply(NamedTuple):
    code: int | None
    status: str | None
    text: str


def judge_reply(code: int | None, status: str | None, text: str, provider: str | None = None) -> Rule:
    """Return the first matching rule; `provider` restricts it to that provider's and general rules."""
    return _judge(code, status, text[:JUDGED_CHARACTERS], provider)


@lru_cache(maxsize=_KNOWN_REPLIES)  # a busy connection gets the same few replies
def _judge(code: int | None, status: str | None, text: str, provider: str | None) -> Rule:
    status = status if status is not None and _STATUS.fullmatch(status) else None
    if code is None:
        code = 450 if (status or "").startswith("4.") else 550
    family = 4 if code // 100 == 4 else 5
    if status is not None and int(status[0]) != family:
        status = None
    phrases = _phrases_in(_words(text, status))
    return next(
        rule.row
        for rule in _candidates(code, family, status)
        if not (rule.text and rule.text.isdisjoint(phrases))
        and rule.unless.isdisjoint(phrases)
        and (provider is None or rule.row.provider in (provider, "any"))
    )


# Some servers write a colon after the code: `452: mailbox full`.
_CODE: Final = re.compile(r"(?:smtp;\s?)?([2-5][0-9]{2})(?:: ?|[ \t-]|$)", re.ASCII | re.IGNORECASE)
_LEADING_STATUS: Final = re.compile(r"([245]\.[0-9]{1,3}\.[0-9]{1,3})(?![0-9.])", re.ASCII)  # as in an SMTP session


def parse_reply(reply: str) -> ParsedReply:
    """Split a reply from a log or a bounce, on one line or several, into code, status and text."""
    lines = [line.strip() for line in reply.strip().splitlines()] or [""]
    first = _CODE.match(lines[0])
    code = None if first is None else int(first[1])
    rest = [line[head.end() :] if (head := _CODE.match(line)) else line for line in lines]
    match = _LEADING_STATUS.match(rest[0])
    status = match[1] if match and (code is None or int(match[1][0]) == code // 100) else None
    return ParsedReply(code, status, " ".join(rest))


# ---- matching
def _phrases_in(words: list[str]) -> set[str]:
    """Return the phrases of the table that occur; searches only those whose first word occurs."""
    text = f" {' '.join(words)} "
    possible: list[tuple[str, tuple[str, ...]]] = []
    for word in set(words):
        if phrases := _BY_FIRST_WORD.get(word):
            possible += phrases
        if phrases := _BY_BEGINNING.get(word[:_BEGINNING]):
            possible += phrases
    return {
        phrase
        for phrase, parts in possible
        if parts[0] in text and (len(parts) == 1 or _occurs_with_gaps(text, *parts))
    }


def _occurs_with_gaps(text: str, first: str, *rest: str) -> bool:
    start = text.find(first)
    for _ in range(_OCCURRENCES):
        if start < 0:
            return False
        if _follow(text, start + len(first) - 1, rest):
            return True
        start = text.find(first, start + 1)
    return False


def _follow(text: str, end: int, parts: Iterable[str]) -> bool:
    for part in parts:
        start = text.find(part, end, end + GAP + len(part))
        if start < 0:
            return False
        end = start + len(part) - 1
    return True


def _words(text: str, status: str | None = None) -> list[str]:
    """Return the words of a text in lower case, without addresses and the repeated status."""
    text = text.lower()
    if status is not None:
        text = text.replace(status, " ")
    if "@" in text:
        text = _without_addresses(text)
    return text.translate(_PUNCTUATION).split()


def _without_addresses(text: str) -> str:
    """Drop addresses, which must not decide: `<spam@example.com>` is not spam."""
    first, *rest = text.split("@")
    kept = [first.rstrip(_LOCAL_PART)]
    kept += [part.lstrip(_DOMAIN).rstrip(_LOCAL_PART) for part in rest[:-1]]
    return " ".join((*kept, rest[-1].lstrip(_DOMAIN)))


class _IndexedRule(NamedTuple):
    row: Rule
    codes: frozenset[int]
    status: frozenset[str]
    text: frozenset[str]
    unless: frozenset[str]


def _statuses(written: Iterable[str]) -> Iterator[str]:
    for status in written:
        subject, _, detail = status.rpartition(".")
        first, dash, last = detail.partition("-")
        if dash:
            yield from (f"{subject}.{number}" for number in range(int(first), int(last) + 1))
        else:
            yield status


def _parts(phrase: str) -> tuple[str, ...]:
    """Return the texts to search for: whole words between spaces; `*` leaves the end open."""
    return tuple(f" {part[:-1]}" if part.endswith("*") else f" {part} " for part in phrase.split(" ... "))


_Index = dict[str, list[tuple[str, tuple[str, ...]]]]


def _by_first_word(phrases: Iterable[str]) -> tuple[_Index, _Index]:
    """Index phrases by their first word, or by its first letters if it ends with `*`."""
    whole: _Index = {}
    beginnings: _Index = {}
    for phrase in phrases:
        word = phrase.split()[0]
        index, key = (beginnings, word[:_BEGINNING]) if word.endswith("*") else (whole, word)
        index.setdefault(key, []).append((phrase, _parts(phrase)))
    return whole, beginnings


RULES: Final = msgspec.toml.decode(TABLE.read_bytes(), type=_Table).rule
_INDEXED: Final = tuple(
    _IndexedRule(
        rule, frozenset(rule.codes), frozenset(_statuses(rule.status)), frozenset(rule.text), frozenset(rule.unless)
    )
    for rule in RULES
)
_BY_FIRST_WORD, _BY_BEGINNING = _by_first_word({text for rule in RULES for text in (*rule.text, *rule.unless)})


@lru_cache(maxsize=_KNOWN_HEADS)
def _candidates(code: int, family: int, status: str | None) -> tuple[_IndexedRule, ...]:
    names = {_NO_STATUS} if status is None else {status, status.rpartition(".")[0]}
    return tuple(rule for rule in _INDEXED if rule.codes & {code, family} and (not rule.status or rule.status & names))
