"""In charge of the log: one line per event on stderr, text for people, JSON for machines, and no secret in either."""

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

import msgspec

from appliance.telemetry.log_writer import LogWriter

ROOT = "appliance"
REDACTED = "[redacted]"
LAST_LINES = 1.5  # seconds that the log's reader has at the end to take what it has not read
TRACEBACK_LIMIT = 16_000  # characters; an exception group of a thousand tasks must not fill the disk

# By name: what such a field holds is nobody's business; its id, size or hint may be shown.
_SECRET_NAME = re.compile(
    r"(?!.*_(?:ids?|hint|size|bytes|count)$).*(?:password|passwd|secret|key|token|authorization|cookie|body)",
    re.IGNORECASE | re.DOTALL,
)
# By look: our own secrets and the credentials of a request, wherever they got into a text.
_SECRET_TEXT = re.compile(r"(ma_(?:live|test)_|whsec_|(?:Bearer|Basic)\s+)\S+", re.IGNORECASE)
_RESERVED = frozenset({"ts", "level", "logger", "event", "traceback"})
_NEEDS_QUOTES = re.compile(r"[\s\"\\=]|^$")
_quick_json = msgspec.json.Encoder().encode
_json = jsonlib.JSONEncoder(check_circular=False).encode  # what it is given was built by _clean, as a tree


class Log:
    """A part's own log: an event is a few constant words, all that varies goes into fields."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    @property
    def name(self) -> str:
        """Whose log it is."""
        return self._logger.name

    def debug(self, event: str, /, **fields: object) -> None:
        """For whoever debugs this program."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        """As it should be, and worth knowing."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """Not as it should be, and handled."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        """Somebody should do something about it."""
        self._write(logging.ERROR, event, fields)

    def exception(self, event: str, error: BaseException | None = None, /, **fields: object) -> None:
        """An error with its traceback: that of the exception given, or of the one that is being handled."""
        self._write(logging.ERROR, event, fields, error or sys.exc_info()[1])

    def _write(self, level: int, event: str, fields: dict[str, object], error: BaseException | None = None) -> None:
        if not self._logger.isEnabledFor(level):
            return
        # Made here, because Logger.info would first walk the stack for a file and a line that nobody prints.
        caught = (type(error), error, error.__traceback__) if error is not None else None
        record = logging.LogRecord(self._logger.name, level, "", 0, event, (), caught)
        record.fields = fields
        self._logger.handle(record)


def get_logger(name: str) -> Log:
    """The log of one part of the program, such as "web"."""
    return Log(logging.getLogger(f"{ROOT}.{name}"))


def redacted(text: str) -> str:
    """The text without anything that looks like a credential."""
    return _SECRET_TEXT.sub(rf"\1{REDACTED}", text) if _may_tell(text.lower()) else text


def _may_tell(lower: str) -> bool:
    """Almost no text holds a credential, and these four looks cost a fifth of the regular expression."""
    return "ma_" in lower or "whsec_" in lower or "bearer" in lower or "basic" in lower


@lru_cache(maxsize=1024)
def _is_secret(name: str) -> bool:
    return _SECRET_NAME.match(name) is not None


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


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    given: Mapping[str, object] = getattr(record, "fields", {})
    return {(f"{name}_" if name in _RESERVED else name): _clean(name, value) for name, value in given.items()}


def _traceback(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    text = redacted("".join(traceback.format_exception(record.exc_info[1])).rstrip())
    return text if len(text) <= TRACEBACK_LIMIT else "…" + text[-TRACEBACK_LIMIT:]


def _escaped(text: str) -> str:
    """The text on one line: whatever ends a line or drives a terminal is spelled out."""
    return text if text.isprintable() else _json(text)[1:-1]


# Remembered, because a busy server writes hundreds of lines in the same second.
@lru_cache(maxsize=2)
def _utc_second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


@lru_cache(maxsize=2)
def _local_second(seconds: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in ASCII, so that no character can end the line early."""

    def format(self, record: logging.LogRecord) -> str:
        """The line without its end."""
        line = {
            "ts": f"{_utc_second(int(record.created))}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": redacted(record.getMessage()),
            **_fields(record),
        }
        if trace := _traceback(record):
            line["traceback"] = trace
        return _json(line)


