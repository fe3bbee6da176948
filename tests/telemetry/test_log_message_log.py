"""The lines about messages are the log's, with nothing lost silently and no secret."""

import io
import json
import logging
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock

from appliance.telemetry import log
from appliance.telemetry.log import NOTE_INTERVAL, NOTES_KEPT, NOTES_PER_SLICE, MessageLog
from appliance.telemetry.log_lines import LineFormatter

LogTo = Callable[..., io.StringIO]


@pytest.fixture
def written(log_to: LogTo) -> io.StringIO:
    return log_to()


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def kept(size: int = NOTES_KEPT) -> MessageLog:
    made = MessageLog(size)
    made.keep = True
    return made


@pytest.mark.parametrize("reply", ["250 2.0.0 Ok", '250 ök \u2028 "quoted" \\ \n', "535 no: Bearer abcdef"])
def test_a_note_is_a_line_like_any_other(written: io.StringIO, reply: str) -> None:
    made = kept()
    made.note("accepted", message_id="msg_1", recipients=2, mx=None, reply=reply)
    made.write()
    log.get_logger("mail").info("accepted", message_id="msg_1", recipients=2, mx=None, reply=reply)
    ours, theirs = written.getvalue().splitlines()
    assert ours.isascii()
    assert ours.partition('"level"')[2] == theirs.partition('"level"')[2]
    assert json.loads(ours)["ts"][:14] == json.loads(theirs)["ts"][:14]
    assert json.loads(ours)["ts"].endswith("Z")


RECIPIENTS = [f"rcp_{number:032x}" for number in range(5)]


@pytest.mark.parametrize("recipients", [RECIPIENTS, RECIPIENTS[:1], ["rcp_1", 'rcp_"', "rcp_1"], [*RECIPIENTS, ""]])
@pytest.mark.parametrize("reply", ["250 2.0.0 Ok", f"250 {RECIPIENTS[0]}", "535 no: Bearer abcdef", 'ö "\n', None])
@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("columns", [0, 60, 70, 90, 300])
def test_lines_of_several_recipients_are_those_of_each(
    recipients: list[str], reply: str | None, as_json: bool, columns: int
) -> None:
    lines = LineFormatter(as_json=as_json, width=lambda: columns)
    step = 1_800_000_000.25, "INFO", "appliance.mail", "delivered"
    fields = {"message_id": "msg_1", "recipient_id": recipients[0], "reply": reply, "ms": 12}
    together = lines.lines_of_recipients(*step, fields, recipients)
    assert together == [lines.line(*step, fields | {"recipient_id": recipient}) for recipient in recipients]


def test_a_note_of_several_recipients_is_a_line_for_each(written: io.StringIO) -> None:
    made = kept(6)
    made.note_recipients("delivered", RECIPIENTS, message_id="msg_1", recipient_id=RECIPIENTS[0], ms=3)
    made.note("delivered", message_id="msg_2")
    made.note_recipients("delivered", RECIPIENTS, message_id="msg_3", recipient_id=RECIPIENTS[0], ms=3)
    made.write()
    *noted, last, lost = lines(written)
    assert [line["recipient_id"] for line in noted] == RECIPIENTS
    assert [line["message_id"] for line in (*noted, last)] == ["msg_1"] * 5 + ["msg_2"]
    assert (lost["event"], lost["lines"]) == ("lines about messages were lost: too many at once", 5)


def test_lines_come_in_order_and_once(written: io.StringIO) -> None:
    made = kept()
    for number in range(3):
        made.note("delivered", message_id=f"msg_{number}")
    assert written.getvalue() == ""
    made.write()
    made.write()
    assert [line["message_id"] for line in lines(written)] == ["msg_0", "msg_1", "msg_2"]


async def test_many_lines_are_written_in_slices(
    autojump_clock: MockClock, written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more of them between two checkpoints than one slice, and all in the end."""
    made, slices, write = kept(), list[int](), MessageLog.write

    def counting(self: MessageLog, most: int | None = None) -> bool:
        before = written.getvalue().count("\n")
        more = write(self, most)
        slices.append(written.getvalue().count("\n") - before)
        return more

    monkeypatch.setattr(MessageLog, "write", counting)
    for number in range(2 * NOTES_PER_SLICE + 1):
        made.note("delivered", message_id=f"msg_{number}")
    with trio.move_on_after(1.5 * NOTE_INTERVAL):
        await made.run()
    assert slices == [NOTES_PER_SLICE, NOTES_PER_SLICE, 1]


def test_a_secret_in_a_reply_is_taken_out(written: io.StringIO) -> None:
    made = kept()
    key = "ma_live_" + "x" * 43
    made.note("bounced", message_id="msg_1", reply=f"550 not with {key}")
    made.note("bounced", message_id="msg_1", reply=key)
    made.write()
    assert "xxx" not in written.getvalue()
    assert written.getvalue().count("[redacted]") == 2


def test_notes_beyond_the_bound_are_counted(written: io.StringIO) -> None:
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


@pytest.mark.parametrize(
    ("as_json", "level", "end"),
    [
        (False, logging.INFO, "INFO    delivered message_id=msg_1 smtp_code=250\n"),
        (False, logging.WARNING, ""),
        (True, logging.WARNING, ""),
    ],
)
def test_notes_have_the_form_and_the_level_of_the_log(log_to: LogTo, as_json: bool, level: int, end: str) -> None:
    stream, made = log_to(as_json=as_json, level=level), kept()
    made.note("delivered", message_id="msg_1", smtp_code=250)
    made.write()
    assert stream.getvalue()[9:] == end


def test_a_log_that_cannot_be_written_stops_nothing(written: io.StringIO) -> None:
    written.close()
    made = kept()
    made.note("delivered", message_id="msg_1")
    made.write()
