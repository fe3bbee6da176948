"""The log: one line per event on stderr, as text on a terminal and as JSON elsewhere, never with a secret.

- Lines are written from a thread of its own, so that no caller ever waits for the log's reader: a pipe that is not
  read, a terminal stopped by Ctrl-S or a hung journal blocks `write(2)` indefinitely. They wait in a buffer bounded in
  characters and in number; when it is full they are dropped and counted, and one line says how many once the reader
  goes on. Lines are written in the order given.
- Each message has a line for every step from acceptance to webhook, all with its id (`MESSAGE_LOG`). A line costs as
  much as signing a message, so a step is only noted when it happens, and the lines are written every tenth of a second,
  many in one write.
"""

import io
import json as jsonlib
import logging
import math
import os
import queue
import re
import select
import sys
import textwrap
import threading
import time
import traceback
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, TextIO, cast

import msgspec
import trio

from appliance.telemetry.metrics import LOG_DROPPED
from appliance.times import SECOND, rfc3339

# ---- the writer

BUFFER_CHARACTERS = 4 * 1024 * 1024  # several seconds of a busy server's log
BUFFER_LINES = 20_000
WRITE_INTERVAL = 0.05  # seconds between two writes: each switches threads twice, so under load lines share one
FLUSH_POLL = 0.005  # seconds between two looks whether all is written


