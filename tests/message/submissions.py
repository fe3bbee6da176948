"""Submitted messages for tests: plain ones, generated ones, and how other readers parse them."""

from collections.abc import Sequence

from hypothesis import strategies as st

from appliance.message.submitted import SubmittedMessage, read, write
from tests.message.samples import NOON

HOST = "mail.example.com"
ID = "msg_19811c37dea64357d92fc2c378b44320"
FIELDS = (
    b"From: Shop <shop@example.com>",
    b"To: Ada <ada@example.net>",
    b"Subject: Hello",
    b"Date: Sun, 15 Nov 2026 05:43:34 +0000",
    b"Message-ID: <1@example.com>",
)
BODY = b"Hi\r\n"


def message(*fields: bytes, without: Sequence[bytes] = (), body: bytes = BODY) -> bytes:
    """A message that is fine, with further fields at its end, or without some of its own."""
    kept = [field for field in FIELDS if field.partition(b":")[0] not in without]
    return b"".join(field + b"\r\n" for field in (*kept, *fields)) + b"\r\n" + body


def submission(
    data: bytes, sender: str = "shop@example.com", recipients: Sequence[str] = ("ada@example.net",)
) -> SubmittedMessage:
    return read(sender, recipients, data)


def written(data: bytes) -> bytes:
    return write(submission(data), message_id=ID, now_seconds=NOON, hostname=HOST)


# ---- generated messages

octets = st.sampled_from(
    [b"a", b"B", b" ", b"\t", b":", b".", b"-", b"=", b"\xc3\xa9", b"\xff", b"\x80", b"\x1b", b"<"]
)
body_line = st.one_of(
    st.lists(octets, max_size=12).map(b"".join),
    st.sampled_from([b"", b".", b"..", b"From x", b"Bcc: x@example.org", b"--b", b"x" * 998, b" ", b"Subject: no"]),
)
bodies = st.lists(body_line, max_size=8).map(lambda lines: b"".join(line + b"\r\n" for line in lines))

_text = st.text('abc:;,<>()@"\\=? é漢.', max_size=20).map(str.encode)
_folded = st.lists(_text, min_size=1, max_size=4).map(
    lambda parts: parts[0] + b"".join(b"\r\n\t" + part + b"x" for part in parts[1:])
)
_names = st.sampled_from(
    [b"X-Mailer", b"x_odd!name", b"List-Unsubscribe", b"DKIM-Signature", b"Received", b"Resent-To", b"Comments",
     b"Bcc", b"BCC", b"bcc", b"Resent-Bcc", b"Return-Path", b"return-path", b"X-Bcc", b"Content-Disposition"]
)  # fmt: skip
any_field = st.tuples(_names, _folded).map(b":".join)
_singles = [
    b"To: ada@example.net", b"to:ada@example.net", b"Subject: =?utf-8?q?caf=C3=A9?=", b"Subject:",
    b"SUBJECT:\r\n a\r\n b",
    b"Date: yesterday", b"Message-ID: <1@example.com>", b"message-id:\r\n <1>", b"MIME-Version: 1.0",
    b"Content-Type: text/plain", b"Content-Transfer-Encoding: 8bit", b"X-Service-Tag: a, b", b"Sender: x@example.org",
    b"Idempotency-Key: k", b"idempotency-KEY:\r\n k k", b"References: <a@b>\r\n <c@d>",
]  # fmt: skip


def _key(field: bytes) -> bytes:
    return field.partition(b":")[0].lower()


header = (
    st.tuples(st.lists(any_field, max_size=5), st.lists(st.sampled_from(_singles), unique_by=_key, max_size=8))
    .map(lambda fields: [*fields[0], *fields[1], b"fRoM:\r\n  Shop\r\n <shop@example.com>"])
    .flatmap(st.permutations)
)
