"""The log: one line per event on stderr, as text on a terminal and as JSON elsewhere, never with a secret."""

import io
import json as jsonlib
import logging
import math
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, TextIO, cast

from appliance.telemetry.log_writer import LogWriter
from appliance.times import SECOND, rfc3339

ROOT_LOGGER = "appliance"
REDACTED = "[redacted]"
FLUSH_TIMEOUT = 1.5  # seconds that the log's reader has at the end of the process to read the last lines
TRACEBACK_LIMIT = 16_000  # characters; an exception group of a thousand tasks must not fill the disk

# Fields that are secret by their name; their id, size or hint may be shown.
_SECRET_NAME = re.compile(
    r"(?!.*_(?:ids?|hint|size|bytes|count)$).*(?:password|passwd|secret|key|token|authorization|cookie|body)",
    re.IGNORECASE | re.DOTALL,
)
_is_secret = lru_cache(maxsize=1024)(lambda name: _SECRET_NAME.match(name) is not None)
# Credentials within a text: those that this program issues, and those of an Authorization header.
_SECRET_TEXT = re.compile(r"(ma_(?:live|test)_|whsec_|(?:Bearer|Basic)\s+)\S+", re.IGNORECASE)
_RESERVED = frozenset({"ts", "level", "logger", "event", "traceback"})
_NEEDS_QUOTES = re.compile(r"[\s\"\\=]|^$")
_json = jsonlib.JSONEncoder(check_circular=False).encode  # what it is given was built by _clean, as a tree


class Log:
    """The log of one part of the program: an event is a few constant words, all that varies goes into fields.

    Debug is for developers of this program, a warning is trouble that was handled, an error is for the operator to see.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self.logger = logger

    def debug(self, event: str, /, **fields: object) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._write(logging.ERROR, event, fields)

    def exception(self, event: str, error: BaseException | None = None, /, **fields: object) -> None:
        """An error with its traceback: that of the exception given, or of the one that is being handled."""
        self._write(logging.ERROR, event, fields, error or sys.exc_info()[1])

    def _write(self, level: int, event: str, fields: dict[str, object], error: BaseException | None = None) -> None:
        if not self.logger.isEnabledFor(level):
            return
        # Made here, because Logger.info would first walk the stack for a file and a line that are not printed.
        caught = (type(error), error, error.__traceback__) if error is not None else None
        record = logging.LogRecord(self.logger.name, level, "", 0, event, (), caught)
        record.fields = fields
        self.logger.handle(record)


def get_logger(name: str) -> Log:
    return Log(logging.getLogger(f"{ROOT_LOGGER}.{name}"))


def redacted(text: str) -> str:
    lower = text.lower()
    # Almost no text holds a credential, and these four searches cost a fifth of the regular expression.
    if "ma_" in lower or "whsec_" in lower or "bearer" in lower or "basic" in lower:
        return _SECRET_TEXT.sub(rf"\1{REDACTED}", text)
    return text


def _clean(name: str, value: object) -> Any:
    """The value as JSON can show it, with secrets taken out at every depth."""
    if value is None or value is True or value is False:
        return value
    if _is_secret(name):
        return REDACTED
    exact = type(value)
    if exact is str:
        return redacted(cast(str, value))
    if exact is int or (exact is float and math.isfinite(cast(float, value))):
        return value
    if isinstance(value, Mapping):
        return {str(key): _clean(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(name, inner) for inner in value]
    return redacted(str(value))


def _cleaned(given: Mapping[str, object]) -> dict[str, Any]:
    return {(f"{name}_" if name in _RESERVED else name): _clean(name, value) for name, value in given.items()}


def _traceback(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    text = redacted("".join(traceback.format_exception(record.exc_info[1])).rstrip())
    return text if len(text) <= TRACEBACK_LIMIT else "…" + text[-TRACEBACK_LIMIT:]


def _escaped(text: str) -> str:
    """The text on one line: what ends a line or controls a terminal is escaped."""
    return text if text.isprintable() else _json(text)[1:-1]


def json_line(at: float, level: str, logger: str, event: str, fields: dict[str, Any]) -> str:
    """One event as JSON, without the line's end; `at` is seconds since 1970, and the fields hold no secrets."""
    ts = rfc3339(int(at * SECOND))
    return _json({"ts": ts, "level": level, "logger": logger, "event": redacted(event), **fields})


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in ASCII, so that no character can end the line early."""

    def format(self, record: logging.LogRecord) -> str:
        fields = _cleaned(getattr(record, "fields", {}))
        if trace := _traceback(record):
            fields["traceback"] = trace
        return json_line(record.created, record.levelname.lower(), record.name, record.getMessage(), fields)


class TextFormatter(logging.Formatter):
    """`HH:MM:SS LEVEL event key=value …`, in local time; a traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        words = [at, f"{record.levelname:<7}", _escaped(redacted(record.getMessage()))]
        fields = _cleaned(getattr(record, "fields", {}))
        words += [f"{_escaped(name)}={_shown(value)}" for name, value in fields.items()]
        if not record.name.startswith(ROOT_LOGGER):
            words.append(f"logger={_shown(record.name)}")
        # The bar tells a traceback's lines from events, even if an exception's own text looks like one.
        trace = [f"    | {_escaped(line)}" for line in _traceback(record).splitlines()]
        return "\n".join([" ".join(words), *trace])


