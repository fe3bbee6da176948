"""The log has one line per event, and never a secret."""

import io
import json
import logging
import os
import re
import subprocess
import sys
import termios
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.telemetry import log, log_lines
from appliance.telemetry.log_lines import LineFormatter
from tests.cpu_time import cpu_seconds
from tests.terminal import open_terminal

Lines = Callable[[], list[str]]

SECRETS = [
    "ma_live_Zm9vYmFy",
    "ma_test_Zm9vYmFy",
    "whsec_Zm9vYmFy",
    "Bearer eyJ.Zm9vYmFy.x",
    "bearer Zm9vYmFy",
    "Basic dXNlcjpZm9vYmFy",
    "Basic   Zm9vYmFy",
]
HOSTILE = "ok\n12:00:00 INFO    forged\r\x1b[2J\x85\u2028\u202e\x7f\x00\udc80 end"

pytestmark = pytest.mark.usefixtures("logging_as_before")


def lines_of(*, as_json: bool, level: int = logging.INFO) -> Lines:
    """Set the log up and return a function that gives the lines written since.

    Alone: pytest would keep what is logged too, and cannot hand a lone surrogate from one of its processes to another.
    """
    stream = io.StringIO()
    logging.getLogger().handlers.clear()
    log.setup(stream, level, json=as_json)
    return lambda: stream.getvalue().splitlines()


def one_object(lines: Lines) -> dict[str, Any]:
    (line,) = lines()
    read = json.loads(line)
    assert isinstance(read, dict)
    return read


def test_json_has_time_level_event_and_fields() -> None:
    lines = lines_of(as_json=True)
    log.get_logger("web").info("listening", url="http://127.0.0.1:8080", port=8080, rate=0.5, tls=False, proxy=None)
    read = one_object(lines)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", read.pop("ts"))
    assert read == {
        "level": "info",
        "logger": "appliance.web",
        "event": "listening",
        "url": "http://127.0.0.1:8080",
        "port": 8080,
        "rate": 0.5,
        "tls": False,
        "proxy": None,
    }


def test_json_time_is_the_records_in_utc() -> None:
    record = logging.LogRecord("appliance.web", logging.INFO, "", 0, "x", (), None)
    record.created, record.msecs = 1_700_000_000.25, 250.0
    assert json.loads(LineFormatter(as_json=True).format(record))["ts"] == "2023-11-14T22:13:20.250Z"


def test_text_is_readable() -> None:
    lines = lines_of(as_json=False)
    log.get_logger("web").warning(
        "slow client", url="http://[::1]:80", n=3, reply="250 2.0.0 ok", none="", name="Zoë", on=True
    )
    (line,) = lines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d WARNING .*", line)
    assert line[9:] == ('WARNING slow client url=http://[::1]:80 n=3 reply="250 2.0.0 ok" name=Zoë on=true')


MANY: dict[str, Any] = {
    "message_id": "msg_" + 32 * "0",
    "recipient_id": "rcp_" + 32 * "0",
    "domain": "example.net",
    "mx": None,
    "tls": "",
    "reply": "451 4.7.1 " + 20 * "try again later ",
    "ms": 3,
}


def rows(level: int, columns: int, event: str = "deferred", /, **fields: object) -> list[str]:
    record = logging.LogRecord("appliance.mail", level, "", 0, event, (), None)
    record.fields = fields
    return LineFormatter(as_json=False, width=lambda: columns).format(record).split("\n")


def test_a_long_value_is_cut_at_once() -> None:
    """A value of many wide characters takes no time per character: it would hold the event loop."""
    began = time.process_time()
    (row,) = rows(logging.INFO, 80, reason="é" * 200_000)
    assert row.endswith("…")
    assert time.process_time() - began < 1  # seconds; with one pass per character it takes minutes


@pytest.mark.parametrize("columns", [50, 80, 81, 120, 200, 1000])
@pytest.mark.parametrize("event", ["deferred", "zurückgestellt", "延期された", 30 * "long words "])
@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR])
def test_rows_fit_the_terminal(columns: int, event: str, level: int) -> None:
    found = rows(level, columns, event, **MANY)
    widths = [sum(2 if "\u2e80" < character < "\uff00" else 1 for character in row) for row in found]
    assert max(widths) <= columns
    assert not any("mx=" in row or "tls=" in row for row in found)
    text = " ".join(row.strip() for row in found)
    if level < logging.WARNING:
        assert len(found) == 1
        assert text.endswith("…") == (columns < 1000)
    else:
        assert (text.count("try again later"), "ms=3" in text, "…" in text) == (20, True, False)
        assert all(row.startswith(17 * " ") for row in found[1:])


