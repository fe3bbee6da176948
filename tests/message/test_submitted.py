"""Submitted messages: what is refused, what is read, and that all the rest passes through unchanged."""

import email
import email.policy
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.deliver.smtp.sending import prepare
from appliance.errors import Code, Refused
from appliance.keys.dkim_keys import generate
from appliance.message import limits
from appliance.message.dkim import Algorithm, SigningKey, sign
from tests.message.samples import NOON
from tests.message.submissions import BODY, FIELDS, HOST, ID, bodies, header, message, submission, written

RECEIVED = f"Received: by {HOST} (appliance) with ESMTPSA\r\n id {ID}; Tue, 14 Nov 2023 22:13:20 +0000\r\n".encode()
DATE = b"Date: Tue, 14 Nov 2023 22:13:20 +0000\r\n"
MESSAGE_ID = b"Message-ID: <" + ID.removeprefix("msg_").encode() + b"@example.com>\r\n"
REMOVED = (b"bcc", b"resent-bcc", b"return-path", b"idempotency-key")


def refusal(data: bytes, **envelope: object) -> Refused:
    with pytest.raises(Refused) as refused:
        submission(data, **envelope)  # type: ignore[arg-type]
    assert refused.value.text.isascii()  # it becomes an SMTP reply
    assert len(refused.value.text) < 400
    return refused.value


