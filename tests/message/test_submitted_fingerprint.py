"""Retries over SMTP: which messages are the same message again, and which are another."""

from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.policy import SMTP
from email.utils import make_msgid

import pytest

from appliance.message.submitted import read
from tests.cpu_time import cpu_seconds
from tests.message.submissions import FIELDS, message

KEY = b"Idempotency-Key: k"
TO = ("ada@example.net", "grace@example.net")


def fingerprint_of(data: bytes, sender: str = "shop@example.com", recipients: tuple[str, ...] = TO) -> bytes:
    return read(sender, recipients, data).fingerprint


FIRST = message(KEY, b"X-Order: 1")


@pytest.mark.parametrize(
    "again",
    [
        FIRST,
        message(KEY, b"X-Order: 1", without=[b"Date", b"Message-ID"]),
        FIRST.replace(b"05:43:34", b"05:44:00").replace(b"<1@", b"<2@"),
        b"Received: from app by relay; now\r\nReturn-Path: <x@y.z>\r\n" + FIRST,
        b"DKIM-Signature: v=1; t=2\r\nBcc: grace@example.net\r\n" + FIRST,
        FIRST.replace(b"From:", b"FROM:"),
    ],
)
def test_what_a_client_varies_does_not_count(again: bytes) -> None:
    """Date, Message-ID, traces, signatures and what is taken out anyway may differ between a message and its retry."""
    assert fingerprint_of(again) == fingerprint_of(FIRST)


@pytest.mark.parametrize(
    "other",
    [
        FIRST.replace(b"Hi", b"Ho"),
        FIRST.replace(b"X-Order: 1", b"X-Order: 2"),
        FIRST.replace(b"Subject: Hello", b"Subject: Hallo"),
        FIRST + b"\r\n",
        message(KEY),
        message(KEY, b"X-Order: 1", b"X-Order: 1"),
        message(KEY, b"X-Order: 1", b"Content-Type: text/html"),
    ],
)
def test_everything_else_counts(other: bytes) -> None:
    assert fingerprint_of(other) != fingerprint_of(FIRST)


def test_boundaries_of_long_messages_do_not_count() -> None:
    def parts(boundary: bytes, words: bytes = b"words") -> bytes:
        part = b"--%b\r\nContent-Type: text/plain\r\n\r\n%b\r\n" % (boundary, words * 150)
        header = message(KEY, b'Content-Type: multipart/mixed; boundary="%b"' % boundary).partition(b"\r\n\r\n")[0]
        return b"%b\r\n\r\n%b--%b--\r\n" % (header, part * 500, boundary)

    first = fingerprint_of(parts(b"first"))
    assert len(parts(b"first")) > 300_000
    assert fingerprint_of(parts(b"another-and-longer-one" * 3)) == first
    assert fingerprint_of(parts(b"first", b"wordy")) != first


def test_the_envelope_counts_as_a_set() -> None:
    assert fingerprint_of(FIRST, recipients=TO[::-1]) == fingerprint_of(FIRST)
    assert fingerprint_of(FIRST, recipients=("ADA@example.net", *TO)) == fingerprint_of(FIRST)
    assert fingerprint_of(FIRST, recipients=TO[:1]) != fingerprint_of(FIRST)
    assert fingerprint_of(FIRST, sender="other@example.com") != fingerprint_of(FIRST)


def generated(text: str = "Hi", file: str = "a") -> bytes:
    """A message as the standard library writes it anew at each retry, with boundaries and an id of its own."""
    inner = MIMEMultipart("alternative")
    inner.attach(MIMEText(text))
    inner.attach(MIMEText(f"<p>{text}</p>", "html"))
    outer = MIMEMultipart("mixed")
    outer.attach(inner)
    outer.attach(MIMEText(file, "csv"))
    outer["From"], outer["Message-ID"], outer["Idempotency-Key"] = "shop@example.com", make_msgid(), "k"
    return outer.as_bytes(policy=SMTP)


def test_a_message_that_is_written_anew_is_the_same() -> None:
    """Random multipart boundaries, nested ones too, do not make it another message; what the parts say does."""
    first, again = generated(), generated()
    assert first != again
    assert fingerprint_of(first) == fingerprint_of(again)
    assert fingerprint_of(generated(text="Ho")) != fingerprint_of(first)
    assert fingerprint_of(generated(file="b")) != fingerprint_of(first)


def test_a_text_that_speaks_of_boundaries_is_hashed_as_it_is() -> None:
    """Only a multipart has boundaries: in any other body nothing is taken out."""
    one, two = (b'boundary="%b"\r\n--%b\r\n' % (word, word) for word in (b"one", b"two"))
    assert fingerprint_of(message(KEY, body=one)) != fingerprint_of(message(KEY, body=two))


def test_fields_and_envelope_cannot_be_shifted_into_one_another() -> None:
    """What ends where is part of the fingerprint: a line of the header is never taken for one of the body."""
    prints = {
        fingerprint_of(message(KEY, b"X: y", body=b"z\r\n")),
        fingerprint_of(message(KEY, body=b"X: y\r\n\r\nz\r\n")),
        fingerprint_of(message(KEY, b"X: y", body=b"\r\nz\r\n")),
        fingerprint_of(b"\r\n".join(FIELDS) + b"\r\n" + KEY + b"\r\nX: y\r\n"),
    }
    assert len(prints) == 4


@pytest.mark.parametrize("piece", [b"boundary=", b'boundary="', b"boundary=a;", b"--a\r\n", b"boundary=\r\n"])
def test_a_body_full_of_boundaries_takes_no_time(piece: bytes) -> None:
    line = (piece * (900 // len(piece))).rstrip(b"\r\n") + b"\r\n"
    data = message(KEY, b"Content-Type: multipart/mixed; boundary=a", body=line * 1000)
    assert cpu_seconds(lambda: fingerprint_of(data)) < 0.5
