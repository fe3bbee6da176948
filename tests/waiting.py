"""Waiting for a condition, with a limit that a busy machine meets."""

import time
from collections.abc import Callable

PATIENCE = 60.0  # seconds


def wait_until(condition: Callable[[], object], within: float = PATIENCE, why: Callable[[], object] = str) -> None:
    """Look often; `why` tells what is the case instead."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.02)
