"""In charge of reading the From of a submitted message: the one mailbox it names, whoever reads it.

What this takes, every reader of mail takes the same way: whether a sender may use a domain hangs on it. So comments
are taken only where they look like part of a name, and one mailbox is all a From may have: DMARC (RFC 7489 6.6.1) has
receivers refuse more than one.
"""

import re
from functools import lru_cache
from typing import Final

import idna
from msgspec.structs import replace

from appliance.errors import invalid
from appliance.message import limits
from appliance.message.addresses import Address, parse
from appliance.message.encoded_words import decoded, one_line

_REMEMBERED: Final = 2_000  # senders, by all of their From
_REMEMBERED_LENGTH: Final = 320  # octets

# In every pattern no repeat can take the character that must follow it: there is one way to match, in linear time.
_COMMENT: Final = r'\([^()<>@"\\]*\)'
_QUOTED_TEXT: Final = r'[^"\\]*(?:\\.[^"\\]*)*'
_BARE: Final = re.compile(rf'([^ <>()",;:\\]+) *({_COMMENT})?')
# RFC 5322 3.4: a phrase is quoted strings and atoms; dots and brackets are not, and widely written all the same.
_ATOMS: Final = r'[^"<>@,;:\\()]*'
_PHRASE: Final = rf'{_ATOMS}(?:(?:"{_QUOTED_TEXT}"|{_COMMENT}){_ATOMS})*'
_NAMED: Final = re.compile(rf"({_PHRASE})<([^<>]*)> *(?:{_COMMENT})?")
_TWICE: Final = re.compile(r'([^ <>()",;:\\]+) *< *(\1) *>', re.IGNORECASE)
_QUOTED: Final = re.compile(f'"({_QUOTED_TEXT})"')
_ESCAPED: Final = re.compile(r"\\(.)")
_NEEDS_QUOTES: Final = re.compile(r'["<>,;\\]')

_ONE = "must name one mailbox, as `Name <address>`; a name with a comma or other special characters in double quotes"


def read_from(value: bytes) -> Address:
    """The mailbox of a From, or a refusal; its `text` is as the HTTP API would show it, with the name decoded."""
    return _remembered(value) if len(value) <= _REMEMBERED_LENGTH else _read(value)


def _read(value: bytes) -> Address:
    if len(value) > limits.FROM_LENGTH:
        raise invalid("From", f"must have at most {limits.FROM_LENGTH} octets")
    text = value.replace(b"\r\n", b"").replace(b"\t", b" ").decode("utf-8").strip(" ")
    if not text:
        raise invalid("From", "must not be empty")
    name, bare = _split(text)
    if "=?" in bare:  # some readers decode it, and see another address
        raise invalid("From", "an address must not contain an encoded word")
    address = parse(bare, "From")
    if not bare.isascii():
        _check_domain_spelling(address)
    return _shown(address, one_line(name)[: limits.NAME_LENGTH].strip(" "))


_remembered = lru_cache(_REMEMBERED)(_read)


def _split(text: str) -> tuple[str, str]:
    """The name as people read it, and the address."""
    if found := _BARE.fullmatch(text):
        return decoded((found[2] or "")[1:-1]), found[1]
    if found := _NAMED.fullmatch(text):
        _check_brackets(found[1])
        return decoded(_QUOTED.sub(_unquoted, found[1]).strip(" ")), found[2].strip(" ")
    if found := _TWICE.fullmatch(text):  # the address as its own name, without quotes: not allowed, and often seen
        return found[1], found[2]
    raise invalid("From", _ONE)


def _check_brackets(name: str) -> None:
    """Beside a bracket some readers take what is in quotes, and may hold an `@`, for an address of its own."""
    outside = _QUOTED.sub("", name)
    if outside != name and ("[" in outside or "]" in outside):
        raise invalid("From", _ONE)


def _check_domain_spelling(address: Address) -> None:
    """The message keeps its spelling, so a domain must be what it means without the mapping that a parser may do."""
    written = address.spelling.rpartition("@")[2].lower()
    if not written.isascii() and idna.decode(address.domain) != written:
        raise invalid("From", "the domain holds characters that readers may read differently; write it plainly")


def _unquoted(quoted: re.Match[str]) -> str:
    return _ESCAPED.sub(r"\1", quoted[1])


def _shown(address: Address, name: str) -> Address:
    if not name:
        return address
    if _NEEDS_QUOTES.search(name):
        escaped = name.replace("\\", "\\\\").replace('"', '\\"')
        return replace(address, name=name, text=f'"{escaped}" <{address.spelling}>')
    return replace(address, name=name, text=f"{name} <{address.spelling}>")