class LogWriter:
    """A bounded buffer, and the daemon thread that writes it; `notice` is the line that says how many were dropped."""

    def __init__(self, descriptor: int, notice: Callable[[int], str]) -> None:
        self._descriptor, self._notice = descriptor, notice
        # Reentrant, as is the queue: the garbage collector may log while a line is being added.
        self._lock, self._wake = threading.RLock(), queue.SimpleQueue[None]()
        self._waiting: list[str] = []
        self._characters = self._lines = 0
        self._unreported = 0  # dropped lines that no notice has counted yet
        self._failing = False  # whether the last write failed
        self._closed = threading.Event()
        self._idle = True
        threading.Thread(target=self._run, name="log-writer", daemon=True).start()

    def put(self, text: str, lines: int = 1) -> None:
        """Queue whole lines to be written, or drop and count them; never waits."""
        with self._lock:
            if self._characters + len(text) > BUFFER_CHARACTERS or self._lines + lines > BUFFER_LINES:
                self._drop(lines)
                return
            self._waiting.append(text)
            self._characters += len(text)
            self._lines += lines
            if self._idle:
                self._idle = False
                self._wake.put(None)

    def flush(self, seconds: float) -> bool:
        """Wait until all is written, for this long at most; whether it is."""
        deadline = time.monotonic() + seconds
        while not self._idle and time.monotonic() < deadline:
            self._closed.wait(FLUSH_POLL)
        return self._idle

    def close(self) -> None:
        """End the thread once all is written; does not wait for it."""
        self._closed.set()
        self._wake.put(None)

    def _drop(self, lines: int) -> None:
        LOG_DROPPED.add("", lines)
        self._unreported += lines

    # ---- on the thread

    def _run(self) -> None:
        while not self._closed.is_set():
            self._wake.get()
            while self._write_waiting():
                self._closed.wait(WRITE_INTERVAL)

    def _write_waiting(self) -> bool:
        """Write all that waits; False when there is nothing. It counts against the bounds until it is written."""
        with self._lock:
            taken, lines, characters = self._waiting, self._lines, self._characters
            if not taken and (self._failing or not self._unreported):
                self._idle = True
                return False
            self._waiting, reported, self._unreported = [], self._unreported, 0
        try:
            if reported:  # where the dropped lines would stand
                taken.insert(0 if self._failing else len(taken), self._notice(reported))
            write_all(self._descriptor, "".join(taken).encode("utf-8", "backslashreplace"))
            self._failing = False
        except Exception:  # closed, its disk is full, no memory, no text: the thread goes on, the next line tries again
            self._failing = True
            with self._lock:
                self._drop(lines)
                self._unreported += reported
        with self._lock:
            self._lines -= lines
            self._characters -= characters
        return True


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte, however long that takes; also where the descriptor does not block."""
    view = memoryview(content)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            writable = select.poll()
            writable.register(descriptor, select.POLLOUT)
            writable.poll()


# ---- events, and their lines

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
_PLAIN_TYPES = frozenset({str, int, bool, type(None)})  # of values that JSON shows as they are


@lru_cache(maxsize=1024)
def _are_plain(names: tuple[str, ...]) -> bool:
    return not any(name in _RESERVED or _is_secret(name) for name in names)


_NEEDS_QUOTES = re.compile(r"[\s\"\\=]|^$")
_ascii_json = jsonlib.JSONEncoder(check_circular=False).encode  # what it is given was built by _clean, as a tree


# Errors that may be met anywhere: a traceback would tell nothing, and without memory it would not fit.
_MACHINE_FAULTS: list[type[Exception]] = [MemoryError]


def log_without_traceback(*kinds: type[Exception]) -> None:
    """From now on log errors of these kinds in one line, wherever they are met."""
    _MACHINE_FAULTS.extend(kinds)


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
        """An error with its traceback: that of the exception given, or of the one that is being handled.

        A fault of the machine is one line.
        """
        error = error or sys.exc_info()[1]
        if isinstance(error, tuple(_MACHINE_FAULTS)):
            self._write(logging.ERROR, event, {**fields, "cause": repr(error)})
        else:
            self._write(logging.ERROR, event, fields, error)

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
    texts = "\n".join([value for value in given.values() if type(value) is str])
    harmless = redacted(texts) is texts  # asked once for all: half the cost of a line
    if harmless and _PLAIN_TYPES.issuperset(map(type, given.values())) and _are_plain(tuple(given)):
        return dict(given)
    return {
        (f"{name}_" if name in _RESERVED else name): value
        if (type(value) is int or (harmless and type(value) is str)) and not _is_secret(name)
        else _clean(name, value)
        for name, value in given.items()
    }


def _traceback(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[1] is None:
        return ""
    text = redacted("".join(traceback.format_exception(record.exc_info[1])).rstrip())
    return text if len(text) <= TRACEBACK_LIMIT else "…" + text[-TRACEBACK_LIMIT:]


def _json(value: Any) -> str:
    """JSON in ASCII. By msgspec where that writes the same, in a third of the time: a line costs most of this."""
    try:
        line = msgspec.json.format(msgspec.json.encode(value), indent=0)
    except ValueError:  # half of a surrogate pair
        return _ascii_json(value)
    return line.decode("ascii") if line.isascii() and b"\x7f" not in line else _ascii_json(value)


def _escaped(text: str) -> str:
    """The text on one line: what ends a line or controls a terminal is escaped."""
    return text if text.isprintable() else _json(text)[1:-1]


_of_process: dict[str, Any] = {}  # fields of every line


@contextmanager
def named_node(name: str) -> Iterator[None]:
    """Have every line in JSON name the node, one of several on a shared database; not without a name."""
    if name:
        _of_process["node"] = name
    try:
        yield
    finally:
        _of_process.pop("node", None)


def json_line(at: float, level: str, logger: str, event: str, fields: dict[str, Any]) -> str:
    """One event as JSON, without the line's end; `at` is seconds since 1970, and the fields hold no secrets."""
    ts = rfc3339(int(at * SECOND))
    return _json({"ts": ts, "level": level, "logger": logger, "event": redacted(event), **_of_process, **fields})


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in ASCII, so that no character can end the line early.

    For the journal each has its priority in front (sd-daemon(3)), which the journal takes off: `journalctl -p warning`
    finds the lines by it.
    """

    def __init__(self, *, for_journal: bool = False) -> None:
        super().__init__()
        self.priorities = _PRIORITIES if for_journal else {}

    def format(self, record: logging.LogRecord) -> str:
        fields = _cleaned(getattr(record, "fields", {}))
        if trace := _traceback(record):
            fields["traceback"] = trace
        level = record.levelname.lower()
        line = json_line(record.created, level, record.name, record.getMessage(), fields)
        return self.priorities.get(level, "") + line


# By level; what has none here is an ordinary line for the journal as well (6, informational).
_PRIORITIES = {"debug": "<7>", "info": "<6>", "warning": "<4>", "error": "<3>", "critical": "<2>"}


_EMPTY: tuple[object, ...] = (None, "", [], {})
LEAST_COLUMNS = 50  # of a terminal; on a narrower one rows are as long as they are


class TextFormatter(logging.Formatter):
    """`HH:MM:SS LEVEL event key=value …`, in local time, without empty fields; a traceback follows, indented.

    Every row of an event fits `width()` columns, if that is known (not 0). What is for the operator to see, from a
    warning on, goes on in rows below, whole; other events are one row, which leaves out the ids of all but the message
    first, and ends in `…` where fields are missing.
    """

    def __init__(self, width: Callable[[], int] = lambda: 0) -> None:
        super().__init__()
        self._width = width

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        before = f"{at} {record.levelname:<7} "
        event = _escaped(redacted(record.getMessage()))
        fields = _cleaned(getattr(record, "fields", {}))
        words = [f"{_escaped(name)}={_shown(value)}" for name, value in fields.items() if value not in _EMPTY]
        if not record.name.startswith(ROOT_LOGGER):
            words.append(f"logger={_shown(record.name)}")
        line, columns = before + " ".join([event, *words]), self._width()
        if LEAST_COLUMNS <= columns < _columns(line):
            line = _cut(before + event, words, columns) if record.levelno < logging.WARNING else _wrapped(line, columns)
        # The bar tells a traceback's lines from events, even if an exception's own text looks like one.
        trace = [f"    | {_escaped(line)}" for line in _traceback(record).splitlines()]
        return "\n".join([line, *trace])


def _columns(text: str) -> int:
    """How many columns of a terminal a printable text takes at most."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def _wrapped(line: str, columns: int) -> str:
    """All of it, in rows that are indented below the event."""
    columns = columns if _columns(line) == len(line) else columns // 2  # textwrap counts characters
    return "\n".join(textwrap.wrap(line, columns, subsequent_indent=" " * 17, break_on_hyphens=False))


