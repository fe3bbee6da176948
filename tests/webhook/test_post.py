"""Posting to a receiver that behaves: what it gets, and how connections are used again."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
import trio
from trio.testing import MockClock

from appliance.environment import Environment
from appliance.net.dial import Shortage
from appliance.webhook.post import Posted, Poster
from tests.fakes.dns import Trouble, ZoneResolver
from tests.fakes.receiver import (
    HERE,
    HOST,
    OK,
    Posting,
    Receiver,
    Tls,
    answering,
    break_off,
    client_context,
    hang_up,
    posting,
    read_request,
)

HEADERS = (("Content-Type", "application/json"), ("Service-Signature", "t=1,v1=ab"))
BODY = b'{"id":"evt_1"}'


async def post(there: Posting, body: bytes = BODY) -> Posted:
    return await there.poster.post(there.url, HEADERS, body)


def fine(posted: Posted) -> bool:
    return posted.accepted and (posted.status, posted.body, posted.error) == (200, b"ok", None)


async def test_an_event_is_posted() -> None:
    receiver = Receiver()
    async with posting(receiver) as there:
        posted = await post(there)
    assert fine(posted)
    assert 0 <= posted.duration_ms < 5000
    (request,) = receiver.requests
    assert request.body == BODY
    assert request.head.decode().split("\r\n") == [
        "POST /in?a=1 HTTP/1.1",
        f"Host: {HOST}:{there.port}",
        "Content-Type: application/json",
        "Service-Signature: t=1,v1=ab",
        "Accept-Encoding: identity",
        f"Content-Length: {len(BODY)}",
    ]


async def test_the_name_is_in_sni() -> None:
    names: list[str | None] = []
    receiver = Receiver()
    receiver.context.sni_callback = lambda _, name, __: names.append(name)
    async with posting(receiver) as there:
        assert fine(await post(there))
    assert names == [HOST]


@pytest.mark.parametrize("size", [0, 70_000, 3_000_000])
async def test_a_body_of_any_size(size: int) -> None:
    receiver = Receiver()
    async with posting(receiver) as there:
        assert fine(await post(there, b"x" * size))
    assert receiver.requests[0].body == b"x" * size


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 201, b"ok"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 202 Accepted\r\nContent-Length: 1\r\n\r\n.", 202, b"."),
        (b"HTTP/1.1 301 Moved\r\nLocation: https://127.0.0.1/\r\nContent-Length: 0\r\n\r\n", 301, b""),
        (b"HTTP/1.1 410 Gone\r\nContent-Length: 4\r\n\r\ngone", 410, b"gone"),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000, 500, b"x" * 2048),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b", 200, b"\x1f\x8b"),
    ],
)  # fmt: skip
async def test_any_whole_answer_is_told(answer: bytes, status: int, body: bytes) -> None:
    """Status and body are told as they came, nothing is followed or unpacked, and the connection goes on."""
    receiver = Receiver(answering(answer))
    async with posting(receiver) as there:
        for _ in range(2):
            posted = await post(there)
            assert (posted.status, posted.body, posted.error) == (status, body, None)
            assert posted.accepted == (200 <= status < 300)
    assert (len(receiver.requests), receiver.connections) == (2, 1)


@pytest.mark.parametrize("size", [7, OK.index(b"ok")])
async def test_head_and_body_in_pieces(size: int) -> None:
    async def dribble(receiver: Receiver, stream: Tls) -> None:
        while await read_request(receiver, stream):
            for at in range(0, len(OK), size):
                await stream.send_all(OK[at : at + size])

    receiver = Receiver(dribble)
    async with posting(receiver) as there:
        assert fine(await post(there))
        assert fine(await post(there))
    assert receiver.connections == 1


# ---- idle connections


async def test_a_connection_is_used_again() -> None:
    receiver = Receiver()
    async with posting(receiver) as there:
        for _ in range(5):
            assert fine(await post(there))
        assert receiver.connections == 1
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(post, there)
        assert receiver.connections == 4
    assert len(receiver.requests) == 13


async def test_a_closing_receiver_is_dialled_again() -> None:
    receiver = Receiver(answering(OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")))
    async with posting(receiver) as there:
        for _ in range(3):
            assert fine(await post(there))
    assert receiver.connections == 3


@pytest.mark.parametrize("end", [hang_up, break_off])
@pytest.mark.parametrize("pause", [0.0, 0.05])
async def test_a_receiver_that_gave_up_the_connection(end: object, pause: float) -> None:
    """A kept connection that is closed meanwhile, or as the event comes, costs no event and no attempt."""
    receiver = Receiver(answering(OK, after=end))  # type: ignore[arg-type]
    async with posting(receiver) as there:
        for _ in range(3):
            assert fine(await post(there))
            await trio.sleep(pause)
    assert receiver.connections == 3
    assert len(receiver.requests) == 3


async def test_a_lost_answer_is_asked_for_once_more() -> None:
    """A kept connection that dies with the event on it, before any answer, is replaced once; a new one is not."""

    async def two_and_out(receiver: Receiver, stream: Tls) -> None:
        await read_request(receiver, stream)
        if receiver.connections != 3:
            await stream.send_all(OK)
            await read_request(receiver, stream)
        await break_off(receiver, stream)

    receiver = Receiver(two_and_out)
    async with posting(receiver) as there:
        assert fine(await post(there))
        assert fine(await post(there))  # lost on the first connection, answered on the second
        lost = await post(there)  # lost on the second connection, and on the third
        assert (lost.status, lost.error) == (None, "the receiver closed the connection before it answered")
    assert (receiver.connections, len(receiver.requests)) == (3, 5)


async def test_a_connection_is_not_used_past_its_name() -> None:
    receiver, resolver = Receiver(), ZoneResolver(HERE)
    async with posting(receiver, resolver) as there:
        assert fine(await post(there))
        resolver.zone[HOST] = {"A": ["127.0.0.2"]}
        elsewhere = await post(there)
        assert elsewhere.status is None
        assert "did not accept a connection" in str(elsewhere.error)
        resolver.zone[HOST] = {"A": ["9.9.9.9", "10.0.0.1"]}
        assert "public addresses only: one is a private address" in str((await post(there)).error)
        resolver.zone = dict(HERE)
        assert fine(await post(there))
    assert (receiver.connections, len(receiver.requests)) == (1, 2)


async def test_another_name_has_a_connection_of_its_own() -> None:
    receiver = Receiver()
    resolver = ZoneResolver({**HERE, "other.example.com": {"A": ["127.0.0.1"]}})
    async with posting(receiver, resolver) as there:
        assert fine(await post(there))
        other = await there.poster.post(there.url.replace(HOST, "other.example.com"), HEADERS, BODY)
        assert "certificate is not accepted: Hostname mismatch" in str(other.error)
    assert (receiver.connections, len(receiver.requests)) == (2, 1)


# ---- where it goes


async def test_the_second_address_is_tried() -> None:
    receiver, dialled = Receiver(), []

    async def dial(address: str, port: int) -> trio.abc.Stream:
        dialled.append(address)
        return await Environment().dial(address, port)

    resolver = ZoneResolver({HOST: {"A": ["127.0.0.2", "127.0.0.1"]}})
    async with posting(receiver, resolver, dial=dial) as there:
        assert fine(await post(there))
        assert fine(await post(there))
        assert dialled == ["127.0.0.2", "127.0.0.1"]
        resolver.zone[HOST] = {"A": ["127.0.0.2", "127.0.0.3", "127.0.0.1"]}
        assert fine(await post(there))  # by the connection that is kept
        await there.poster.idle.aclose()
        assert "Connection refused" in str((await post(there)).error)
    assert dialled[2:] == ["127.0.0.2", "127.0.0.3"]


async def test_a_silent_first_address_leaves_time_for_the_second() -> None:
    """An address that does not answer at all, such as an IPv6 that leads nowhere, does not use up the attempt."""

    async def dial(address: str, port: int) -> trio.abc.Stream:
        if address != "127.0.0.1":
            await trio.sleep_forever()
        return await Environment().dial(address, port)

    resolver = ZoneResolver({HOST: {"A": ["127.0.0.1"], "AAAA": ["2620:fe::fe"]}})
    async with posting(Receiver(), resolver, dial=dial, first_address=0.05) as there:
        assert fine(await post(there))


@pytest.mark.parametrize(
    ("zone", "words"),
    [
        ({}, "hooks.example.com does not exist in the DNS"),
        ({HOST: {"TXT": ["x"]}}, "hooks.example.com has no address in the DNS"),
        ({HOST: {"A": Trouble.SERVFAIL}}, "hooks.example.com cannot be looked up in the DNS at the moment"),
        ({HOST: {"A": [f"127.0.1.{number}" for number in range(65)]}}, "hooks.example.com has over 64 addresses"),
    ],
)
async def test_a_name_that_leads_nowhere(zone: dict[str, dict[str, list[str]]], words: str) -> None:
    receiver = Receiver()
    async with posting(receiver, ZoneResolver(zone)) as there:
        posted = await post(there)
        assert (posted.status, posted.error) == (None, words)
        assert await there.poster.check(there.url) == (None if "moment" in words else words)
    assert receiver.connections == 0


async def test_an_address_of_this_machine_is_refused() -> None:
    receiver = Receiver()
    own = {ip_address("9.9.9.9")}
    async with posting(receiver, ZoneResolver({HOST: {"A": ["9.9.9.9"]}}), own=own) as there:
        assert "one is an address of this machine" in str((await post(there)).error)
        assert "an address of this machine" in str(await there.poster.check(there.url))


async def test_what_cannot_be_checked_is_not_dialled() -> None:
    class Short:
        def __contains__(self, address: object) -> bool:
            raise OSError(24, "Too many open files")

    async with posting(Receiver(), ZoneResolver({HOST: {"A": ["9.9.9.9"]}}), own=Short()) as there:
        with pytest.raises(Shortage, match="Too many open files"):
            await post(there)


async def test_a_lack_of_descriptors_gives_up_the_kept_connections() -> None:
    short, dial = False, Environment().dial

    async def short_dial(address: str, port: int) -> trio.abc.Stream:
        if short:
            raise OSError(24, "Too many open files")
        return await dial(address, port)

    async with posting(Receiver(), dial=short_dial) as there:
        assert (await post(there)).accepted
        idle = there.poster.idle.pool
        assert len(idle) == 1
        short = True
        assert (await post(there)).accepted  # over the one that is kept
        with pytest.raises(Shortage):
            await there.poster.post(f"https://127.0.0.2:{there.port}/", HEADERS, BODY)
        assert len(idle) == 0
        short = False
        assert (await post(there)).accepted


async def test_an_address_as_the_host() -> None:
    receiver, resolver = Receiver(), ZoneResolver({})
    async with posting(receiver, resolver) as there:
        posted = await there.poster.post(f"https://127.0.0.1:{there.port}/", HEADERS, BODY)
        assert "IP address mismatch" in str(posted.error)
        assert await there.poster.check(f"https://127.0.0.1:{there.port}/") is None
    assert not resolver.asked


async def test_a_header_that_cannot_be_sent() -> None:
    receiver = Receiver()
    async with posting(receiver) as there:
        for header in (("X", "a\r\nY: b"), ("X\r\nY", "b"), ("X", "\x00"), ("X", "ä"), ("", "x")):
            posted = await there.poster.post(there.url, [header], BODY)
            assert posted.error == "a header of the event has a character that cannot be sent"
    assert receiver.connections == 0


# ---- on save


async def test_a_good_url_may_be_saved() -> None:
    receiver = Receiver()
    async with posting(receiver, ZoneResolver({HOST: {"A": ["9.9.9.9"], "AAAA": ["2620:fe::fe"]}})) as there:
        assert await there.poster.check(there.url) is None
        assert await there.poster.check("http://hooks.example.com/") == "the URL must begin with https://"
    assert receiver.connections == 0


# ---- cancellation


@pytest.mark.parametrize("patience", [0.0, 0.002, 0.005, 0.01, 0.03])
async def test_a_cancelled_post_leaves_nothing_behind(patience: float) -> None:
    receiver = Receiver()
    async with posting(receiver) as there:
        with trio.move_on_after(patience):
            while True:
                await post(there)
        assert fine(await post(there))
        assert len(there.poster.idle.pool) == 1


async def test_an_address_that_becomes_ours_is_refused(autojump_clock: MockClock) -> None:
    own: set[IPv4Address | IPv6Address] = set()

    async def dial(address: str, port: int) -> trio.abc.Stream:
        raise OSError(113, "No route to host")

    resolver = ZoneResolver({HOST: {"A": ["9.9.9.9"]}})
    poster = Poster(resolver, dial, client_context(), ports={443}, own=own)
    assert "No route to host" in str((await poster.post(f"https://{HOST}/", HEADERS, BODY)).error)
    own.add(ip_address("9.9.9.9"))
    await trio.sleep(1.1)
    assert "an address of this machine" in str((await poster.post(f"https://{HOST}/", HEADERS, BODY)).error)
