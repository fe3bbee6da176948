"""Renders a log event as one line: JSON for programs, text for a terminal. No I/O.

No line contains a secret, a line end or a control character, whatever its fields hold.
"""

import json
import logging
import math
import re
import textwrap
import time
import traceback
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import msgspec

from appliance.times import SECOND, rfc3339

ROOT_LOGGER = "appliance"
REDACTED = "[redacted]"
TRACEBACK_LIMIT = 16_000  # characters; an exception group of a thousand tasks must not fill the disk
LEAST_COLUMNS = 50  # on a narrower terminal rows are neither cut nor wrapped

# Fields that are secret by their name. Their id, size or hint may be shown.
_SECRET_NAME = re.compile(
    r"(?!.*_(?:ids?|hint|size|bytes|count)$).*(?:password|passwd|secret|key|token|authorization|cookie|body)",
    re.IGNORECASE | re.DOTALL,
)
_is_secret = lru_cache(maxsize=1024)(lambda name: _SECRET_NAME.match(name) is not None)
# Credentials inside a text: the ones this program issues, and an Authorization header's.
_SECRET_TEXT = re.compile(r"(ma_(?:live|test)_|whsec_|(?:Bearer|Basic)\s+)\S+", re.IGNORECASE)
# An id as a log line can repeat it: it needs no escaping, has one length, and contains no credential.
_RECIPIENT_ID = re.compile(r"rcp_[0-9a-f]{32}")
_RESERVED = frozenset({"ts", "level", "logger", "event", "traceback"})
_PLAIN = frozenset({str, int, bool, type(None)})  # shown in JSON as they are, but for texts with secrets
_NEEDS_QUOTES = re.compile(r"[\s\"\\=]|^$")
_EMPTY: tuple[object, ...] = (None, "", [], {})
_INDENT = " " * 17  # of the rows below an event: time and level
_PRIORITIES = {"debug": "<7>", "info": "<6>", "warning": "<4>", "error": "<3>", "critical": "<2>"}
_ascii_json = json.JSONEncoder(check_circular=False).encode  # _clean builds a tree

_process_fields: dict[str, Any] = {}  # on every JSON line


@contextmanager
def named_node(name: str) -> Iterator[None]:
    """Add the name of this cluster node to every JSON line; no field for an empty name."""
    if name:
        _process_fields["node"] = name
    try:
        yield
    finally:
        _process_fields.pop("node", None)


class LineFormatter(logging.Formatter):
    """Formats records as JSON, one ASCII object a line, or as text.

    For the journal, JSON starts with the priority (sd-daemon(3)) that `journalctl -p warning` filters by. Text is
    `HH:MM:SS LEVEL event key=value …` in local time, in rows of `width()` columns unless that is 0 (unknown): warnings
    and errors wrap; other events are cut to one row.
    """

    def __init__(self, *, as_json: bool, for_journal: bool = False, width: Callable[[], int] = lambda: 0) -> None:
        super().__init__()
        self._as_json = as_json
        self._priorities, self._width = _PRIORITIES if for_journal else {}, width

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        return self.line(record.created, record.levelname, record.name, record.getMessage(), fields, _trace(record))

    def line(
        self, at: float, level: str, logger: str, event: str, fields: Mapping[str, object], trace: str = ""
    ) -> str:
        """Render one event, without the line end; `at` is in seconds since 1970."""
        if self._as_json:
            # Searching one line for credentials costs a third of searching each text in it.
            line = self._json(at, level, logger, event, _unsearched_fields(fields), trace)
            if not _may_hold_credential(line):
                return line
        render = self._json if self._as_json else self._text
        return render(at, level, logger, redacted(event), _fields(fields, _clean), trace)

    def lines_of_recipients(
        self, at: float, level: str, logger: str, event: str, fields: Mapping[str, object], recipients: Sequence[str]
    ) -> list[str]:
        """Render an event that is the same for several recipients: one line for each id.

        Only the first line is rendered, because the others differ in one word. This saves a tenth of the CPU time of a
        message to 50 recipients. `tests/telemetry/test_log.py` compares the lines with those of `line`.
        """
        line = self.line(at, level, logger, event, {**fields, "recipient_id": recipients[0]})
        if line.count(recipients[0]) == 1 and all(map(_RECIPIENT_ID.fullmatch, recipients)):
            before, after = line.split(recipients[0])
            return [f"{before}{recipient}{after}" for recipient in recipients]
        return [self.line(at, level, logger, event, {**fields, "recipient_id": other}) for other in recipients]

    def _json(self, at: float, level: str, logger: str, event: str, fields: Mapping[str, Any], trace: str) -> str:
        level, traced = level.lower(), {"traceback": trace} if trace else {}
        head = {"ts": rfc3339(int(at * SECOND)), "level": level, "logger": logger, "event": event}
        return self._priorities.get(level, "") + to_json({**head, **_process_fields, **fields, **traced})

    def _text(self, at: float, level: str, logger: str, event: str, fields: dict[str, Any], trace: str) -> str:
        head = f"{time.strftime('%H:%M:%S', time.localtime(at))} {level:<7} {_escaped(event)}"
        words = [f"{_escaped(key)}={_shown(value)}" for key, value in fields.items() if value not in _EMPTY]
        if not logger.startswith(ROOT_LOGGER):
            words.append(f"logger={_shown(logger)}")
        line, columns = " ".join([head, *words]), self._width()
        if LEAST_COLUMNS <= columns < _columns(line):
            line = _cut(head, words, columns) if level in ("DEBUG", "INFO") else _wrapped(line, columns)
        # The bar marks a traceback's lines, even if an exception's own text looks like an event.
        return "\n".join([line, *(f"    | {_escaped(row)}" for row in trace.splitlines())])


