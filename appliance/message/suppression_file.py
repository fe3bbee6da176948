"""Parses suppression lists: one address per line, or CSV as hosted services export it. No I/O.

An optional heading names the columns; without one the first column is the address and the second the reason. Invalid
lines are skipped and reported with their number, so one bad line does not lose the list.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from appliance.errors import Refused
from appliance.message.addresses import parse
from appliance.message.characters import fault_in_line, unguard_cell

ROW_LENGTH = 4_000  # characters; exports of hosted services contain the whole reply
REASON_LENGTH = 200  # characters stored
IMPORTED = "imported"  # the default reason

# Column headings, in lower case without spaces, hyphens and underscores.
_ADDRESS = ("email", "address", "emailaddress", "recipient", "recipientemail", "emailid")
_REASON = ("reason", "error", "bouncereason", "suppressionreason", "detail", "details", "description", "type", "status")


class ListedAddress(NamedTuple):
    line: int
    address: str  # in its key form
    reason: str


class SkippedLine(NamedTuple):
    line: int
    error: str


def read_suppressions(lines: Iterable[str]) -> Iterator[ListedAddress | SkippedLine]:
    """Parse each line by itself, so that an unclosed quotation mark affects one line only."""
    columns: tuple[int, int] | None = None
    for number, line in enumerate(lines, 1):
        if len(line) > ROW_LENGTH:
            yield SkippedLine(number, f"is longer than {ROW_LENGTH} characters")
            continue
        try:
            row = next(csv.reader([line.lstrip("\ufeff").rstrip("\r\n")]), [])
        except csv.Error:
            yield SkippedLine(number, "is not CSV")
            continue
        cells = [unguard_cell(cell.strip()) for cell in row]
        if not any(cells):
            continue
        if columns is None:
            names = [cell.lower().translate({ord(mark): None for mark in " -_"}) for cell in cells]
            is_heading = any(name in _ADDRESS or name in _REASON for name in names)
            columns = _columns(names) if is_heading else (0, 1)
            if is_heading:
                continue
        yield _read(number, cells, *columns)


def _columns(names: Sequence[str]) -> tuple[int, int]:
    address = next((names.index(name) for name in _ADDRESS if name in names), 0)
    reason = next((names.index(name) for name in _REASON if name in names), None)
    if reason is None or reason == address:
        reason = address + 1 if address + 1 >= len(names) else len(names)
    return address, reason


def _read(number: int, cells: Sequence[str], address: int, reason: int) -> ListedAddress | SkippedLine:
    if address >= len(cells) or not cells[address]:
        return SkippedLine(number, "has no address")
    try:
        key = parse(cells[address], "address").key
    except Refused as refused:
        return SkippedLine(number, refused.text)
    text = cells[reason][:REASON_LENGTH].strip() if reason < len(cells) else ""
    if fault_in_line(text):
        text = "".join(character if character.isprintable() else " " for character in text).strip()
    return ListedAddress(number, key, text or IMPORTED)
