"""Whatever chance makes of an SMTP session, the process lives, tells nothing of its internals, and does not grow.

MUTATED_STREAMS=100000 packaging/test -s tests/e2e/submission/test_mutated_commands_do_no_harm.py   # three minutes
"""

import os
import random
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.submission.client import MESSAGE, Raw, endpoint, plain
from tests.running_appliance import Running, appliance

SEED = 4
NUMBER = int(os.environ.get("MUTATED_STREAMS", "2000"))
GROWTH = 20 * 1024 * 1024  # bytes
AT_ONCE = 16  # clients, for some of what chance makes is a wrong password, which takes its second
CREDITS = 100
WARM_UP = 500  # streams until caches are full and the process is as large as it gets

REPLY = re.compile(rb"[2-5][0-5][0-9](?:[ -][ -~]*)?")
INSIDES = re.compile(
    rb"Traceback|Error\b(?!s)|Exception|\.py\b|object at 0x|\bNone\b|<class|aiosmtpd|asyncio|trio|Python", re.IGNORECASE
)

Mutation = Callable[[random.Random, bytes], bytes]

NASTY = [
    b"\0",
    b"\r",
    b"\n",
    b"\xff",
    b"\x80" * 30,
    b"\r\n.\r\n",
    b"\n.\n",
    b"<",
    b">",
    b" ",
    b"=" * 600,
    b"%s%n",
    b"*\r\n",
]
VERBS = [b"EHLO", b"HELO", b"MAIL", b"RCPT", b"DATA", b"BDAT", b"AUTH", b"RSET", b"NOOP", b"VRFY", b"HELP", b"QUIT"]


def cut(choose: random.Random, data: bytes) -> bytes:
    """Leave something out."""
    begin = choose.randrange(len(data))
    return data[:begin] + data[begin + choose.randint(1, 30) :]


def put_in(choose: random.Random, data: bytes) -> bytes:
    """Put something in."""
    place = choose.randrange(len(data))
    return data[:place] + choose.choice([*NASTY, choose.randbytes(choose.randint(1, 20))]) + data[place:]


def change(choose: random.Random, data: bytes) -> bytes:
    """Change a byte."""
    place = choose.randrange(len(data))
    return data[:place] + choose.randbytes(1) + data[place + 1 :]


def repeat(choose: random.Random, data: bytes) -> bytes:
    """Say a part again and again."""
    begin = choose.randrange(len(data))
    part = data[begin : begin + choose.randint(1, 60)]
    return data[:begin] + part * choose.choice([2, 3, 50]) + data[begin:]


def shuffle(choose: random.Random, data: bytes) -> bytes:
    """The same lines in another order."""
    lines = data.splitlines(keepends=True)
    choose.shuffle(lines)
    return b"".join(lines)


def other_verb(choose: random.Random, data: bytes) -> bytes:
    """Another command."""
    return data.replace(choose.choice(VERBS), choose.choice(VERBS), choose.choice([1, -1]))


MUTATIONS: list[Mutation] = [cut, put_in, put_in, change, repeat, shuffle, other_verb]


def stream(choose: random.Random, credential: bytes) -> bytes:
    """A session with one to four faults."""
    login = choose.choice([b"AUTH PLAIN " + credential, b"AUTH PLAIN " + credential, b"AUTH PLAIN\r\n" + credential])
    envelope = b"MAIL FROM:<shop@example.com> SIZE=100\r\nRCPT TO:<ada@example.net>\r\n"
    content = choose.choice([b"DATA\r\n" + MESSAGE + b".\r\n", b"BDAT %d LAST\r\n" % len(MESSAGE) + MESSAGE])
    data = b"EHLO client.example.com\r\n" + login + b"\r\n" + envelope + content + b"RSET\r\nNOOP\r\nQUIT\r\n"
    for mutate in choose.choices(MUTATIONS, k=choose.randint(1, 4)):
        data = mutate(choose, data or b"x")
    return data


def resident(running: Running) -> int:
    """The memory the process has, in bytes."""
    assert running.process is not None
    pages = int(Path(f"/proc/{running.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def answer(running: Running, data: bytes) -> bytes:
    """Everything the server says to a client that sends these bytes, and then nothing more."""
    received = b""
    with socket.create_connection(endpoint(running), timeout=10) as client:
        try:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            while piece := client.recv(65_536):
                received += piece
        except ConnectionError:
            pass
    return received


def checked(running: Running, data: bytes) -> list[bytes]:
    """The lines of everything the server says; each is a reply, and none tells of its insides."""
    lines = answer(running, data).split(b"\r\n")[:-1]
    for line in lines:
        assert REPLY.fullmatch(line), (data, line)
        assert not INSIDES.search(line.replace(b"Too many errors", b"")), (data, line)
    return lines


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A server whose clients need no TLS, so that what is changed is what it reads.

    The account's credits are soon used up, so that what grows is not the cache of a database that fills.
    """
    with appliance(tmp_path, smtp="allow_plaintext_auth = true", credit=CREDITS, fresh=True) as started:
        yield started


@pytest.mark.timeout(1_200)
def test_mutated_commands_do_no_harm(running: Running) -> None:
    """Every reply is a reply and none has an exception's text; memory stays as it is; the log is quiet."""
    choose, codes, before = random.Random(SEED), set(), 0
    streams = [stream(choose, plain(running)) for _ in range(NUMBER)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for place, lines in enumerate(pool.map(partial(checked, running), streams)):
            codes |= {line[:3] for line in lines}
            if place == WARM_UP:
                before = resident(running)
    assert running.process is not None
    assert running.process.poll() is None
    growth = resident(running) - before
    print(f"{NUMBER} streams; memory grew by {growth // 1024} KiB to {resident(running) // 1024} KiB")
    assert growth < GROWTH
    assert codes >= {b"220", b"221", b"235", b"250", b"354", b"452", b"500", b"501", b"503", b"530", b"554"}
    assert running.complaints() == []
    with Raw(running) as client:
        assert client.log_in().transact().startswith(b"452 4.7.1 ")