def redacted(text: str) -> str:
    return _SECRET_TEXT.sub(rf"\1{REDACTED}", text) if _may_hold_credential(text) else text


def _may_hold_credential(text: str) -> bool:
    """Few texts contain a credential, and these searches cost a fifth of the regular expression."""
    lower = text.lower()
    return "ma_" in lower or "whsec_" in lower or "bearer" in lower or "basic" in lower


def _fields(fields: Mapping[str, object], clean: Callable[[str, object], Any]) -> dict[str, Any]:
    return {f"{key}_" if key in _RESERVED else key: clean(key, value) for key, value in fields.items()}


def _unsearched_fields(fields: Mapping[str, object]) -> Mapping[str, Any]:
    """Most events need no look at each field, which saves a tenth of the function calls for a recipient."""
    if _are_ordinary(tuple(fields)) and _PLAIN.issuperset(map(type, fields.values())):
        return fields
    return _fields(fields, _unsearched)


@lru_cache(maxsize=1024)
def _are_ordinary(names: tuple[str, ...]) -> bool:
    return _RESERVED.isdisjoint(names) and not any(map(_is_secret, names))


def _unsearched(name: str, value: object) -> Any:
    """As `_clean`, but a text with an ordinary name is not searched for credentials."""
    return value if type(value) is str and not _is_secret(name) else _clean(name, value)


def _clean(name: str, value: object) -> Any:
    """Return the value as JSON can show it, with secrets redacted at every depth."""
    if value is None or value is True or value is False:
        return value
    if _is_secret(name):
        return REDACTED
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _clean(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(name, inner) for inner in value]
    return redacted(str(value))


def _trace(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    text = redacted("".join(traceback.format_exception(record.exc_info[1])).rstrip())
    return text if len(text) <= TRACEBACK_LIMIT else "…" + text[-TRACEBACK_LIMIT:]


def to_json(value: Any) -> str:
    """ASCII JSON. msgspec takes a third of the time, which is most of the cost of a line."""
    try:
        line = msgspec.json.format(msgspec.json.encode(value), indent=0)
    except ValueError:  # half of a surrogate pair
        return _ascii_json(value)
    return line.decode("ascii") if line.isascii() and b"\x7f" not in line else _ascii_json(value)


# ---- text for a terminal
def _escaped(text: str) -> str:
    """Escape line ends and terminal control characters."""
    return text if text.isprintable() else to_json(text)[1:-1]


def _shown(value: Any) -> str:
    if type(value) is str and value.isprintable() and not _NEEDS_QUOTES.search(value):
        return value
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else to_json(value)


def _columns(text: str) -> int:
    """Return the most columns that a printable text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def _wrapped(line: str, columns: int) -> str:
    columns = columns if _columns(line) == len(line) else columns // 2  # textwrap counts characters
    return "\n".join(textwrap.wrap(line, columns, subsequent_indent=_INDENT, break_on_hyphens=False))


def _cut(head: str, words: list[str], columns: int) -> str:
    """Return one row: the fields that fit, at least part of the first, then `…`. Ids but message_id come last."""
    ids = [word for word in words if word.partition("=")[0].endswith("_id") and not word.startswith("message_id=")]
    row, more = head, [word for word in words if word not in ids] + ids
    while more and _columns(row) + _columns(more[0]) + 3 <= columns:
        row += f" {more.pop(0)}"
    if row == head and more:
        row += f" {more[0]}"
    if _columns(row) <= columns - 2:
        return f"{row} …"
    row = row[: columns - 1]
    while _columns(row) > columns - 1:
        row = row[:-1]
    return f"{row.rstrip()}…"
