"""Receivers that answer with too much, too little, too slowly or not at all: a clear reason, in time and memory."""

import datetime
import tracemalloc
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import pytest
import trio
import trustme
from trio.testing import MockClock

from appliance.tls.certificate import generate, verifying_context
from appliance.webhook.post import Posted, Poster
from tests.fakes.dns import ZoneResolver
from tests.fakes.receiver import (
    AUTHORITY,
    HERE,
    HOST,
    LOOPBACK,
    OK,
    Receiver,
    Serve,
    Tls,
    answering,
    break_off,
    hang_up,
    posting,
    read_request,
    silence,
)

SHORT = 2.0  # seconds, where a test waits for the end of an attempt
MEMORY = 4 * 1024 * 1024  # bytes; endless answers would take hundreds of times as much
HEAD = b"HTTP/1.1 200 OK\r\n"


async def post_to(receiver: Receiver, seconds: float = 60) -> Posted:
    """Post one event, within the time and what a busy machine adds."""
    async with posting(receiver, timeout=seconds) as there:
        with trio.fail_after(seconds + 60):
            return await there.poster.post(there.url, [("X", "y")], b"{}")


# ---- too much


def endless(begin: bytes, piece: Callable[[int], bytes]) -> Serve:
    """Answers with `begin`, and pieces for as long as the client reads."""

    async def serve(receiver: Receiver, stream: Tls) -> None:
        await read_request(receiver, stream)
        await stream.send_all(begin)
        for number in count():
            await stream.send_all(piece(number))

    return serve


LENGTH = HEAD + b"Content-Length: 1000000000\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "serve",
    [
        endless(LENGTH, lambda _: b"x" * 65536),
        endless(HEAD + b"Content-Length: 99999\r\n\r\n", lambda _: b"x" * 65536),
        endless(HEAD + b"\r\n", lambda _: b"x" * 65536),
        endless(CHUNKED, lambda _: b"10000\r\n" + b"x" * 65536 + b"\r\n"),
        endless(CHUNKED, lambda _: b"1\r\nx\r\n" * 5000),
        endless(CHUNKED, lambda _: b"1;" + b"e" * 4000 + b"\r\nx\r\n"),
        endless(LENGTH, lambda _: b"x"),
    ],
    ids=["length", "over the limit", "until closed", "chunks", "tiny chunks", "chunk extensions", "tiny records"],
)
async def test_an_endless_body_is_cut(serve: Serve) -> None:
    """Of an answer without end 2 KiB are kept; the receiver took the event, and the rest is left alone."""
    tracemalloc.start()
    try:
        posted = await post_to(Receiver(serve))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (posted.status, posted.accepted) == (200, True)
    assert "the rest was not read" in str(posted.error)
    assert len(posted.body) <= 2048
    assert peak < MEMORY


async def test_an_endless_refusal_is_a_refusal() -> None:
    """The status decides, however long its explanation."""
    posted = await post_to(Receiver(endless(LENGTH.replace(b"200", b"500"), lambda _: b"x" * 65536)))
    assert (posted.status, posted.accepted, len(posted.body)) == (500, False, 2048)