def _up_to(text: str, columns: int) -> str:
    """The beginning of a text that fits."""
    if text.isascii():
        return text[:columns]
    taken = 0
    for at, character in enumerate(text):
        taken += _columns(character)
        if taken > columns:
            return text[:at]
    return text


def _cut(head: str, words: list[str], columns: int) -> str:
    """One row: whole fields as far as they fit, at least a part of the first, and `…`; most ids come last."""
    ids = [word for word in words if word.partition("=")[0].endswith("_id") and not word.startswith("message_id=")]
    row, more = head, [word for word in words if word not in ids] + ids
    while more and _columns(row) + _columns(more[0]) + 3 <= columns:
        row += f" {more.pop(0)}"
    if row == head and more:
        row += f" {more[0]}"
    return f"{_up_to(row, columns - 1).rstrip()}…" if _columns(row) > columns - 2 else f"{row} …"


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
            name, before = log.logger.name, handler.formatter.priorities.get("info", "")
            lines = [
                f"{before}{json_line(at, 'info', name, event, _cleaned(fields))}\n" for at, event, fields in events
            ]
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
        if not isinstance(text, str):  # click tries bytes, and writes nothing else to a stream that takes them
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
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
    text = TextFormatter(lambda: _terminal_columns(stream))
    handler = _Lines(stream, JsonFormatter(for_journal=_is_journal(stream)) if as_json else text)
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


def _terminal_columns(stream: TextIO) -> int:
    """The width of the terminal as it is now; 0 if it is none, or does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0


def _is_journal(stream: TextIO) -> bool:
    """Whether systemd's journal reads it, by what systemd.exec(5) says of $JOURNAL_STREAM."""
    try:
        facts = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{facts.st_dev}:{facts.st_ino}"


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


# ---- the log of messages

WRITE_EVERY = 0.1  # seconds
NOTES_WAITING = 10_000  # more are counted, not kept

log = get_logger("mail")


class MessageLog:
    """Notes that wait to be written; none are kept unless `keep` is set."""

    def __init__(self, size: int = NOTES_WAITING) -> None:
        self.keep = False
        self._size = size
        self._notes: list[tuple[float, str, dict[str, Any]]] = []  # seconds since 1970, event, fields
        self._lost = 0

    def note(self, event: str, **fields: Any) -> None:
        """A step of a message; the first field is its `message_id`."""
        if not self.keep:
            return
        if len(self._notes) < self._size:
            self._notes.append((time.time(), event, fields))
        else:
            self._lost += 1

    async def run(self) -> None:
        while True:
            await trio.sleep(WRITE_EVERY)
            self.write()

    def write(self) -> None:
        notes, self._notes = self._notes, []
        if notes:
            write_many(log, notes)
        if self._lost:
            lost, self._lost = self._lost, 0
            log.warning("lines about messages were lost: too many at once", lines=lost)


MESSAGE_LOG = MessageLog()
