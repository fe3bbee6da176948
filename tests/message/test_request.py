"""Reading a body: the right shape passes, everything else is a 400 that names the field."""

import contextlib
import json
import os
import subprocess
import sys
from typing import Any

import msgspec
import pybase64
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import Code, Refused
from appliance.message import limits
from appliance.message.batch import decode_batch
from appliance.message.request import TOKENS, decode, explain, find_repeated_key, fingerprint, scan
from appliance.message.schema import Attachment, SendRequest
from tests.cpu_time import cpu_seconds
from tests.message.samples import body

START = '{"from":"a@b.c","to":"d@e.f"'


def reason(data: bytes | str) -> str:
    with pytest.raises(Refused) as caught:
        decode(data.encode() if isinstance(data, str) else data)
    assert caught.value.code is Code.INVALID_REQUEST
    return caught.value.text


def test_everything_given() -> None:
    request = decode(
        json.dumps(
            body(
                cc=["c@example.net"],
                bcc="b@example.net",
                reply_to="r@example.com",
                html="<p>",
                template="t",
                variables={"a": "x", "b": 1, "c": 1.5, "d": True},
                headers={"X-A": "b"},
                tags="one",
                attachments=[{"filename": "a", "content": "", "content_type": "a/b", "content_id": "c"}],
            )
        ).encode()
    )
    assert request.sender == "shop@example.com"
    assert request.variables == {"a": "x", "b": 1, "c": 1.5, "d": True}
    assert request.attachments == [Attachment("a", "", "a/b", "c")]


def test_left_out_is_unset() -> None:
    assert decode(b'{"from":"a","to":["b"]}') == SendRequest(sender="a", to=["b"])


def test_bytearray() -> None:
    assert decode(bytearray(START.encode() + b"}")).to == "d@e.f"


OPTIONAL = (
    "cc", "bcc", "reply_to", "subject", "text", "html", "template", "variables", "headers", "tags", "attachments",
)  # fmt: skip


def test_null_is_the_same_as_leaving_it_out() -> None:
    without = decode(json.dumps({"from": "a", "to": "b", "attachments": [{"filename": "x", "content": ""}]}).encode())
    nulls: dict[str, Any] = dict.fromkeys(OPTIONAL)
    attachment = {"filename": "x", "content": "", "content_type": None, "content_id": None}
    given = decode(json.dumps({**nulls, "from": "a", "to": "b", "attachments": [attachment]}).encode())
    assert msgspec.to_builtins(given) == msgspec.to_builtins(without)
    assert fingerprint(given) == fingerprint(without)
    assert decode(json.dumps({**nulls, "from": "a", "to": "b"}).encode()).attachments is msgspec.UNSET


