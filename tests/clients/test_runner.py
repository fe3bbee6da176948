"""The runner finds what is wrong: a library that breaks rules fails the scenarios of those rules, and is told how."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.conformance import drivers
from clients.conformance.__main__ import main, table
from clients.conformance.drivers import DriverFailed, Drivers, Language, Ready
from clients.conformance.runner import Bench, Materials, Outcome, Report, run
from clients.conformance.scenarios import read_all
from clients.conformance.server import Server, started

SCENARIOS = {each.name: each for each in read_all()}

DROPPED = "202 dropped after the commit gives exactly one message (reset)"

# Sends, and retries three times with a new key whatever came; every error is an ApiError.
WRONG = """
import base64, json, sys, urllib.request, uuid
for line in sys.stdin:
    asked = json.loads(line)
    answer = {"ok": True}
    if asked["command"] == "client":
        client = asked
    elif asked["command"] == "send":
        pair = base64.b64encode((client["username"] + ":" + client["password"]).encode()).decode()
        for _ in range(4):
            key = asked.get("idempotency_key", "auto_" + str(uuid.uuid4()))
            headers = {"Authorization": "Basic " + pair, "Content-Type": "application/json", "Idempotency-Key": key}
            body = json.dumps(asked["message"]).encode()
            try:
                with urllib.request.urlopen(urllib.request.Request(client["url"] + "/emails", body, headers)) as got:
                    answer = {"result": {**json.load(got), "idempotency_key": key, "replayed": False}}
                break
            except Exception as error:
                answer = {"error": {"class": "ApiError", "message": str(error)}}
    elif asked["command"] == "get":
        sys.exit("I cannot get")
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An appliance for all of them."""
    with started(tmp_path_factory.mktemp("appliance")) as running:
        yield running


@pytest.fixture
def wrong(server: Server, tmp_path: Path) -> Iterator[Bench]:
    """A driver that breaks rules, ready to be tried."""
    (tmp_path / "driver.py").write_text(WRONG)
    ready = Ready((sys.executable, str(tmp_path / "driver.py")), {})
    several = Drivers(ready)
    (tmp_path / "materials").mkdir()
    yield Bench(server, Language("wrong", "python", lambda *_: ready), several, Materials(tmp_path / "materials"))
    several.close()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Basic authentication", None),
        (DROPPED, "replayed: expected True, came False"),
        (DROPPED, "number of stored messages: expected 1, came 2"),
        (DROPPED, "headers.idempotency-key of calls: expected the same"),
        ("wrong password", "class: expected 'Unauthorized', came 'ApiError'"),
        ("500 is not retried", "number of calls: expected 1, came 2"),
        ("headers of a send", "calls[1].headers.user-agent: expected matches"),
        ("429 with one second", "seconds, took 0."),
        ("get of another account's message", "I cannot get"),
        ("missing URL is named", "expected error"),
    ],
)
def test_what_is_wrong_is_told(wrong: Bench, name: str, told: str | None) -> None:
    """And what is right passes."""
    problems = wrong.run(SCENARIOS[name]).problems
    assert problems == () if told is None else any(told in each for each in problems), problems


def test_a_driver_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that goes on after its input has ended is told."""
    monkeypatch.setattr(drivers, "END_TIMEOUT", 0.5)
    endless = Drivers(Ready((sys.executable, "-c", "print('{}', flush=True); import time; time.sleep(60)"), {}))
    with endless.one({}) as driver:
        assert driver.ask({}) == {}
    with pytest.raises(DriverFailed, match="did not end"):
        endless.close()


def test_a_library_that_is_missing_is_a_failure(server: Server, tmp_path: Path) -> None:
    """Its reason names what is missing, and the other languages are tried."""
    (first, second) = run(server, ["ruby", "php"], [], tmp_path, Report())
    assert (first.language, second.language) == ("ruby", "php")
    assert "driver.rb is not there" in first.problems[0]


def test_the_table_counts_and_explains() -> None:
    """Each language's numbers, and the problems of what failed."""
    told = table([Outcome("go", "a", (), 1), Outcome("go", "b", ("expected 1, came 2",), 1)], 3)
    assert told.splitlines()[:2] == ["go: b", "    expected 1, came 2"]
    assert told.splitlines()[-2].split() == ["go", "1", "1"]


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown language and a name that no scenario has."""
    with pytest.raises(SystemExit) as ended:
        main(["cobol"])
    assert ended.value.code == 2
    assert main(["-k", "no such scenario"]) == 2
    assert "no such scenario" in capsys.readouterr().err
