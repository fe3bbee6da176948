"""Answers of receivers: the first 2 KiB, an end to every answer, and a fast path that reads as h11 does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.webhook.connect import NotPosted
from appliance.webhook.post import ANSWER_LIMIT, BODY_KEPT, CHUNKS_PER_ANSWER, AnswerReader, Posted, read_fast
from tests.cpu_time import cpu_seconds


def by_h11(data: bytes) -> AnswerReader | None:
    reader = AnswerReader(Posted())
    try:
        reader.receive(data)
    except NotPosted:
        return None
    return reader


def answer(*fields: bytes, status: bytes = b"200 OK", body: bytes = b"") -> bytes:
    return b"\r\n".join([b"HTTP/1.1 " + status, *fields, b"", body])


@pytest.mark.parametrize("size", [1, 17, 4096])
def test_two_kib_are_kept(size: int) -> None:
    body = bytes(index % 251 for index in range(10_000))
    data = answer(b"Transfer-Encoding: chunked", body=b"2710\r\n" + body + b"\r\n0\r\n\r\n")
    reader = AnswerReader(Posted())
    for at in range(0, len(data), size):
        reader.receive(data[at : at + size])
    assert (reader.posted.status, reader.posted.body, reader.whole, reader.keep) == (200, body[:BODY_KEPT], True, True)


def test_reading_ends_somewhere() -> None:
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
    reader = by_h11(answer(b"Content-Length: 2", body=b"okHTTP/1.1 200 OK\r\n\r\n"))
    assert reader is not None
    assert (reader.whole, reader.keep) == (True, False)


@pytest.mark.parametrize("timed_out", [False, True])
def test_any_2xx_in_time_is_success_whatever_its_body(timed_out: bool) -> None:
    accepted = [
        status for status in range(100, 600) if Posted(status, b"", "not whole", 1, timed_out=timed_out).accepted
    ]
    assert accepted == ([] if timed_out else list(range(200, 300)))
    assert not Posted(None).accepted


PLAIN = [
    answer(b"Content-Length: 0"),
    answer(b"content-length:2", body=b"ok"),
    answer(b"Content-Length: 2  ", b"Set-Cookie: a=1", b"Set-Cookie: b=2", body=b"ok"),
    answer(b"Content-Length: 3000", body=b"x" * 3000),
    answer(b"Content-Length: 2", b"Connection: Keep-Alive", body=b"{}"),
    answer(b"Content-Length: 2", b"Connection: close", body=b"{}"),
    answer(status=b"204 No Content"),
    answer(b"Content-Length: 0", status=b"204"),
    answer(b"Content-Length: 7", status=b"304 "),
    answer(b"Content-Length: 5", b"Location: https://elsewhere.example/", status=b"302 Found", body=b"there"),
    answer(b"Content-Length: 4", b"X:", status=b"500 Internal Server Error", body=b"oops"),
]
OTHERS = [
    answer(b"Transfer-Encoding: chunked", body=b"2\r\nok\r\n0\r\n\r\n"),
    answer(b"Content-Length: 2", b"Transfer-Encoding: chunked", body=b"2\r\nok\r\n0\r\n\r\n"),
    answer(b"Content-Length: 2", b"Content-Length: 2", body=b"ok"),
    answer(b"Content-Length: 2", b"Content-Length: 3", body=b"ok"),
    answer(b"Content-Length: +2", body=b"ok"),
    answer(b"Content-Length: 2, 2", body=b"ok"),
    answer(b"Content-Length : 2", body=b"ok"),
    answer(b"Content-Length: 2", body=b"ok" + answer(b"Content-Length: 0")),
    answer(b"Content-Length: 2", b"Connection: upgrade", body=b"ok"),
    answer(b"Content-Length: 2", b"Connection: close", b"Connection: keep-alive", body=b"ok"),
    answer(b"X: y\r\n z", b"Content-Length: 2", body=b"ok"),
    answer(b"X: y\nZ: 1", b"Content-Length: 2", body=b"ok"),
    answer(b"X: \xff", b"Content-Length: 2", body=b"ok"),
    answer(b"X_Y: z", b"Content-Length: 2", body=b"ok"),
    answer(b"no colon", b"Content-Length: 2", body=b"ok"),
    answer(status=b"200 OK"),
    answer(b"Content-Length: 2", status=b"100 Continue", body=b"ok"),
    answer(b"Content-Length: 2", status=b"600 What", body=b"ok"),
    answer(b"Content-Length: 2", status=b"20 OK", body=b"ok"),
    b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n",
    b"220 mail.example.com ESMTP\r\n\r\n",
    b"\r\n" + answer(b"Content-Length: 2", body=b"ok"),
    b"",
]


@pytest.mark.parametrize("data", PLAIN)
def test_plain_answers_are_read_fast(data: bytes) -> None:
    fast, reader = read_fast(data), by_h11(data)
    assert fast is not None
    assert reader is not None
    assert reader.whole
    assert (fast.status, fast.body[:BODY_KEPT], fast.keep, fast.missing) == (
        reader.posted.status,
        reader.posted.body,
        reader.keep,
        0,
    )


@pytest.mark.parametrize("data", OTHERS)
def test_all_others_are_left_to_h11(data: bytes) -> None:
    assert read_fast(data) is None


@pytest.mark.parametrize("data", PLAIN)
def test_an_answer_in_two_pieces(data: bytes) -> None:
    head = data.index(b"\r\n\r\n") + 4
    for cut in (head, (head + len(data)) // 2):
        fast = read_fast(data[:cut])
        assert fast is not None
        assert fast.missing == len(data) - cut


PIECES = st.sampled_from(
    [
        b"HTTP/1.1 ", b"HTTP/1.0 ", b"200", b"204", b"301", b"404", b"100", b" ", b" OK", b"\r\n", b"\n", b"\r",
        b"Content-Length: ", b"content-length:", b"Transfer-Encoding: chunked", b"Connection: ", b"close",
        b"keep-alive", b"X: y", b"X-Y:", b"\t", b"\x00", b"\xff", b"0", b"2", b"5", b",", b"\r\n\r\n", b"ok",
        b"2\r\nok\r\n0\r\n\r\n",
    ]
)  # fmt: skip


@given(st.lists(PIECES, max_size=14), st.sampled_from([b"", *PLAIN]), st.data())
def test_the_two_readers_agree(pieces: list[bytes], begin: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(begin)))
    text = begin[:cut] + b"".join(pieces) + begin[data.draw(st.integers(cut, len(begin))) :]
    fast = read_fast(text)
    if fast is not None:
        reader = by_h11(text)
        assert reader is not None
        assert (reader.posted.status, reader.posted.body, reader.whole) == (
            fast.status,
            fast.body[:BODY_KEPT],
            not fast.missing,
        )
        assert fast.missing or reader.keep == fast.keep
