"""Heads and bodies in raw bytes: where they end, what is refused before any parser, and that looking costs little."""

import random
import time

import pytest

from appliance.errors import Refused
from appliance.net.http import HEAD_LINES, REQUEST_HEAD_BYTES
from appliance.web.http1 import CHUNK_LINE, FREE_CHUNKS, TRAILER_LINES, BadHead, ChunkedBody, HeadReader, LengthBody
from tests.cpu_time import cpu_seconds

SEED = 20_261_115
LINE = b"GET / HTTP/1.1\r\n"


def fed(data: bytes, *cuts: int) -> tuple[bytes, bytes] | None:
    """What a reader finds that is given the bytes in pieces, cut at these places; raises what it raises."""
    reader, begin = HeadReader(), 0
    for end in (*cuts, len(data)):
        found = reader.feed(data[begin:end])
        if found is not None:
            return found[0], found[1] + data[end:]
        begin = end
    return None


def outcome(data: bytes, *cuts: int) -> object:
    try:
        return fed(data, *cuts)
    except BadHead as bad:
        return str(bad)


# ---- heads


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (LINE + b"a:\r\n" * (HEAD_LINES + 1) + b"\r\n", "more than 100 header lines"),
        (LINE + b"a: " + b"x" * REQUEST_HEAD_BYTES, "larger than 16 KiB"),
        (LINE + b"Host: a\nX: b\r\n\r\n", "bare LF"),
        (b"GET / HTTP/1.1\nHost: a\n\n", "bare LF"),
        (b"\nGET / HTTP/1.1\r\n\r\n", "bare LF"),
        (LINE + b"X: a\r\n b\r\n\r\n", "folded"),
        (LINE + b"X: a\r\n\tb\r\n\r\n", "folded"),
        (LINE + b" X: a\r\n\r\n", "folded"),
        (b"\r\n\r\n" + LINE + b"\r\n", "not a valid"),
        (b"\r\n" + LINE + b"a:\r\n" * (HEAD_LINES + 1) + b"\r\n", "more than 100 header lines"),
    ],
)
def test_a_bad_head_is_refused_however_it_is_cut(head: bytes, text: str) -> None:
    if len(head) < 200:
        for cut in range(len(head)):
            assert text in str(outcome(head, cut))
    assert text in str(outcome(head, *range(len(head))))


@pytest.mark.parametrize("rest", [b"", b" body", b"\n\n", b"a:\r\n" * 200, b"x" * REQUEST_HEAD_BYTES])
def test_a_good_head_ends_with_its_empty_line(rest: bytes) -> None:
    lines = LINE + b"a: b\r\n" * (HEAD_LINES - 1)
    head = lines + b"b:" + b"x" * (REQUEST_HEAD_BYTES - len(lines) - 6) + b"\r\n\r\n"
    assert len(head) == REQUEST_HEAD_BYTES
    assert fed(head + rest) == (head, rest)
    assert fed(LINE + b"\r\n" + rest) == (LINE + b"\r\n", rest)


def test_one_empty_line_before_a_request_is_ignored() -> None:
    head = LINE + b"a: b\r\n" * HEAD_LINES + b"\r\n"
    for data in (LINE + b"\r\n", head):
        assert fed(b"\r\n" + data + b"rest") == (data, b"rest")
        assert fed(b"\r\n" + data + b"rest", *range(1, 30)) == (data, b"rest")
    reader = HeadReader()
    for _ in range(3):
        assert reader.feed(b"\r\n") is None
        assert reader.feed(LINE + b"\r\n") == (LINE + b"\r\n", b"")


def test_how_a_head_is_cut_changes_nothing() -> None:
    chance = random.Random(SEED)
    pieces = (b"\r", b"\n", b"\r\n", b"\r\n\r\n", b" ", b"\t", b"a", b"a: b", LINE)
    for _ in range(5_000):
        data = b"".join(chance.choices(pieces, k=chance.randrange(1, 12)))
        cuts = sorted(chance.choices(range(len(data)), k=chance.randrange(4)))
        whole, cut = outcome(data), outcome(data, *cuts)
        # With two faults the pieces say which is met first.
        assert whole == cut or (isinstance(whole, str) and isinstance(cut, str))


