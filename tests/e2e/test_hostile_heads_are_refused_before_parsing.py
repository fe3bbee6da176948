"""Heads that are long, have many lines, bare LFs or folded lines are a 400, and cost next to nothing."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.raw import MESSAGE, Client, check_error, request, sending
from tests.running_appliance import Running, appliance

GET = b"GET /healthz HTTP/1.1\r\nHost: mail.example.com\r\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for all."""
    with appliance(tmp_path_factory.mktemp("running")) as started:
        yield started
        assert started.complaints() == []


def mail(running: Running, *lines: str) -> bytes:
    """A message that would be accepted, with these further header lines."""
    return request("POST", "/emails", *sending(running, "hostile", *lines), body=MESSAGE)


HEADS: dict[str, tuple[str, Callable[[Running], bytes]]] = {
    "64 KiB of header lines": ("more than 100", lambda _: GET + b"a:\r\n" * 16_000 + b"\r\n"),
    "header lines without an end": ("more than 100", lambda _: GET + b"a:\r\n" * 200),
    "101 header lines": ("more than 100", lambda _: GET + b"a:\r\n" * 100 + b"\r\n"),
    "101 header lines of a message": ("more than 100", lambda it: mail(it, *["a: b"] * 96)),
    "one long header": ("16 KiB", lambda _: GET + b"a: " + b"x" * 17_000 + b"\r\n\r\n"),
    "bare LFs": ("bare LF", lambda _: GET.replace(b"\r\n", b"\n") + b"\n"),
    "one bare LF": ("bare LF", lambda _: GET + b"X-A: 1\nX-B: 2\r\n\r\n"),
    "one bare LF in a message": ("bare LF", lambda it: mail(it, "X-A: 1\nX-B: 2")),
    "a folded header": ("folded", lambda _: GET + b"X-A: 1\r\n 2\r\n\r\n"),
    "a header folded by a tab": ("folded", lambda _: GET + b"X-A: 1\r\n\t2\r\n\r\n"),
    "a folded header of a message": ("folded", lambda it: mail(it, "X-A: 1\r\n 2")),
}


@pytest.mark.parametrize("behind", [False, True], ids=["first", "behind another"])
@pytest.mark.parametrize("pieces", [1, 5], ids=["whole", "in pieces"])
@pytest.mark.parametrize("name", HEADS)
def test_it_is_refused_by_name(running: Running, name: str, pieces: int, behind: bool) -> None:
    """The answer says what is wrong, is the error object, and closes; also behind a good request in one packet."""
    text, make = HEADS[name]
    data = make(running)
    if behind:
        data = GET + b"\r\n" + data
    with Client(running.url) as client:
        size = -(-len(data) // pieces)
        for at in range(0, len(data), size):
            if not client.offer(data[at : at + size]):
                break
            time.sleep(0.01 if pieces > 1 else 0)
        if behind:
            assert client.answer().status == 200
        answer = client.answer()
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        check_error(answer)
        assert answer.json()["code"] == "invalid_request"
        assert text in answer.json()["error"]
        assert client.rest() == []


def cpu_seconds(running: Running) -> float:
    """What the process has used."""
    words = Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells what a process has used")
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("header lines", GET + b"a:\r\n" * 16_000 + b"\r\n"),
        (
            "trailers",
            b"POST /v1/auth/login HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + b"a:\r\n" * 16_000 + b"\r\n",
        ),
        (
            "chunks",
            b"POST /v1/auth/login HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 10_000 + b"0\r\n\r\n",
        ),
    ],
    ids=["header lines", "trailers", "chunks"],
)
def test_a_flood_of_lines_costs_little(running: Running, name: str, data: bytes) -> None:
    """64 KiB that cost 50 ms in a parser take a few ms with their connection and their answer."""
    began, times = cpu_seconds(running), 50
    for _ in range(times):
        with Client(running.url) as client:
            client.offer(data)
            answer = client.answer()
            assert answer.status == 400
            check_error(answer)
    assert (cpu_seconds(running) - began) / times < 0.015
