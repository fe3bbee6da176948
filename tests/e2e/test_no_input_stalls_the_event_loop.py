"""No input makes one step of the event loop so long that other clients notice it.

Measured in the real program, in CPU time of each step (see tests/loop_watch.py), as a quiet machine would take it. A
step counts as too long when it is so in every one of a few tries: what a single try adds is the machine's, not the
input's.
"""

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.cpu_time import slowness
from tests.e2e.hostile_inputs import FIELDS, HEADS, SENDERS, STRANGERS, SUBMITTERS, Input, Target
from tests.loop_watch import longest_step, program
from tests.running_appliance import appliance

LONGEST = 20.0  # milliseconds
SHORT = 5.0  # milliseconds, for what a customer's dashboard asks for all day, and for what a head alone can do
TRIES = 3
SETTLE = 0.15  # seconds for what follows an answer: its storing, its simulated delivery
NUMBERS = count(1)


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("watch") / "socket"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, watch: Path) -> Iterator[Target]:
    """One server for all, which has answered one request of each kind already."""
    with appliance(
        tmp_path_factory.mktemp("stalls"), environment={"WATCH_SOCKET": str(watch)}, program=program()
    ) as running:
        target = Target(running)
        assert target.email(0) is not None
        assert target.data(0, b"From: a@example.com\r\n\r\nHello.\r\n").startswith(b"250 ")
        assert target.token
        yield target


@pytest.mark.parametrize("name", [*HEADS, *FIELDS, *STRANGERS, *SENDERS, *SUBMITTERS])
def test_no_step_takes_long(target: Target, watch: Path, name: str) -> None:
    """The longest step while this input is answered is within the limit, and the server goes on."""
    send: Input = {**HEADS, **FIELDS, **STRANGERS, **SENDERS, **SUBMITTERS}[name]
    seen, most = [], SHORT if name in FIELDS or name.startswith("a list of") else LONGEST
    for _ in range(TRIES):
        seen.append(_longest(target, watch, send))
        if seen[-1][0] <= most:
            break
    assert seen[-1][0] <= most, f"{name}: {seen}"
    assert target.get("/healthz") is not None


def _longest(target: Target, watch: Path, send: Input) -> tuple[float, str]:
    before = slowness()
    longest_step(str(watch))
    send(target, next(NUMBERS))
    time.sleep(SETTLE)
    milliseconds, task = longest_step(str(watch))
    return milliseconds / min(before, slowness()), task