@pytest.mark.parametrize("name", ["text", "html", "attachments", "cc"])
def test_null_beside_a_long_body(name: str) -> None:
    """In a body of more than 64 KiB, which is searched for repeated keys in another way, null is the same too."""
    given = {"from": "a", "to": "b", "html" if name != "html" else "text": "x:" * 50_000}
    assert decode(json.dumps({**given, name: None}).encode()) is not None
    assert "twice" in reason(json.dumps({**given, name: None})[:-1] + f',"{name}":null}}')


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ("", "body: expected a JSON object, got nothing"),
        (" \n", "body: expected a JSON object, got nothing"),
        ("[]", "body: expected an object, got an array"),
        ("null", "body: expected an object, got null"),
        ('"x"', "body: expected an object, got a string"),
        ("{}", "from: this field is required"),
        ('{"from":"a"}', "to: this field is required"),
        (START + ',"subject":1}', "subject: expected a string, got a number"),
        ('{"from":null,"to":"d@e.f"}', "from: expected a string, got null"),
        ('{"from":"a","to":null}', "to: expected a string or an array, got null"),
        ('{"from":"a","to":[null]}', "to[0]: expected a string, got null"),
        (START + ',"cc":[null]}', "cc[0]: expected a string, got null"),
        (START + ',"attachments":[{"filename":"a","content":null}]}',
         "attachments[0].content: expected a string, got null"),
        (START + ',"headers":{"from":null}}',
         "headers.from: expected a string, got null"),
        (START + ',"cc":null,"subject":1}', "subject: expected a string, got a number"),
        (START + ',"cc":null,"cc":"x@y.z"}', "cc: this key occurs twice in one object"),
        (START + ',"cc":"x@y.z","cc":null}', "cc: this key occurs twice in one object"),
        (START + ',"subject":["x"]}', "subject: expected a string, got an array"),
        (START + f',"subject":"{"x" * 501}"}}', "subject: must have at most 500 characters"),
        (START + ',"html":{}}', "html: expected a string, got an object"),
        ('{"from":"a","to":true}', "to: expected a string or an array, got a boolean"),
        ('{"from":"a","to":[]}', "to: must not be empty"),
        ('{"from":"a","to":""}', "to: must not be empty"),
        ('{"from":"a","to":["b",2]}', "to[1]: expected a string, got a number"),
        (START + ',"tags":[1]}', "tags[0]: expected a string, got a number"),
        (START + f',"tags":{json.dumps(["t"] * 21)}}}', "tags: must have at most 20 entries"),
        (START + ',"variables":{"a":1,"b":null}}',
         "variables.b: expected a string, a number or a boolean, got null"),
        (START + ',"variables":{"a":[1]}}', "variables.a: expected a string, a number or a boolean, got an array"),
        (START + ',"variables":{"a":1e999}}', "variables.a: this number is out of range"),
        (START + f',"variables":{{"a":{2**1024}}}}}', "variables.a: this number is out of range"),
        (START + f',"variables":{{"a":{-(2**1024)}}}}}', "variables.a: this number is out of range"),
        (START + f',"variables":{{"a":{"9" * 4300}}}}}', "variables.a: this number is out of range"),
        (START + f',"variables":{{"a":{"9" * 5000}}}}}', "variables.a: this number is out of range"),
        (START + ',"variables":{"a":NaN}}', "variables.a: NaN and Infinity are not JSON numbers"),
        (START + ',"variables":{"a":-Infinity}}', "variables.a: NaN and Infinity are not JSON numbers"),
        (START + f',"variables":{json.dumps({str(i): i for i in range(33)})}}}',
         "variables: must have at most 32 entries"),
        (START + ',"headers":{"X-A":"a","X-B":2}}', "headers.X-B: expected a string, got a number"),
        (START + ',"attachments":{}}', "attachments: expected an array, got an object"),
        (START + ',"attachments":[{"filename":"x"}]}', "attachments[0].content: this field is required"),
        (START + ',"attachments":[{"filename":"x","content":""},{"filename":3}]}',
         "attachments[1].filename: expected a string, got a number"),
        (START + ',"attachments":[{"filename":"x","path":"y"}]}', "attachments[0].path: there is no such field"),
        (START + ',"reply-to":"x"}', "reply-to: there is no such field"),
        (START + ',"sender":"x"}', "sender: there is no such field"),
        (START + "} x", "body: not valid JSON (byte 31)"),
        (START + ',"subject":"x', "subject: the JSON ends too early"),
        (START + ',"subject":"\n"}', "subject: not valid JSON (byte 40)"),
        (START + ',"subject":"\\x"}', "subject: not valid JSON (byte 42)"),
        (START + ",}", "body: not valid JSON (byte 29)"),
        (START + ',"subject":"\\ud800"}', "subject: half of a surrogate pair (byte 40)"),
        (START + ',"subject":"\\udc00x"}', "subject: half of a surrogate pair (byte 45)"),
        (START + ',"headers":{"X-A":"\\\\\\ud83dx"}}',
         "headers.X-A: half of a surrogate pair (byte 49)"),
    ],
)  # fmt: skip
def test_refused(data: str, sentence: str) -> None:
    assert reason(data) == sentence


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\xef\xbb\xbf{}", "body: starts with a byte order mark. Send JSON without one (RFC 8259 8.1)."),
        (START.encode() + b',"subject":"\xff"}', "subject: not valid UTF-8 (byte 40)"),
        (START.encode() + b',"subject":"\xed\xa0\x80"}', "subject: not valid UTF-8 (byte 40)"),
        (START.encode() + b',"tags":["a","\xc3"]}', "tags[1]: not valid UTF-8 (byte 42)"),
    ],
)
def test_bad_encodings(data: bytes, sentence: str) -> None:
    assert reason(data) == sentence


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"to":', '{"to":[', START + ',"variables":{"a":', "[{"])
def test_nesting_bombs(opening: str) -> None:
    reason(opening * 100_000)
    reason(START + ',"variables":' + opening * 100_000)
    reason(START + ',"z":' + opening * 100_000)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (START + ',"from":"x@y.z"}', "from"),
        (START + ',"fr\\u006fm":"x@y.z"}', "from"),
        (START + ',"variables":{"a":1,"b":2,"a":3}}', "variables.a"),
        (START + ',"headers":{"X-A":"a:b","X-A":"c"}}', "headers.X-A"),
        (START + ',"attachments":[{"filename":"x","content":""},{"filename":"x","filename":"y","content":""}]}',
         "attachments[1].filename"),
        # A colon hidden by an escape must not pay for the one that was dropped.
        (START + ',"subject":"\\u003a","text":"a","text":"b"}', "text"),
        (START + ',"subject":"\\\\u003a \\u003A","text":"a:","text":"b"}', "text"),
    ],
)  # fmt: skip
def test_repeated_keys(data: str, field: str) -> None:
    assert reason(data) == f"{field}: this key occurs twice in one object"


@pytest.mark.parametrize("subject", ["a:b", "\\u003a", "\\u003A:", "\\\\u003a", '\\":\\"', "\\\\", '{\\"a\\":1}'])
def test_colons_inside_strings_are_no_keys(subject: str) -> None:
    assert decode(f'{START},"subject":"{subject}"}}'.encode()).subject == json.loads(f'"{subject}"')


def test_millions_of_tiny_values() -> None:
    assert "50000 values" in reason(START + ',"tags":[' + '"",' * 3_000_000 + '""]}')
    assert "50000 values" in reason(START + ',"headers":{' + ",".join(f'"{i}":""' for i in range(60_000)) + "}}")


def test_commas_in_text_are_no_values() -> None:
    text = "a, b: c\n" * 100_000
    whole = json.dumps(body(text=text, html=text))
    assert decode(whole.encode()).text == text
    assert reason(whole[:-1] + ',"html":""}') == "html: this key occurs twice in one object"


def test_large_attachment() -> None:
    content = pybase64.b64encode(os.urandom(3_000_000)).decode()
    whole = json.dumps(body(attachments=[{"filename": "x", "content": content}]))
    request = decode(whole.encode())
    assert request.attachments == [Attachment("x", content)]
    assert reason(whole[:-1] + ',"subject":"again"}') == "subject: this key occurs twice in one object"


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("from", *SendRequest.__struct_encode_fields__[1:], "filename", "content", "content_type")
json_requests = st.dictionaries(st.sampled_from(FIELDS), json_values | st.text(), max_size=6)


@given(st.binary(max_size=200) | st.text(st.sampled_from('{}[]:,"\\u0d8"fromt1e '), max_size=60).map(str.encode))
def test_any_bytes(data: bytes) -> None:
    with contextlib.suppress(Refused):
        decode(data)


@given(json_values | json_requests, st.integers(0, 100), st.binary(max_size=2))
def test_any_json(value: Any, cut: int, garbage: bytes) -> None:
    data = json.dumps(value).encode()
    for attempt in (data, data[:cut], data[:cut] + garbage + data[cut:]):
        with contextlib.suppress(Refused):
            decode(attempt)


small_texts = st.text(max_size=6) | st.sampled_from([":", '":"', "\\", "a:b,c", '{"x":1}'])
numbers = st.integers(-5, 5) | st.sampled_from([1.0, -0.0, 0.5, 1e300, 2.0**63, 2**63, -1.5])
scalars = small_texts | st.booleans() | numbers
requests = st.fixed_dictionaries(
    {"from": st.sampled_from(["a", "b"]), "to": st.sampled_from(["a", ["a"], ["a", "b"], ["b", "a"]])},
    optional={
        "subject": small_texts,
        "text": small_texts,
        "variables": st.dictionaries(small_texts, scalars, max_size=3),
        "headers": st.dictionaries(small_texts, small_texts, max_size=3),
        "tags": st.sampled_from(["a", ["a"], []]),
        "attachments": st.lists(
            st.fixed_dictionaries(
                {"filename": st.sampled_from(["a", "1:a"]), "content": st.sampled_from(["", "a", "1:a", "QQ=="])},
                optional={"content_id": st.sampled_from(["a", "b"])},
            ),
            max_size=3,
        ),
    },
)


def pairs_of(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, list):
        return [pair for each in value for pair in pairs_of(each)]
    if not isinstance(value, dict):
        return []
    return [*value.items(), *(pair for each in value.values() for pair in pairs_of(each))]


def written(value: Any, data: st.DataObject, repeat: list[int]) -> str:
    """JSON in some random spelling; when `repeat` counts down to zero, that pair is written twice."""
    if isinstance(value, dict):
        texts = []
        for key, member in data.draw(st.permutations(list(value.items()))):
            pair = f"{written(key, data, repeat)} :{written(member, data, repeat)}"
            texts.append(pair)
            repeat[0] -= 1
            if repeat[0] == 0:
                texts.append(pair)
        return "{" + ", ".join(texts) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(each, data, repeat) for each in value) + "\n]"
    if isinstance(value, str) and data.draw(st.booleans()):
        units = value.encode("utf-16-be")
        return '"' + "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2)) + '"'
    return json.dumps(value, ensure_ascii=data.draw(st.booleans()))


