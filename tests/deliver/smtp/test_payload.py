"""In charge of a message's bytes on the wire: dots doubled, no lone line end, one end of data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.deliver.smtp.payload import JOINED_BYTES, LoneLineEnd, prepare


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (b"a\r\n", b"a\r\n.\r\n"),
        (b"a", b"a\r\n.\r\n"),
        (b"", b"\r\n.\r\n"),
        (b".\r\n", b"..\r\n.\r\n"),
        (b".a\r\n..b\r\nc.\r\n", b"..a\r\n...b\r\nc.\r\n.\r\n"),
        (b"\r\n.\r\n.\r\n", b"\r\n..\r\n..\r\n.\r\n"),
    ],
)
def test_dots_are_doubled_and_the_end_is_marked(message: bytes, wire: bytes) -> None:
    """A dot at the beginning of a line is doubled; CRLF . CRLF ends the message, with a CRLF added only if missing."""
    assert b"".join(prepare(message).parts) == wire


@pytest.mark.parametrize(
    "smuggled", [b"\n.\r\n", b"\n.\n", b"\r.\r", b"\r\n.\n", b"\r.\r\n", b"\r", b"\n", b"\n\r", b"\r\r\n"]
)
def test_a_lone_cr_or_lf_never_leaves(smuggled: bytes) -> None:
    """Every known way to smuggle an end of data is refused before anything is sent."""
    with pytest.raises(LoneLineEnd):
        prepare(b"Subject: x\r\n\r\na" + smuggled + b"b\r\n")


def test_size_and_eight_bits_are_those_of_the_message() -> None:
    """SIZE counts the message without doubled dots and end mark; one byte over 127 makes it 8-bit."""
    assert (prepare(b".\r\n").size, prepare(b".\r\n").eight_bit) == (3, False)
    assert prepare("ü\r\n".encode()).eight_bit


def test_a_big_message_without_dots_is_not_copied() -> None:
    """A message of megabytes is sent from where it is."""
    message = b"x" * 70 + b"\r\n"
    message *= JOINED_BYTES // 72 + 1
    assert any(part is message for part in prepare(message).parts)


@given(st.lists(st.sampled_from([b".", b"..", b"a", b"", b".a", b"\xff"]), max_size=20))
def test_a_receiver_gets_back_what_was_sent(lines: list[bytes]) -> None:
    """Undoing RFC 5321 4.5.2 line by line gives the message, and the end of data occurs once, at the end."""
    message = b"".join(line + b"\r\n" for line in lines) or b"\r\n"
    wire = b"".join(prepare(message).parts)
    assert (b"\r\n" + wire).index(b"\r\n.\r\n") == len(wire) - 3
    received = [line[1:] if line.startswith(b".") else line for line in wire[:-3].split(b"\r\n")]
    assert b"\r\n".join(received) == message


def test_a_payload_does_not_show_the_message() -> None:
    """What a customer wrote stays out of logs and tracebacks."""
    assert repr(prepare(b"Subject: secret\r\n")) == "Payload(size=17, eight_bit=False)"
