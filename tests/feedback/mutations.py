"""Changed copies of messages and files, as damage and malice make them, reproducible by their number."""

import re
from collections.abc import Sequence
from random import Random

PIECES = (
    b"", b"\0", b"\r", b"\n", b"\r\n\r\n", b"\xff", b"\xc3", b"--", b"--x\r\n", b"--x--\r\n", b":", b";", b"=",
    b"=?utf-8?q?",
    b"5.1.1", b"550 5.1.1 ", b"550-", b" " * 50, b"\t" * 50, b"<", b"<a>", b"</a>", b"<!DOCTYPE a>", b"<![CDATA[",
    b"&#0;",
    b"&lt;", b"&x;", b"{", b"[", b"}", b"]", b'"', b"\\", b"1e999", b"9" * 400, b"-1", b"PK\x05\x06", b"PK\x03\x04",
    b"\x1f\x8b\x08", b"Content-Type: multipart/mixed; boundary=x\r\n\r\n",
    b"Content-Type: message/delivery-status\r\n\r\n",
    b"Content-Transfer-Encoding: base64\r\n\r\n", b"Content-Type: text/html; charset=utf-16\r\n\r\n",
    b"Action: failed\r\n",
    b"charset=iso-2022-jp", b"\x1b$B", "\u2028\u0130ſ".encode(), b"\xed\xa0\x80",
)  # fmt: skip

VALUES = (
    b"", b"0", b"-1", b"1e3", b"9" * 30, b"99999999999", b"1.5", b"none", b"pass", b"reject", b"100", b"192.0.2.1",
    b"::1",
    b"example.com", "\u0130\u2028".encode(), b"x" * 5_000, b" ", b"1700000000", b"2026-11-16T00:00:00Z",
)  # fmt: skip
# Of an XML or a JSON document.
_VALUE = re.compile(rb'(?<=>)[^<>]+(?=<)|(?<=":")[^"]*(?=")|(?<=": ")[^"]*(?=")|(?<=":)[0-9]+|(?<=": )[0-9]+')


def revalued(data: bytes, number: int) -> bytes:
    random = Random(number)
    places = list(_VALUE.finditer(data))
    for found in sorted(random.sample(places, random.randint(1, 3)), key=re.Match.start)[::-1]:
        data = data[: found.start()] + random.choice(VALUES) + data[found.end() :]
    return data


def mutated(data: bytes, number: int, pieces: Sequence[bytes] = PIECES) -> bytes:
    """A copy with one to eight changes: octets set, pieces put in, stretches doubled, cut out or moved."""
    random, changed = Random(number), bytearray(data)
    for _ in range(random.randint(1, 8)):
        at = random.randint(0, len(changed))
        end = min(len(changed), at + random.choice((1, 2, 8, 40, 400)))
        match random.randint(0, 5):
            case 0:
                changed[at:end] = random.randbytes(end - at)
            case 1:
                changed[at:at] = random.choice(pieces)
            case 2:
                changed[at:at] = changed[at:end] * random.randint(1, 20)
            case 3:
                del changed[at:end]
            case 4:
                piece = changed[at:end]
                del changed[at:end]
                to = random.randint(0, len(changed))
                changed[to:to] = piece
            case _:
                changed[at:end] = random.choice(pieces)
    return bytes(changed)
