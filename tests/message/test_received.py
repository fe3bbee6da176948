"""Reading received messages: mailboxes, ids, automatic mail, and limits that hostile mail cannot pass."""

import pytest

from appliance.message.received import (
    BODY_BYTES,
    LOOP_HOPS,
    MAILBOXES,
    MESSAGE_IDS,
    domain_of,
    read_received,
    split_mailboxes,
)
from tests.cpu_time import cpu_seconds


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a@b.c", ["a@b.c"]),
        ("Ada <a@b.c>, Bob <b@b.c>", ["Ada <a@b.c>", "Bob <b@b.c>"]),
        ('"Doe, Jo" <a@b.c>, b@b.c', ['"Doe, Jo" <a@b.c>', "b@b.c"]),
        ('"Ada" <a@b.c>', ["Ada <a@b.c>"]),
        ("=?utf-8?q?Doe=2C_J=C3=BC?= <a@b.c>", ["Doe, Jü <a@b.c>"]),
        ("a@b.c (x, y), b@b.c", ["a@b.c (x, y)", "b@b.c"]),
        ("undisclosed-recipients:;", []),
        ('"open <a@b.c', ['"open <a@b.c']),
        ("", []),
    ],
)
def test_mailboxes(text: str, shown: list[str]) -> None:
    assert list(read_received(f"To: {text}\r\n\r\n".encode()).to) == shown


@pytest.mark.parametrize(
    ("mailbox", "domain"),
    [
        ("Ada <a@Example.NET>", "example.net"), ("a@example.net (b@c.d)", "example.net"),
        ("a@bücher.example", "xn--bcher-kva.example"),
        ("<a@b.c> <d@e.f>", "e.f"), ("unknown", ""), ("a@", ""), ("a@" + "x" * 300, ""),
    ],
)  # fmt: skip
def test_the_domain_of_a_mailbox(mailbox: str, domain: str) -> None:
    assert domain_of(mailbox) == domain


def test_all_from_fields_count() -> None:
    assert read_received(b"From: a@b.c\r\nfrom: d@e.f, g@h.i\r\n\r\nFrom: x@y.z\r\n").from_domains == ("b.c", "e.f")


@pytest.mark.parametrize(
    ("header", "automatic"),
    [
        ("Auto-Submitted: no", False),
        ("Auto-Submitted: auto-replied (vacation)", True),
        ("Auto-Submitted: auto-generated; x=y", True),
        ("Precedence: auto_reply", True),
        ("Precedence: bulk", False),
        ("X-Autoreply: yes", True),
        ('Content-Type: multipart/report; boundary="x"', True),
        ("Delivered-To: a@in.example.com", True),
        ("Delivered-To: b@in.example.com", False),
        ("\r\n".join(["Received: by x"] * LOOP_HOPS), False),
        ("\r\n".join(["Received: by x"] * (LOOP_HOPS + 1)), True),
    ],
)
def test_automatic_mail_and_loops(header: str, automatic: bool) -> None:
    mime = f"{header}\r\n\r\nHi\r\n".encode()
    assert read_received(mime, ["A@in.example.com"]).auto_submitted is automatic
    assert read_received(mime, null_sender=True).auto_submitted


def test_ids() -> None:
    references = " ".join(f"<{number}@b.c>" for number in range(3 * MESSAGE_IDS))
    content = read_received(
        f"Message-ID: <m@b.c>\r\nIn-Reply-To: <r@b.c> x\r\nReferences: {references}\r\n\r\n".encode()
    )
    assert (content.message_id, content.in_reply_to) == ("m@b.c", "r@b.c")
    assert content.answered_ids[:2] == ("r@b.c", f"{3 * MESSAGE_IDS - 1}@b.c")
    assert len(content.answered_ids) == MESSAGE_IDS
    assert read_received(b"\r\n").message_id is None


def test_bodies_are_cut_at_a_character() -> None:
    content = read_received(("Content-Type: text/plain; charset=utf-8\r\n\r\n" + "x" + "ü" * BODY_BYTES).encode())
    assert content.truncated
    assert content.text is not None
    assert BODY_BYTES - 2 < len(content.text.encode()) <= BODY_BYTES
    assert content.text.strip("ü") == "x"
    whole = read_received(b"\r\nHi\x00\x07\r\n")
    assert (whole.text, whole.truncated) == ("Hi\ufffd\ufffd\r\n", False)


@pytest.mark.parametrize(
    "text", ["<" * 300_000, '"' * 300_000, "(" * 300_000, "a@b," * 80_000, '\\"' * 150_000, "=?utf-8?q?" * 30_000]
)
def test_a_hostile_field_is_cheap(text: str) -> None:
    assert len(split_mailboxes(text)) <= MAILBOXES
    mime = f"From: {text}\r\nTo: {text}\r\nReferences: {text}\r\n\r\n".encode()
    assert cpu_seconds(lambda: read_received(mime), tries=2) < 1
