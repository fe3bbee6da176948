"""Submitted messages made to do harm: checked in bounded time, and refused at worst."""

from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest

from appliance.deliver.smtp.sending import prepare
from appliance.errors import Refused
from appliance.keys.dkim_keys import generate
from appliance.message.addresses import parse
from appliance.message.characters import fault_in_line
from appliance.message.dkim import Algorithm, SigningKey, sign
from appliance.message.submitted import read, write
from tests.cpu_time import cpu_seconds
from tests.message.samples import HOSTILE, NOON
from tests.message.submissions import HOST, ID, message

SEED = 4711
ROUNDS = 6_000
MEGABYTE = 1_000_000
KEY = SigningKey("example.com", "s", Algorithm.ED25519, generate(Algorithm.ED25519))

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
