"""An authority over real HTTPS: whom to believe, what to read, and what is said when it does not work."""

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field

import pytest
import trio
import trustme

from appliance.acme.issuance import RESPONSE_BYTES, AcmeRequest, Client, PublishToken, Step, Steps
from appliance.acme.messages import AcmeResponse, NotIssued
from appliance.environment import Environment
from tests.fakes.dns import Trouble, Zone, ZoneResolver

CA = trustme.CA()
NAME = "ca.test"


@dataclass
class Site:
    """A TLS server that says one thing to every client, once it has read a request."""

    says: bytes
    requests: list[bytes] = field(default_factory=list)
    port: int = 0

    async def serve(self, stream: "trio.SSLStream[trio.SocketStream]") -> None:
        try:
            data = bytes(await stream.receive_some())
            while b"\r\n\r\n" in data and int(_length(data)) > len(data.partition(b"\r\n\r\n")[2]):
                data += await stream.receive_some()
            self.requests.append(data)
            if self.says:
                await stream.send_all(self.says)
                await stream.aclose()
            else:
                await trio.sleep_forever()
        except (trio.BrokenResourceError, ssl.SSLError):
            pass


def _length(data: bytes) -> bytes:
    return data.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0"


@asynccontextmanager
async def site(says: bytes, authority: trustme.CA = CA) -> AsyncIterator[Site]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(NAME).configure_cert(context)
    made = Site(says)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_ssl_over_tcp_listeners(0, context, host="127.0.0.1")
        made.port = listeners[0].transport_listener.socket.getsockname()[1]  # type: ignore[attr-defined]
        nursery.start_soon(trio.serve_listeners, made.serve, listeners)
        yield made
        nursery.cancel_scope.cancel()


def client(zone: Zone | None = None) -> Client:
    context = ssl.create_default_context()
    CA.configure_trust(context)
    return Client(ZoneResolver({NAME: {"A": ["127.0.0.1"]}} if zone is None else zone), context, Environment())


def ask(url: str, body: bytes = b"") -> Steps[AcmeResponse]:
    return (yield AcmeRequest("POST" if body else "GET", url, body))


def answered(body: bytes = b"{}", more: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


async def fault(url: str, asking: Client | None = None) -> NotIssued:
    with pytest.raises(NotIssued) as caught:
        await (asking or client()).run(ask(url), {})
    return caught.value


async def test_an_answer_is_read() -> None:
    """Status, body, nonce, place and time to wait; and the request says what RFC 8555 wants it to say."""
    more = "Replay-Nonce: n1\r\nLocation: https://ca.test/x\r\nRetry-After: 7\r\n"
    async with site(answered(b'{"a": 1}', more)) as made:
        url = f"https://{NAME}:{made.port}/acme/order?x=1"
        found = await client().run(ask(url, b'{"signed": true}'), {})
    assert found == AcmeResponse(200, b'{"a": 1}', "n1", "https://ca.test/x", 7.0)
    head = made.requests[0].decode()
    assert head.startswith("POST /acme/order?x=1 HTTP/1.1\r\n")
    for line in (f"Host: {NAME}:{made.port}", "Content-Type: application/jose+json", "User-Agent: appliance/"):
        assert f"\r\n{line}" in head
    assert head.endswith('\r\n\r\n{"signed": true}')


async def test_an_authority_of_an_unknown_root_is_not_believed() -> None:
    async with site(answered(), trustme.CA()) as made:
        failed = await fault(f"https://{NAME}:{made.port}/")
    assert "the certificate of ca.test is not trusted" in str(failed)
    assert "acme.ca_file" in failed.advice
    assert not any(made.requests)


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (b"220 mail.example.com ESMTP\r\n", "cannot be reached"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", "cannot be reached"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, "cannot be reached"),
        (answered(b"x" * (RESPONSE_BYTES + 1)), f"it is over {RESPONSE_BYTES} bytes"),
        (b"", "no response within 0.5 s"),
    ],
)
async def test_what_is_no_answer(says: bytes, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not says:
        monkeypatch.setattr("appliance.acme.issuance.REQUEST_TIMEOUT", 0.5)
    async with site(says) as made:
        assert words in str(await fault(f"https://{NAME}:{made.port}/"))


@pytest.mark.parametrize("url", ["http://ca.test/", "https://", "ftp://ca.test/", "https://ca.test/\r\nX: y", "x"])
async def test_a_url_that_is_not_https_is_not_asked(url: str) -> None:
    assert "not https" in str(await fault(url))


@pytest.mark.parametrize("zone", [{}, {NAME: {}}, {NAME: {"A": Trouble.SERVFAIL, "AAAA": Trouble.SERVFAIL}}])
async def test_an_authority_without_an_address(zone: Zone) -> None:
    assert "ca.test cannot be reached" in str(await fault("https://ca.test/", client(zone)))


async def test_the_next_address_is_tried() -> None:
    async with site(answered()) as made:
        zone: Zone = {NAME: {"AAAA": ["::1"], "A": ["127.0.0.1"]}}
        assert (await client(zone).run(ask(f"https://{NAME}:{made.port}/"), {})).status == 200


async def test_nothing_listens_there() -> None:
    async with site(answered()) as made:
        url = f"https://127.0.0.1:{made.port}/"
    assert str(await fault(url)) == "127.0.0.1 cannot be reached: connection refused"


@pytest.mark.parametrize("end", ["well", "badly", "cancelled"])
async def test_tokens_are_shown_no_longer_than_needed(end: str, autojump_clock: trio.testing.MockClock) -> None:
    shown = {"other": "x"}
    seen: list[dict[str, str]] = []

    def steps() -> Iterator[Step]:
        yield PublishToken("t", "t.print")
        seen.append(dict(shown))
        yield 3600.0
        if end == "badly":
            raise NotIssued("no")

    with trio.move_on_after(60 if end == "cancelled" else 7200):
        try:
            await client().run(steps(), shown)  # type: ignore[arg-type]  # an iterator is enough of one
        except NotIssued:
            assert end == "badly"
    assert seen == [{"other": "x", "t": "t.print"}]
    assert shown == {"other": "x"}


@pytest.mark.parametrize("fails", [False, True])
async def test_others_know_a_token_before_the_authority_does(fails: bool) -> None:
    done: list[str] = []

    def steps() -> Iterator[Step]:
        yield PublishToken("t", "t.print")
        done.append("next step")
        yield 0.0

    async def publish(token: str, text: str) -> None:
        await trio.lowlevel.checkpoint()
        if fails:
            raise NotIssued("no")
        done.append(f"{token}: {text}")

    shown: dict[str, str] = {}
    with pytest.raises(NotIssued) if fails else nullcontext():
        await client().run(steps(), shown, publish)  # type: ignore[arg-type]  # an iterator is enough of one
    assert done == ([] if fails else ["t: t.print", "next step"])
    assert shown == {}
