"""The fast path of HTTP: what it reads, h11 reads in the same way; all else is left to h11."""

import random
from collections.abc import Callable

import h11
import pytest

from appliance.errors import Code
from appliance.net.http import HEAD_LINES
from appliance.web.exchange import REASONS, Answer, answer_bytes, error_answer, json_answer
from appliance.web.http1 import FAST_HEAD_BYTES, QuickRequest, read_request

SEED = 20_261_115
GENERATED = 4_000  # requests of each kind; `sh packaging/torture` has more
LIMIT = 16 * 1024  # of headers, as the server gives it to h11

LINE = b"POST /emails HTTP/1.1\r\n"
DOORS = ("/resend/", "/postmark/", "/mailgun/", "/sendgrid/")
PLAIN = (b"Host: mail.example.com", b"Authorization: Bearer ma_live_x", b"Content-Type: application/json")


def plain(*fields: bytes, line: bytes = LINE, body: bytes = b"{}", length: bytes | None = None) -> bytes:
    """A request that is read quickly, unless something in it is not as it should be."""
    told = b"Content-Length: " + (b"%d" % len(body) if length is None else length)
    return line + b"\r\n".join([*PLAIN, told, *fields, b"", b""]) + body


def read_by_h11(data: bytes) -> tuple[QuickRequest, h11.Connection]:
    """The same bytes as h11 reads them, and its state after the request; raises whatever h11 raises."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=LIMIT)
    connection.receive_data(data)
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    assert (request.method, request.http_version) == (b"POST", b"1.1")
    target = request.target.decode()
    path = "/emails" if target in ("/emails", "/emails/", "//emails") else target
    assert path == "/emails" or path.startswith(DOORS)
    headers = list(request.headers)
    assert len(dict(headers)) == len(headers)
    assert not connection.they_are_waiting_for_100_continue
    body = b""
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        assert isinstance(event, h11.Data)
        body += event.data
    return QuickRequest(path, dict(headers), body, connection.trailing_data[0]), connection


def check_the_same(data: bytes) -> bool:
    """Whatever is read quickly, h11 reads so, and would go on with the connection; whether it was."""
    quick = read_request(data)
    if quick is None:
        return False
    slow, connection = read_by_h11(data)
    assert quick == slow
    assert list(quick.headers) == list(slow.headers)
    connection.send(h11.Response(status_code=202, headers=[(b"content-length", b"0")]))
    connection.send(h11.EndOfMessage())
    connection.start_next_cycle()  # raises where the client wanted the connection to end
    return True


# ---- the two readers against each other

FIELDS = (
    b"User-Agent: python-requests/2.32.3", b"Accept-Encoding: gzip, deflate", b"Accept: */*",
    b"Connection: keep-alive", b"connection: Keep-Alive", b"Connection: close", b"Connection: keep-alive, close",
    b"Connection: Upgrade", b"Idempotency-Key: a b c", b"IDEMPOTENCY-KEY:x", b"X-Empty:", b"X-Spaces:    a    b   ",
    b"X-Tab:\ta\t", b"X-Folded: a\r\n b", b"X-Colon: a:b:c", b"X-Eight: \xe9", b"X-Bell: \x07", b"X-Null: \x00",
    b"X_Underscore: 1", b"X-Space : 1", b" X-Leading: 1", b"X-Bare-LF: 1\nX-Next: 2", b"X-Bare-CR: 1\rX-Next: 2",
    b": nameless", b"colonless", b"Host: other.example.com", b"Content-Length: 2", b"Content-Length: 5",
    b"Content-Length: 2, 2", b"Content-Length: +2", b"content-length : 2", b"Transfer-Encoding: chunked",
    b"transfer-encoding: identity", b"Transfer-Encoding:\tchunked", b"TE: trailers", b"Trailer: X-End",
    b"Expect: 100-continue", b"Upgrade: h2c", b"HTTP2-Settings: AAMA", b"X-Long: " + b"x" * FAST_HEAD_BYTES,
)  # fmt: skip
LINES = (
    b"post /emails HTTP/1.1\r\n", b"GET /emails HTTP/1.1\r\n", b"POST /emails/ HTTP/1.1\r\n",
    b"POST //emails HTTP/1.1\r\n", b"POST /emails// HTTP/1.1\r\n", b"POST /emails?a=b HTTP/1.1\r\n",
    b"POST  /emails HTTP/1.1\r\n", b"POST /emails HTTP/1.0\r\n", b"POST /emails HTTP/1.1\n",
    b"POST /emails HTTP/1.1 \r\n", b"POST http://mail.example.com/emails HTTP/1.1\r\n",
    b"\r\nPOST /emails HTTP/1.1\r\n", b"POST /resend/emails HTTP/1.1\r\n",
    b"POST /mailgun/v3/a.b/messages HTTP/1.1\r\n",
    b"POST /resend/emails?a=b HTTP/1.1\r\n", b"POST /resend/%65mails HTTP/1.1\r\n", b"POST /other/emails HTTP/1.1\r\n",
)  # fmt: skip
PIECES = (b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"\n\n", b" ", b"\t", b":", b",", b"\x00", b"\x80", b"0", b"9", b"-")


def generated(chance: random.Random) -> bytes:
    """A request that is plain, or odd in one of its parts, with or without another behind it."""
    body = chance.randbytes(chance.choice((0, 1, 2, 5, 300)))
    fields = [*PLAIN, b"Content-Length: %d" % max(0, len(body) + chance.choice((0, 0, 0, 0, -1, 1)))]
    fields += chance.sample(FIELDS, chance.choice((0, 0, 1, 1, 2)))
    if chance.random() < 0.1:
        fields.pop(chance.randrange(len(fields)))
    chance.shuffle(fields)
    line = chance.choice(LINES) if chance.random() < 0.1 else LINE
    return line + b"\r\n".join([*fields, b"", b""]) + body + chance.choice((b"", b"", b"\r\n", b"P", plain()))


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The same with a few bytes of its head, or just behind it, put in, taken out, changed or doubled."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(min(len(changed), 260))
        kind = chance.randrange(4)
        if kind == 0:
            changed[at:at] = chance.choice(PIECES)
        elif kind == 1:
            del changed[at : at + chance.randint(1, 4)]
        elif kind == 2:
            changed[at] = chance.randrange(256)
        else:
            changed[at:at] = changed[at : at + chance.randint(1, 40)]
    return bytes(changed)


@pytest.mark.parametrize("change", [False, True], ids=["odd", "mutated"])
def test_nothing_is_read_in_another_way_than_by_h11(change: bool) -> None:
    """Of thousands of requests, those read quickly are what h11 reads: the same headers, body and rest, or nothing."""
    chance = random.Random(SEED)
    quick = 0
    for _ in range(GENERATED):
        data = generated(chance)
        quick += check_the_same(mutated(data, chance) if change else data)
    assert GENERATED / 20 < quick < GENERATED * 3 / 4  # or there was nothing to compare


@pytest.mark.parametrize("byte", range(256))
def test_every_byte_in_every_place(byte: int) -> None:
    data = plain(b"X-A: b")
    for at in range(len(LINE) - 2, len(data)):
        check_the_same(data[:at] + bytes([byte]) + data[at + 1 :])
        check_the_same(data[:at] + bytes([byte]) + data[at:])


# ---- what is read, and what is not


@pytest.mark.parametrize(
    "data",
    [
        plain(),
        plain(body=b""),
        plain(b"Connection: keep-alive"),
        plain(b"Connection: Keep-Alive", b"Accept: */*", b"X-Empty:", b"X-Spaces:   a  b  "),
        plain(length=b"002"),
        plain(line=b"POST /emails/ HTTP/1.1\r\n"),
        plain(line=b"POST //emails HTTP/1.1\r\n"),
        plain(*(b"X-%d: a" % number for number in range(HEAD_LINES - 4))),
        plain(b"X-Long: " + b"x" * (FAST_HEAD_BYTES - 200)),
    ],
)
def test_a_plain_request_is_read(data: bytes) -> None:
    assert check_the_same(data)
    for rest in (b"\r\n", b"G", plain()):
        quick = read_request(data + rest)
        assert quick is not None
        assert quick.rest == rest


NOT_PLAIN: dict[str, bytes] = {
    "nothing": b"",
    "a beginning": plain()[:100],
    "a head alone": plain(body=b"{}")[:-2],
    "a body that is not all here": plain(length=b"3"),
    "no length": plain().replace(b"Content-Length", b"X-Length"),
    "a length that is none": plain(length=b"0x2"),
    "a signed length": plain(length=b"+2"),
    "a length in a list": plain(length=b"2, 2"),
    "an empty length": plain(length=b""),
    "a length of many digits": plain(length=b"2".rjust(21, b"0")),
    "two lengths": plain(b"Content-Length: 2"),
    "two lengths that differ": plain(b"Content-Length: 1"),
    "chunks": plain(b"Transfer-Encoding: chunked"),
    "an expectation": plain(b"Expect: 100-continue"),
    "an upgrade": plain(b"Upgrade: h2c"),
    "the end of the connection": plain(b"Connection: close"),
    "a connection of many words": plain(b"Connection: keep-alive, close"),
    "no host": plain().replace(b"Host", b"X-Host"),
    "two hosts": plain(b"Host: other.example.com"),
    "two of anything": plain(b"X-A: 1", b"x-a: 1"),
    "a folded line": plain(b"X-A: 1\r\n 2"),
    "a bare LF": plain(b"X-A: 1\nX-B: 2"),
    "a bare CR": plain(b"X-A: 1\rX-B: 2"),
    "a tab": plain(b"X-A:\t1"),
    "a NUL": plain(b"X-A: \x001"),
    "an 8-bit character": plain(b"X-A: \xe9"),
    "a space before the colon": plain(b"X-A : 1"),
    "a line without a colon": plain(b"X-A"),
    "a line without a name": plain(b": 1"),
    "more than 100 lines": plain(*(b"X-%d: a" % number for number in range(HEAD_LINES - 3))),
    "a long head": plain(b"X-A: " + b"x" * FAST_HEAD_BYTES),
    "HTTP/1.0": plain(line=b"POST /emails HTTP/1.0\r\n"),
    "HTTP/2": plain(line=b"POST /emails HTTP/2.0\r\n"),
    "slashes beyond those": plain(line=b"POST //emails/ HTTP/1.1\r\n"),
    "a query": plain(line=b"POST /emails?a HTTP/1.1\r\n"),
    "another path": plain(line=b"POST /emails/x HTTP/1.1\r\n"),
    "another method": plain(line=b"PUT /emails HTTP/1.1\r\n"),
    "a small method": plain(line=b"post /emails HTTP/1.1\r\n"),
    "an absolute target": plain(line=b"POST http://h/emails HTTP/1.1\r\n"),
    "an empty line first": b"\r\n" + plain(),
    "no headers": LINE + b"\r\n",
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_whatever_is_not_plain_is_left_to_h11(name: str) -> None:
    assert read_request(NOT_PLAIN[name]) is None


# ---- answers

ANSWERS: dict[str, Callable[[], Answer]] = {
    "accepted": lambda: (202, json_answer(b'{"id":"msg_1"}', "req_1"), b'{"id":"msg_1"}'),
    "empty": lambda: (200, json_answer(b"", "req_1"), b""),
    "wrong credential": lambda: error_answer(Code.UNAUTHORIZED, "Wrong.", "req_1", retry_after=3),
    "a status without a name": lambda: error_answer(Code.INVALID_REQUEST, "What?", "req_1", status=499),
}


@pytest.mark.parametrize("closing", [False, True], ids=["kept", "closing"])
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_h11_s_to_the_byte(name: str, closing: bool) -> None:
    status, headers, body = ANSWERS[name]()
    if closing:
        headers = [*headers, (b"connection", b"close")]
    _, connection = read_by_h11(plain())
    response = h11.Response(status_code=status, headers=headers, reason=REASONS.get(status, b""))
    expected = b"".join(connection.send(each) for each in (response, h11.Data(data=body), h11.EndOfMessage()))
    assert answer_bytes(status, headers, body) == expected
