"""Explaining what is wrong with JSON: within bounds that hold for every body."""

from typing import Any

import msgspec
import pytest

from appliance.errors import Refused
from appliance.message import limits
from appliance.message.json_faults import TOKENS, explain, find_repeated_key, scan
from appliance.message.request import decode
from tests.cpu_time import cpu_seconds

SIZE = 256 * 1024  # bytes
PAIR = b'"to":"a",'
MANY = b"{" + PAIR * (SIZE // len(PAIR))


def sentence(body: bytes) -> str:
    """How this body is refused, whatever its type."""
    with pytest.raises((msgspec.DecodeError, ValueError)) as fault:
        msgspec.json.decode(body)
    return explain(fault.value, body, object).text


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (b"", "body: the JSON ends too early"),
        (b'"to":"\xff"}', f"body: not valid UTF-8 (byte {len(MANY) + 6})"),
        (b'"to":NaN}', "body: NaN and Infinity are not JSON numbers"),
        (b'"to":"\\udc00"}', f"body: half of a surrogate pair (byte {len(MANY) + 11})"),
        (b"}", f"body: not valid JSON (byte {len(MANY)})"),
    ],
)
def test_a_fault_behind_many_tokens_is_told_by_its_byte(end: bytes, told: str) -> None:
    """The field is not looked for, so that the event loop is not held up: a few milliseconds at most."""
    assert sentence(MANY + end) == told
    assert cpu_seconds(lambda: sentence(MANY + end)) < 0.02


def test_a_fault_within_the_bound_is_told_by_its_field() -> None:
    """The last token that is looked at still has its name."""
    padding = b"[" + b"1," * (TOKENS // 2)  # two of whose tokens are a number and a comma; numbers are none
    body = b'{"a":' + padding + b'1],"b":"\xff"}'
    assert scan(body, len(body) - 3)[0] == "b"
    assert sentence(body).startswith("b: not valid UTF-8")


def at_every_limit() -> bytes:
    """A request with as many entries as it may have, without its end."""
    addresses = [f"user{number}@example.com" for number in range(limits.ADDRESS_ENTRIES)]
    attachment = {"filename": "a.txt", "content": "YQ==", "content_type": "text/plain", "content_id": "a"}
    request: dict[str, Any] = dict.fromkeys(("from", "reply_to", "template"), "a@b.c")
    request |= dict.fromkeys(("to", "cc", "bcc"), addresses)
    request["variables"] = {f"name{number}": "" for number in range(limits.VARIABLES)}
    request["headers"] = {f"X-{number}": "" for number in range(limits.HEADERS)}
    request |= {"tags": ["a"] * limits.TAGS, "attachments": [attachment] * limits.ATTACHMENTS}
    return msgspec.json.encode(request).removesuffix(b"}")


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (b',"subject":"a","subject":"a"}', "subject: this key occurs twice in one object"),
        (b',"subject":NaN}', "subject: NaN and Infinity are not JSON numbers"),
        (b',"subject":"\\ud800"}', "subject: half of a surrogate pair"),
        (b',"subject":"\xff"}', "subject: not valid UTF-8"),
    ],
)
def test_the_field_is_named_in_a_request_at_every_limit(end: bytes, told: str) -> None:
    """Also behind three full lists of addresses; in a few milliseconds of the event loop."""
    body = at_every_limit() + end
    with pytest.raises(Refused) as refused:
        decode(body)
    assert refused.value.text.startswith(told)
    assert cpu_seconds(lambda: scan(body, len(body))) < 0.01


def test_a_long_string_is_one_token() -> None:
    """What counts is tokens, not bytes: a large attachment before the fault takes nothing from its explanation."""
    assert sentence(b'{"text":"' + b"x" * SIZE + b'","to":"\xff"}') == f"to: not valid UTF-8 (byte {SIZE + 17})"


@pytest.mark.parametrize("backslashes", [1, 2, 3, 4])
def test_half_a_pair_near_the_end(backslashes: int) -> None:
    """An escaped backslash before `ud800` is text; an odd one begins half of a surrogate pair."""
    body = b'{"a":"' + b"\\" * backslashes + b'ud800"}'
    if backslashes % 2:
        assert sentence(body) == "a: half of a surrogate pair in the string that begins at byte 5"
    else:
        msgspec.json.decode(body)


def test_a_small_body_has_few_tokens() -> None:
    """Under /v1, where no list is long, more tokens than any body needs are refused rather than searched."""
    assert find_repeated_key(b'{"a":[' + b'"",' * TOKENS + b'""]}') is not None
    assert find_repeated_key(b'{"a":"b","c":["d"]}') is None
    refused = find_repeated_key(b'{"a":1,"a":2,"b":[' + b'"",' * TOKENS + b'""]}')
    assert refused is not None
    assert refused.text == "a: this key occurs twice in one object"
