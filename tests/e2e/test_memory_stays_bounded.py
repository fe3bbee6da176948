"""Large, many, unfinished and hostile bodies: the process stays small, answers, and serves others meanwhile."""

import base64
import json
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.raw import MESSAGE, Answer, Client, check_error, others_are_served, request, sending
from tests.running_appliance import Running, appliance
from tests.stopwatch import Stopwatch

MIB = 1024 * 1024
IDLE = 120 * MIB  # resident, after a start and one message
AT_ONCE = 256 * MIB  # above idle, whatever arrives
TIMES_ITS_SIZE = 6  # above idle, for one large message
MESSAGE_SIZE = 10 * MIB

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="only Linux tells how much memory a process has had"
)


@dataclass
class Measured:
    """A running server, what it weighs idle, and its peak of late."""

    running: Running
    idle: int = 0

    def now(self) -> int:
        return self._status("VmRSS")

    def peak(self) -> int:
        return self._status("VmHWM") - self.idle

    def forget_peak(self) -> None:
        (self._proc / "clear_refs").write_text("5")

    @property
    def _proc(self) -> Path:
        assert self.running.process is not None
        return Path(f"/proc/{self.running.process.pid}")

    def _status(self, name: str) -> int:
        for line in (self._proc / "status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise LookupError(name)

    def post(self, key: str, body: bytes) -> Answer:
        with Client(self.running.url, timeout=60) as client:
            client.send(request("POST", "/emails", *sending(self.running, key), body=body))
            return client.answer()


@contextmanager
def measured(directory: Path, http: str = "") -> Iterator[Measured]:
    with appliance(directory, http=http, fresh=True) as running:
        started = Measured(running)
        assert started.post("first", MESSAGE).status == 202
        started.idle = started.now()
        yield started
        assert running.complaints() == []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    with measured(tmp_path_factory.mktemp("running")) as started:
        yield started


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Measured]:
    """A server that cuts a body after eight seconds, which whole bodies take too on a busy machine."""
    with measured(tmp_path, 'body_timeout = "8s"') as started:
        yield started


def sent(**fields: object) -> bytes:
    return json.dumps({"from": "a@example.com", "to": "b@example.net", "subject": "s", **fields}).encode()


def large() -> bytes:
    """A message that is 10 MiB when it is assembled, nearly all of it one attachment."""
    content = random.Random(1).randbytes(7_660_000)
    attachment = {"filename": "large.bin", "content": base64.b64encode(content).decode()}
    return sent(text="t", attachments=[attachment])


LARGE = large()


def test_an_idle_process_is_small(server: Measured) -> None:
    assert server.idle < IDLE


def test_one_large_message_takes_a_few_times_its_size(server: Measured) -> None:
    """10 MiB are accepted without more than six copies of them, and given back."""
    server.forget_peak()
    with others_are_served(server.running):
        answer = server.post("large", LARGE)
    assert answer.status == 202
    assert server.peak() < TIMES_ITS_SIZE * MESSAGE_SIZE
    (size,) = [file["size"] for file in answer.json()["attachments"]]
    assert size == 7_660_000


def test_twenty_large_messages_at_once_share_what_there_is(server: Measured) -> None:
    """Each is taken, or told when to come back; together they stay within bounds, and afterwards nothing is left."""
    server.forget_peak()
    with others_are_served(server.running), ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda number: server.post(f"at once {number}", LARGE), range(20)))
    assert server.peak() < AT_ONCE
    assert server.now() < server.idle + 64 * MIB
    for answer in answers:
        assert answer.status in (202, 503)
        assert (answer.status == 503) == ("retry-after" in answer.headers)


def test_bodies_that_never_end_share_what_there_is(impatient: Measured) -> None:
    """Of twenty unfinished bodies some wait in memory until they are cut, and the others are told to come back."""
    impatient.forget_peak()
    with others_are_served(impatient.running), ExitStack() as stack:
        clients = [stack.enter_context(Client(impatient.running.url, timeout=30)) for _ in range(20)]
        for number, client in enumerate(clients):
            head = request(
                "POST", "/emails", *sending(impatient.running, f"endless {number}"), "Content-Length: 14000000"
            )
            client.send(head)
        watch = Stopwatch(impatient.running.pid)
        with ThreadPoolExecutor(20) as pool:
            list(pool.map(lambda client: client.offer(b" " * 13_900_000), clients))
            ends = list(pool.map(Client.rest, clients))
        assert watch.taken < 8 + 2
    refusals = [answers[0] for answers in ends if answers]
    assert 0 < len(refusals) < 20
    for refusal in refusals:
        assert (refusal.status, refusal.headers["retry-after"]) == (503, "2")
        check_error(refusal)
    assert impatient.peak() < AT_ONCE
    assert impatient.now() < impatient.idle + 64 * MIB


def test_a_long_text_with_one_wide_character_is_no_trap(server: Measured) -> None:
    """One emoji makes each character of a text take four bytes, and the message is accepted all the same."""
    body = sent(text="").replace(b'"text": ""', b'"text": "' + b"a" * 10_000_000 + "😀".encode() + b'"')
    server.forget_peak()
    with others_are_served(server.running):
        assert server.post("emoji", body).status == 202
    assert server.peak() < AT_ONCE


# ---- hostile JSON

BOMBS: dict[str, Callable[[], bytes]] = {
    "brackets in a field": lambda: b'{"to": ' + b"[" * 15_000_000,
    "escapes": lambda: b'{"text": "' + b"\\u003a" * 2_500_000 + b'"}',
    "surrogates": lambda: b'{"text": "' + rb"\ud83d\ude00" * 1_200_000 + rb'\ud800"}',
    "recipients": lambda: sent(text="t", to=[]).replace(b"[]", b"[" + b'"a",' * 3_700_000 + b'"a"]'),
    "commas in strings": lambda: b'{"to": [' + b'"a,,,,,,,,,,,",' * 900_000,
}


@pytest.mark.parametrize(("name", "bomb"), BOMBS.items(), ids=list(BOMBS))
def test_a_json_bomb_is_refused_at_little_cost(server: Measured, name: str, bomb: Callable[[], bytes]) -> None:
    """15 MB of JSON that means nothing are a 400, take a few times their size, and no other client waits for it."""
    body = bomb()
    server.forget_peak()
    with others_are_served(server.running):
        answer = server.post(f"bomb {name}", body)
    assert answer.status == 400
    check_error(answer)
    assert server.peak() < 128 * MIB


def test_refused_bodies_are_forgotten(server: Measured) -> None:
    """However many large bodies are refused, none stays in memory."""
    for number in range(10):
        for body in (b"{" + b" " * 15_000_000 + b"}", b'{"text": "' + b"a" * 15_000_000 + b'\xff"}'):
            assert server.post(f"refused {number}", body).status == 400
        foreign = sent(text="a" * 8_000_000).replace(b"a@example.com", b"a@example.org")
        assert server.post(f"foreign {number}", foreign).status == 403
    assert server.now() < server.idle + 64 * MIB


def test_repeated_messages_are_forgotten(server: Measured) -> None:
    """However often a large message is sent again under its key, no copy of it stays in memory."""
    for _ in range(15):
        assert server.post("large", LARGE).status == 202
    assert server.now() < server.idle + 64 * MIB
