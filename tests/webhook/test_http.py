"""The answer reader: the first 2 KiB of a body in whatever pieces, and an end to every answer."""

import pytest

from appliance.webhook.http import ANSWER_LIMIT, BODY_KEPT, CHUNKS_PER_ANSWER, AnswerReader, Posted
from tests.cpu_time import cpu_seconds
from tests.webhook.answers import answer, by_h11


@pytest.mark.parametrize("size", [1, 17, 4096])
def test_two_kib_are_kept(size: int) -> None:
    """Of a long body the first 2 KiB are kept, in whatever pieces it comes."""
    body = bytes(index % 251 for index in range(10_000))
    data = answer(b"Transfer-Encoding: chunked", body=b"2710\r\n" + body + b"\r\n0\r\n\r\n")
    reader = AnswerReader(Posted())
    for at in range(0, len(data), size):
        reader.receive(data[at : at + size])
    assert (reader.posted.status, reader.posted.body, reader.whole, reader.keep) == (200, body[:BODY_KEPT], True, True)


def test_reading_ends_somewhere() -> None:
    """Past the limit nothing more is wanted, the status stands, and the connection is of no use."""
    reader = AnswerReader(Posted())
    reader.receive(answer(b"Content-Length: 1000000000", body=b"x" * ANSWER_LIMIT))
    assert (reader.posted.status, len(reader.posted.body), reader.done, reader.whole, reader.keep) == (
        200,
        2048,
        True,
        False,
        False,
    )


def test_the_smallest_chunks_do_not_hold_the_loop() -> None:
    """One read may bring thousands: after some the rest is not parsed, the status stands, and the connection ends."""

    def read() -> AnswerReader:
        reader = AnswerReader(Posted())
        reader.receive(answer(b"Transfer-Encoding: chunked", body=b"1\r\nx\r\n" * 2_700 + b"0\r\n\r\n"))
        return reader

    reader = read()
    assert (reader.posted.status, reader.done, reader.whole, reader.keep) == (200, True, False, False)
    assert reader.posted.body.startswith(b"x" * CHUNKS_PER_ANSWER)
    assert cpu_seconds(read) < 0.005


def test_an_answer_that_ends_with_the_connection() -> None:
    """Without a length the end of the connection is the end of the answer, which is whole; there is no other one."""
    reader = AnswerReader(Posted())
    reader.receive(b"HTTP/1.0 202 Accepted\r\n\r\nfine")
    assert not reader.done
    reader.receive(b"")
    assert (reader.posted.status, reader.posted.body, reader.whole, reader.keep) == (202, b"fine", True, False)


def test_an_answer_too_many_leaves_the_connection() -> None:
    """Bytes after the answer mean that the two sides are out of step."""
    reader = by_h11(answer(b"Content-Length: 2", body=b"okHTTP/1.1 200 OK\r\n\r\n"))
    assert reader is not None
    assert (reader.whole, reader.keep) == (True, False)
