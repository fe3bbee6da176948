"""Submitted messages: what is refused, what is read, and that all the rest passes through unchanged."""

import email
import email.policy
from collections.abc import Iterator, Sequence
from contextlib import suppress
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from email.policy import SMTP
from email.utils import make_msgid
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.deliver.smtp.sending import prepare
from appliance.errors import Code, Refused
from appliance.keys.dkim_keys import generate
from appliance.message import limits
from appliance.message.addresses import parse
from appliance.message.characters import fault_in_line
from appliance.message.dkim import Algorithm, SigningKey, sign
from appliance.message.submitted import read, write
from tests.cpu_time import cpu_seconds
from tests.message.samples import HOSTILE, NOON
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


KEYED = b"Idempotency-Key: k"
TO = ("ada@example.net", "grace@example.net")


def fingerprint_of(data: bytes, sender: str = "shop@example.com", recipients: tuple[str, ...] = TO) -> bytes:
    return read(sender, recipients, data).fingerprint


FIRST = message(KEYED, b"X-Order: 1")


@pytest.mark.parametrize(
    "again",
    [
        FIRST,
        message(KEYED, b"X-Order: 1", without=[b"Date", b"Message-ID"]),
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
        message(KEYED),
        message(KEYED, b"X-Order: 1", b"X-Order: 1"),
        message(KEYED, b"X-Order: 1", b"Content-Type: text/html"),
    ],
)
def test_everything_else_counts(other: bytes) -> None:
    assert fingerprint_of(other) != fingerprint_of(FIRST)


def test_boundaries_of_long_messages_do_not_count() -> None:
    def parts(boundary: bytes, words: bytes = b"words") -> bytes:
        part = b"--%b\r\nContent-Type: text/plain\r\n\r\n%b\r\n" % (boundary, words * 150)
        header = message(KEYED, b'Content-Type: multipart/mixed; boundary="%b"' % boundary).partition(b"\r\n\r\n")[0]
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
    assert fingerprint_of(message(KEYED, body=one)) != fingerprint_of(message(KEYED, body=two))


def test_fields_and_envelope_cannot_be_shifted_into_one_another() -> None:
    """What ends where is part of the fingerprint: a line of the header is never taken for one of the body."""
    prints = {
        fingerprint_of(message(KEYED, b"X: y", body=b"z\r\n")),
        fingerprint_of(message(KEYED, body=b"X: y\r\n\r\nz\r\n")),
        fingerprint_of(message(KEYED, b"X: y", body=b"\r\nz\r\n")),
        fingerprint_of(b"\r\n".join(FIELDS) + b"\r\n" + KEYED + b"\r\nX: y\r\n"),
    }
    assert len(prints) == 4


