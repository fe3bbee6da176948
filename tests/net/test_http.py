"""One request and its answer: what is sent, how much is read, and each way in which there is no answer."""

import time
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import memory_stream_pair

from appliance.net.http import RESPONSE_HEADER_BYTES, BadResponse, ClosedEarly, HttpResponse, TooLong, send_request

HEADERS = [("Host", "example.com")]
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def exchanged(
    says: bytes, read: Callable[[HttpResponse], Awaitable[object]], body: bytes = b""
) -> tuple[object, bytes]:
    ours, theirs = memory_stream_pair()
    await theirs.send_all(says)
    await theirs.send_eof()
    found = await read(await send_request(ours, "POST" if body else "GET", "/x", HEADERS, body))
    await ours.send_eof()
    return found, b"".join([bytes(part) async for part in theirs])


async def whole(answer: HttpResponse) -> tuple[int, bytes]:
    return answer.status, await answer.body(100)


async def test_a_request_is_the_only_one_on_its_connection() -> None:
    found, request = await exchanged(b"HTTP/1.1 204 No Content\r\n\r\n", whole, b"{}")
    assert found == (204, b"")
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.splitlines() == [
        b"POST /x HTTP/1.1",
        b"Host: example.com",
        b"Content-Length: 2",
        b"Accept-Encoding: identity",
        b"Connection: close",
    ]
    assert body == b"{}"


@pytest.mark.parametrize(
    "says",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nabc",
    ],
)
async def test_every_way_to_end_a_body(says: bytes) -> None:
    assert (await exchanged(says, whole))[0] == (200, b"abc")


async def test_headers_are_found_whatever_their_case() -> None:
    """And every one of those that stand twice."""

    async def values(answer: HttpResponse) -> list[bytes]:
        return answer.all(b"x-a")

    assert (await exchanged(b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\n\r\n", values))[0] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        (b"", BadResponse),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", BadResponse),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", BadResponse),
        (b"220 mail.example.com ESMTP\r\n", BadResponse),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2 * RESPONSE_HEADER_BYTES, BadResponse),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n" + b"x" * 101, TooLong),
        (b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 101, TooLong),
        (CHUNKED + b"1\r\nx\r\n" * 101, TooLong),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3_000 + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", BadResponse),
    ],
)
async def test_what_is_no_answer(says: bytes, kind: type[BadResponse]) -> None:
    with trio.fail_after(5), pytest.raises(kind, match=r"\w") as caught:
        await exchanged(says, whole)
    assert isinstance(caught.value, TooLong | ClosedEarly) or type(caught.value) is BadResponse


class Steps(trio.abc.Instrument):
    longest = began = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, time.thread_time() - self.began)


@pytest.mark.parametrize(
    "says",
    [
        CHUNKED + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\n" + b"a:\r\n" * 4_000 + b"\r\n",
        CHUNKED + b"0\r\n" + b"a:\r\n" * 4_000 + b"\r\n",
    ],
    ids=["chunks", "interim responses", "header lines", "trailer lines"],
)
def test_the_smallest_pieces_do_not_hold_the_loop(says: bytes) -> None:
    async def read(answer: HttpResponse) -> bytes:
        return await answer.body(65_536)

    longest = []
    for _ in range(3):
        steps = Steps()
        with pytest.raises(BadResponse):
            trio.run(exchanged, says, read, instruments=[steps])
        longest.append(steps.longest)
    assert min(longest) < 0.008
