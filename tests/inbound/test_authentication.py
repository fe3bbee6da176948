"""DMARC: which results align with the From domain, what its record says, and what slow or hostile DNS does."""

import pytest
import trio

from appliance.inbound.authentication import (
    SECONDS,
    SenderChecks,
    authenticate,
    authenticate_from_cache,
    organizational,
)
from appliance.keys.dkim_keys import generate, record_value
from appliance.message.dkim import Algorithm, SigningKey, sign
from appliance.message.dkim_check import signatures_of
from appliance.message.received import read_received
from appliance.model.received import Authentication, ReceivedEnvelope
from tests.fakes.dns import Records, Trouble, ZoneResolver

KEY = generate(Algorithm.ED25519)
CLIENT = "192.0.2.1"


async def on_thread(work, *arguments):  # type: ignore[no-untyped-def]
    return work(*arguments)


def claims(envelope: ReceivedEnvelope, mime: bytes) -> SenderChecks:
    return SenderChecks(envelope, signatures_of(mime), read_received(mime).from_domains)


async def checked(
    sender: str, *signers: str, header: bytes = b"From: Ada <ada@example.co.uk>\r\n", **records: Records
) -> Authentication:
    """The result for a client that may send for every envelope, and these DKIM signers; the same from the cache."""
    zone: dict[str, dict[str, Records]] = {
        "example.co.uk": {"TXT": [f'"v=spf1 ip4:{CLIENT} -all"']},
        "bounces.example.co.uk": {"TXT": [f'"v=spf1 ip4:{CLIENT} -all"']},
        "other.example": {"TXT": [f'"v=spf1 ip4:{CLIENT} -all"']},
        **{f"s._domainkey.{name}": {"TXT": [f'"{record_value(KEY)}"']} for name in signers},
        **{name.replace("__", "."): {"TXT": text} for name, text in records.items()},
    }
    mime = header + b"Subject: x\r\n\r\nHi\r\n"
    mime = sign(mime, [SigningKey(name, "s", Algorithm.ED25519, KEY) for name in signers], now_seconds=1) + mime
    envelope = ReceivedEnvelope(sender, ("a@in.example.com",), CLIENT, "mx.example.net", False)
    resolver = ZoneResolver(zone)
    assert await authenticate_from_cache(resolver, claims(envelope, mime), 2_000_000, on_thread) is None
    result = await authenticate(resolver, claims(envelope, mime), 2_000_000, on_thread)
    asked = resolver.asked.copy()
    assert await authenticate_from_cache(resolver, claims(envelope, mime), 2_000_000, on_thread) == result
    assert resolver.asked == asked
    return result


POLICY = ['"v=DMARC1; p=reject; sp=quarantine"']


@pytest.mark.parametrize(
    ("sender", "signers", "record", "result"),
    [
        ("a@example.co.uk", (), POLICY, "pass"),
        ("a@bounces.example.co.uk", (), POLICY, "pass"),
        ("a@bounces.example.co.uk", (), ['"v=DMARC1; p=none; aspf=s"'], "fail"),
        ("a@other.example", (), POLICY, "fail"),
        ("a@other.example", ("mail.example.co.uk",), POLICY, "pass"),
        ("a@other.example", ("mail.example.co.uk",), ['"v=DMARC1; p=none; adkim=s"'], "fail"),
        ("a@other.example", ("other.example",), POLICY, "fail"),
        ("a@example.co.uk", (), ['"v=spf1 -all"'], "none"),
        ("a@example.co.uk", (), [*POLICY, '"v=DMARC1; p=none"'], "none"),
        ("a@example.co.uk", (), ['"v=DMARC1; p=wrong"'], "none"),
        ("a@example.co.uk", (), Trouble.SERVFAIL, "temperror"),
    ],
)
async def test_dmarc(sender: str, signers: tuple[str, ...], record: Records, result: str) -> None:
    checks = await checked(sender, *signers, _dmarc__example__co__uk=record)
    assert checks.dmarc.result == result
    assert checks.spf.result == "pass"


async def test_the_policy_of_a_subdomain() -> None:
    header = b"From: a@news.example.co.uk\r\n"
    checks = await checked("a@example.co.uk", header=header, _dmarc__example__co__uk=POLICY)
    assert (checks.dmarc.result, checks.dmarc.policy) == ("pass", "quarantine")


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"From: unknown\r\n",
        b"From: a@example.co.uk\r\nFrom: b@other.example\r\n",
        b"From: a@b.c, b@other.example\r\n",
    ],
)
async def test_a_message_without_one_from_domain(header: bytes) -> None:
    envelope = ReceivedEnvelope("a@example.co.uk", (), CLIENT, "x", False)
    checks = await authenticate(ZoneResolver({}), claims(envelope, header + b"\r\nHi\r\n"), 1, on_thread)
    assert checks.dmarc.result == "permerror"


async def test_an_aligned_signature_decides_about_dkim() -> None:
    checks = await checked("a@other.example", "other.example", "example.co.uk", _dmarc__example__co__uk=POLICY)
    assert checks.dkim_result == "pass"
    assert [(check.aligned, check.result) for check in checks.dkim] == [(False, "pass"), (True, "pass")]
    only_foreign = await checked("a@other.example", "other.example", _dmarc__example__co__uk=POLICY)
    assert (only_foreign.dkim_result, only_foreign.dmarc.result) == ("pass", "fail")


class SilentResolver(ZoneResolver):
    async def lookup(self, name: str, kind: str):  # type: ignore[no-untyped-def]
        await trio.sleep_forever()


async def test_silent_dns_servers_delay_a_message_for_seconds(autojump_clock: trio.testing.MockClock) -> None:
    mime = sign(
        b"From: a@example.net\r\n\r\nHi\r\n", [SigningKey("example.net", "s", Algorithm.ED25519, KEY)], now_seconds=1
    )
    mime += b"From: a@example.net\r\n\r\nHi\r\n"
    began, envelope = trio.current_time(), ReceivedEnvelope("a@example.net", (), CLIENT, "x", False)
    checks = await authenticate(SilentResolver({}), claims(envelope, mime), 1, on_thread)
    assert trio.current_time() - began == SECONDS
    assert {checks.spf.result, checks.dkim_result, checks.dmarc.result} == {"temperror"}


def test_organizational_domains() -> None:
    names = {
        "a.b.example.co.uk": "example.co.uk",
        "example.com": "example.com",
        "com": "",
        "a.github.io": "a.github.io",
    }
    assert {name: organizational(name) for name in names} == names
