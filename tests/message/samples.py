"""Requests and texts that the tests of appliance/message are made from."""

import email
import email.policy
import json
from email.message import EmailMessage
from typing import Any

from hypothesis import strategies as st

from appliance.message.compose import Draft, compose, draft
from appliance.message.request import decode
from appliance.model.mail import StoredTemplate

MESSAGE_ID = "0197@example.com"
NOON = 1_700_000_000  # seconds; Tue, 14 Nov 2023 22:13:20 UTC

HOSTILE = (
    "\r", "\n", "\r\n", "\r\nBcc: evil@example.org", "\x00", "\x0b", "\x1b", "\x7f", "\x85", "\x9f", "\u2028", "\u2029",
    "=?utf-8?q?a=0ABcc:_x?=", "=?utf-8?b?DQpCY2M6IHg=?=", "=?x?", "?=", "\t", " ", "  ", '"', "\\", "<", ">", ",", ";",
    ":", "é", "ß", "€", "漢字", "😀", "\u0301", "\u202e", "\ufeff", ".", "\n.\n", "--=_", "a@b.c", "(", ")", "%0A",
)  # fmt: skip

# Text without surrogates (JSON cannot carry them), rich in what breaks headers.
hostile_text = st.lists(
    st.one_of(st.sampled_from(HOSTILE), st.text(max_size=8), st.text("abc xyz", max_size=30)), max_size=8
).map("".join)
# What a line may hold: everything but controls and line breaks.
line_text = st.text(
    st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]) | st.sampled_from('=?utf8QB_ "\\<>,;:@()'), max_size=120
)
body_text = st.lists(
    st.one_of(
        st.sampled_from((".", "From x", "--", "=3D ", "a b\t", "é" * 50, "x" * 1200, "=?utf-8?q?a?=")), line_text
    ),
    max_size=6,
).map("\n".join)


def body(**fields: Any) -> dict[str, Any]:
    """A request that is fine, with these fields beside or instead of its own; None leaves one out."""
    whole = {"from": "shop@example.com", "to": "ada@example.net", "subject": "Hello", "text": "Hi", **fields}
    return {name: value for name, value in whole.items() if value is not None}


def drafted(stored: StoredTemplate | None = None, **fields: Any) -> Draft:
    return draft(decode(json.dumps(body(**fields)).encode()), stored)


def composed(**fields: Any) -> bytes:
    return compose(drafted(**fields), message_id=MESSAGE_ID, date_seconds=NOON)


def read(data: bytes) -> EmailMessage:
    """A message as the standard library reads it."""
    return email.message_from_bytes(data, policy=email.policy.default)


def content(part: Any) -> Any:
    return part.get_content()
