"""Starting the program without reading its code again: each is forked by a process that has read it.

There is one such parent for each process that runs tests, from the first start on, and one for another version of the
code while a test needs it. What Python or the dynamic linker read from the environment when they start does not reach
a fork: a test of that starts a process of its own.
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from tests import readable_copy

ROOT = Path(__file__).parents[1]


class Forked:
    """A forked program, to be treated like a `subprocess.Popen`."""

    def __init__(self, pid: int, told: IO[bytes]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._told = told
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._look(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _look(self, timeout: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and _is_readable(self._told, timeout):
                self.returncode = int(self._told.readline())
                self._told.close()
            return self.returncode


class Piped(Forked):
    """A forked program whose output and errors are read here."""

    stdin: IO[str]
    stdout: IO[str]
    stderr: IO[str]

    def communicate(self, timeout: float) -> tuple[str, str]:
        """The rest of its output and its errors, of which neither fills a pipe, once it has ended."""
        self.stdin.close()
        with self.stdout, self.stderr:
            self.wait(timeout)
            return self.stdout.read(), self.stderr.read()


def _is_readable(file: IO[bytes], timeout: float | None) -> bool:
    poll = select.poll()  # select() knows no descriptors above a thousand
    poll.register(file, select.POLLIN)
    return bool(poll.poll(None if timeout is None else 1_000 * timeout))


class _Parents:
    """The one parent process of some code, from the first fork on."""

    def __init__(self, code: Path) -> None:
        self._code = code
        self._orders: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def order(self, order: bytes, descriptors: Sequence[int]) -> None:
        with self._lock:
            if self._orders is None:
                self._orders = self._start()
        socket.send_fds(self._orders, [order], descriptors)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.fork_server", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join((*self._code_paths(), str(ROOT)))},
            )
        return ours

    def _code_paths(self) -> list[str]:
        """Where it reads the code: another version as it is, ours from where another user can read it."""
        return [*(readable_copy.code_paths() if self._code == ROOT else []), str(self._code)]

    def end(self) -> None:
        if self._orders is not None and self._process is not None:
            self._orders.close()
            self._process.wait()


_PARENTS = {ROOT: _Parents(ROOT)}
atexit.register(_PARENTS[ROOT].end)


@contextmanager
def other_version(code: Path) -> Iterator[None]:
    parents = _PARENTS[code] = _Parents(code)
    try:
        yield
    finally:
        del _PARENTS[code]
        parents.end()


def fork(
    *words: str,
    directory: Path,
    environment: Mapping[str, str],
    stdout: IO[Any],
    stderr: IO[Any],
    stdin: IO[Any] | None = None,
    user: int | None = None,
    code: Path = ROOT,
) -> Forked:
    """The program with these words, in a process of its own; as another user, if we are root.

    The settings that it finds in /etc are those of $SYSTEM_CONFIG, where the environment has that.
    """
    order = {"words": words, "directory": str(directory), "environment": dict(environment), "user": user}
    reading, writing = os.pipe()
    told = open(reading, "rb", buffering=0)  # noqa: SIM115  # closed when the child has ended
    streams = [stream.fileno() for stream in (stdout, stderr, stdin) if stream is not None]
    try:
        _PARENTS[code].order(json.dumps(order).encode(), [writing, *streams])
    finally:
        os.close(writing)
    return Forked(int(told.readline()), told)


def piped(*words: str, stdout: int = -1, stderr: int = -1, **options: Any) -> Piped:
    """The program with pipes for its input, its output and its errors, or where these descriptors lead."""
    with ExitStack() as ends:
        pipes = [[open(end, mode) for end, mode in zip(os.pipe(), "rw", strict=True)] for _ in range(3)]  # noqa: SIM115
        (theirs_in, ours_in), (ours_out, theirs_out), (ours_err, theirs_err) = pipes
        for end in (theirs_in, theirs_out, theirs_err):
            ends.enter_context(end)
        for descriptor, end in ((stdout, theirs_out), (stderr, theirs_err)):
            if descriptor != -1:
                os.dup2(descriptor, end.fileno())
        forked = fork(*words, stdin=theirs_in, stdout=theirs_out, stderr=theirs_err, **options)
    process = Piped(forked.pid, forked._told)
    process.stdin, process.stdout, process.stderr = ours_in, ours_out, ours_err
    return process
