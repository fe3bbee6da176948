"""Regular expressions: which operators may be used, and how their time grows with a hostile input.

Early patch releases of Python 3.11, Debian 12's own 3.11.2 among them, read possessive quantifiers and atomic groups
wrongly inside a repeat. So the sources use neither, and each pattern is linear because it can match in one way only.
"""

import ast
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from appliance.errors import Refused
from appliance.message import addresses, decoding, request, seven_bit
from appliance.web import http1
from appliance.webhook import connect, post
from appliance.webhook.connect import NotPosted
from appliance.webhook.post import request_bytes

ROOT = Path(__file__).parents[1]

# Texts that only look like a pattern with a possessive quantifier.
NO_PATTERNS = frozenset(
    {"!#$%&'*+-/=?^_`{|}~@b.c", "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!*+-/", "libstdc++"}
)


# ---- operators


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    nodes = list(ast.walk(ast.parse(source)))
    statements = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if id(node) in statements or id(node) in parts:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            yield node.lineno, node.value if isinstance(node.value, str) else node.value.decode("latin-1")
        elif isinstance(node, ast.JoinedStr):  # what is filled in stands as a group, which any operator may follow
            yield (
                node.lineno,
                "".join(str(part.value) if isinstance(part, ast.Constant) else "(?:x)" for part in node.values),
            )


OPERATOR = re.compile(r"[*+?}]\+|\(\?>")


def has_forbidden_operator(text: str) -> bool:
    if not OPERATOR.search(text):
        return False
    try:
        parsed = re._parser.parse(text)  # the only reader that knows what `*+` is where
    except re.error:
        return True  # half of a pattern: the look of it decides
    return bool({"POSSESSIVE_REPEAT", "ATOMIC_GROUP"} & set(operators(parsed)))


def operators(parsed: object) -> Iterator[str]:
    if isinstance(parsed, re._constants._NamedIntConstant):
        yield str(parsed)
    elif isinstance(parsed, tuple | list | re._parser.SubPattern):
        for part in parsed:
            yield from operators(part)


def forbidden_in(source: str) -> list[tuple[int, str]]:
    return [(line, text) for line, text in texts_of(source) if text not in NO_PATTERNS and has_forbidden_operator(text)]


def test_no_possessive_quantifier_and_no_atomic_group() -> None:
    paths = [path for folder in ("appliance", "packaging", "tests") for path in (ROOT / folder).rglob("*.py")]
    sources = {path: path.read_text() for path in paths if path != Path(__file__)}
    found = {path: forbidden_in(source) for path, source in sources.items() if OPERATOR.search(source)}
    assert len(paths) > 500
    assert {str(path.relative_to(ROOT)): places for path, places in found.items() if places} == {}


PLANTED = [
    'PATTERN = re.compile(r"a++b")',
    'PATTERN = re.compile(rb"(?:[a-z]*+:)*")',
    'PATTERN = re.compile(r"x(?:y(z?+))")',
    'PATTERN = re.compile(r"a{2,3}+")',
    'PATTERN = re.compile(r"(?>a|b)c")',
    'PATTERN = re.compile(rf"{PART}*+:")',
    'PART = "[*+-]++"',
    'PATTERN = re.compile(r"(a" + r"b++)")',
]
HARMLESS = ['PATTERN = r"[*++-]+"', 'PATTERN = r"\\++"', '"""C++ and (?>a)."""', 'PATTERN = r"a+\\+b"']


def test_a_planted_operator_is_found() -> None:
    assert all(forbidden_in(source) for source in PLANTED)
    assert not any(forbidden_in(source) for source in HARMLESS)


# ---- growth

SIZE = 16 * 1024  # characters; four times that takes some milliseconds where time is linear, seconds where it is not
GROWTH = 4
BOUND = 10.0  # times as long for four times as much: 4 when linear, 16 when quadratic
ROUNDS = 5


def read_from(value: str) -> None:
    decoding._split(value)


def read_url(path: str) -> None:
    assert connect._PATH.fullmatch(path) is None


def read_answer(head: str) -> None:
    data = head.encode()
    for pattern in (post._STATUS_LINE, post._ANSWER_FIELDS, post._LENGTH, post._CONNECTION):
        pattern.search(data)
        pattern.fullmatch(data)


def read_request_head(head: str) -> None:
    assert http1._FIELDS.fullmatch(head.encode()) is None


def write_request_head(value: str) -> None:
    request_bytes(connect.Target("example.com", 443, "/"), [("a", value)], b"")


def read_header(header: str) -> None:
    decoding._FIELD.findall(header.encode())


