"""The log: one line per event on stderr, as text on a terminal and as JSON elsewhere, never with a secret.

- Callers put lines into a queue, and a thread writes them. No caller blocks on the log's reader: an unread pipe, a
  terminal stopped by Ctrl-S or a hung journal blocks `write(2)` indefinitely. The queue is bounded in characters and in
  lines. A line that does not fit is dropped and counted, and one line reports the count when writing works again.
- Each message gets a line for every step from acceptance to webhook, with its id (`MESSAGE_LOG`). A line costs as much
  as signing a message, so a step is only noted when it happens, and notes are rendered every tenth of a second.
"""

import io
import logging
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

import trio

from appliance.telemetry.log_lines import ROOT_LOGGER, LineFormatter
from appliance.telemetry.metrics import LOG_DROPPED

BUFFER_CHARACTERS = 4 * 1024 * 1024  # several seconds of a busy server's log
BUFFER_LINES = 20_000
WRITE_INTERVAL = 0.05  # seconds between two writes: each switches threads twice, so under load lines share one
FLUSH_POLL = 0.005  # seconds
FLUSH_TIMEOUT = 1.5  # seconds for the log's reader to read the last lines when the process ends
NOTE_INTERVAL = 0.1  # seconds between two writes of the message log
NOTES_KEPT = 10_000  # between two writes; further ones are counted
NOTES_PER_SLICE = 40  # lines written between two checkpoints: about a millisecond

# Errors that can occur anywhere: a traceback would say nothing, and without memory it would not fit.
_MACHINE_FAULTS: list[type[Exception]] = [MemoryError]


# ---- the writer
class LogWriter:
    """A bounded queue of lines, and the daemon thread that writes them; `notice` renders the count of dropped lines."""

    def __init__(self, descriptor: int, notice: Callable[[int], str]) -> None:
        self._descriptor, self._notice = descriptor, notice
        # Both are reentrant: the garbage collector may log while a line is being added.
        self._lock, self._queue = threading.RLock(), queue.SimpleQueue[tuple[str, int] | None]()
        self._characters = self._lines = 0  # not written yet
        self._unreported = 0  # dropped lines that no notice has counted
        self._failing = False  # the last write failed
        self._pause = threading.Event()  # never set: unlike time.sleep, its wait bears a clock that jumps
        threading.Thread(target=self._run, name="log-writer", daemon=True).start()

    def put(self, text: str, lines: int = 1) -> None:
        """Queue whole lines, or drop and count them; never blocks."""
        with self._lock:
            if self._characters + len(text) > BUFFER_CHARACTERS or self._lines + lines > BUFFER_LINES:
                self._drop(lines)
                if not self._lines:
                    self._queue.put(("", 0))  # no queued line would report it
                return
            self._characters += len(text)
            self._lines += lines
            self._queue.put((text, lines))

    def flush(self, seconds: float) -> bool:
        """Wait until every line is written, up to this long; return whether it is."""
        deadline = time.monotonic() + seconds
        while not self._is_idle() and time.monotonic() < deadline:
            self._pause.wait(FLUSH_POLL)
        return self._is_idle()

    def close(self) -> None:
        """End the thread after the queued lines; does not wait for it."""
        self._queue.put(None)

    def _is_idle(self) -> bool:
        with self._lock:
            return not self._lines and (self._failing or not self._unreported)

    def _drop(self, lines: int) -> None:
        LOG_DROPPED.add("", lines)
        self._unreported += lines

    # ---- on the thread

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            batch = [first]
            with suppress(queue.Empty):
                while (following := self._queue.get_nowait()) is not None:
                    batch.append(following)
                self._queue.put(None)  # closed: end after this batch
            self._write([text for text, _ in batch], sum(lines for _, lines in batch))
            self._pause.wait(WRITE_INTERVAL)

    def _write(self, texts: list[str], lines: int) -> None:
        """Write a batch and the pending notice. Lines count against the bounds until they are written."""
        characters = sum(map(len, texts))
        reported = self._unreported
        try:
            if reported:  # in the place of the dropped lines
                texts.insert(0 if self._failing else len(texts), self._notice(reported))
            write_all(self._descriptor, "".join(texts).encode("utf-8", "backslashreplace"))
            self._failing = False
            with self._lock:
                self._unreported -= reported
        except Exception:  # closed, disk full, no memory, not text: the thread survives, and the next batch is tried
            self._failing = True
            with self._lock:
                self._drop(lines)
        with self._lock:
            self._lines -= lines
            self._characters -= characters
            if self._unreported and not self._lines and not self._failing:
                self._queue.put(("", 0))  # the last lines were dropped: report them now


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte, however long that takes, even to a non-blocking descriptor."""
    view = memoryview(content)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            writable = select.poll()
            writable.register(descriptor, select.POLLOUT)
            writable.poll()


# ---- events
def log_without_traceback(*kinds: type[Exception]) -> None:
    """Log errors of these kinds in one line from now on, wherever they occur."""
    _MACHINE_FAULTS.extend(kinds)


class Log:
    """The log of one part of the program. An event is a few constant words; everything variable goes into fields."""

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
        """Log an error with the traceback of `error`, by default the exception being handled."""
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


# ---- where lines go
class _Lines(logging.Handler):
    """Writes to a descriptor through a LogWriter, because it may block; to a stream in memory directly."""

    def __init__(self, stream: TextIO, formatter: LineFormatter) -> None:
        super().__init__()
        self.lines, self._stream, self.descriptor = formatter, stream, _descriptor(stream)
        self.setFormatter(formatter)
        self.writer = None if self.descriptor is None else LogWriter(self.descriptor, self._notice)

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):
            self.write(self.format(record) + "\n")

    def write(self, text: str, lines: int = 1) -> None:
        """Write whole lines; lines that cannot be written are lost."""
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
        fields = {"lines": dropped, "reason": "stderr was read too slowly, or could not be written"}
        return self.lines.line(time.time(), "WARNING", f"{ROOT_LOGGER}.log", "log lines were dropped", fields) + "\n"


class _Stderr(io.TextIOBase):
    """Replaces sys.stderr while the server runs, so that Python's own reports do not block either."""

    def __init__(self, writer: LogWriter, fileno: int) -> None:
        super().__init__()
        self._writer, self._fileno = writer, fileno

    def write(self, text: str) -> int:
        if not isinstance(text, str):  # click tries bytes first, and then writes bytes only
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self._writer.put(text)
        return len(text)

    def fileno(self) -> int:
        return self._fileno


