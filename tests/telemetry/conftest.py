"""A log for one test, which leaves the interpreter's logging as it was."""

import io
import logging
from collections.abc import Callable, Iterator

import pytest

from appliance.telemetry import log, log_lines

SWITCHES = ("raiseExceptions", "logThreads", "logProcesses", "logMultiprocessing")


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger(log_lines.ROOT_LOGGER)
    before, switches = (root.handlers[:], root.level, ours.level), {name: getattr(logging, name) for name in SWITCHES}
    yield
    root.handlers[:], root.level, ours.level = before
    for name, value in switches.items():
        setattr(logging, name, value)
    logging.captureWarnings(False)


@pytest.fixture
def log_to(logging_as_before: None) -> Callable[..., io.StringIO]:
    """Set the log up, alone: pytest cannot hand a lone surrogate from one of its processes to another."""

    def start(*, as_json: bool = True, level: int = logging.INFO) -> io.StringIO:
        stream = io.StringIO()
        logging.getLogger().handlers.clear()
        log.setup(stream, level, json=as_json)
        return stream

    return start
