"""Port 80: an answer for the authority, a redirect for browsers, and little for all others."""

from contextlib import suppress

import pytest
import trio

from appliance.acme.challenges import CHALLENGE_TIMEOUT, CONNECTIONS_PER_ADDRESS, ChallengeServer, answer
from appliance.config.values import Endpoint
from appliance.net.connection_server import ConnectionTable
from appliance.net.http import SHORT_HEAD_BYTES

SITE = "https://mail.example.com"
SHOWN = {"tok-en_1": "tok-en_1.print"}
CHALLENGE = "/.well-known/acme-challenge"


def get(target: str, method: str = "GET") -> bytes:
    return f"{method} {target} HTTP/1.1\r\nHost: mail.example.com\r\n\r\n".encode("latin-1")


@pytest.mark.parametrize(
    ("head", "status", "body"),
    [
        (get(f"{CHALLENGE}/tok-en_1"), "200 OK", "tok-en_1.print"),
        (get(f"{CHALLENGE}/tok-en_1", "HEAD"), "200 OK", ""),
        (get(f"{CHALLENGE}/tok-en_1?x"), "404 Not Found", "No such challenge.\n"),
        (get(f"{CHALLENGE}/other"), "404 Not Found", "No such challenge.\n"),
        (get(f"{CHALLENGE}/"), "404 Not Found", "No such challenge.\n"),
        (get(f"{CHALLENGE}/../tok-en_1"), "404 Not Found", "No such challenge.\n"),
        (get("/", "POST"), "405 Method Not Allowed", "Use HTTPS.\n"),
        (get("http://evil.test/"), "400 Bad Request", "Not a valid HTTP request.\n"),
        (get("/\x00"), "400 Bad Request", "Not a valid HTTP request.\n"),
        (get("/a\rX: y"), "400 Bad Request", "Not a valid HTTP request.\n"),
        (get("/é"), "400 Bad Request", "Not a valid HTTP request.\n"),
        (b"GET / HTTP/1.1\r\n", "400 Bad Request", "Not a valid HTTP request.\n"),
        (b"GET / HTTP/2\r\n\r\n", "400 Bad Request", "Not a valid HTTP request.\n"),
        (b"\x16\x03\x01" + b"x" * 100, "400 Bad Request", "Not a valid HTTP request.\n"),
        (b"", "400 Bad Request", "Not a valid HTTP request.\n"),
    ],
)
def test_each_request_has_its_answer(head: bytes, status: str, body: str) -> None:
    first, _, rest = answer(head, SHOWN, SITE).partition(b"\r\n")
    assert first.decode() == f"HTTP/1.1 {status}"
    assert rest.partition(b"\r\n\r\n")[2].decode() == body


@pytest.mark.parametrize(
    "target", ["/", "/v1/account?a=b", "//evil.test/", "/\\evil.test", "/%0d%0aX:y", "/@evil.test"]
)
def test_people_are_sent_on(target: str) -> None:
    head = answer(get(target), SHOWN, SITE).partition(b"\r\n\r\n")[0].decode().split("\r\n")
    assert head[0] == "HTTP/1.1 308 Permanent Redirect"
    assert [line for line in head if line.startswith("Location:")] == [f"Location: {SITE}{target}"]
    assert len(head) == 5


def test_without_https_there_is_no_redirect() -> None:
    assert answer(get("/"), SHOWN, "").startswith(b"HTTP/1.1 404 ")


async def started(nursery: trio.Nursery, server: ChallengeServer) -> int:
    (url,) = await nursery.start(server.serve, (Endpoint("127.0.0.1", 0),))
    return int(url.rpartition(":")[2])


async def asked(port: int, head: bytes) -> bytes:
    received = b""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(head)
            async for part in stream:
                received += part
    return received


async def until(server: ChallengeServer, count: int) -> None:
    with trio.fail_after(CHALLENGE_TIMEOUT):
        for _ in iter(lambda: len(server.connections.open) == count, True):
            await trio.sleep(0.01)