def test_a_reader_is_ready_for_the_next_head() -> None:
    reader = HeadReader()
    for _ in range(5):
        assert reader.feed(LINE + b"a:\r\n" * 60) is None
        assert reader
        assert reader.feed(b"\r\n") is not None
        assert not reader


def test_a_head_that_drips_costs_no_more_the_longer_it_is() -> None:
    """Byte by byte, the second half of a long head takes no more than a few times as long as the first."""
    reader, times = HeadReader(), []
    head = (LINE + b"X: " + b"x" * REQUEST_HEAD_BYTES)[: REQUEST_HEAD_BYTES - 10]
    half = len(head) // 2
    for part in (head[:half], head[half:]):
        began = time.process_time()
        for at in range(len(part)):
            reader.feed(part[at : at + 1])
        times.append(time.process_time() - began)
    assert times[1] < 3 * times[0] + 0.01


# ---- bodies


def test_a_body_of_known_length() -> None:
    body = LengthBody(5)
    taken = [(*body.take(data), body.complete) for data in (b"abc", b"defgh")]
    assert taken == [(b"abc", b"", False), (b"de", b"fgh", True)]
    assert LengthBody(0).complete


CHUNKED = b'3;a="b"\r\nabc\r\n0A\r\n0123456789\r\n1 \r\nx\r\n0\r\nTrailer: a\r\nOther: b\r\n\r\n'


def test_chunks_are_joined_however_they_are_cut() -> None:
    chance = random.Random(SEED)
    for _ in range(2_000):
        body, content, data = ChunkedBody(), b"", CHUNKED + b"GET / HTTP/1.1"
        while not body.complete:
            size = chance.choice((1, 2, 5, 100))
            piece, rest = body.take(data[:size])
            content, data = content + piece, rest + data[size:]
        assert (content, data) == (b"abc0123456789x", b"GET / HTTP/1.1")


def is_refused(data: bytes, size: int) -> bool:
    body = ChunkedBody()
    try:
        for at in range(0, len(data), size):
            body.take(data[at : at + size])
    except Refused:
        return True
    return False


BAD_CHUNKS = (
    b"x\r\n", b"\r\n", b"-1\r\n", b"0x1\r\n", b"123456789\r\n", b"1\na\r\n", b"1\r\nab\r\n", b"1\r\na\n",
    b"1;\x00\r\n", b"0\r\nTrailer: a\n\r\n", b"0\r\n\tTrailer: a\r\n\r\n", b"0\r\nTrailer: a\r\n folded\r\n\r\n",
    b"0\r\nTrailer : a\r\n\r\n", b"0\r\nTrailer\r\n\r\n", b"0\r\nTrailer: \0\r\n\r\n",
    b"0\r\ncontent-Length: +2\r\n\r\n", b"0\r\nTransfer-Encoding: identity\r\n\r\n",
    b"1;" + b"x" * CHUNK_LINE + b"\r\na\r\n", b"0\r\n" + b"a:\r\n" * (TRAILER_LINES + 1) + b"\r\n",
    b"0\r\na: " + b"x" * CHUNK_LINE, b"1\r\na\r\n" * (FREE_CHUNKS + 10),
)  # fmt: skip


@pytest.mark.parametrize("data", BAD_CHUNKS)
def test_what_is_no_good_body_in_chunks_is_refused(data: bytes) -> None:
    """Wrong sizes, bare LF, long lines, many trailers, and chunks that are many and tiny; also byte by byte."""
    for size in (len(data), 1):
        assert is_refused(data, size)


def test_many_chunks_are_no_fault_if_they_are_not_tiny() -> None:
    body = ChunkedBody()
    piece, rest = body.take(b"40\r\n" + b"x" * 64 + b"\r\n")
    for _ in range(5_000):
        piece, rest = body.take(b"40\r\n" + b"x" * 64 + b"\r\n")
    assert (piece, rest) == (b"x" * 64, b"")


def test_hostile_chunks_cost_little() -> None:
    data = b"1\r\na\r\n" * 11_000

    def take() -> None:
        with pytest.raises(Refused):
            ChunkedBody().take(data)

    assert cpu_seconds(take) < 0.005
