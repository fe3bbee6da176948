"""What `sh packaging/bench` tells of a run, with scenarios that measure nothing; and the load that it measures with."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, cast

import pytest

from tests.bench import __main__ as bench
from tests.bench import report, submit
from tests.bench.deliver import Sink, wanted_of_signed
from tests.bench.figures import Figure, Run, compared
from tests.bench.load import LONGEST, drive, send_requests
from tests.bench.scenarios import SCENARIOS, Effort, Missing, Progress, submitted_rate
from tests.bench.stages import sampling, stage_of

Scenario = Callable[[Effort, Run, Progress], None]


def finds(*figures: Figure) -> Scenario:
    """A scenario that has found these."""
    return lambda effort, run, told: run.figures.extend(figures)


def breaks(error: Exception) -> Scenario:
    """A scenario that ends with an error."""

    def scenario(effort: Effort, run: Run, told: Progress) -> None:
        raise error

    return scenario


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Run these scenarios in place of the real ones; the exit code."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    document = tmp_path / "performance.md"
    document.write_text(f"# Performance\n\n{report.BEGIN}\n\n{report.END}\n")
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(report, "DOCUMENT", document)
    monkeypatch.setattr(report, "IMAGES", tmp_path / "images")

    def main(*arguments: str, **scenarios: Scenario) -> int:
        monkeypatch.setattr(bench, "SCENARIOS", scenarios)
        monkeypatch.setattr(sys, "argv", ["bench", *arguments])
        return bench.main()

    return main


FAST = compared("fast", "messages/s", [200.0], [100.0], "peer", 1.5)


def test_a_scenario_that_fails_does_not_lose_what_the_others_found(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It is named with its error, the exit code is 1, and no document is written; what was found is kept."""
    before = (tmp_path / "performance.md").read_text()
    assert run(broken=breaks(RuntimeError("no messages arrived")), whole=finds(FAST)) == 1
    printed = capsys.readouterr().out
    assert "not measured: broken: RuntimeError: no messages arrived" in printed
    assert "reached" in printed
    assert (tmp_path / "performance.md").read_text() == before
    (kept,) = (tmp_path / "appliance-bench").iterdir()
    assert report.recorded(kept) == {"fast [messages/s]": 2.0}


