"""Opens received mail for the readers of this package: its header, its parts, and blocks of fields inside of parts.

The parsing is that of `message/reader.py`, which neither recurses nor backtracks. A message inside of the message is a
part with its bytes; only its header is ever read. No I/O, nothing raises.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from appliance.message.decoding import display_text
from appliance.message.reader import ContentPart, read_header, read_parts
from appliance.message.text_from_html import text_from_html

CONTENT_BYTES: Final = 2 * 1024 * 1024  # of one part: a compressed report may have as many
READ_CHARACTERS: Final = 64 * 1024  # of a text or a block of fields; a bounce says what it has to say long before
GROUPS: Final = 1_000  # of fields in a block, RFC 3464 2.1: one for each recipient
VALUE_CHARACTERS: Final = 4_000  # of one field

_FIELD: Final = re.compile(r"([!-9;-~]{1,100})[ \t]*:(.*)", re.DOTALL)
_EMBEDDED: Final = frozenset(("message/rfc822", "text/rfc822-headers", "message/global", "message/global-headers"))
_MESSAGE_START: Final = re.compile(rb"[ \t\r\n]*(?:From [^\n]{0,200}\n)?")  # some put an mbox line in front


@dataclass(frozen=True)
class ReceivedMail:
    """One message that came back."""

    headers: list[tuple[str, str]]
    parts: list[ContentPart]

    def header(self, name: str) -> str:
        """The first field of this name, decoded; empty when there is none."""
        return first_value(self.headers, name)

    def part(self, *endings: str) -> ContentPart | None:
        """The first part whose media type ends with one of these."""
        return next((part for part in self.parts if part.kind.endswith(endings)), None)

    @cached_property
    def text(self) -> str:
        """What a person reads first: the first text that is no file, else the first HTML as text."""
        for part in self.parts:
            if part.kind == "text/plain" and part.content.strip():
                return part.text(READ_CHARACTERS)
        html = self.part("text/html")
        return (text_from_html(html.text(READ_CHARACTERS)) or "") if html else ""

    @cached_property
    def embedded_bytes(self) -> bytes:
        """The message that is inside, from its header on; empty when there is none."""
        part = next((part for part in self.parts if part.kind in _EMBEDDED), None)
        if part is None:
            return b""
        start = _MESSAGE_START.match(part.content)
        return part.content[start.end() if start else 0 :]

    @cached_property
    def embedded(self) -> list[tuple[str, str]]:
        """The header of the message that is inside; empty when there is none."""
        return read_header(self.embedded_bytes) if self.embedded_bytes else []


def open_mail(mime: bytes) -> ReceivedMail:
    """These bytes as a message, whatever they are."""
    return ReceivedMail(*read_parts(mime, CONTENT_BYTES))


def first_value(headers: list[tuple[str, str]], name: str) -> str:
    """The first field of this name, in lower case, and no more of it than is read; empty when there is none."""
    return next((value[:VALUE_CHARACTERS] for key, value in headers if key.lower() == name), "")


def field_groups(block: ContentPart | str) -> list[dict[str, str]]:
    """The groups of fields in a block, divided by empty lines; the first field of a name counts, names in lower case.

    Lines that are no field and continue none are passed over.
    """
    text = block if isinstance(block, str) else block.text(READ_CHARACTERS)
    groups: list[dict[str, list[str]]] = [{}]
    last: list[str] = []
    for line in text.splitlines():
        if not line.strip():
            if groups[-1]:
                if len(groups) == GROUPS:
                    break
                groups.append({})
            last = []
        elif line[0] in " \t":
            last.append(line)
        elif (found := _FIELD.fullmatch(line)) is not None:
            last = [found[2]]
            groups[-1].setdefault(found[1].lower(), last)
    return [{name: _value(lines) for name, lines in group.items()} for group in groups if group]


def _value(lines: list[str]) -> str:
    return display_text(" ".join(line.strip() for line in lines)[:VALUE_CHARACTERS])