async def test_tokens_come_and_go(nursery: trio.Nursery) -> None:
    server = ChallengeServer(SITE)
    port = await started(nursery, server)
    assert b"404 Not Found" in await asked(port, get(f"{CHALLENGE}/abc"))
    server.tokens["abc"] = "abc.print"
    assert (await asked(port, get(f"{CHALLENGE}/abc"))).endswith(b"\r\n\r\nabc.print")
    del server.tokens["abc"]
    assert b"404 Not Found" in await asked(port, get(f"{CHALLENGE}/abc"))


async def test_a_token_of_another_node_is_looked_up(nursery: trio.Nursery) -> None:
    asked_for: list[str] = []

    async def look_up(token: str) -> str | None:
        asked_for.append(token)
        return {"there": "there.print"}.get(token)

    server = ChallengeServer(SITE, {"here": "here.print"}, look_up=look_up)
    port = await started(nursery, server)
    assert (await asked(port, get(f"{CHALLENGE}/there"))).endswith(b"\r\n\r\nthere.print")
    assert b"404 Not Found" in await asked(port, get(f"{CHALLENGE}/nowhere"))
    assert asked_for == ["there", "nowhere"]
    assert (await asked(port, get(f"{CHALLENGE}/here"))).endswith(b"\r\n\r\nhere.print")
    for head in (get(f"{CHALLENGE}/"), get(f"{CHALLENGE}/a.b"), get("/"), get(f"{CHALLENGE}/there", "POST"), b"GET"):
        await asked(port, head if head.endswith(b"\r\n\r\n") else head + b" " * SHORT_HEAD_BYTES)
    assert asked_for == ["there", "nowhere"]


async def test_idle_clients_do_not_keep_the_authority_out(nursery: trio.Nursery) -> None:
    server = ChallengeServer(SITE, {"abc": "abc.print"}, ConnectionTable(3, 3))
    port = await started(nursery, server)
    slow = [await trio.open_tcp_stream("127.0.0.1", port, local_address=f"127.0.0.{n}") for n in (2, 3, 4)]
    await until(server, len(slow))
    assert (await asked(port, get(f"{CHALLENGE}/abc"))).endswith(b"\r\n\r\nabc.print")
    with trio.fail_after(CHALLENGE_TIMEOUT):
        assert await slow[0].receive_some() == b""
    for stream in slow:
        await stream.aclose()


async def test_slow_and_many_clients_are_cut(nursery: trio.Nursery) -> None:
    server = ChallengeServer(SITE, {"abc": "abc.print"}, timeout=0.5)
    port = await started(nursery, server)
    slow = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(CONNECTIONS_PER_ADDRESS)]
    for stream in slow:
        await stream.send_all(b"GET / HTTP")
    await until(server, CONNECTIONS_PER_ADDRESS)
    assert await asked(port, get("/")) == b""  # turned away unread
    with trio.fail_after(CHALLENGE_TIMEOUT):
        assert [await stream.receive_some() for stream in slow] == [b""] * len(slow)
    assert (await asked(port, get(f"{CHALLENGE}/abc"))).endswith(b"abc.print")
    for stream in slow:
        await stream.aclose()


async def test_a_flood_is_not_read(nursery: trio.Nursery) -> None:
    port = await started(nursery, ChallengeServer(SITE))
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\n" + b"X" * (SHORT_HEAD_BYTES - 16))
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 400 ")
    assert b"308 Permanent" in await asked(port, get("/"))


async def test_clients_that_leave_at_once_do_no_harm(nursery: trio.Nursery) -> None:
    server = ChallengeServer(SITE)
    port = await started(nursery, server)
    for _ in range(CONNECTIONS_PER_ADDRESS * 3):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        await stream.aclose()
    await until(server, 0)
    assert b"308 Permanent" in await asked(port, get("/"))