@given(requests, st.data())
def test_repeated_keys_are_always_found(value: dict[str, Any], data: st.DataObject) -> None:
    assert decode(written(value, data, [0]).encode()) is not None
    which = data.draw(st.integers(1, len(pairs_of(value))))
    assert "twice" in reason(written(value, data, [which]))


@given(requests, st.data(), st.booleans())
def test_repeated_keys_are_found_without_any_white_space(value: dict[str, Any], data: st.DataObject, gap: bool) -> None:
    tight = json.dumps(value, ensure_ascii=False, separators=(",", ": " if gap else ":"))
    assert decode(tight.encode()) is not None
    key = data.draw(st.sampled_from(sorted(value)))
    assert "twice" in reason(f'{{"{key}":{json.dumps(value[key])},{tight[1:]}')
    value["headers"] = {"": ""}
    assert "twice" in reason(json.dumps(value).replace('{"": ""}', '{"":"","":""}'))


def canonical(value: Any) -> Any:
    """A value that Python compares as JSON would: numbers by value, booleans apart from them."""
    if isinstance(value, dict):
        return ("object", frozenset((key, canonical(member)) for key, member in value.items()))
    if isinstance(value, list):
        return ("array", tuple(map(canonical, value)))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return (type(value).__name__, value)
    return ("number", value)


