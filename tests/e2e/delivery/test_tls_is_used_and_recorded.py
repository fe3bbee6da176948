"""Opportunistic TLS: used wherever it is offered, whatever the certificate; how far it was verified is on record."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trio
import trustme

from tests.e2e.delivery.world import World, delays, lines, world
from tests.fakes.mx import FakeMx, hang_up


def context(
    authority: trustme.CA, name: str, *, not_before: datetime | None = None, not_after: datetime | None = None
) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name, not_before=not_before, not_after=not_after).configure_cert(made)
    return made


def trusted(directory: Path) -> tuple[trustme.CA, str]:
    authority = trustme.CA()
    file = directory / "authority.pem"
    authority.cert_pem.write_to_path(str(file))
    return authority, f'ca_file = "{file}"'


async def delivered(made: World, domain: str, server: FakeMx) -> tuple[str, list[str]]:
    """Deliver one message to this server of a domain; the TLS on record, and the remarks in its dialogue."""
    await made.domain(domain, server)
    message = await made.send(f"ada@{domain}")
    await made.final(message)
    assert made.recipient(message).status == "delivered"
    assert len(server.messages) == 1
    (attempt,) = made.attempts(message)
    return attempt.tls or "plaintext", lines(attempt, "*")


async def test_tls_is_used_and_recorded(tmp_path: Path) -> None:
    """Good, expired, of another name, of a stranger: all are delivered to under TLS, and only the first is verified."""
    authority, setting = trusted(tmp_path)
    past = datetime.now(UTC) - timedelta(days=2)
    contexts = {
        "good": context(authority, "mx0.good.test"),
        "expired": context(authority, "mx0.expired.test", not_before=past - timedelta(days=30), not_after=past),
        "mismatched": context(authority, "mx0.another.test"),
        "stranger": context(trustme.CA(), "mx0.stranger.test"),
    }
    async with world(tmp_path, setting, delays("1h")) as made:
        for name, tls in contexts.items():
            record, _ = await delivered(made, f"{name}.test", FakeMx(tls=tls))
            assert record.startswith("TLSv1.3"), name
            good = record.endswith(", verified by PKIX")
            assert (good, "not verified" not in record) == ((name == "good"),) * 2, f"{name}: {record}"


async def test_a_broken_handshake_falls_back_to_plaintext(tmp_path: Path) -> None:
    """Nonsense or a closed connection instead of a handshake: delivered in the clear on a second one, and recorded."""

    async def nonsense(stream: trio.abc.Stream) -> None:
        await stream.send_all(b"220 2.0.0 go\r\n")
        await stream.receive_some(1000)
        await stream.send_all(b"This is not TLS at all, I am afraid.\r\n" * 10)
        await hang_up(stream)

    async def closing(stream: trio.abc.Stream) -> None:
        await stream.send_all(b"220 2.0.0 go\r\n")
        await hang_up(stream)

    any_context = context(trustme.CA(), "mx0.broken.test")
    async with world(tmp_path, delays("1h")) as made:
        for name, answer in (("nonsense", nonsense), ("closing", closing)):
            server = FakeMx(tls=any_context, answers={"STARTTLS": answer})
            record, remarks = await delivered(made, f"{name}.test", server)
            assert record == "plaintext"
            assert any("handshake" in remark for remark in remarks), f"{name}: {remarks}"
            assert server.sessions == 2
