"""MTA-STS in mode enforce (RFC 8461): a good certificate or no mail at all."""

import ssl
from pathlib import Path

import pytest
import trio
import trustme

from tests.e2e.delivery.test_tls_is_used_and_recorded import context, trusted
from tests.e2e.delivery.world import World, delays, world
from tests.fakes.mx import EXTENSIONS, FakeMx

POLICY = "version: STSv1\r\nmode: enforce\r\nmx: mx0.{domain}\r\nmax_age: 86400\r\n"
HTTPS_PORT = 443  # by the RFC, and so not a setting: who may not listen there cannot run this


async def publish_policy(made: World, authority: trustme.CA, domain: str) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(f"mta-sts.{domain}").configure_cert(tls)
    body = POLICY.format(domain=domain).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def serve(plain: trio.SocketStream) -> None:
        stream = trio.SSLStream(plain, tls, server_side=True, https_compatible=True)
        try:
            await stream.receive_some(16_384)
            await stream.send_all(head + body)
        except trio.BrokenResourceError:
            pass
        await trio.aclose_forcefully(stream)

    address = await made.host(f"mta-sts.{domain}", None)
    try:
        listeners = await trio.open_tcp_listeners(HTTPS_PORT, host=address)
    except PermissionError:
        pytest.skip("the HTTPS port may not be listened on here")
    made.nursery.start_soon(trio.serve_listeners, serve, listeners)
    made.publish(f"_mta-sts.{domain}", TXT=['"v=STSv1; id=1;"'])


async def test_an_enforced_policy_is_never_met_with_plaintext(tmp_path: Path) -> None:
    """No TLS, a stranger's or a mismatched certificate: deferred, nothing sent; a good one: delivered."""
    authority, setting = trusted(tmp_path)
    async with world(tmp_path, setting, delays("1h")) as made:
        servers = {
            "plain": FakeMx(EXTENSIONS),
            "stranger": FakeMx(tls=context(trustme.CA(), "mx0.stranger.test")),
            "mismatched": FakeMx(tls=context(authority, "mx0.other.test")),
            "refusing": FakeMx(
                tls=context(authority, "mx0.refusing.test"), answers={"STARTTLS": b"454 4.7.0 not now\r\n"}
            ),
            "good": FakeMx(tls=context(authority, "mx0.good.test")),
        }
        sent = {}
        for name, server in servers.items():
            await publish_policy(made, authority, f"{name}.test")
            await made.domain(f"{name}.test", server)
            sent[name] = await made.send(f"ada@{name}.test")
        await made.tried(*sent.values())
        for name, message in sent.items():
            good = name == "good"
            assert made.recipient(message).status == ("delivered" if good else "deferred"), name
            assert len(servers[name].messages) == good, name
            assert any(command.startswith("MAIL") for command in servers[name].commands) is good, name
        (attempt,) = made.attempts(sent["good"])
        assert (attempt.tls or "").endswith(", verified by MTA-STS")