def test_what_a_row_leaves_out_first() -> None:
    fields: dict[str, Any] = {
        "message_id": "msg_1",
        "recipient_id": "rcp_" + 32 * "0",
        "domain": "example.net",
        "attempt": 2,
    }
    (row,) = rows(logging.INFO, 80, **fields)
    assert row[9:] == "INFO    deferred message_id=msg_1 domain=example.net attempt=2 …"
    (row,) = rows(logging.INFO, 200, **fields)
    assert row[9:].startswith("INFO    deferred message_id=msg_1 recipient_id=rcp_0")
    (row,) = rows(logging.INFO, 60, "ready", http=["http://127.0.0.1:8080"], data_dir="/var/lib/appliance")
    assert row[9:] == 'INFO    ready http=["http://127.0.0.1:8080"] …'


def test_without_a_width_nothing_is_cut() -> None:
    for columns in (0, 10):
        (row,) = rows(logging.ERROR, columns, **MANY)
        assert row.endswith("ms=3")


@pytest.mark.parametrize("as_json", [True, False])
def test_levels(as_json: bool) -> None:
    lines = lines_of(as_json=as_json, level=logging.DEBUG)
    logger = log.get_logger("web")
    for write in (logger.debug, logger.info, logger.warning, logger.error):
        write("event")
    assert [re.findall("debug|info|warning|error", line.lower())[0] for line in lines()] == [
        "debug",
        "info",
        "warning",
        "error",
    ]
    quiet = lines_of(as_json=as_json, level=logging.WARNING)
    logger.info("event")
    assert quiet() == []


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("where", ["value", "nested", "event", "name", "library"])
def test_no_value_can_forge_a_line(as_json: bool, where: str) -> None:
    lines = lines_of(as_json=as_json)
    logger = log.get_logger("web")
    if where == "library":
        logging.getLogger("hypercorn.error").warning("bad request: %s", HOSTILE)
    elif where == "event":
        logger.info(HOSTILE)
    else:
        fields: dict[str, object] = {
            "value": {"path": HOSTILE},
            "nested": {"x": [{"y": HOSTILE}]},
            "name": {HOSTILE: 1},
        }
        logger.info("event", **fields[where])  # type: ignore[arg-type]  # each is a dict
    (line,) = lines()
    assert line.isprintable()
    assert not as_json or json.loads(line)


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("secret", SECRETS)
def test_what_looks_like_a_secret_is_never_written(as_json: bool, secret: str) -> None:
    lines = lines_of(as_json=as_json)
    logger = log.get_logger("web")
    logger.info(f"got {secret}", reply=f"no such user: {secret}!", tree={"a": [secret, {"b": secret}]})
    logging.getLogger("quart.app").error("header was %s", secret)
    try:
        raise ValueError(f"cannot use {secret}")
    except ValueError:
        logger.exception("failed")
    written = "\n".join(lines())
    assert "Zm9vYmFy" not in written
    assert written.count(log_lines.REDACTED) >= 6


@pytest.mark.parametrize(
    "name", ["password", "smtp_password", "secret", "key", "api_key", "token", "Authorization", "cookie", "body"]
)
def test_fields_named_like_a_secret_are_never_written(name: str) -> None:
    lines = lines_of(as_json=True)
    log.get_logger("web").info("event", **{name: "hunter2"}, tree={"x": {name: ["hunter2"]}})
    assert "hunter2" not in lines()[0]
    assert one_object(lines)[name] == log_lines.REDACTED


def test_ids_and_sizes_of_secrets_are_shown() -> None:
    lines = lines_of(as_json=True)
    log.get_logger("web").info("event", key_id="key_1", secret_hint="…Zm9v", body_bytes=7, token_ids=[1])
    read = one_object(lines)
    assert [read["key_id"], read["secret_hint"], read["body_bytes"], read["token_ids"]] == ["key_1", "…Zm9v", 7, [1]]


