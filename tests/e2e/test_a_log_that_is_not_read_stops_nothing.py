"""A log reader that is stuck costs log lines and nothing else: mail is answered, and SIGTERM still ends the server."""

import fcntl
import os
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests import engines
from tests.ports import free_port
from tests.running_appliance import NO_TLS, PROGRAM, Provisioned, add_account
from tests.terminal import open_terminal

ROOT = Path(__file__).parents[2]
F_SETPIPE_SZ = 1031  # fcntl(2)
PIPE = 4096  # bytes, the smallest there is
EXIT_WITHIN = 15  # seconds; the log's own part of it is 1.5
READY_WITHIN = 40
NOISE = 300  # requests, each of which writes lines about its message; the pipe holds ten of them
CONFIG = """
[server]
data_dir = "data"
shutdown_timeout = "5s"
[http]
bind = ["127.0.0.1:{port}"]
[smtp]
bind = []
bind_tls = []
[delivery]
mode = "sandbox"
[limits]
requests_per_second = 0
min_free_disk = "0"
{store}
"""


@dataclass
class Server:
    """The program with its standard streams where the test put them."""

    process: "subprocess.Popen[bytes]"
    account: Provisioned
    url: str

    def send(self, count: int) -> set[int]:
        message = {"from": "a@example.com", "to": "b@example.net", "subject": "s", "text": "t"}
        with httpx.Client(headers=self.account.bearer, verify=NO_TLS, trust_env=False, timeout=10) as client:
            answers = [
                client.post(f"{self.url}/emails", json=message, headers={"Idempotency-Key": f"{time.monotonic_ns()}"})
                for _ in range(count)
            ]
        return {answer.status_code for answer in answers}

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(EXIT_WITHIN)


@contextmanager
def serving(directory: Path, stderr: int, stdout: int = subprocess.DEVNULL) -> Iterator[Server]:
    """Start the program; ready once it answers, as its log may not be readable."""
    port = free_port()
    config = directory / "config.toml"
    config.write_text(CONFIG.format(port=port, store=engines.settings_of(directory / "data")))
    account = add_account(directory / "data", "demo")
    process = subprocess.Popen(
        [*PROGRAM, "serve", "--config", str(config)],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    server = Server(process, account, f"http://127.0.0.1:{port}")
    try:
        wait_until_answering(server)
        yield server
    finally:
        process.kill()
        process.wait()


def wait_until_answering(server: Server) -> None:
    deadline = time.monotonic() + READY_WITHIN
    while time.monotonic() < deadline and server.process.poll() is None:
        with suppress(httpx.TransportError):
            if httpx.get(f"{server.url}/healthz", verify=NO_TLS, trust_env=False, timeout=5).status_code == 200:
                return
        time.sleep(0.05)
    pytest.fail("it did not start")


@pytest.fixture
def small_pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, F_SETPIPE_SZ, PIPE)
    try:
        yield reading, writing
    finally:
        for descriptor in (reading, writing):
            with suppress(OSError):
                os.close(descriptor)


def test_a_pipe_that_is_not_read(small_pipe: tuple[int, int], tmp_path: Path) -> None:
    """Every message is answered while the log is stuck, and SIGTERM ends the server with 0 all the same."""
    with serving(tmp_path, small_pipe[1]) as server:
        assert server.send(NOISE) == {202}
        assert server.end() == 0


def test_standard_streams_that_are_closed(tmp_path: Path) -> None:
    """Started with none of the three, it serves; and no file it opens takes their place."""
    config = tmp_path / "config.toml"
    port = free_port()
    config.write_text(CONFIG.format(port=port, store=engines.settings_of(tmp_path / "data")))
    account = add_account(tmp_path / "data", "demo")
    process = subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *PROGRAM, "serve", "--config", str(config)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    server = Server(process, account, f"http://127.0.0.1:{port}")
    try:
        wait_until_answering(server)
        assert server.send(3) == {202}
        assert {os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (0, 1, 2)} == {os.devnull}
        assert server.end() == 0
    finally:
        process.kill()
        process.wait()


def test_a_greeting_that_is_not_read(tmp_path: Path) -> None:
    """The greeting on a stopped terminal waits; the server does not, and says in its log that it is not read."""
    ours, theirs = open_terminal()
    termios.tcflow(theirs, termios.TCOOFF)  # what Ctrl-S does
    log = tmp_path / "log"
    config = tmp_path / "config.toml"
    config.write_text(CONFIG.format(port=free_port(), store=engines.settings_of(tmp_path / "data")))
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*PROGRAM, "serve", "--config", str(config)],
            stdout=theirs,
            stderr=stderr,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    try:
        deadline = time.monotonic() + READY_WITHIN
        while b"greeting not written: stdout is not read" not in log.read_bytes():
            assert time.monotonic() < deadline
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        process.terminate()
        assert process.wait(EXIT_WITHIN) == 0
        assert b"Fatal Python error" not in log.read_bytes()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)