@given(requests, requests, st.data())
def test_fingerprint_is_equality_of_json(one: dict[str, Any], other: dict[str, Any], data: st.DataObject) -> None:
    if data.draw(st.booleans()):  # near misses are found more easily by changing one field
        other = {**one, **{key: other[key] for key in data.draw(st.sets(st.sampled_from(list(other)), max_size=1))}}
    left, right = (decode(written(value, data, [0]).encode()) for value in (one, other))
    assert (fingerprint(left) == fingerprint(right)) is (canonical(one) == canonical(other))


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ('"variables":{"a":1,"b":2}', '"variables":{"b":2.0,"a":1e0}', True),
        ('"variables":{"a":9223372036854775808}', '"variables":{"a":9223372036854775808.0}', True),
        ('"variables":{"a":1}', '"variables":{"a":true}', False),
        ('"variables":{"a":1}', '"variables":{"a":"1"}', False),
        ('"variables":{"a":0}', '"variables":{"a":-0.0}', True),
        ('"variables":{"a":1e300}', '"variables":{"a":1e300}', True),
        ('"variables":{"a":9007199254740993}', '"variables":{"a":9007199254740992.0}', False),
        ('"tags":"a"', '"tags":["a"]', False),
        ('"tags":[]', '"text":""', False),
        ('"text":"\\u00e9\\/"', '"text":"é/"', True),
        ('"text":""', '"html":""', False),
    ],
)
def test_fingerprint_examples(one: str, other: str, equal: bool) -> None:
    """The cases that callers meet: spelling does not matter, meaning does."""
    left, right = (fingerprint(decode(f"{START},{fields}}}".encode())) for fields in (one, other))
    assert (left == right) is equal


@pytest.mark.parametrize(
    ("data", "fingerprint_before"),
    [
        (
            '{"from": "Shop <a@example.com>", "to": ["b@example.net"], "subject": "Hi", "text": "one\\ntwo", '
            '"headers": {"X-B": "1", "X-A": "2"}}',
            "2b494448a15254dbaac3c163f921d1fe695e141b44f2a0c708c547c6a9610a5a",
        ),
        (
            '{"from": "a@example.com", "to": "b@example.net", "template": "t", "variables": {"b": 1.0, "a": "x"}}',
            "e030b0fdb9db72697c0ade40488ffae6045319d07e0ea2b84d005a3a42899d4d",
        ),
        (
            '{"from": "a@example.com", "to": "b@example.net", "subject": "Hi", '
            '"attachments": [{"filename": "a.txt", "content": "QQ=="}]}',
            "fcbfa25369095be2522ae4b797ce1570ee13a682f3ffcc440521f28792dc8885",
        ),
        (
            '{"from": "a@example.com", "to": "b@example.net", "subject": "Hi", "text": "' + "a" * 70_000 + '",'
            '"attachments": [{"filename": "a.txt", "content": "' + "QUJD" * 100_000 + '"}]}',
            "5e1b3f1efbafc4850f73ca7255c42531a6e65a3cc46643f265aaaca66e1cdd39",
        ),
    ],
)
def test_fingerprints_stay_what_they_are(data: str, fingerprint_before: str) -> None:
    assert fingerprint(decode(data.encode())).hex() == fingerprint_before