@pytest.mark.parametrize(
    ("serve", "words"),
    [
        (endless(HEAD, lambda number: b"X-%d: y\r\n" % number * 100), "over 16 KiB of headers"),
        (endless(HEAD + b"X: ", lambda _: b"x" * 65536), "over 16 KiB of headers"),
        (endless(b"", lambda _: b"HTTP/1.1 100 Continue\r\n\r\n"), "over 10 interim (1xx) answers"),
        (endless(b"", lambda _: b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" * 100), "over 10 interim (1xx) answers"),
        (endless(b"", lambda _: b"\r\n" * 10000), "not HTTP"),
        (endless(b"", lambda _: b"x" * 65536), "not HTTP"),
        (endless(b"", lambda _: b"\x00"), "not HTTP"),
        (endless(HEAD + b"X: ", lambda _: b"x"), "comes in too many pieces and yet without a status"),
        (answering(HEAD + b"Content-Length: -1\r\n\r\n"), "not valid HTTP: bad Content-Length"),
        (
            answering(HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok"),
            "not valid HTTP: conflicting Content-Length",
        ),
        (answering(HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n"), "not valid HTTP"),
        (answering(b"HTTP/2 200\r\n\r\n"), "not HTTP"),
        (answering(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"), "not valid HTTP"),
        (answering(b"220 mail.example.com ESMTP\r\n"), "not HTTP"),
        (answering(b"SSH-2.0-OpenSSH_9.2\r\n"), "not HTTP"),
        (answering(b"<html>hello</html>\r\n\r\n"), "not HTTP"),
    ],
)
async def test_floods_and_rubbish(serve: Serve, words: str) -> None:
    """What is no answer, or never becomes one, is given up with the reason."""
    posted = await post_to(Receiver(serve))
    assert words in str(posted.error)
    assert not posted.accepted


@pytest.mark.parametrize("rest", [b"zz\r\n", b"5\r\nhello!\r\n", b"5\r\nhello\r\n0\r\nno trailer\r\n\r\n"])
async def test_a_body_that_cannot_be_read_does_not_change_the_status(rest: bytes) -> None:
    """Any 2xx is success: the event would otherwise be posted again to a receiver that has taken it."""
    posted = await post_to(Receiver(answering(CHUNKED + rest)))
    assert (posted.status, posted.accepted) == (200, True)
    assert "not valid HTTP" in str(posted.error)
    posted = await post_to(Receiver(answering(CHUNKED.replace(b"200", b"500") + rest)))
    assert (posted.status, posted.accepted) == (500, False)


async def test_a_flood_beneath_tls_is_cut() -> None:
    """A receiver that sends what TLS keeps to itself, session tickets without end, is given up, too."""
    receiver = Receiver()
    receiver.context.num_tickets = 2_000
    posted = await post_to(receiver)
    assert posted.error == "the receiver sent over 128 KiB before it answered"


async def test_a_flood_instead_of_a_handshake() -> None:
    """A handshake that never ends does not use up the attempt."""
    record = b"\x16\x03\x03\x40\x00" + b"\x0b\x01\x80\x00" + b"x" * (0x4000 - 4)  # part of a huge certificate

    async def flood(stream: trio.SocketStream) -> None:
        while True:
            await stream.send_all(record)

    posted = await post_to(Receiver(plain=flood))
    assert "the TLS handshake with the receiver failed" in str(posted.error)


# ---- too little, too slowly


def dripping(data: bytes, pause: float) -> Serve:
    """Answers a byte at a time."""

    async def serve(receiver: Receiver, stream: Tls) -> None:
        await read_request(receiver, stream)
        for at in range(len(data)):
            await stream.send_all(data[at : at + 1])
            await trio.sleep(pause)

    return serve


BEGUN = HEAD + b"Content-Length: 100\r\n\r\nhello"

HELLO = CHUNKED + b"5\r\nhello\r\n"
NO_ANSWER, NO_END = (f"the receiver did not {what} within 2 s" for what in ("answer", "finish its answer"))
SLOW: dict[str, tuple[Serve, int | None, bytes, str]] = {
    "nothing": (answering(b"", after=silence), None, b"", NO_ANSWER),
    "drip": (dripping(OK, 0.5), None, b"", NO_ANSWER),
    "half a head": (answering(HEAD, after=silence), None, b"", NO_ANSWER),
    "half a body": (answering(BEGUN, after=silence), 200, b"hello", NO_END),
    "chunks without end": (answering(HELLO, after=dripping(b"1\r\nx\r\n" * 100, 0.05)), 200, b"hello", NO_END),
    "trailers without end": (
        answering(HELLO + b"0\r\n", after=dripping(b"Trailer: x\r\n" * 100, 0.05)),
        200,
        b"hello",
        NO_END,
    ),
}


async def test_slow_receivers() -> None:
    """A receiver that is not done in time has not taken the event; what came is told. All are waited for at once."""
    found: dict[str, Posted] = {}

    async def post(name: str) -> None:
        found[name] = await post_to(Receiver(SLOW[name][0]), seconds=SHORT)

    async with trio.open_nursery() as nursery:
        for name in SLOW:
            nursery.start_soon(post, name)
    for name, (_, status, body, words) in SLOW.items():
        posted = found[name]
        assert (posted.status, posted.body[:5], posted.error) == (status, body, words), name
        assert not posted.accepted
        assert posted.duration_ms >= SHORT * 1000


@pytest.mark.parametrize("end", [hang_up, break_off])
@pytest.mark.parametrize(
    ("begun", "status", "words"),
    [
        (None, None, "before it answered"),
        (b"HTTP/1.1 2", None, "before it answered"),
        (HEAD + b"Content-Length: 5\r\n", None, "before it answered"),
        (HEAD + b"Content-Length: 5\r\n\r\n", 200, "before the end of its answer"),
        (BEGUN, 200, "before the end of its answer"),
        (CHUNKED + b"5\r\nhello\r\n", 200, "before the end of its answer"),
    ],
)
async def test_a_connection_cut_at_each_point(end: Serve, begun: bytes | None, status: int | None, words: str) -> None:
    """It is a failure unless a status came, which decides; with or without a goodbye in TLS."""

    async def at_once(receiver: Receiver, stream: Tls) -> None:
        await read_request(receiver, stream)
        await end(receiver, stream)

    posted = await post_to(Receiver(at_once if begun is None else answering(begun, after=end)))
    assert (posted.status, posted.error) == (status, f"the receiver closed the connection {words}")
    assert posted.accepted is (status is not None)


async def reset(stream: trio.SocketStream) -> None:
    """End a connection with an RST."""
    stream.socket.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    await stream.aclose()


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 2", BEGUN])
async def test_a_reset_at_each_point(begun: bytes) -> None:
    """A connection that is reset is a failure unless a status came."""

    async def serve(receiver: Receiver, stream: Tls) -> None:
        await read_request(receiver, stream)
        if begun:
            await stream.send_all(begun)
            await trio.sleep(0.05)
        await reset(stream.transport_stream)

    posted = await post_to(Receiver(serve))
    assert "the receiver broke the connection off before" in str(posted.error)
    assert posted.accepted is (posted.status is not None)


async def test_a_receiver_that_does_not_read() -> None:
    """An event that the receiver does not read is given up in time."""

    async def serve(receiver: Receiver, stream: Tls) -> None:
        await stream.do_handshake()
        await trio.sleep_forever()

    async with posting(Receiver(serve), timeout=SHORT) as there:
        posted = await there.poster.post(there.url, [], b"x" * 20_000_000)
    assert posted.error == "the receiver did not take the event within 2 s"


# ---- no TLS


async def hang_up_at_once(stream: trio.SocketStream) -> None:
    """Close without a word."""
    await stream.aclose()


async def say_nothing(stream: trio.SocketStream) -> None:
    """Wait until cancelled."""
    await trio.sleep_forever()


async def speak_plainly(stream: trio.SocketStream) -> None:
    """Answer in the clear."""
    await stream.send_all(OK)


@pytest.mark.parametrize(
    ("plain", "words"),
    [
        (hang_up_at_once, "the TLS handshake with the receiver failed: the connection was closed"),
        (reset, "the TLS handshake with the receiver failed"),
        (speak_plainly, "the TLS handshake with the receiver failed: wrong version number"),
        (say_nothing, "the receiver did not finish the TLS handshake within 2 s"),
    ],
)
async def test_a_receiver_without_tls(plain: Callable[[trio.SocketStream], Awaitable[None]], words: str) -> None:
    """A receiver that does not speak TLS gets nothing."""
    posted = await post_to(Receiver(plain=plain), seconds=SHORT)
    assert posted.status is None
    assert words in str(posted.error)


@pytest.mark.parametrize("bytes_let_through", [1, 5, 100, 600])
async def test_a_handshake_cut_short(bytes_let_through: int) -> None:
    """TLS that ends in the middle of the handshake is a failure, and says so."""

    async def serve(connection: trio.SocketStream) -> None:
        await connection.receive_some(65536)
        hello = await server_hello()
        await connection.send_all(hello[:bytes_let_through])
        await connection.aclose()

    posted = await post_to(Receiver(plain=serve))
    assert "the TLS handshake with the receiver failed" in str(posted.error)


async def server_hello() -> bytes:
    """What a TLS server sends first; to another client, but it is cut off anyway."""
    return b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03" + b"r" * 600


LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
LATER = LONG_AGO + datetime.timedelta(days=90)


@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        (lambda: AUTHORITY.issue_cert(HOST, not_before=LONG_AGO, not_after=LATER), "expired"),
        (lambda: AUTHORITY.issue_cert("other.example.com"), "Hostname mismatch"),
        (lambda: AUTHORITY.issue_cert("*.com"), "Hostname mismatch"),
        (lambda: AUTHORITY.issue_cert("other.example.com", common_name=HOST), "Hostname mismatch"),
        (lambda: AUTHORITY.issue_cert("127.0.0.1"), "Hostname mismatch"),
        (lambda: trustme.CA().issue_cert(HOST), "unable to get local issuer certificate"),
    ],
    ids=["expired", "another name", "too wide", "common name only", "address only", "unknown authority"],
)  # fmt: skip
async def test_bad_certificates(certificate: Callable[[], trustme.LeafCert], words: str) -> None:
    """A certificate that is not good for the name ends it before a word of the event was said."""
    receiver = Receiver(certificate=certificate())
    posted = await post_to(receiver)
    assert posted.status is None
    assert str(posted.error).startswith("the receiver's certificate is not accepted: ")
    assert words in str(posted.error)
    assert not receiver.requests


async def test_a_certificate_that_signs_itself(tmp_path: Path) -> None:
    """A certificate that its owner signed is not accepted."""
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    generate(chain, key, HOST)
    receiver = Receiver()
    receiver.context.load_cert_chain(chain, key)
    posted = await post_to(receiver)
    assert posted.error == "the receiver's certificate is not accepted: self-signed certificate"
    assert not receiver.requests


# ---- five seconds in all


class SlowResolver(ZoneResolver):
    """A resolver that is asked in vain."""

    async def lookup(self, name: str, kind: str) -> object:  # type: ignore[override]
        await trio.sleep_forever()


async def never(address: str, port: int) -> trio.abc.Stream:
    """A host that does not answer."""
    await trio.sleep_forever()
    raise AssertionError


@pytest.mark.parametrize(
    ("resolver", "words"),
    [
        (SlowResolver(HERE), "the receiver's name could not be looked up within 5 s"),
        (ZoneResolver(HERE), "the receiver did not accept a connection within 5 s"),
    ],
)
async def test_five_seconds_include_all_of_it(autojump_clock: MockClock, resolver: ZoneResolver, words: str) -> None:
    """The time of an attempt runs from its beginning, DNS and dialling included."""
    poster = Poster(resolver, never, verifying_context(None), ports={443}, allowed=LOOPBACK)
    posted = await poster.post(f"https://{HOST}/", [], b"")
    assert (posted.status, posted.error, posted.duration_ms) == (None, words, 5000)


async def test_a_replaced_connection_gets_no_more_time() -> None:
    """The second try after a lost connection shares the time of the first."""

    async def serve(receiver: Receiver, stream: Tls) -> None:
        await read_request(receiver, stream)
        if receiver.connections > 1:
            await trio.sleep_forever()
        await stream.send_all(OK)
        await read_request(receiver, stream)
        await trio.sleep(SHORT * 0.75)

    receiver = Receiver(serve)
    async with posting(receiver, timeout=SHORT) as there:
        assert (await there.poster.post(there.url, [], b"")).accepted
        posted = await there.poster.post(there.url, [], b"")
    assert posted.error == "the receiver did not answer within 2 s"
    assert posted.duration_ms < SHORT * 1000 * 1.7
    assert receiver.connections == 2
