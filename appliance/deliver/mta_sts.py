"""In charge of reading MTA-STS (RFC 8461): the record that announces a policy, and the policy. PURE and strict."""

import re
from dataclasses import dataclass
from enum import StrEnum

AGE_LIMIT = 31_557_600  # seconds, one year: the most that RFC 8461 3.2 allows
MX_LIMIT = 100  # patterns of one policy that are read; nobody has as many

_RECORD = "v=STSv1;"
_ID = re.compile(r"[A-Za-z0-9]{1,32}")  # RFC 8461 3.1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
_AGE = re.compile(r"[0-9]{1,10}")
_MX = re.compile(r"(?:\*\.)?(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")


class Mode(StrEnum):
    """What a domain wants of senders."""

    ENFORCE = "enforce"  # verified TLS with the hosts it names, or no delivery
    TESTING = "testing"  # failures are only reported
    NONE = "none"  # it has no policy any more


@dataclass(frozen=True, slots=True)
class Policy:
    """What a domain has published."""

    mode: Mode
    mx: tuple[str, ...]  # lower case; `*.example.com` stands for one label more
    max_age: int  # seconds

    def names(self, host: str) -> bool:
        """Whether this MX host is one of those the policy names (RFC 8461 4.1)."""
        host = host.lower().rstrip(".")
        return host in self.mx or f"*.{host.partition('.')[2]}" in self.mx


class BadPolicy(ValueError):
    """A policy that cannot be used, with the reason in words."""


def policy_id(texts: tuple[str, ...]) -> str | None:
    """The id that the TXT records at `_mta-sts.` announce; None unless exactly one of them does (RFC 8461 3.1)."""
    records = [text for text in texts if text.startswith(_RECORD)]
    if len(records) != 1:
        return None
    fields = [part.strip(" \t") for part in records[0].split(";")]
    fields = fields[:-1] if fields[-1] == "" else fields
    pairs = [part.partition("=") for part in fields[1:]]
    if not all(_NAME.fullmatch(name) and sign and value for name, sign, value in pairs):
        return None
    found = next((value for name, _, value in pairs if name == "id"), "")
    return found if _ID.fullmatch(found) else None


def read_policy(text: str) -> Policy:
    """Read the body of a policy file. Unknown keys are passed over, of a repeated key the first counts (3.2)."""
    pairs = [_pair(line) for line in text.replace("\r\n", "\n").split("\n") if line.strip(" \t")]
    first = dict(reversed(pairs))
    if first.get("version") != "STSv1":
        raise BadPolicy("it does not say version: STSv1")
    if first.get("mode") not in set(Mode):
        raise BadPolicy("it has no mode that we know")
    if not _AGE.fullmatch(first.get("max_age", "")):
        raise BadPolicy("it has no max_age")
    mode = Mode(first["mode"])
    mx = tuple(_mx(value) for key, value in pairs if key == "mx")[:MX_LIMIT]
    if not mx and mode is not Mode.NONE:
        raise BadPolicy("it names no mx")
    return Policy(mode, mx, min(int(first["max_age"]), AGE_LIMIT))


def _pair(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not _NAME.fullmatch(name) or not value.isprintable():
        raise BadPolicy(f"it has a line that is no key and value: {line[:60]!a}")
    return name, value.strip(" ")


def _mx(value: str) -> str:
    pattern = value.lower()
    if len(pattern) > 253 or not _MX.fullmatch(pattern):
        raise BadPolicy(f"it names an mx that is no host: {value[:60]!a}")
    return pattern
