"""The simulation behind docs/scaling.md does what nodes do, and the document has what it prints."""

import math
from dataclasses import replace

import pytest

from appliance.store.postgresql.nodes import BEAT, LEASE
from tests.bench.costs import MEASURED, Costs
from tests.bench.report import IMAGES
from tests.bench.scaling import DOCUMENT, Scaling, scaling, terminal, written
from tests.bench.simulation import Fault, Outcome, Plan, Receiver, simulate

COSTS = Costs(
    accept=200, store=100, sign=100, deliver=300, record=100, post=0, log=100, other=100,
    node_commit=0, threads=500, database=250, database_commit=0, taken_over=50,
    wal=5_000, rows=3_000, body=2_000, commit_seconds=0.002, longest_commit=0.01, around=0,
)  # fmt: skip
CAPACITY = 1_000.0  # messages a second of one node with these costs: a millisecond of its lock each


def run(plan: Plan, costs: Costs = COSTS) -> Outcome:
    """Simulate; and nothing is ever lost or made."""
    found = simulate(plan, costs)
    assert found.accepted <= found.offered + 1e-6
    assert found.delivered <= found.accepted + plan.queued + 1e-6
    return found


@pytest.mark.parametrize("load", [10.0, 500.0, 0.95 * CAPACITY])
def test_below_its_capacity_a_node_delivers_what_comes_and_its_backlog_goes(load: float) -> None:
    """A queue of the start is delivered beside the load, as fast as the lock that is left allows."""
    found = run(Plan(1, lambda _: load, 60.0, queued=1_000))
    assert found.rate() == pytest.approx(load, rel=0.01)
    assert found.backlog[0][1] == 1_000
    assert found.backlog[-1][1] <= 2 * load * 0.5  # what came in the last steps
    assert found.used["node"] == pytest.approx(min(1.0, (load + 1_000 / 60 * 0.6) / CAPACITY), abs=0.04)


def test_above_its_capacity_the_backlog_grows_by_the_difference() -> None:
    """The node delivers what it can; the rest waits, and the node is named as the limit."""
    found = run(Plan(1, lambda _: 1.5 * CAPACITY, 60.0))
    assert found.rate() == pytest.approx(CAPACITY, rel=0.01)
    assert found.growth() == pytest.approx(0.5 * CAPACITY, rel=0.02)
    assert found.limit() == "node"


def test_cores_of_a_node_its_database_and_the_disk_are_limits() -> None:
    """Each is reached at what its work costs, however many nodes there are."""
    assert run(Plan(1, lambda _: 5_000, 60.0, node_cores=1)).rate() == pytest.approx(1e6 / 1_500, rel=0.01)
    small = run(Plan(8, lambda _: 7_000, 60.0, database_cores=1))
    assert small.rate() == pytest.approx(1e6 / 250, rel=0.02)
    assert small.limit() == "database"
    slow = run(Plan(8, lambda _: 7_000, 60.0, wal_bytes=10e6))
    assert slow.rate() == pytest.approx(10e6 / 5_000, rel=0.02)
    assert slow.limit() == "WAL"


def test_smaller_commits_cost_more() -> None:
    """At a low rate each message has commits of its own; what that costs is gone at a high one."""
    costs = replace(COSTS, node_commit=200, database_commit=300)
    slow, fast = (run(Plan(1, lambda _, load=load: load, 30.0), costs) for load in (5.0, 600.0))  # type: ignore[misc]
    assert slow.database_cost == pytest.approx(250 + 300 * 2, rel=0.05)
    assert fast.database_cost < 0.7 * slow.database_cost
    assert fast.node_cost < slow.node_cost


def test_a_dead_nodes_mail_is_taken_over_after_its_lease() -> None:
    """Not before; then at the next beats of the others, and all of it is delivered."""
    plan = Plan(3, lambda _: 300.0, 60.0, queued=30_000, faults=[Fault(5.1, node=0)])
    found = run(plan)
    assert LEASE - BEAT <= found.taken_over - 5.1 <= LEASE + 2 * BEAT
    assert found.backlog[-1][1] <= 300.0
    assert found.delivered == pytest.approx(found.offered + 30_000, rel=0.02)
    assert 0 < found.again <= 2_000
    assert found.refused > 0


def test_a_database_that_is_away_refuses_and_loses_nothing() -> None:
    """Meanwhile nothing is delivered; afterwards what clients repeat is worked off."""
    found = run(Plan(2, lambda _: 400.0, 120.0, faults=[Fault(30.1, 30.0, database=True)]))
    assert found.refused == pytest.approx(400 * 30, rel=0.05)
    assert max(count for _, count in found.backlog) == pytest.approx(400 * 30, rel=0.1)
    assert found.emptied(500) == pytest.approx(60 + 12_000 / (2 * CAPACITY - 400), abs=3)


@pytest.mark.parametrize("divided", [False, True])
def test_a_receivers_limit_holds(divided: bool) -> None:
    """By sessions and by the minute, for each node or for all of them; other mail goes on."""
    slow = Receiver("slow", 0.5, sessions=10, transaction=0.5, divided=divided)
    strict = Receiver("strict", 0.1, per_minute=60, divided=divided)
    found = run(Plan(2, lambda _: 400.0, 60.0, [slow, strict, Receiver("others", 0.4)]))
    allowed = (20.0 + 1.0) * (1 if divided else 2)
    assert found.rate() == pytest.approx(160 + allowed, rel=0.02)
    assert found.growth() == pytest.approx(240 - allowed, rel=0.02)


def test_an_outage_of_a_receiver_keeps_only_its_mail_waiting() -> None:
    """It is tried now and then, after pauses that grow; and it goes when the receiver is back."""
    to = [Receiver("away", 0.5, sessions=100), Receiver("others", 0.5)]
    found = run(Plan(2, lambda _: 40.0, 5_000.0, to, faults=[Fault(100.1, 1_000.0, receiver="away")], step=5.0))
    most = max(found.backlog, key=lambda each: each[1])
    assert most[1] >= 20 * 1_000
    assert 1_100 <= most[0] <= 1_100 + 15 * 60 + 10
    assert found.backlog[-1][1] <= 400
    assert math.isnan(found.taken_over)


@pytest.fixture(scope="module")
def everything() -> Scaling:
    """What `python -m tests.bench.scaling` prints."""
    return scaling(MEASURED)


def test_the_document_has_what_is_simulated(everything: Scaling) -> None:
    """Its tables and plots are those of `python -m tests.bench.scaling --write`."""
    text = DOCUMENT.read_text()
    assert text == written(text, everything)
    for name, image in everything.images.items():
        assert (IMAGES / f"{name}.svg").read_text() == image
        assert f"images/{name}.svg" in text


def test_each_run_finds_the_same(everything: Scaling) -> None:
    """A part of it, once more; and the terminal shows all tables."""
    plan = Plan(5, lambda _: 6_000.0, 20.0, faults=[Fault(5.1, node=1), Fault(9.1, 3.0, database=True)], queued=9_000)
    assert simulate(plan, MEASURED) == simulate(plan, MEASURED)
    assert all(title in terminal(everything) for title in everything.tables)
