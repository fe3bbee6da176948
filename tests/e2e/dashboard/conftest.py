"""The one program and the one browser that the tests of the dashboard share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.dashboard.browser import DESKTOP, Browser, chromium
from tests.e2e.dashboard.stage import Stage, staged
from tests.engines import Kind
from tests.fakes.webhook_server import Hooks, hooks
from tests.running_appliance import Running, appliance


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory, engine: Kind) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("dashboard")) as made:
        yield made


@pytest.fixture(scope="session")
def _started() -> Iterator[Browser]:
    with chromium("") as started:
        yield started


@pytest.fixture(scope="session")
def _chromium(_started: Browser, stage: Stage) -> Browser:
    _started.driver.get("about:blank")
    _started.log()  # a page of the program before this one may have missed it
    return Browser(_started.driver, stage.url)


@pytest.fixture
def browser(_chromium: Browser) -> Browser:
    _chromium.size(*DESKTOP)
    _chromium.theme("light")
    return _chromium


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def receiver(directory: Path) -> Iterator[Hooks]:
    """Of webhooks, for the tests of one file."""
    with hooks(directory) as started:
        yield started


@pytest.fixture(scope="module")
def running(directory: Path, receiver: Hooks) -> Iterator[Running]:
    """A program of its own for each file, in sandbox mode, whose webhooks reach the receiver."""
    with appliance(directory, webhooks=receiver.settings(directory)) as started:
        yield started
