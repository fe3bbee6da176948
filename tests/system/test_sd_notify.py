"""Notifications to the service manager, over a real socket, at a path and under an abstract name."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from appliance.system.service import ServiceManager, service_manager


@contextmanager
def listening(name: str) -> Iterator[socket.socket]:
    """A socket such as systemd's, at a path or, with a leading @, under an abstract name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(name.replace("@", "\0", 1))
        bound.setblocking(False)
        yield bound


def heard(bound: socket.socket) -> list[str]:
    """Everything that was told so far."""
    told = []
    try:
        while True:
            told.append(bound.recv(4096).decode())
    except BlockingIOError:
        return told


@pytest.fixture(params=["path", "abstract"])
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """What stands in $NOTIFY_SOCKET."""
    return str(tmp_path / "notify") if request.param == "path" else f"@appliance-test-{os.getpid()}"


def test_each_state_is_told(name: str) -> None:
    """Every state comes as one datagram of assignments, as sd_notify(3) has them."""
    with listening(name) as bound:
        manager = service_manager({"NOTIFY_SOCKET": name})
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        manager.status("opening")
        manager.ready("serving")
        manager.reloading()
        manager.stopping("ending")
        opening, ready, reloading, stopping = heard(bound)
    assert opening == "STATUS=opening"
    assert ready == "READY=1\nSTATUS=serving"
    assert stopping == "STOPPING=1\nSTATUS=ending"
    first, _, usec = reloading.partition("\nMONOTONIC_USEC=")
    assert first == "RELOADING=1"
    assert before <= int(usec) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1234"}])
def test_without_a_manager_nothing_happens(environ: dict[str, str]) -> None:
    """No socket, or one of a kind that we do not speak, is no reason not to run."""
    manager = service_manager({**environ, "WATCHDOG_USEC": "1000000"})
    assert manager == ServiceManager()
    manager.ready("serving")


def test_a_manager_that_is_gone_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be sent is a warning in the log."""
    service_manager({"NOTIFY_SOCKET": str(tmp_path / "missing")}).ready("serving")
    assert [record.message for record in caplog.records] == ["service manager not notified"]


def test_a_manager_that_does_not_read_stops_nothing(name: str) -> None:
    """When its queue is full, telling fails at once instead of waiting."""
    with listening(name):
        manager = service_manager({"NOTIFY_SOCKET": name})
        begin = time.monotonic()
        for _ in range(600):
            manager.status("x")
        assert time.monotonic() - begin < 5


@pytest.mark.parametrize(
    ("environ", "every"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getppid())}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_fed_twice_as_often_as_needed(environ: dict[str, str], every: float | None) -> None:
    """If it is meant for us, or for the process that unpacked us."""
    assert service_manager({"NOTIFY_SOCKET": "/run/notify", **environ}).keepalive_interval == every


async def test_beats_come_at_their_pace(name: str, autojump_clock: MockClock) -> None:
    """One at once, then one each period; without a watchdog none."""
    with listening(name) as bound:
        with trio.move_on_after(95):
            await service_manager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "60000000"}).keep_alive()
        assert heard(bound) == ["WATCHDOG=1"] * 4
        await service_manager({"NOTIFY_SOCKET": name}).keep_alive()
        assert heard(bound) == []


async def test_a_stuck_loop_falls_silent(name: str) -> None:
    """Beats come from the event loop: while something blocks it, there are none."""
    with listening(name) as bound:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service_manager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "40000"}).keep_alive)
            await trio.testing.wait_all_tasks_blocked()
            assert heard(bound) == ["WATCHDOG=1"]
            time.sleep(0.3)  # noqa: ASYNC251 - the fault that is to be noticed
            assert heard(bound) == []
            nursery.cancel_scope.cancel()
