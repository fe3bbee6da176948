"""The end of a process that does not end by itself: in time, with a word about what still ran."""

import subprocess
import sys
import textwrap
import threading
import time
from math import inf

import pytest
import trio

from appliance.shutdown import EXIT_CODE, Shutdown

STUCK = textwrap.dedent(
    """
    import time
    import trio
    from appliance.telemetry import log
    from appliance.shutdown import Shutdown

    def works_on():
        time.sleep(60)

    async def main():
        {blocked}
        shutdown = Shutdown(0.5)
        shutdown.begin()
        {stuck}

    log.setup()
    trio.run(main)
    """
)
IN_A_THREAD = "await trio.to_thread.run_sync(works_on)"
ON_THE_LOOP = "works_on()"


def run(stuck: str, blocked: str = "pass") -> tuple[int, str, float]:
    began = time.monotonic()
    program = [sys.executable, "-c", STUCK.format(stuck=stuck, blocked=blocked)]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=30, check=False)
    return ran.returncode, ran.stderr, time.monotonic() - began


def test_a_thread_that_does_not_end_is_left() -> None:
    code, told, seconds = run(IN_A_THREAD)
    assert code == EXIT_CODE
    assert "stopped by force" in told
    assert "works_on" in told
    assert seconds < 15


def test_an_event_loop_that_is_blocked_is_left() -> None:
    code, told, _ = run(ON_THE_LOOP)
    assert (code, "stopped by force" in told) == (EXIT_CODE, True)


def test_a_log_without_a_reader_does_not_delay_the_exit() -> None:
    program = [sys.executable, "-c", STUCK.format(stuck=IN_A_THREAD, blocked="import os; os.set_blocking(2, True)")]
    process = subprocess.Popen(
        ["sh", "-c", 'yes x | head -c 65536 >&2; exec "$@"', "sh", *program], stderr=subprocess.PIPE
    )
    try:
        assert process.wait(20) == EXIT_CODE
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


async def test_one_that_ends_in_time_is_left_alone() -> None:
    forced: list[int] = []
    shutdown = Shutdown(0.05, exit_process=forced.append)
    shutdown.begin()
    shutdown.done()
    await trio.sleep(0.2)
    assert forced == []


async def test_the_time_is_counted_from_the_first_signal() -> None:
    shutdown = Shutdown(10, exit_process=lambda _: None)
    assert shutdown.until(0.5) == inf
    shutdown.begin()
    first = shutdown.until(0.5)
    await trio.sleep(0.02)
    shutdown.begin()
    assert shutdown.until(0.5) == first <= trio.current_time() + 5
    shutdown.done()


async def test_a_stop_needs_no_new_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    forced = trio.Event()
    token = trio.lowlevel.current_trio_token()
    shutdown = Shutdown(0.05, exit_process=lambda _: token.run_sync_soon(forced.set))

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    shutdown.begin()
    with trio.fail_after(10):
        await forced.wait()
