"""The lines about messages are the log's, with nothing lost silently and no secret."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from appliance.telemetry import log
from appliance.telemetry.log import NOTES_KEPT, MessageLog


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """The log as JSON, into a text."""
    stream = io.StringIO()
    before, level = list(logging.getLogger().handlers), logging.getLogger().level
    log.setup(stream, json=True)
    yield stream
    logging.getLogger().handlers[:] = before
    logging.getLogger().setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    """What was written, line by line."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def kept(size: int = NOTES_KEPT) -> MessageLog:
    """One that keeps notes."""
    made = MessageLog(size)
    made.keep = True
    return made


@pytest.mark.parametrize("reply", ["250 2.0.0 Ok", '250 ök \u2028 "quoted" \\ \n', "535 no: Bearer abcdef"])
def test_a_note_is_a_line_like_any_other(written: io.StringIO, reply: str) -> None:
    """The same form as the log's own, to the byte, but for the time."""
    made = kept()
    made.note("accepted", message_id="msg_1", recipients=2, mx=None, reply=reply)
    made.write()
    log.get_logger("mail").info("accepted", message_id="msg_1", recipients=2, mx=None, reply=reply)
    ours, theirs = written.getvalue().splitlines()
    assert ours.isascii()
    assert ours.partition('"level"')[2] == theirs.partition('"level"')[2]
    assert json.loads(ours)["ts"][:14] == json.loads(theirs)["ts"][:14]
    assert json.loads(ours)["ts"].endswith("Z")


def test_lines_come_in_order_and_once(written: io.StringIO) -> None:
    """All notes since the last time, together."""
    made = kept()
    for number in range(3):
        made.note("delivered", message_id=f"msg_{number}")
    assert written.getvalue() == ""
    made.write()
    made.write()
    assert [line["message_id"] for line in lines(written)] == ["msg_0", "msg_1", "msg_2"]


def test_a_secret_in_a_reply_is_taken_out(written: io.StringIO) -> None:
    """A server that repeats a credential does not get it into the log, alone or among words."""
    made = kept()
    key = "ma_live_" + "x" * 43
    made.note("bounced", message_id="msg_1", reply=f"550 not with {key}")
    made.note("bounced", message_id="msg_1", reply=key)
    made.write()
    assert "xxx" not in written.getvalue()
    assert written.getvalue().count("[redacted]") == 2


def test_notes_beyond_the_bound_are_counted(written: io.StringIO) -> None:
    """Too many at once: one line says how many are missing."""
    made = kept(2)
    for _ in range(5):
        made.note("delivered", message_id="msg_1")
    made.write()
    assert [line["event"] for line in lines(written)] == [
        "delivered",
        "delivered",
        "lines about messages were lost: too many at once",
    ]
    assert lines(written)[-1]["lines"] == 3


def test_nothing_is_noted_unless_it_is_wanted(written: io.StringIO) -> None:
    """With `messages = false`, and before the server runs."""
    made = MessageLog()
    made.note("accepted", message_id="msg_1")
    made.write()
    assert written.getvalue() == ""


def test_on_a_terminal_it_is_text() -> None:
    """Where people read, the same steps are lines for people."""
    stream = io.StringIO()
    before, level = list(logging.getLogger().handlers), logging.getLogger().level
    log.setup(stream, json=False)
    try:
        made = kept()
        made.note("delivered", message_id="msg_1", smtp_code=250)
        made.write()
    finally:
        logging.getLogger().handlers[:] = before
        logging.getLogger().setLevel(level)
    assert stream.getvalue().endswith("INFO    delivered message_id=msg_1 smtp_code=250\n")


@pytest.mark.parametrize("as_json", [True, False])
def test_a_level_above_info_leaves_notes_out(as_json: bool) -> None:
    """`server.log_level` applies to the lines about messages too."""
    stream = io.StringIO()
    before, level = list(logging.getLogger().handlers), logging.getLogger().level
    log.setup(stream, logging.WARNING, json=as_json)
    try:
        made = kept()
        made.note("delivered", message_id="msg_1")
        made.write()
    finally:
        logging.getLogger().handlers[:] = before
        logging.getLogger().setLevel(level)
    assert stream.getvalue() == ""


def test_a_log_that_cannot_be_written_stops_nothing() -> None:
    """A closed pipe: the lines are lost, the server goes on."""
    stream = io.StringIO()
    before, level = list(logging.getLogger().handlers), logging.getLogger().level
    log.setup(stream, json=True)
    stream.close()
    try:
        made = kept()
        made.note("delivered", message_id="msg_1")
        made.write()
    finally:
        logging.getLogger().handlers[:] = before
        logging.getLogger().setLevel(level)