class TextFormatter(logging.Formatter):
    """`HH:MM:SS LEVEL event key=value …`, in local time; a traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """The line without its end."""
        words = [_local_second(int(record.created)), f"{record.levelname:<7}", _escaped(redacted(record.getMessage()))]
        words += [f"{_escaped(name)}={_shown(value)}" for name, value in _fields(record).items()]
        if not record.name.startswith(ROOT):
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
    """Write lines of events that happened at these times (seconds since 1970), as JSON all in one go."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Lines) and isinstance(handler.formatter, JsonFormatter):
            handler.write("".join(f"{_quick_line(log.name, *each)}\n" for each in events), len(events))
            return
    for _, event, fields in events:
        log.info(event, **fields)


def _quick_line(name: str, at: float, event: str, fields: dict[str, Any]) -> str:
    """What JsonFormatter would say, for fields that are numbers and texts, none of them secret by name."""
    seconds = int(at)
    ts = f"{_utc_second(seconds)}.{int((at - seconds) * 1000):03}Z"
    line = {"ts": ts, "level": "info", "logger": name, "event": event, **fields}
    made = msgspec.json.format(_quick_json(line), indent=0)  # with spaces, as the other writes it
    # A server's reply may hold anything. The encoder takes a third of the time of the other, but leaves it as it is.
    if not made.isascii() or _may_tell(made.decode("ascii").lower()):
        return _json({key: _clean(key, value) for key, value in line.items()})
    return made.decode("ascii")


class _Lines(logging.Handler):
    """Ours, so that a second `setup` finds the first one's.

    Lines for a descriptor go through a LogWriter: that may block. A stream without one is memory, and is written here.
    """

    def __init__(self, stream: TextIO, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.descriptor = _descriptor(stream)
        self.writer = None if self.descriptor is None else LogWriter(self.descriptor, self._notice)
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        """Write one event."""
        try:
            self.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)

    def write(self, text: str, lines: int = 1) -> None:
        """Write lines that are made already; what cannot be written is lost, as any line is."""
        if self.writer is not None:
            self.writer.put(text, lines)
            return
        with suppress(OSError, ValueError):
            self._stream.write(text)

    def close(self) -> None:
        """End the writer's thread."""
        if self.writer is not None:
            self.writer.close()
        super().close()

    def _notice(self, dropped: int) -> str:
        record = logging.LogRecord(f"{ROOT}.log", logging.WARNING, "", 0, "log lines were dropped", (), None)
        record.fields = {"lines": dropped, "reason": "the log could not be written as fast, or not at all"}
        return self.format(record) + "\n"


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):  # io.UnsupportedOperation is both
        return None


class _Stderr(io.TextIOBase):
    """Stands for sys.stderr while the server runs: what Python itself reports there must not block either."""

    def __init__(self, writer: LogWriter, fileno: int) -> None:
        super().__init__()
        self._writer, self._fileno = writer, fileno

    def write(self, text: str) -> int:
        """Have it written in its turn."""
        self._writer.put(text)
        return len(text)

    def fileno(self) -> int:
        """Of the real one."""
        return self._fileno


def set_level(name: str) -> None:
    """Write our own events from this level on: debug, info, warning or error."""
    logging.getLogger(ROOT).setLevel(name.upper())


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
    logging.getLogger(ROOT).setLevel(level)
    logging.captureWarnings(True)
    # A line that cannot be written (a closed pipe) is lost; logging's own complaint would be many, unredacted lines.
    logging.raiseExceptions = False
    # Nobody prints these, and finding them out takes half the time of making a record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def _handlers() -> list[_Lines]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, _Lines)]


@contextmanager
def unblocked_stderr() -> Iterator[None]:
    """Log to stderr without ever waiting for its reader, and end with every line written.

    At the end a reader that does not read gets some time. After that stderr leads nowhere: what is still to be said,
    such as why the program ends, would otherwise keep it from ending.
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
        if handler.descriptor is None or handler.writer is None or handler.writer.flush(LAST_LINES):
            continue
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, handler.descriptor)
        os.close(nowhere)
