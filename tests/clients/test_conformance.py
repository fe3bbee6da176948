"""The Python library in every scenario of `clients/conformance`, by its synchronous and its asynchronous client."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from clients.conformance.runner import AT_ONCE, Materials, Outcome, bench
from clients.conformance.scenarios import read_all
from clients.conformance.server import started

CLIENTS = Path(__file__).parents[2] / "clients"
LANGUAGES = ("python", "python-async")
SCENARIOS = {each.name: each for each in read_all()}

Outcomes = dict[tuple[str, str], Future[Outcome]]


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    """Those of all scenarios that are to be tested: they mostly wait, so several run at once."""
    ours = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    wanted = [(str(item.callspec.params["language"]), str(item.callspec.params["scenario"])) for item in ours]
    directory = tmp_path_factory.mktemp("conformance")
    (directory / "materials").mkdir()
    with ExitStack() as open_, started(directory / "appliance") as server:
        materials = Materials(directory / "materials")
        benches = {name: open_.enter_context(bench(server, name, CLIENTS, materials)) for name in LANGUAGES}
        pool = open_.enter_context(ThreadPoolExecutor(AT_ONCE))
        yield {(name, each): pool.submit(benches[name].run, SCENARIOS[each]) for name, each in wanted}


@pytest.mark.timeout(400)  # for all of them, since the first waits for a start and the last for all before it
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(outcomes: Outcomes, language: str, scenario: str) -> None:
    """The answers, the requests and the messages stored are those that every library's are."""
    assert outcomes[language, scenario].result().problems == ()
