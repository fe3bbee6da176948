"""Answers: the quick look and h11 never differ, and neither reads more than it should."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.webhook.answer import ANSWER_LIMIT, BODY_KEPT, AnswerReader, read_quickly
from appliance.webhook.attempt import NotPosted


def by_h11(data: bytes) -> AnswerReader | None:
    """What h11 makes of these bytes; None when it refuses them."""
    reader = AnswerReader()
    try:
        reader.receive(data)
    except NotPosted:
        return None
    return reader


def answer(*fields: bytes, status: bytes = b"200 OK", body: bytes = b"") -> bytes:
    """The bytes of an answer."""
    return b"\r\n".join([b"HTTP/1.1 " + status, *fields, b"", body])


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
    answer(b"Content-Length: 99999", body=b"ok"),
    b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n",
    b"220 mail.example.com ESMTP\r\n\r\n",
    b"\r\n" + answer(b"Content-Length: 2", body=b"ok"),
    b"",
]


@pytest.mark.parametrize("data", PLAIN)
def test_plain_answers_are_read_at_a_glance(data: bytes) -> None:
    """The usual answers need no h11, and say what h11 would say of them."""
    quick, reader = read_quickly(data), by_h11(data)
    assert quick is not None
    assert reader is not None
    assert reader.whole
    assert quick == (reader.status, reader.body, reader.keep, 0)


@pytest.mark.parametrize("data", OTHERS)
def test_all_others_are_left_to_h11(data: bytes) -> None:
    """What could be read in two ways is not read at a glance."""
    assert read_quickly(data) is None


@pytest.mark.parametrize("data", PLAIN)
def test_an_answer_in_two_pieces(data: bytes) -> None:
    """Of a body that has not come yet it is known how much is missing."""
    head = data.index(b"\r\n\r\n") + 4
    for cut in (head, (head + len(data)) // 2):
        quick = read_quickly(data[:cut])
        assert quick is not None
        assert quick.missing == len(data) - cut


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
    """Whatever is read at a glance is read by h11, and to the same end."""
    cut = data.draw(st.integers(0, len(begin)))
    text = begin[:cut] + b"".join(pieces) + begin[data.draw(st.integers(cut, len(begin))) :]
    quick = read_quickly(text)
    if quick is not None:
        reader = by_h11(text)
        assert reader is not None
        assert (reader.status, reader.body, reader.whole) == (quick.status, quick.body, not quick.missing)
        assert quick.missing or reader.keep == quick.keep


@pytest.mark.parametrize("size", [1, 17, 4096])
def test_two_kib_are_kept(size: int) -> None:
    """Of a long body the first 2 KiB are kept, in whatever pieces it comes."""
    body = bytes(index % 251 for index in range(10_000))
    data = answer(b"Transfer-Encoding: chunked", body=b"2710\r\n" + body + b"\r\n0\r\n\r\n")
    reader = AnswerReader()
    for at in range(0, len(data), size):
        reader.receive(data[at : at + size])
    assert (reader.status, reader.body, reader.whole, reader.keep) == (200, body[:BODY_KEPT], True, True)


def test_reading_ends_somewhere() -> None:
    """Past the limit nothing more is wanted, the status stands, and the connection is of no use."""
    reader = AnswerReader()
    reader.receive(answer(b"Content-Length: 1000000000", body=b"x" * ANSWER_LIMIT))
    assert (reader.status, len(reader.body), reader.done, reader.whole, reader.keep) == (200, 2048, True, False, False)


def test_an_answer_that_ends_with_the_connection() -> None:
    """Without a length the end of the connection is the end of the answer, which is whole; there is no other one."""
    reader = AnswerReader()
    reader.receive(b"HTTP/1.0 202 Accepted\r\n\r\nfine")
    assert not reader.done
    reader.receive(b"")
    assert (reader.status, reader.body, reader.whole, reader.keep) == (202, b"fine", True, False)


def test_an_answer_too_many_leaves_the_connection() -> None:
    """Bytes after the answer mean that the two sides are out of step."""
    reader = by_h11(answer(b"Content-Length: 2", body=b"okHTTP/1.1 200 OK\r\n\r\n"))
    assert reader is not None
    assert (reader.whole, reader.keep) == (True, False)
