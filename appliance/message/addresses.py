"""The one strict parser for every address of a message, a request or an envelope. No I/O.

It accepts `a@b.c`, `Name <a@b.c>` and `"Quoted, Name" <a@b.c>`. It refuses some forms that RFC 5322 allows, namely
quoted local parts, IP literals, comments, groups and lists, and domains without a dot.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache

import email_validator
import idna
from msgspec import Struct

from appliance.errors import invalid
from appliance.message import limits
from appliance.message.characters import fault_in_line

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"  # RFC 5322 3.2.3
_LOCAL = rf"{_ATOM}(?:\.{_ATOM})*"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"  # RFC 1123 2.1
_NOT_RESERVED = r"(?!..--)"  # idna checks labels such as `xn--…` (RFC 5890 2.3.1)
_NOT_A_NUMBER = r"(?![0-9]+\Z)"  # an all-digit last label is the end of an IPv4 address, RFC 3696 2
# Domains without a dot that addresses may have. `appliance dev` adds localhost, from which frameworks send by default.
SINGLE_LABELS: set[str] = set()

_PLAIN = re.compile(rf"({_LOCAL})@((?:{_NOT_RESERVED}{_LABEL}\.)+{_NOT_RESERVED}{_NOT_A_NUMBER}{_LABEL})")
_ASCII_LOCAL = re.compile(_LOCAL)
_ASCII_DOMAIN = re.compile(rf"(?:{_LABEL}\.)+{_NOT_A_NUMBER}{_LABEL}")
_WITH_NAME = re.compile(r'(?:"([^"\\]*(?:\\.[^"\\]*)*)" *|([^"<>]*))<([^<>]*)>')

_CACHED = 2_000  # addresses: each is parsed when accepted and when delivered
_CACHED_LENGTH = 320  # characters with the name, to bound the cache to a few megabytes

_UNUSUAL_COST = 400  # microseconds: IDNA searches its tables for every character

_ONE_ADDRESS = "expected one address. Send several addresses as an array of strings."
_TOO_LONG = f"the address is longer than {limits.ADDRESS_LENGTH} octets"
_QUOTED = "a quoted local part (double quotes before the @) is not supported"
_FORMS = 'expected `address`, `Name <address>` or `"Name" <address>`'


class Address(Struct, frozen=True, gc=False, kw_only=True):
    name: str  # the display name, or ""
    local: str  # the part before the @, in NFC
    domain: str  # lower case, A-labels
    text: str  # as the caller wrote it, without surrounding spaces
    spelling: str  # the bare address in the caller's spelling

    @property
    def wire(self) -> str:
        return f"{self.local}@{self.domain}"

    @property
    def key(self) -> str:
        """Equal for all spellings of one address. Not case-folded: `straße` and `strasse` may be two mailboxes."""
        local = self.local.lower()
        return f"{local if local.isascii() else unicodedata.normalize('NFC', local)}@{self.domain}"


class _NotAnAddress(Exception):
    """The reason without the field's name, which `parse` adds."""


def parse(text: str, field: str) -> Address:
    try:
        return _cached(text) if len(text) <= _CACHED_LENGTH else _read(text)
    except _NotAnAddress as fault:
        raise invalid(field, str(fault)) from fault.__cause__


def cost_of_address(text: str) -> int:
    """Estimate a microsecond per character, and more for an address outside ASCII or with A-labels."""
    plain = text.isascii() and "xn--" not in text
    if not plain and text.endswith(">"):  # a non-ASCII name alone is cheap
        bare = text[text.rfind("<") :]
        plain = bare.isascii() and "xn--" not in bare
    return len(text) if plain else len(text) + _UNUSUAL_COST


def unique(addresses: Sequence[Address]) -> tuple[Address, ...]:
    if len(addresses) == 1:
        return tuple(addresses)
    first: dict[str, Address] = {}
    for address in addresses:
        first.setdefault(address.key, address)
    return tuple(first.values())


def _read(text: str) -> Address:
    plain = _PLAIN.fullmatch(text)
    if plain and plain.end(1) <= limits.LOCAL_PART_LENGTH and plain.end() <= limits.ADDRESS_LENGTH:
        return Address(name="", local=plain[1], domain=plain[2].lower(), text=text, spelling=text)
    if fault := fault_in_line(text):
        raise _NotAnAddress(f"an address must not contain {fault}")
    text = text.strip(" ")
    name, bare = _split(text)
    local, domain = _read_bare(bare)
    return Address(name=name, local=local, domain=domain, text=text, spelling=bare)