def test_what_is_missing_here_is_told_and_is_no_failure(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The document names it beside what was measured."""
    assert run(peerless=breaks(Missing("postfix not found")), whole=finds(FAST)) == 0
    assert "not measured: peerless: postfix not found" in capsys.readouterr().out
    document = (tmp_path / "performance.md").read_text()
    assert "| fast | 200 messages/s | 100 peer | 2.00 | ≥ 1.5 | reached |" in document
    assert "Not measured: peerless (postfix not found)." in document


def test_a_run_is_compared_with_the_last_one_on_this_machine(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """What has become a tenth slower is marked; a quick run is compared with quick ones only."""
    assert run(whole=finds(FAST)) == 0
    assert "last run" not in capsys.readouterr().out
    slower = compared("fast", "messages/s", [160.0], [100.0], "peer", 1.5)
    assert run("--quick", whole=finds(slower)) == 0
    assert "last run" not in capsys.readouterr().out
    assert run(whole=finds(slower)) == 0
    assert "2 SLOWER" in capsys.readouterr().out
    assert run(whole=finds(compared("fast", "messages/s", [140.0], [100.0], "peer", 1.5))) == 1
    assert "MISSED" in capsys.readouterr().out


def test_the_cost_of_stages_is_printed_and_drawn(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """On a terminal as a line, in the document as a plot."""

    def scenario(effort: Effort, run: Run, told: Progress) -> None:
        run.stages = {"accept": 200.4, "post": 99.6}

    (tmp_path / "images").mkdir()
    assert run(stages=scenario) == 0
    assert "interpreter lock for a message: accept 200, post 100\n" in capsys.readouterr().out
    assert "images/cost-by-stage.svg" in (tmp_path / "performance.md").read_text()
    assert "accept" in (tmp_path / "images" / "cost-by-stage.svg").read_text()


def test_py_spy_is_given_each_option_once() -> None:
    """It refuses a command that repeats one, and would sample nothing."""
    options = [word for word in sampling(1, Path("samples")) if word.startswith("--")]
    assert len(options) == len(set(options))


def test_a_sample_counts_for_the_innermost_stage() -> None:
    """Whatever called it; what belongs to no stage is `other`."""
    loop = "run (trio/_core/_run.py)"
    assert stage_of(f"{loop};post (appliance/web/api.py);sign (appliance/message/dkim.py)") == "sign"
    assert stage_of(f"{loop};send (appliance/deliver/session.py);write (socket.py)") == "deliver"
    assert stage_of(f"{loop};_post (appliance/webhook/dispatcher.py)") == "post"
    assert stage_of(loop) == "other"


def test_less_is_wanted_of_signed_mail_where_signing_is_slow() -> None:
    """Four times Postfix with OpenDKIM where a signature takes under a millisecond, else twice."""
    assert [wanted_of_signed(seconds) for seconds in (0.0007, 0.001, 0.0034)] == [4.0, 2.0, 2.0]


def test_a_machine_that_is_never_quiet_is_waited_for_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty seconds once, not before each round; one that is quiet is not waited for."""
    now, idle = [0.0], [0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(submit, "_patience", 30.0)
    monkeypatch.setattr(submit, "_idle", lambda: (idle[0] * int(100 * now[0]), int(100 * now[0])))
    monkeypatch.setattr(submit, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now[0]))
    for _ in range(20):
        submit.settle()
    assert 60 <= now[0] <= 75
    idle[0], before = 1, now[0]
    submit.settle()
    assert now[0] - before == submit.LOOK


def test_waiting_for_a_quiet_machine_is_no_part_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Submission is measured from the first message, by the clock of the process that sends."""

    def measured(port: int, kind: str, seconds: float, *login: str) -> dict[str, float]:
        return {"answered": 50.0, "began": 100.0}

    there = SimpleNamespace(arrived=7, wait_until=lambda count: 110.0 if count == 57 else 0.0)
    monkeypatch.setattr(submit, "settle", lambda: None)
    monkeypatch.setattr(submit, "measure", measured)
    assert submitted_rate(cast(Sink, there), 25, 1.0) == 5.0


def test_a_quick_run_does_little_of_everything() -> None:
    """Every scenario is in it, with one round of each."""
    quick, whole = Effort.quick(), Effort.whole()
    assert quick.rounds == 1
    assert not quick.takeover
    assert quick.easy_seconds < whole.easy_seconds
    assert set(SCENARIOS) == {
        "accept", "signed", "stages", "plain", "submit", "webhooks", "queued", "stored", "nodes", "attacks",
        "slow",
    }  # fmt: skip


# ---- the load over HTTP


class _Counting(BaseHTTPRequestHandler):
    """Answers every POST with 202, and counts the bytes of their bodies."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[int]]

    def do_POST(self) -> None:
        self.seen.append(len(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(202)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Keep silent."""


@pytest.fixture
def counting() -> Iterator[tuple[int, list[int]]]:
    """The port of a server that counts, and what it has counted."""

    class Handler(_Counting):
        seen: ClassVar[list[int]] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.server_address[1], Handler.seen
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_load_of_some_requests_sends_each_once(counting: tuple[int, list[int]]) -> None:
    """Large ones too, which no socket takes at once."""
    port, seen = counting
    requests = send_requests("Bearer none", "test", attachment=2**20)
    load = drive("127.0.0.1", port, 3, 60, lambda number: islice(requests(number), 4))
    assert load.statuses == {202: 12}
    assert len(seen) == load.answered == len(load.latencies) == 12
    assert len(set(seen)) == 1
    assert seen[0] > 2**20 * 4 // 3


@pytest.mark.parametrize("rate", [0.0, 100.0])
def test_a_load_for_some_time_ends_then(counting: tuple[int, list[int]], rate: float) -> None:
    """With the last answer, and with as many requests as the rate and the time allow."""
    port, seen = counting
    began = time.perf_counter()
    load = drive("127.0.0.1", port, 3, 0.5, send_requests("Bearer none", "test"), rate)
    assert 0.5 <= load.seconds <= time.perf_counter() - began < LONGEST / 2
    assert len(seen) == load.answered == load.statuses[202] > 0
    assert not rate or load.answered <= 51