def read_address(text: str) -> None:
    addresses._PLAIN.fullmatch(text)
    addresses._WITH_NAME.fullmatch(text)
    addresses._split(f"{text}>")


def encode_mailboxes(text: str) -> None:
    with suppress(seven_bit.CannotEncode):
        list(seven_bit._mailboxes("To", text))


def read_json(body: str) -> None:
    request.decode(body.encode())


def walk_json(body: str) -> None:
    request.scan(body.encode(), len(body))


HOSTILE: list[tuple[Callable[[str], None], str, str, str]] = [
    # reader, beginning, what is repeated, end
    (read_header, "a:", "x", ""),
    (read_header, "a:", " ", ""),
    (read_header, "", "a", ""),
    (read_header, "", "a\r\n", ""),
    (read_header, "a:x", "\r\n y", ""),
    (read_header, "a:x", "\r\n y", "\r\n "),
    (read_header, "a:x\r\n", " ", "\r\n"),
    (read_header, "a:x", "\r\n ", ""),
    (read_header, "", "a:\r\n \r\n", ""),
    (read_from, "", "a", "("),
    (read_from, "", "a ", "("),
    (read_from, "", " ", "<"),
    (read_from, "", "a", "<"),
    (read_from, "", '"a" ', "<"),
    (read_from, '"', '\\"', ""),
    (read_from, "", '"a\\"" ', '"'),
    (read_from, "", "(a) ", "("),
    (read_from, "", "(", ""),
    (read_from, "a", " ", "<"),
    (read_from, "a< ", "a ", ">"),
    (read_from, "a <", " ", "b>"),
    (read_from, "a@b.c <a@b.c", " ", "x>"),
    (read_from, "(a) <a@b.c>", " ", "("),
    (read_address, "", "a", ""),
    (read_address, "", "a.", "@"),
    (read_address, "a@", "a.", "-"),
    (read_address, "a@", "1.", "1"),
    (read_address, "a@", "a", "."),
    (read_address, "", " ", "x"),
    (read_address, "a", " ", '"'),
    (read_address, '"', '\\"', ""),
    (read_address, '"a"', " ", '"'),
    (encode_mailboxes, "", "ü ", "("),
    (encode_mailboxes, '"', '\\"', ""),
    (encode_mailboxes, "(", "\\(", ""),
    (encode_mailboxes, "", '"ü"', ""),
    (encode_mailboxes, "", "(a)", "("),
    (encode_mailboxes, "", "a,", "<"),
    (read_url, "/", "a", " "),
    (read_url, "/", "%20", "%2"),
    (read_url, "/", "a%20", " "),
    (read_request_head, "", "a", "\n"),
    (read_request_head, "", "a:b\r\n", "\r"),
    (read_request_head, "a:", " ", "\n"),
    (read_answer, "HTTP/1.1 200 ", "a", "\n"),
    (read_answer, "", "a:b\r\n", "\r"),
    (read_answer, "", "\r\ncontent-length: ", ""),
    (read_answer, "\r\ncontent-length:", " ", "x"),
    (read_answer, "\r\ncontent-length: 1", " ", "x"),
    (read_answer, "\r\nconnection:", " ", "x"),
    (read_answer, "\r\nconnection: close", " ", "x"),
    (write_request_head, "", "a", "\n"),
    (write_request_head, "", "a: b\r\n", "\r"),
    (read_json, '{"a":"', '\\"', ""),
    (read_json, '{"a":"', "\\", ""),
    (read_json, "", "\\", ""),
    (read_json, '{"text":"', "\\u003a", ""),
    (read_json, "[", "0,", ""),
    (walk_json, "[", '"', ""),
    (walk_json, "[", '"\\\\"', ""),
    (walk_json, "[", '"\\""', ""),
]


def seconds(read: Callable[[str], None], text: str) -> float:
    start = time.process_time()
    with suppress(Refused, NotPosted, addresses._NotAnAddress):
        read(text)
    return time.process_time() - start


@pytest.mark.parametrize(
    ("read", "begin", "repeated", "end"),
    HOSTILE,
    ids=[f"{each[0].__name__}-{number}" for number, each in enumerate(HOSTILE)],
)
def test_time_grows_no_faster_than_the_input(read: Callable[[str], None], begin: str, repeated: str, end: str) -> None:
    small, large = (begin + repeated * (size // len(repeated)) + end for size in (SIZE, GROWTH * SIZE))
    # The least of some rounds is what the work takes; the rest is the machine's. A millisecond covers the clock's step.
    taken = min(seconds(read, large) for _ in range(ROUNDS))
    if taken > 0.001:
        assert taken < BOUND * min(seconds(read, small) for _ in range(ROUNDS)) + 0.001