def _shown(value: Any) -> str:
    if type(value) is int:
        return str(value)
    if type(value) is str and value.isprintable() and not _NEEDS_QUOTES.search(value):
        return value
    text = jsonlib.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else _json(value)


def write_many(log: Log, events: list[tuple[float, str, dict[str, Any]]]) -> None:
    """Write events of the level "info" that happened at these times (seconds since 1970); JSON in a single write."""
    for handler in _handlers():
        if isinstance(handler.formatter, JsonFormatter):
            name = log.logger.name
            lines = [f"{json_line(at, 'info', name, event, _cleaned(fields))}\n" for at, event, fields in events]
            handler.write("".join(lines), len(lines))
            return
    for _, event, fields in events:
        log.info(event, **fields)


class _Lines(logging.Handler):
    """Writes to a descriptor through a LogWriter, as that may block; to a stream without one (memory) directly."""

    def __init__(self, stream: TextIO, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.descriptor: int | None = None
        with suppress(OSError, ValueError):  # io.UnsupportedOperation is both
            self.descriptor = stream.fileno()
        self.writer = None if self.descriptor is None else LogWriter(self.descriptor, self._notice)
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):
            self.write(self.format(record) + "\n")

    def write(self, text: str, lines: int = 1) -> None:
        """Write whole lines; those that cannot be written are lost."""
        if self.writer is not None:
            self.writer.put(text, lines)
            return
        with suppress(OSError, ValueError):
            self._stream.write(text)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        super().close()

    def _notice(self, dropped: int) -> str:
        record = logging.LogRecord(f"{ROOT_LOGGER}.log", logging.WARNING, "", 0, "log lines were dropped", (), None)
        record.fields = {"lines": dropped, "reason": "the log could not be written as fast, or not at all"}
        return self.format(record) + "\n"


class _Stderr(io.TextIOBase):
    """Replaces sys.stderr while the server runs, so that what Python itself reports there does not block either."""

    def __init__(self, writer: LogWriter, fileno: int) -> None:
        super().__init__()
        self._writer, self._fileno = writer, fileno

    def write(self, text: str) -> int:
        self._writer.put(text)
        return len(text)

    def fileno(self) -> int:
        return self._fileno


def set_level(name: str) -> None:
    """Write our own events from this level on: debug, info, warning or error."""
    logging.getLogger(ROOT_LOGGER).setLevel(name.upper())


def setup(stream: TextIO | None = None, level: int = logging.INFO, json: bool | None = None) -> None:
    """Write everything to `stream` (stderr), as JSON unless it is a terminal; other libraries only from WARNING on."""
    stream = stream or sys.stderr
    as_json = not stream.isatty() if json is None else json
    handler = _Lines(stream, JsonFormatter() if as_json else TextFormatter())
    root = logging.getLogger()
    for earlier in _handlers():
        root.removeHandler(earlier)
        earlier.close()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(ROOT_LOGGER).setLevel(level)
    logging.captureWarnings(True)
    # A line that cannot be written (a closed pipe) is lost; logging's own complaint would be many, unredacted lines.
    logging.raiseExceptions = False
    # These are not printed, and finding them out takes half the time of making a record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def _handlers() -> list[_Lines]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, _Lines)]


@contextmanager
def unblocked_stderr() -> Iterator[None]:
    """Log to stderr without ever waiting for its reader, and end with every line written.

    At the end a reader that does not read gets `FLUSH_TIMEOUT`. After that stderr is /dev/null: writing why the program
    ends would otherwise keep it from ending.
    """
    for number in (0, 1, 2):  # a closed one would be given to the next file that is opened, which may be the database
        with suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDWR)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - as long as the process
    setup()
    real, (handler,) = sys.stderr, _handlers()
    if handler.writer is None:
        yield
        return
    sys.stderr = cast(TextIO, _Stderr(handler.writer, real.fileno()))
    try:
        yield
    finally:
        sys.stderr = real
        flush()


def flush() -> None:
    """Wait for the log's reader, but not for long; a reader that is stuck loses what it has not read."""
    for handler in _handlers():
        if handler.descriptor is None or handler.writer is None or handler.writer.flush(FLUSH_TIMEOUT):
            continue
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, handler.descriptor)
        os.close(nowhere)
