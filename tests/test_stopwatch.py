"""The stopwatch of tests that hold a program to a time."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.stopwatch import Stopwatch

SPIN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint(flush=True)\nwhile True: pass"


def test_what_the_program_takes_counts() -> None:
    """Work and sleep of the thread that measures are its own time."""
    watch = Stopwatch(os.getpid())
    time.sleep(0.2)
    assert 0.05 < watch.taken <= watch.elapsed


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count waiting threads")
def test_waiting_for_a_processor_does_not_count() -> None:
    """Beside three others on one processor, a thread takes no longer than its own work."""
    processors = os.sched_getaffinity(0)
    one = min(processors)
    others = [subprocess.Popen([sys.executable, "-c", SPIN, str(one)], stdout=subprocess.PIPE) for _ in range(3)]
    try:
        for other in others:
            assert other.stdout is not None
            other.stdout.readline()
        os.sched_setaffinity(0, {one})
        worked, watch = time.thread_time(), Stopwatch(os.getpid())
        while time.thread_time() < worked + 0.3:
            pass
        assert watch.elapsed > 0.5
        assert watch.taken < 0.5
    finally:
        os.sched_setaffinity(0, processors)
        for other in others:
            other.kill()
            other.communicate()