def test_fields_cannot_replace_the_lines_own() -> None:
    lines = lines_of(as_json=True)
    log.get_logger("web").info("event", level="high", ts=1, event="other")
    read = one_object(lines)
    assert [read["level"], read["level_"], read["ts_"], read["event"], read["event_"]] == [
        "info",
        "high",
        1,
        "event",
        "other",
    ]


def test_values_json_does_not_know_become_text() -> None:
    lines = lines_of(as_json=True)
    log.get_logger("web").info("event", ratio=float("nan"), raw=b"\xff", path=re.compile("x"), pair=(1, "a"))
    read = one_object(lines)
    assert [read["ratio"], read["raw"], read["path"], read["pair"]] == ["nan", "b'\\xff'", "re.compile('x')", [1, "a"]]


def test_an_exception_is_a_field_in_json() -> None:
    lines = lines_of(as_json=True)
    try:
        raise RuntimeError("first\nsecond")
    except RuntimeError:
        log.get_logger("web").exception("request failed", request_id="req_1")
    read = one_object(lines)
    assert [read["level"], read["event"], read["request_id"]] == ["error", "request failed", "req_1"]
    assert read["traceback"].startswith("Traceback (most recent call last):\n")
    assert read["traceback"].endswith("RuntimeError: first\nsecond")


def test_without_memory_there_is_no_traceback() -> None:
    """Where it was met tells nothing, and the lines of a traceback would take memory."""
    lines = lines_of(as_json=True)
    try:
        raise MemoryError
    except MemoryError:
        log.get_logger("web").exception("request failed", request_id="req_1")
    read = one_object(lines)
    assert (read["event"], read["request_id"], read["cause"]) == ("request failed", "req_1", "MemoryError()")
    assert "traceback" not in read


def test_an_exception_is_indented_in_text() -> None:
    lines = lines_of(as_json=False)
    try:
        raise RuntimeError("x\n12:00:00 INFO    forged\x1b[2J")
    except RuntimeError:
        log.get_logger("web").exception("request failed", request_id="req_1")
    first, *rest = lines()
    assert first.endswith("ERROR   request failed request_id=req_1")
    assert all(line.startswith("    | ") and line.isprintable() for line in rest)
    assert rest[-1] == "    | 12:00:00 INFO    forged\\u001b[2J"


def test_a_huge_traceback_is_cut_from_the_front() -> None:
    lines = lines_of(as_json=True)
    try:
        raise RuntimeError("x" * 100_000 + " the cause")
    except RuntimeError:
        log.get_logger("web").exception("failed")
    read = one_object(lines)
    assert len(read["traceback"]) == log_lines.TRACEBACK_LIMIT + 1
    assert read["traceback"].endswith(" the cause")


def test_other_libraries_write_the_same_lines() -> None:
    lines = lines_of(as_json=True)
    logging.getLogger("hypercorn.error").info("Running on http://…")
    logging.getLogger("hypercorn.error").warning("odd %s", "client")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        logging.captureWarnings(False)
    first, second = [json.loads(line) for line in lines()]
    assert [first["logger"], first["level"], first["event"]] == ["hypercorn.error", "warning", "odd client"]
    assert [second["logger"], second["level"]] == ["py.warnings", "warning"]


def test_a_library_is_named_in_text() -> None:
    lines = lines_of(as_json=False)
    logging.getLogger("hypercorn.error").warning("odd client")
    assert lines()[0].endswith("WARNING odd client logger=hypercorn.error")


def test_setup_again_replaces_the_first() -> None:
    first, second = lines_of(as_json=True), lines_of(as_json=True)
    log.get_logger("web").info("event")
    assert (len(first()), len(second())) == (0, 1)


def test_a_terminal_gets_text_and_a_pipe_json(monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal, start in ((True, "1"), (False, "{")):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda terminal=terminal: terminal)
        monkeypatch.setattr("sys.stderr", stream)
        log.setup()
        record = logging.LogRecord("appliance.web", logging.INFO, "", 0, "x", (), None)
        record.created = time.mktime((2024, 1, 1, 12, 0, 0, 0, 0, -1))
        logging.getLogger(log_lines.ROOT_LOGGER).handle(record)
        assert stream.getvalue().startswith(start)


