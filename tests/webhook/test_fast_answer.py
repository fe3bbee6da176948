"""The fast answer reader: whatever it reads, h11 reads the same way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.webhook.fast_answer import read_fast
from appliance.webhook.http import BODY_KEPT
from tests.webhook.answers import answer, by_h11

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
    """The usual answers need no h11, and say what h11 would say of them."""
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
    """What could be read in two ways is not read by the fast path."""
    assert read_fast(data) is None


@pytest.mark.parametrize("data", PLAIN)
def test_an_answer_in_two_pieces(data: bytes) -> None:
    """Of a body that has not come yet it is known how much is missing."""
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
    """Whatever the fast path reads h11 reads, with the same result."""
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