@pytest.mark.parametrize("length", [200_000, 1_000_000])
def test_fingerprint_of_large_contents(length: int) -> None:
    """One that differs in a file's first or last byte, in its length, its name, or how files are divided is another."""
    files = [
        [Attachment("x", content)]
        for content in ("A" * length, "A" * (length - 1) + "B", "B" + "A" * (length - 1), "A" * (length - 1))
    ]
    files += [[Attachment("y", "A" * length)], [Attachment("x", "é" * length)]]
    half = "A" * (length // 2)
    files += [
        [Attachment("x", half), Attachment("x", half + "B")],
        [Attachment("x", half + "B"), Attachment("x", half)],
    ]
    requests = [SendRequest(sender="a", to=to, attachments=each) for each in files for to in ("b", "c")]
    prints = [fingerprint(request) for request in requests]
    assert len(set(prints)) == len(requests)
    assert prints == [fingerprint(decode(msgspec.json.encode(request))) for request in requests]


def test_fingerprint_of_long_bodies() -> None:
    long, variants = "x:" * 50_000, []
    variants.append(SendRequest(sender="a", to="b", text=long, html=""))
    variants.append(SendRequest(sender="a", to="b", text="", html=long))
    variants.append(SendRequest(sender="a", to="b", text=long, html=long))
    variants.append(SendRequest(sender="a", to="b", text="", html="", attachments=[Attachment("x", long)]))
    assert len({fingerprint(request) for request in variants}) == 4


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ('{"to":4,"x":{"a":1,"b":2.0}}', '{ "x": {"b": 2, "a": 1}, "to": 4}', True),
        ('{"to":4}', '{"to":5}', False),
        ('{"to":4}', '{"to":true}', False),
        ('{"to":"\\u00e9","x":1}', '{"to":"é","x":1}', True),
    ],
)
def test_fingerprint_of_a_skipped_message(one: str, other: str, equal: bool) -> None:
    """Equal for equal JSON, like that of a request."""
    batches = [f'{{"on_error":"skip","emails":[{START}}},{bad}]}}'.encode() for bad in (one, other)]
    left, right = (decode_batch(body).fingerprint for body in batches)
    assert (left == right) is equal


def test_fingerprint_leaves_the_request_alone() -> None:
    request = SendRequest(sender="a", to="b", attachments=[Attachment("x", "QQ==")], variables={"a": 1.0})
    before = msgspec.json.encode(request)
    fingerprint(request)
    assert msgspec.json.encode(request) == before


WITHOUT_MEMORY = """
import resource
from appliance.message.request import decode
body = b'{"from":"a@b.c","to":"d@e.f","subject":"x","text":"' + b"x" * 9_000_000 + b'"}'
with open("/proc/self/statm") as told:
    size = int(told.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 4_000_000, resource.RLIM_INFINITY))
try:
    decode(body)
except MemoryError:
    print("refused")
"""


def test_a_text_without_memory_for_it_is_an_error_and_no_crash() -> None:
    ended = subprocess.run([sys.executable, "-c", WITHOUT_MEMORY], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "refused\n"), ended.stderr


SIZE = 256 * 1024  # bytes
PAIR = b'"to":"a",'
MANY = b"{" + PAIR * (SIZE // len(PAIR))


def sentence(body: bytes) -> str:
    with pytest.raises((msgspec.DecodeError, ValueError)) as fault:
        msgspec.json.decode(body)
    return explain(fault.value, body).text


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
    padding = b"[" + b"1," * (TOKENS // 2)  # two of whose tokens are a number and a comma; numbers are none
    body = b'{"a":' + padding + b'1],"b":"\xff"}'
    assert scan(body, len(body) - 3)[0] == "b"
    assert sentence(body).startswith("b: not valid UTF-8")


def at_every_limit() -> bytes:
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
    body = b'{"a":"' + b"\\" * backslashes + b'ud800"}'
    if backslashes % 2:
        assert sentence(body) == f"a: half of a surrogate pair (byte {5 + backslashes})"
    else:
        msgspec.json.decode(body)


def test_a_small_body_has_few_tokens() -> None:
    assert find_repeated_key(b'{"a":[' + b'"",' * TOKENS + b'""]}') is not None
    assert find_repeated_key(b'{"a":"b","c":["d"]}') is None
    refused = find_repeated_key(b'{"a":1,"a":2,"b":[' + b'"",' * TOKENS + b'""]}')
    assert refused is not None
    assert refused.text == "a: this key occurs twice in one object"