def set_level(name: str) -> None:
    """Log this program's events from this level on: debug, info, warning or error."""
    logging.getLogger(ROOT_LOGGER).setLevel(name.upper())


def setup(stream: TextIO | None = None, level: int = logging.INFO, json: bool | None = None) -> None:
    """Log to `stream` (stderr), as JSON unless it is a terminal; other libraries from WARNING on."""
    stream = stream or sys.stderr
    as_json = not stream.isatty() if json is None else json
    formatter = LineFormatter(as_json=as_json, for_journal=_is_journal(stream), width=lambda: _terminal_columns(stream))
    handler, root = _Lines(stream, formatter), logging.getLogger()
    for earlier in _handlers():
        root.removeHandler(earlier)
        earlier.close()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(ROOT_LOGGER).setLevel(level)
    logging.captureWarnings(True)
    # A line that cannot be written (a closed pipe) is lost; logging's own complaint would be many unredacted lines.
    logging.raiseExceptions = False
    # These are not printed, and looking them up takes half the time of making a record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError):  # io.UnsupportedOperation is both
        return None


def _terminal_columns(stream: TextIO) -> int:
    """Return the current width of the terminal; 0 if the stream is not a terminal or its width is unknown."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0


def _is_journal(stream: TextIO) -> bool:
    """Whether systemd's journal reads the stream ($JOURNAL_STREAM in systemd.exec(5))."""
    if (descriptor := _descriptor(stream)) is None:
        return False
    facts = os.fstat(descriptor)
    return os.environ.get("JOURNAL_STREAM") == f"{facts.st_dev}:{facts.st_ino}"


def _handlers() -> list[_Lines]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, _Lines)]


@contextmanager
def unblocked_stderr() -> Iterator[None]:
    """Log to stderr without ever blocking on its reader; write every line before the end (see `flush`)."""
    for number in (0, 1, 2):  # a closed one would be reused for the next file, which may be the database
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
    """Wait for the log's reader, up to FLUSH_TIMEOUT; then stderr becomes /dev/null, so that no exit blocks on it."""
    for handler in _handlers():
        if handler.descriptor is None or handler.writer is None or handler.writer.flush(FLUSH_TIMEOUT):
            continue
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, handler.descriptor)
        os.close(nowhere)


# ---- the log of messages

log = get_logger("mail")


class MessageLog:
    """Notes that are written in batches; none are kept unless `keep` is set."""

    def __init__(self, size: int = NOTES_KEPT) -> None:
        self.keep = False
        self._size = size
        # Seconds since 1970, event, fields, and the recipients of a note that becomes a line for each.
        self._notes: list[tuple[float, str, dict[str, Any], Sequence[str]]] = []
        self._lines = self._lost = 0

    def note(self, event: str, **fields: Any) -> None:
        """Note a step of a message; the first field is its `message_id`."""
        self._keep(event, fields, ())

    def note_recipients(self, event: str, recipients: Sequence[str], **fields: Any) -> None:
        """Note a step that is the same for several recipients of a message: one line with each `recipient_id`.

        It is a field with the id of the first, in its place among the others.
        """
        self._keep(event, fields, recipients)

    def _keep(self, event: str, fields: dict[str, Any], recipients: Sequence[str]) -> None:
        if not self.keep:
            return
        lines = len(recipients) or 1
        if self._lines < self._size:
            self._notes.append((time.time(), event, fields, recipients))
            self._lines += lines
        else:
            self._lost += lines

    async def run(self) -> None:
        while True:
            await trio.sleep(NOTE_INTERVAL)
            while self.write(NOTES_PER_SLICE):
                await trio.lowlevel.checkpoint()

    def write(self, most: int | None = None) -> bool:
        """Write many notes at once, as a line then costs half as much; return whether there are more."""
        notes, self._notes = self._notes[:most], [] if most is None else self._notes[most:]
        self._lines -= sum(len(recipients) or 1 for *_, recipients in notes)
        for handler in _handlers() if notes and log.logger.isEnabledFor(logging.INFO) else ():
            lines: list[str] = []
            for at, event, fields, recipients in notes:
                step = at, "INFO", log.logger.name, event, fields
                if recipients:
                    lines += handler.lines.lines_of_recipients(*step, recipients)
                else:
                    lines.append(handler.lines.line(*step))
            handler.write("\n".join([*lines, ""]), len(lines))
        if self._lost:
            lost, self._lost = self._lost, 0
            log.warning("lines about messages were lost: too many at once", lines=lost)
        return bool(self._notes)


MESSAGE_LOG = MessageLog()