@pytest.mark.parametrize("piece", [b"boundary=", b'boundary="', b"boundary=a;", b"--a\r\n", b"boundary=\r\n"])
def test_a_body_full_of_boundaries_takes_no_time(piece: bytes) -> None:
    line = (piece * (900 // len(piece))).rstrip(b"\r\n") + b"\r\n"
    data = message(KEYED, b"Content-Type: multipart/mixed; boundary=a", body=line * 1000)
    assert cpu_seconds(lambda: fingerprint_of(data)) < 0.5


SEED = 4711
ROUNDS = 6_000
MEGABYTE = 1_000_000

WHOLE = message(
    b"Received: from a\r\n\tby b", b"Bcc: x@example.org", b"Resent-Bcc:\r\n y@example.org", b"X-Service-Tag: a, b",
    b"Idempotency-Key: k-1", b"Return-Path: <x@example.org>", b"MIME-Version: 1.0", b"Reply-To: =?utf-8?q?a?= <a@b.c>",
    b"Content-Type: multipart/mixed;\r\n boundary=\"=_b\"; name*0*=utf-8''a%0D%0A; name*1=b", b"X: =?utf-8?b?w6k=?=",
    body=b'--=_b\r\nContent-Type: text/plain; charset="x"\r\n\r\n.\r\n\xc3\xa9\r\n--=_b--\r\n',
)  # fmt: skip
PIECES = [
    *(text.encode() for text in HOSTILE), b"From: evil@example.org\r\n", b"\r\n\r\n", b"\r\n ", b"\r\n\t", b":", b" :",
    b"=?utf-8?q?", b"?=", b"=?gb18030?b?", b"\xff", b"\xc3", b"\xe2\x80\xa8", b"x" * 1000, b"boundary=", b"\r\n.\r\n",
    b"Date:\r\n", b"Message-ID: x\r\n", b"Subject: =?iso-2022-jp?b?GyRC?=\r\n", b"<", b">", b"@", b"(", b"\\",
    b"utf-8*en",
]  # fmt: skip


def mutated(chance: Random) -> bytes:
    data = WHOLE
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(data) + 1)
        end = min(len(data), start + chance.choice((0, 0, 1, 2, 10, 80)))
        kept = data[start:end]
        data = data[:start] + chance.choice((b"", kept * 2, chance.choice(PIECES), chance.randbytes(2))) + data[end:]
    return data


def test_nothing_but_a_refusal_comes_of_a_broken_message() -> None:
    chance, accepted = Random(SEED), 0
    refusals: list[str] = []
    for _ in range(ROUNDS):
        data = mutated(chance)
        try:
            submission = read("shop@example.com", ["ada@example.net"], data)
        except Refused as refused:
            refusals.append(refused.text)
            continue
        accepted += 1
        mime = write(submission, message_id=ID, now_seconds=NOON, hostname=HOST)
        prepare(sign(mime, [KEY], now_seconds=NOON) + mime)
        header = mime[: mime.find(b"\r\n\r\n")].lower()
        assert b"\r\nbcc:" not in header
        assert b"\r\nresent-bcc:" not in header
        assert b"\r\nidempotency-key:" not in header
        assert header.count(b"\r\nfrom:") == 1
        assert fault_in_line(submission.subject) is None
        assert parse(submission.sender.text, "from").wire == submission.sender.wire
    assert all(text.isascii() and len(text) < 400 for text in refusals)
    assert ROUNDS // 10 < accepted < ROUNDS * 9 // 10  # both ways are walked


def hostile() -> Iterator[tuple[str, bytes]]:
    yield "one field of a megabyte, folded", message(b"X: a" + b"\r\n b" * (MEGABYTE // 4))
    yield "a subject of many words", message(b"Subject: " + b"\r\n =?utf-8?q?a?=" * 4_900, without=[b"Subject"])
    yield "a hundred thousand fields", message(*[b"X: y"] * 100_000)
    yield "a thousand fields of tags", message(*[b"X-Service-Tag:"] * 990)
    yield "tags in one field", message(b"X-Service-Tag: " + b"\r\n ,".join([b"," * 900] * 280))
    yield "header lines that are no fields", (b"x" * 998 + b"\r\n") * 260
    yield "names without end", (b"x" * 997 + b":\r\n") * 260
    yield "colons only", (b":" * 998 + b"\r\n") * 260
    yield "spaces only", message(b"X:" + b"\r\n" + b" " * 998)
    yield "ten megabytes without a body", (b"X: " + b"y" * 900 + b"\r\n") * 11_000
    yield "ten megabytes of empty lines", message(body=b"\r\n" * 5_000_000)
    yield "ten megabytes of CR", message(body=b"\r" * 10_000_000)
    yield "ten megabytes in one line", message(body=b"x" * 10_000_000)
    yield "many boundaries", message(b"Idempotency-Key: k", b"Content-Type: multipart/mixed; boundary=a",
                                     body=b"--a\r\nContent-Type: multipart/x; boundary=ab\r\n" * 200_000)  # fmt: skip
    yield "a From of brackets", message(b"From: " + b"(" * 900 + b"\r\n " + b"<" * 900, without=[b"From"])
    yield "references", message(b"References:" + b"\r\n <a@b>" * 4_000)


def check(data: bytes) -> None:
    with suppress(Refused):
        submission = read("shop@example.com", ["ada@example.net"], data)
        write(submission, message_id=ID, now_seconds=NOON, hostname=HOST)


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in hostile()])
def test_no_message_takes_long(data: bytes) -> None:
    assert cpu_seconds(lambda: check(data), tries=1) < 1.0


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in hostile() if len(data) < 256 * 1024])
def test_what_is_checked_on_the_event_loop_takes_milliseconds(data: bytes) -> None:
    assert cpu_seconds(lambda: check(data)) < 0.05
