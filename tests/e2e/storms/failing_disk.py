"""A disk that fails: strace attaches to the running program and answers for the kernel, from the n-th call on."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.programs import require
from tests.running_appliance import Running

SYNCS = "fsync,fdatasync"  # which of the two SQLite calls depends on how it was built
WRITES = "pwrite64"
ATTACHED_WITHIN = 10  # seconds


@contextmanager
def failing(running: Running, calls: str, error: str, when: str, *, only: Path | None = None) -> Iterator[None]:
    """Let these calls of the running program fail: `when` as strace has it, `only` on this file."""
    require("strace")
    wanted = ["strace", "-f", "-qq", "-o", str(running.directory / "strace"), "-p", str(running.pid)]
    wanted += ["-e", f"trace={calls}", "-e", f"inject={calls}:error={error}:when={when}"]
    wanted += [] if only is None else ["-P", str(only)]
    with subprocess.Popen(wanted, stderr=subprocess.PIPE, text=True) as tracer:
        try:
            _wait_until_attached(tracer, running.pid)
            yield
        finally:
            tracer.terminate()


def _wait_until_attached(tracer: "subprocess.Popen[str]", pid: int) -> None:
    deadline = time.monotonic() + ATTACHED_WITHIN
    while not all(_is_traced(thread) for thread in Path(f"/proc/{pid}/task").iterdir()):
        if tracer.poll() is not None:
            assert tracer.stderr is not None
            pytest.skip(f"strace may not attach to a program here: {tracer.stderr.read().strip()}")
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _is_traced(thread: Path) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        return "TracerPid:\t0\n" not in (thread / "status").read_text()
    return True