_cached = lru_cache(_CACHED)(_read)


def _split(text: str) -> tuple[str, str]:
    if not text:
        raise _NotAnAddress("an address must not be empty")
    if not text.endswith(">"):
        return "", text
    parts = _WITH_NAME.fullmatch(text)
    if parts is None:
        raise _NotAnAddress(_ONE_ADDRESS if "," in text or ";" in text else _FORMS)
    quoted, name, bare = parts.groups()
    if quoted is not None:  # remove quoting backslashes (RFC 5322 3.2.1)
        name = "\\".join([part.replace("\\", "") for part in quoted.split("\\\\")])
    elif "," in name or ";" in name:
        is_list = "@" in name
        raise _NotAnAddress(_ONE_ADDRESS if is_list else "a name with a comma or semicolon must be in double quotes")
    name = name.strip(" ")
    if len(name) > limits.DISPLAY_NAME_LENGTH:
        raise _NotAnAddress(f"the name is longer than {limits.DISPLAY_NAME_LENGTH} characters")
    return name, bare


def _read_bare(bare: str) -> tuple[str, str]:
    local, _, domain = bare.rpartition("@")
    if len(local.encode()) > limits.LOCAL_PART_LENGTH:
        raise _NotAnAddress(f"the part before the @ is longer than {limits.LOCAL_PART_LENGTH} octets")
    if len(domain) > limits.DOMAIN_LENGTH:
        raise _NotAnAddress(f"the part after the @ is longer than {limits.DOMAIN_LENGTH} octets")
    if len(bare.encode()) > limits.ADDRESS_LENGTH:
        raise _NotAnAddress(_TOO_LONG)
    plain = _PLAIN.fullmatch(bare)
    if plain:
        return plain[1], plain[2].lower()
    for has_fault, reason in _FAULTS:
        if has_fault(bare):
            raise _NotAnAddress(reason)
    return _read_unusual(bare)


# Common faults, in the order of the checks.
_FAULTS: tuple[tuple[Callable[[str], bool], str], ...] = (
    (lambda bare: bare.startswith('"') and '"@' in bare, _QUOTED),
    (lambda bare: "," in bare or ";" in bare, _ONE_ADDRESS),
    (lambda bare: "<" in bare or ">" in bare, _FORMS),
    (lambda bare: " " in bare, "an address must not contain a space"),
    (lambda bare: "@" not in bare, "an address needs an @"),
    (lambda bare: bare.count("@") > 1, "an address has exactly one @"),
    (lambda bare: bare.startswith("@"), "the part before the @ is empty"),
    (lambda bare: bare.endswith("@"), "the part after the @ is empty"),
    (lambda bare: "@[" in bare, "an IP address instead of a domain is not supported"),
)


def _read_unusual(bare: str) -> tuple[str, str]:
    local, _, domain = bare.rpartition("@")
    if local.isascii():
        if not _ASCII_LOCAL.fullmatch(local):
            raise _NotAnAddress("the part before the @ contains an invalid character or a misplaced dot")
    else:
        try:
            # With a placeholder domain: email-validator refuses special-use domains, and idna checks the real one.
            validated = email_validator.validate_email(f"{local}@a.com", check_deliverability=False, strict=True)
        except email_validator.EmailNotValidError as cause:
            raise _NotAnAddress("the part before the @ contains an invalid character") from cause
        local = validated.local_part
    try:
        domain = _encoded(domain)
    except UnicodeError as cause:  # idna.IDNAError is one
        raise _NotAnAddress("the part after the @ is not a domain name") from cause
    if domain in SINGLE_LABELS:
        return local, domain
    if "." not in domain.rstrip("."):
        raise _NotAnAddress("the part after the @ must be a domain name with a dot")
    if len(domain) > limits.DOMAIN_LENGTH or not _ASCII_DOMAIN.fullmatch(domain):
        raise _NotAnAddress("the part after the @ is not a domain name")
    if len(f"{local}@{domain}".encode()) > limits.ADDRESS_LENGTH:
        raise _NotAnAddress(_TOO_LONG)
    return local, domain


@lru_cache(maxsize=1_000)  # half a millisecond each, and domains repeat
def _encoded(domain: str) -> str:
    return idna.encode(domain, uts46=True, std3_rules=True).decode("ascii").lower()