# ---- what is refused


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (message(body=b"a\nb\r\n"), "message: contains a bare CR or LF"),
        (message(body=b"a\rb\r\n"), "message: contains a bare CR or LF"),
        (message(body=b"\n.\r\nMAIL FROM:<x@y.z>\r\n"), "message: contains a bare CR or LF"),
        (message(b"X: a\nBcc: x"), "message: contains a bare CR or LF"),
        (message(body=b"a\r"), "message: contains a bare CR or LF"),
        (message(body=b"a\0b\r\n"), "message: contains a NUL"),
        (message(body=b"x" * 999 + b"\r\n"), "message: line 7 is longer than 998 octets"),
        (message(b"X: " + b"x" * 996), "message: line 6 is longer than 998 octets"),
        (message(b"X: \x0b"), "header: contains a control character"),
        (message(b"X: \x7f"), "header: contains a control character"),
        (message(b"X: \xff"), "header: contains 8-bit text that is not UTF-8"),
        (message(b"X: \xed\xa0\x80"), "header: contains 8-bit text that is not UTF-8"),
        (message("X: \x85".encode()), "header: contains a control character or a Unicode line break"),
        (message("X: \u2028".encode()), "header: contains a control character or a Unicode line break"),
        (message(b"no colon here"), "header: line 6 is neither a field nor the continuation of one"),
        (message(b"Bcc : x@example.org"), "header: line 6 has a field name with a space"),
        (message(b"B cc: x@example.org"), "header: line 6 has a field name with a space"),
        (message(b": x"), "header: line 6 has a field name"),
        (message("Ünique: x".encode()), "header: line 6 has a field name"),
        (message(b"X: a", b" \t"), "header: line 7 contains only spaces"),
        (message(b"X: a", b"  ", b" b"), "header: line 7 contains only spaces"),
        (b" " + message(), "header: line 1 begins with a space"),
        (b"From shop Mon Nov 13 2026\r\n" + message(), "header: line 1 is neither a field"),
        (message(without=[b"From"]), "From: this field is required"),
        (b"", "From: this field is required"),
        (b"\r\n" + message(), "From: this field is required"),
        (b"\r\n\r\nx", "From: this field is required"),
        (message(b"from: Shop <shop@example.com>"), "from: this field may occur only once"),
        (message(b"From: a@example.com, b@example.com", without=[b"From"]), "From: expected one mailbox"),
        (message(b"Date:", without=[b"Date"]), "Date: must not be empty"),
        (message(b"Message-ID: 1@example.com", without=[b"Message-ID"]), "Message-ID: expected one"),
        (message(b"Message-ID: <1> <2>", without=[b"Message-ID"]), "Message-ID: expected one"),
        (message(b"Message-ID:", without=[b"Message-ID"]), "Message-ID: expected one"),
        (message(b"X-Service-Tag: " + b"t" * 65), "X-Service-Tag: a tag has 1 to 64"),
        (message("X-Service-Tag: é".encode()), "X-Service-Tag: a tag has 1 to 64"),
        (message(b"X-Service-Tag: a,, b"), "X-Service-Tag: a tag has 1 to 64"),
        (message(b"X-Service-Tag: " + b"a, " * 20 + b"a"), "tags: at most 20"),
        (message(b"X-Service-Tag: a", *[b"X-Service-Tag: b%d" % n for n in range(20)]), "tags: at most 20"),
        (message(b"X-Service-Tag: a" + b",\r\n a" * 1000), "X-Service-Tag: must have at most"),
        (message(b"Idempotency-Key: "), "Idempotency-Key: must be 1 to 255"),
        (message(b"Idempotency-Key: " + b"k" * 256), "Idempotency-Key: must be 1 to 255"),
        (message("Idempotency-Key: é".encode()), "Idempotency-Key: must be 1 to 255"),
        (message(b"Idempotency-Key: a\tb"), "Idempotency-Key: must be 1 to 255"),
        (message(b"Idempotency-Key: a", b"idempotency-key: a"), "idempotency-key: this field may occur only once"),
        (message(*[b"Received: from x"] * 101), "Received: the message has passed more than 100 servers"),
        (message(*[b"X: y"] * 1000), "header: has more than 1000 fields"),
        (message(*[b"X: y"] * 5000), "header: has more than 256 KiB or 5000 lines"),
        (message(*[b"X: " + b"y" * 900] * 300), "header: has more than 256 KiB or 5000 lines"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(data: bytes, words: str) -> None:
    refused = refusal(data)
    assert refused.code is Code.INVALID_REQUEST
    assert refused.text.startswith(words)


@pytest.mark.parametrize(
    "name",
    ["From", "Sender", "Reply-To", "To", "Cc", "Subject", "Date", "Message-ID", "In-Reply-To", "References",
     "MIME-Version", "Content-Type", "Content-Transfer-Encoding"],
)  # fmt: skip
def test_two_of_what_may_stand_once_are_refused(name: str) -> None:
    """Readers take the first or the last of two, in whatever case they are written; so none is let through."""
    without = [name.encode()]
    given = b": <a@example.com>"
    assert submission(message(name.encode() + given, without=without))
    assert refusal(message(name.encode() + given, name.upper().encode() + given, without=without)).text == (
        f"{name.upper()}: this field may occur only once"
    )


def test_ten_mebibytes_are_allowed_and_no_byte_more() -> None:
    line = b"x" * 98 + b"\r\n"
    room = limits.MESSAGE_SIZE - len(message(body=b""))
    body = line * (room // 100) + b"y" * (room % 100 - 2) + b"\r\n"
    assert len(message(body=body)) == limits.MESSAGE_SIZE
    assert len(written(message(body=body))) > limits.MESSAGE_SIZE
    assert refusal(message(body=b"z" + body)).code is Code.PAYLOAD_TOO_LARGE


@pytest.mark.parametrize(
    ("sender", "recipients", "code", "words"),
    [
        ("", ["ada@example.net"], Code.FORBIDDEN, "MAIL FROM: the empty sender"),
        ("<>", ["ada@example.net"], Code.FORBIDDEN, "MAIL FROM: the empty sender"),
        ("shop", ["ada@example.net"], Code.INVALID_REQUEST, "MAIL FROM: an address needs an @"),
        ("Shop <shop@example.com>", ["ada@example.net"], Code.INVALID_REQUEST, "MAIL FROM: expected an address"),
        ("shop@example.com", [], Code.INVALID_REQUEST, "RCPT TO: a message needs a recipient"),
        ("shop@example.com", ["<ada@example.net>"], Code.INVALID_REQUEST, "RCPT TO: expected an address"),
        ("shop@example.com", ["ada@example.net\r\nDATA"], Code.INVALID_REQUEST, "RCPT TO: an address must not contain"),
        ("shop@example.com\0", ["ada@example.net"], Code.INVALID_REQUEST, "MAIL FROM: an address must not contain"),
        ("shop@example.com", ["ada\udcff@example.net"], Code.INVALID_REQUEST, "RCPT TO: an address must not contain"),
        ("shop@example.com", ['"a b"@example.net'], Code.INVALID_REQUEST, "RCPT TO: "),
        (
            "shop@example.com",
            [f"ada{number}@example.net" for number in range(51)],
            Code.INVALID_REQUEST,
            "RCPT TO: a message may have at most 50 unique recipients",
        ),
    ],
)
def test_a_wrong_envelope_is_refused(sender: str, recipients: Sequence[str], code: Code, words: str) -> None:
    refused = refusal(message(), sender=sender, recipients=recipients)
    assert refused.code is code
    assert refused.text.startswith(words)


# ---- what is read


def test_recipients_are_unique_by_their_keys() -> None:
    recipients = [f"Ada{number}@example.net" for number in range(50)] + ["ADA0@EXAMPLE.NET", "ada1@example.net"]
    found = submission(message(), recipients=recipients).recipients
    assert [address.spelling for address in found] == recipients[:50]


def test_from_subject_tags_and_key_are_read() -> None:
    """What the records show is what people read: decoded, unfolded, in order."""
    data = message(
        b"FROM: =?utf-8?q?Caf=C3=A9?=\r\n <shop@example.com>", b"sUBJECT:\r\n =?utf-8?b?4oKs?=\r\n 5 off",
        b"X-Service-Tag: order,eu", b"x-service-tag:\r\n a b\r\n c,  order", b"X-Service-Tag:",
        b"Idempotency-Key: a  b ",
        without=[b"From", b"Subject"],
    )  # fmt: skip
    read = submission(data)
    assert read.sender.text == "Café <shop@example.com>"
    assert read.subject == "€ 5 off"
    assert read.tags == ("order", "eu", "a b c")
    assert read.key == "a  b"


def test_a_message_without_subject_tags_and_key_has_none() -> None:
    read = submission(message(without=[b"Subject"]))
    assert (read.subject, read.tags, read.key, read.fingerprint) == ("", (), None, b"")


def test_a_long_subject_is_cut_for_the_record_only() -> None:
    data = message(b"Subject: " + b"\r\n ".join([b"x" * 60] * 100), without=[b"Subject"])
    assert len(submission(data).subject) == limits.SUBJECT_LENGTH
    assert written(data).endswith(data)


# ---- what is changed


def test_a_complete_message_only_gets_a_received_on_top() -> None:
    assert written(message()) == RECEIVED + message()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (message(without=[b"Date"]), RECEIVED + DATE + message(without=[b"Date"])),
        (message(without=[b"Message-ID"]), RECEIVED + MESSAGE_ID + message(without=[b"Message-ID"])),
        (
            message(b"Content-Type: text/html"),
            RECEIVED + b"MIME-Version: 1.0\r\n" + message(b"Content-Type: text/html"),
        ),
        (
            message(b"content-transfer-encoding: 8bit"),
            RECEIVED + b"MIME-Version: 1.0\r\n" + message(b"content-transfer-encoding: 8bit"),
        ),
        (
            message(b"mime-version: 1.0", b"Content-Type: text/html"),
            RECEIVED + message(b"mime-version: 1.0", b"Content-Type: text/html"),
        ),
        (message(b"Bcc: a@example.org,\r\n\tb@example.org\r\n c@example.org"), RECEIVED + message()),
        (message(b"BCC:", b"bcc: x", b"Resent-BCC:\r\n x"), RECEIVED + message()),
        (message(b"Return-Path: <x@example.org>"), RECEIVED + message()),
        (message(b"Idempotency-Key:\r\n k"), RECEIVED + message()),
        (message(b"X-Service-Tag: a"), RECEIVED + message(b"X-Service-Tag: a")),
        (message(b"X-Bcc: a"), RECEIVED + message(b"X-Bcc: a")),
        (b"From: shop@example.com", RECEIVED + DATE + MESSAGE_ID + b"From: shop@example.com\r\n"),
        (message(body=b"no end"), RECEIVED + message(body=b"no end\r\n")),
        (message(body=b""), RECEIVED + message(body=b"")),
        (message("X: é".encode()), RECEIVED.replace(b"ESMTPSA", b"UTF8SMTPSA") + message("X: é".encode())),
    ],
)
def test_missing_fields_are_added_and_private_ones_removed(data: bytes, expected: bytes) -> None:
    assert written(data) == expected