def test_the_width_is_that_of_the_terminal_now() -> None:
    ours, theirs = open_terminal()
    with open(ours, "rb", buffering=0) as shown, open(theirs, "w") as terminal:
        for columns in (60, 90):
            termios.tcsetwinsize(theirs, (25, columns))
            log.setup(terminal)
            log.get_logger("mail").info("deferred", **MANY)
            log.flush()
            row = b""
            while not row.endswith(b"\n"):
                row += shown.read(1000)
            assert columns - 50 < len(row.decode().rstrip()) <= columns


def test_a_stream_that_fails_does_not_stop_the_program() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        log.setup(stream, json=True)
        log.get_logger("web").info("event")
        log.get_logger("web").info("event")
        # What could not be written is still in the buffer, and closing would try again.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, writer)
        os.close(null)


def test_a_line_is_cheap() -> None:
    lines_of(as_json=True)
    logger = log.get_logger("web")

    def write() -> None:
        for _ in range(100):
            logger.info("request", request_id="req_01jx8v2w3c4d5e6f7g8h9jkmnp", path="/emails", status=202, ms=3)

    assert cpu_seconds(write) / 100 < 100e-6


STUCK = """
import sys
from appliance.telemetry import log, log_lines
from appliance.telemetry.log_lines import LineFormatter
with log.unblocked_stderr():
    for number in range(2_000):
        log.get_logger("web").info("event", number=number)
        print("by Python itself", file=sys.stderr)
print("ended", flush=True)
raise SystemExit("one last word")
"""


def test_nothing_that_is_written_to_stderr_waits_for_its_reader() -> None:
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK],
        stdout=subprocess.PIPE,
        stderr=writing,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    os.close(writing)
    try:
        assert process.communicate(timeout=30)[0] == b"ended\n"
        assert process.returncode == 1
    finally:
        process.kill()
        os.close(reading)


def test_the_last_lines_of_a_crash_are_written() -> None:
    code = """
from appliance.telemetry import log, log_lines
from appliance.telemetry.log_lines import LineFormatter
with log.unblocked_stderr():
    for number in range(500):
        log.get_logger("web").info("event", number=number)
    raise RuntimeError("the end")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        text=True,
        timeout=30,
    )
    lines = done.stderr.splitlines()
    assert [json.loads(line)["number"] for line in lines[:500]] == list(range(500))
    assert lines[-1] == "RuntimeError: the end"


def test_a_line_is_what_the_standard_library_writes() -> None:
    texts = [chr(code) for code in (*range(0x300), 0x2028, 0xD800, 0xDFFF, 0x1F600)]
    for value in (*texts, 1, 2**70, -1, 1.5, None, True, [], {}, [1, ["a"]], {"a": {"b": [""]}}):
        line = LineFormatter(as_json=True).line(1_700_000_000.25, "info", "appliance.test", "an event", {"x": value})
        told = {"ts": "2023-11-14T22:13:20.250Z", "level": "info", "logger": "appliance.test", "event": "an event"}
        assert line == json.dumps({**told, "x": value})


def test_the_lines_of_a_node_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "_process_fields", {})
    with log_lines.named_node("mail1"):
        line = json.loads(LineFormatter(as_json=True).line(0.0, "info", "appliance.x", "during", {"count": 1}))
    assert (line["node"], line["count"]) == ("mail1", 1)
    with log_lines.named_node(""):
        assert "node" not in json.loads(LineFormatter(as_json=True).line(0.0, "info", "appliance.x", "alone", {}))


def test_the_journal_gets_priorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "log"
    with file.open("w") as stream:
        facts = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{facts.st_dev}:{facts.st_ino}")
        logging.getLogger().handlers.clear()
        log.setup(stream, logging.DEBUG, json=True)
        mine = log.get_logger("test")
        for write in (mine.debug, mine.info, mine.warning, mine.error):
            write("happened")
        messages = log.MessageLog()
        messages.keep = True
        messages.note("noted")
        messages.write()
        log.flush()
    lines = file.read_text().splitlines()
    assert [line[:3] for line in lines] == ["<7>", "<6>", "<4>", "<3>", "<6>"]
    assert [json.loads(line[3:])["level"] for line in lines] == ["debug", "info", "warning", "error", "info"]
    monkeypatch.setenv("JOURNAL_STREAM", "1:1")
    lines_so_far = lines_of(as_json=True)
    mine.info("happened")
    assert one_object(lines_so_far)["event"] == "happened"
