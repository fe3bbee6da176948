"""The one program and the one browser that the tests of the dashboard share."""

from collections.abc import Iterator

import pytest

from tests.e2e.dashboard.browser import DESKTOP, Browser, chromium
from tests.e2e.dashboard.stage import Stage, staged
from tests.engines import Kind


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