@given(header, bodies)
def test_everything_else_passes_byte_for_byte(fields: list[bytes], body: bytes) -> None:
    """Of any message, the fields that stay, in their order, and the body go on as they came."""
    data = b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body
    names = [field.partition(b":")[0].lower() for field in fields]
    kept = [field for field, name in zip(fields, names, strict=True) if name not in REMOVED]
    added = [RECEIVED if data[: data.find(b"\r\n\r\n")].isascii() else RECEIVED.replace(b"ESMTPSA", b"UTF8SMTPSA")]
    added += [] if b"date" in names else [DATE]
    added += [] if b"message-id" in names else [MESSAGE_ID]
    has_content = b"content-type" in names or b"content-transfer-encoding" in names
    added += [b"MIME-Version: 1.0\r\n"] if has_content and b"mime-version" not in names else []
    out = written(data)
    assert out == b"".join(added) + b"".join(field + b"\r\n" for field in kept) + b"\r\n" + body


@given(header, bodies)
def test_the_standard_library_reads_the_same_message(fields: list[bytes], body: bytes) -> None:
    data = b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body
    # compat32 parses lazily and keeps bytes: the other policies stumble over some headers on their own.
    before = email.message_from_bytes(data, policy=email.policy.compat32)
    after = email.message_from_bytes(written(data), policy=email.policy.compat32)
    assert after.get_payload(decode=False) == before.get_payload(decode=False)
    assert not {name.lower() for name in after} & {name.decode() for name in REMOVED}
    stay = [name for name in before if name.lower().encode() not in REMOVED]
    assert list(after.keys())[-len(stay) :] == stay


# ---- what comes after


KEY = SigningKey("example.com", "s", Algorithm.ED25519, generate(Algorithm.ED25519))


@given(header, bodies)
def test_whatever_is_accepted_can_be_signed_and_sent(fields: list[bytes], body: bytes) -> None:
    mime = written(b"".join(field + b"\r\n" for field in fields) + b"\r\n" + body)
    signature = sign(mime, [KEY], now_seconds=NOON)
    wire = b"".join(prepare(signature + mime).parts)
    assert wire.startswith(b"DKIM-Signature: ")
    assert (b"\r\n" + wire).find(b"\r\n.\r\n") == len(wire) - 3


@given(st.sampled_from([b"From: shop@example.com", *FIELDS]), bodies)
def test_a_message_can_be_split_nowhere_else(field: bytes, body: bytes) -> None:
    """A body that looks like a header stays a body: the first empty line decides."""
    data = message(body=b"Bcc: x@example.org\r\n" + field + b"\r\n\r\n" + body)
    assert written(data) == RECEIVED + data


def test_a_submission_does_not_show_the_message() -> None:
    assert repr(submission(message(body=BODY))) == f"SubmittedMessage(size={len(message())})"
