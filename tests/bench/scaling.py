"""Where the next limit is: nodes on one PostgreSQL and clusters for 10⁹ messages a day, simulated (docs/scaling.md).

    .venv/bin/python -m tests.bench.scaling                     # the tables, within half a minute
    .venv/bin/python -m tests.bench.scaling --costs costs.json  # with what another machine needs (tests.bench.costs)
    .venv/bin/python -m tests.bench.scaling --set deliver=400 --set database=250
    .venv/bin/python -m tests.bench.scaling --write             # the tables and plots of docs/scaling.md

The costs are in costs.py, the simulation is in simulation.py; what is assumed, not measured, are the constants here.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from appliance.deliver.providers import PROVIDERS
from tests.bench import plots
from tests.bench.costs import CORES, MEASURED, SEEN, TAKEOVER, Costs
from tests.bench.figures import Curve
from tests.bench.report import IMAGES, ROOT
from tests.bench.simulation import Fault, Outcome, Plan, Receiver, simulate

DOCUMENT = ROOT / "docs" / "scaling.md"
BEGIN, END = "<!-- simulated by python -m tests.bench.scaling --write -->", "<!-- end of what was simulated -->"

# ---- assumptions

SHARES = {  # of the recipients of a sender to consumers and companies
    "google": 0.40,
    "microsoft365": 0.20,
    "outlook": 0.12,
    "yahoo": 0.08,
    "apple": 0.05,
    "orange": 0.01,
}
TRANSACTION = 0.5  # seconds with a provider's server, most of it its own
DATABASE_CORES = 16
WAL_BYTES = 500e6  # a second, of a disk and of the way to a standby
NODE_CORES = 2
CONNECTIONS = 200  # that a database has; a node takes eight, and twenty are for commands (cluster.md)
FULL = 0.7  # of a node or a database at the peak, so that a dead node's load and retries have room
USED_UP = 0.9  # from which on a resource is a limit
A_DAY, PEAK = 1e9, 3.0  # messages; the busiest hour to the average
BODIES, METADATA = 1, 30  # days for which they are kept, by default
LOCK = ("accept", "store", "sign", "deliver", "record", "post", "log", "other")
PRICES = {"core": 10.0, "GB": 0.1, "address": 4.0}  # a month; a core has 4 GB of memory

Rows = list[list[str]]


def receivers(raised: float = 1.0) -> list[Receiver]:
    """A usual mix. The limits of providers are those the program has built in, times this."""
    limits = {each.name: each.limits for each in PROVIDERS}
    found = []
    for name, share in SHARES.items():
        minute = limits[name].per_minute
        per_minute = math.inf if minute is None else minute * raised
        found.append(Receiver(name, share, limits[name].concurrency * raised, per_minute, TRANSACTION))
    return [*found, Receiver("others", 1 - sum(SHARES.values()), transaction=TRANSACTION)]


ANY = (Receiver("others", 1.0, transaction=TRANSACTION),)  # that take everything, each at an organisation of its own


def steady(nodes: int, each: float, costs: Costs, to: Sequence[Receiver] = ANY, **more: float) -> Outcome:
    """Some nodes under a constant load of so many messages a second to each."""
    plan = Plan(nodes, lambda _: nodes * each, 20.0, to, NODE_CORES, DATABASE_CORES, WAL_BYTES)
    return simulate(replace(plan, **more), costs)  # type: ignore[arg-type]


# ---- the tables


def spent(costs: Costs) -> Rows:
    lock = {name: getattr(costs, name) for name in LOCK}
    return [
        ["where", "item", "cost"],
        ["a node's interpreter lock", ", ".join(f"{name} {value:,.0f}" for name, value in lock.items()), _us(lock)],
        [
            "",
            "each of two commits, with the threads it wakes, divided by the messages that share it",
            _us({"": costs.node_commit}),
        ],
        ["a node's other threads", "RSA signature", _us({"": costs.threads})],
        ["the database", "a message", _us({"": costs.database})],
        ["", "each of two commits, divided by the messages that share it", _us({"": costs.database_commit})],
        ["", "taking over a recipient", _us({"": costs.taken_over})],
        ["", "WAL", f"{costs.wal:,.0f} bytes"],
        ["", "rows and indexes, kept for 30 days", f"{costs.rows:,.0f} bytes"],
        ["", "body, kept for a day", f"{costs.body:,.0f} bytes"],
    ]


def _us(values: dict[str, float]) -> str:
    return f"{sum(values.values()):,.0f} µs"


def compared(costs: Costs) -> Rows:
    """What one, two and three nodes on the machine of the measurements do: simulated, and measured."""
    rows = [
        ["nodes", "load", "messages/s", "measured", "node, µs/message", "measured", "database, µs/message", "measured"]
    ]
    for seen in SEEN:
        found = steady(seen.nodes, seen.asked or 10_000, costs, machine_cores=CORES, database_cores=CORES)
        name = f"{seen.asked:.0f}/s to each" if seen.asked else "full load"
        pairs = ((found.rate(), seen.rate), (found.node_cost, seen.node), (found.database_cost, seen.database))
        rows.append([f"{seen.nodes}", name, *(_or_none(value) for pair in pairs for value in pair)])
    return rows


def _or_none(value: float) -> str:
    return "" if math.isnan(value) else f"{value:,.0f}"


def takeover(costs: Costs) -> tuple[float, float]:
    """Seconds from a node's death until its rows have other owners, and until the last of them is delivered."""
    at, queued = 0.15, 3.0 * TAKEOVER.left
    plan = Plan(3, lambda _: 0.0, 30.0, ANY, NODE_CORES, CORES, WAL_BYTES, CORES, [Fault(at, node=0)], queued, step=0.1)
    found = simulate(plan, costs)
    return found.taken_over - at, found.emptied(1.0) - at


def one_database(costs: Costs) -> Rows:
    """Nodes on one database: what they deliver, and what is used up first."""
    heads = ["nodes", "messages/s to each", "offered/s", "delivered/s", "busiest", "default pools: delivered/s"]
    rows = [[*heads, "busiest", "node", "database cores", "WAL MB/s", "GB/day"]]
    for each in (10, 100, 1_000):
        for nodes in (1, 2, 3, 10, 30):
            free, shipped = steady(nodes, each, costs), steady(nodes, each, costs, receivers())
            size = free.rate() * 86_400 * (costs.rows + costs.body) / 1e9
            row = [f"{nodes}", f"{each:,}", f"{nodes * each:,}", f"{free.rate():,.0f}", _used(free)]
            row += [f"{shipped.rate():,.0f}", _used(shipped), f"{free.used['node']:.0%}"]
            row += [f"{free.database_cores:.1f}", f"{free.wal / 1e6:.1f}", f"{size:,.0f}"]
            rows.append(row)
    return rows


def _used(found: Outcome) -> str:
    names = [name for name, share in found.used.items() if share >= USED_UP] or [found.limit()]
    shown = ", ".join(f"{name} {found.used[name]:.0%}" for name in names[:2])
    return shown + (f" and {len(names) - 2} more" if len(names) > 2 else "")


@dataclass(frozen=True)
class Purchase:
    clusters: int
    nodes: int  # in all, with one more in each cluster than its peak needs
    database_cores: int  # of each cluster
    sessions: int  # at once from each node to the largest provider, as much as its share needs
    shipped: int  # nodes that it takes with the sessions that are shipped
    disk: float  # GB of all databases
    price: float  # a month


def purchase(average: float, costs: Costs) -> Purchase:
    """For so many messages a second on average: by what a node and a database do when FULL of them is used."""
    peak = average * PEAK
    node = FULL * steady(1, 10_000, costs).rate()
    cost = steady(1, node, costs).database_cost / 1e6  # seconds of the database's processors for a message
    database = FULL * min(DATABASE_CORES / cost, WAL_BYTES / costs.wal)
    most = (CONNECTIONS - 20) // 8 - 1  # nodes at work in a cluster
    clusters = math.ceil(peak / min(database, most * node))
    nodes = clusters * (math.ceil(peak / clusters / node) + 1)
    cores = max(2, 2 * math.ceil(peak / clusters * cost / FULL / 2))
    largest = max(receivers(), key=lambda each: each.share * each.transaction / each.sessions)
    wanted = peak * largest.share * largest.transaction
    shipped = clusters * (math.ceil(wanted / largest.sessions / clusters) + 1)
    disk = average * 86_400 * (costs.rows * METADATA + costs.body * BODIES) / 1e9
    price = PRICES["core"] * (nodes * NODE_CORES + 2 * clusters * cores)
    price += PRICES["GB"] * 2 * disk + PRICES["address"] * nodes  # and a standby of each database
    return Purchase(clusters, nodes, cores, math.ceil(wanted / (nodes - clusters)), max(nodes, shipped), disk, price)


def purchases(costs: Costs) -> Rows:
    heads = ["messages/day", "average/s", "peak/s", "clusters", "nodes", "cores per database", "sessions to Google"]
    rows = [[*heads, "nodes with 20 sessions each", "disk GB", "price per month", "price per million"]]
    for day in (1e5, 1e6, 1e7, 1e8, A_DAY):
        average = day / 86_400
        need = purchase(average, costs)
        row = [f"{day:,.0f}", f"{average:,.0f}", f"{average * PEAK:,.0f}", f"{need.clusters}", f"{need.nodes}"]
        row += [f"{need.database_cores}", f"{need.sessions}", f"{need.shipped}", f"{need.disk:,.0f}"]
        row += [f"{need.price:,.0f}", f"{need.price / day / 30 * 1e6:,.2f}"]
        rows.append(row)
    return rows


# ---- faults, in the cluster of one of many


@dataclass(frozen=True)
class Trial:
    """A fault at the peak, and for how long it is watched."""

    fault: Fault
    seconds: float
    step: float


MINUTE, HOUR = 60.0, 3_600.0
TRIALS = {
    "a node dies": Trial(Fault(60.1, node=0), 3 * MINUTE, 1.0),
    "the database fails over, 30 s": Trial(Fault(60.1, 30.0, database=True), 3 * MINUTE, 1.0),
    "the database is down for 10 minutes": Trial(Fault(600.1, 600.0, database=True), HOUR, 15.0),
    "Google defers mail for an hour": Trial(Fault(600.1, HOUR, receiver="google"), 3 * HOUR, 30.0),
}


def trials(costs: Costs) -> dict[str, Outcome]:
    """One cluster of those for 10⁹ a day, with each fault; three hours from the peak the load is half of it."""
    need = purchase(A_DAY / 86_400, costs)
    peak = A_DAY / 86_400 * PEAK / need.clusters
    (google,) = (each for each in receivers() if each.name == "google")
    to = receivers(2 * need.sessions / google.sessions)
    found = {}
    for name, trial in TRIALS.items():

        def load(now: float, at: float = trial.fault.at) -> float:
            return peak * (0.75 + 0.25 * math.cos((now - at) / (3 * HOUR) * math.pi))

        cores = need.database_cores
        plan = Plan(need.nodes // need.clusters, load, trial.seconds, to, NODE_CORES, cores, WAL_BYTES, step=trial.step)
        found[name] = simulate(replace(plan, faults=[trial.fault]), costs)
    return found


def after_faults(found: dict[str, Outcome]) -> Rows:
    rows = [
        [
            "fault at the peak",
            "requests refused",
            "extra backlog, at most",
            "backlog cleared after",
            "delivered twice, at most",
        ]
    ]
    for name, each in found.items():
        trial, at = TRIALS[name], TRIALS[name].fault.at
        usual = max(count for when, count in each.backlog if when < at)
        gone = max(each.emptied(1.1 * usual), each.taken_over if trial.fault.node is not None else 0.0) - at
        took = f"{gone / 60:,.0f} min" if gone >= 2 * MINUTE else f"{gone:,.0f} s"
        more = max(count for _, count in each.backlog) - usual
        rows.append([name, f"{each.refused:,.0f}", f"{max(0.0, more):,.0f}", took, f"{each.again:,.0f}"])
    return rows


# ---- the plots


def by_nodes(costs: Costs) -> str:
    """Delivered a second against nodes, for databases of some sizes, at 1,000 a second to each."""
    curves = []
    for cores in (2, 4, 8, 16):
        counts = (1, 4, 8, 12, 16, 20, 24, 30)
        points = [(float(n), steady(n, 1_000, costs, database_cores=cores, seconds=10.0).rate()) for n in counts]
        curves.append(Curve(f"database of {cores} cores", points))
    return plots.lines("Delivered by nodes on one database, 1,000/s to each", curves, "nodes", "messages a second")


def backlogs(found: dict[str, Outcome], names: Sequence[str], unit: float, unit_name: str) -> str:
    curves = [found[name].curve(name, unit) for name in names]
    return plots.lines("Backlog of one cluster", curves, unit_name, "messages")


# ---- what is printed and written


@dataclass(frozen=True)
class Scaling:
    tables: dict[str, Rows]
    images: dict[str, str]
    notes: dict[str, str]


def scaling(costs: Costs) -> Scaling:
    found = trials(costs)
    owned, delivered = takeover(costs)
    need = purchase(A_DAY / 86_400, costs)
    tables = {
        "What a message costs": spent(costs),
        "Simulated and measured": compared(costs),
        "Nodes on one database": one_database(costs),
        "What to buy": purchases(costs),
        "Faults at the peak": after_faults(found),
    }
    notes = {
        "Simulated and measured": f"Takeover of {TAKEOVER.left:,} messages of a dead node: new owners after "
        f"{owned:.1f} s, last delivery after {delivered:.1f} s; measured {TAKEOVER.seconds} s.",
        "Faults at the peak": f"One of {need.clusters} clusters: {need.nodes // need.clusters} nodes, a database with "
        f"{need.database_cores} cores.",
    }
    short, long = list(TRIALS)[:2], list(TRIALS)[2:]
    images = {
        "scaling-nodes": by_nodes(costs),
        "scaling-short-faults": backlogs(found, short, 1.0, "seconds"),
        "scaling-long-faults": backlogs(found, long, MINUTE, "minutes"),
    }
    return Scaling(tables, images, notes)


def terminal(found: Scaling) -> str:
    parts = []
    for title, rows in found.tables.items():
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        parts += [title, "=" * len(title), *lines, *([found.notes[title]] if title in found.notes else []), ""]
    return "\n".join(parts)


def document(found: Scaling) -> str:
    images = {
        "Nodes on one database": ["scaling-nodes"],
        "Faults at the peak": ["scaling-short-faults", "scaling-long-faults"],
    }
    parts = []
    for title, (heads, *rows) in found.tables.items():
        parts += [f"## {title}", "", f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
        parts += [*(f"| {' | '.join(row)} |" for row in rows), ""]
        parts += [found.notes[title], ""] if title in found.notes else []
        for image in images.get(title, []):
            parts += [f"![{title}](images/{image}.svg)", ""]
    return "\n".join(parts)


def written(text: str, found: Scaling) -> str:
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{document(found)}\n{END}{rest.partition(END)[2]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--costs", type=Path, metavar="FILE", help="what tests.bench.costs has printed")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="one cost, or several")
    parser.add_argument("--write", action="store_true", help=f"into {DOCUMENT.relative_to(ROOT)} and its plots")
    options = parser.parse_args()
    given = json.loads(options.costs.read_text()) if options.costs else {}
    given |= dict(each.split("=", 1) for each in options.set)
    if unknown := set(given) - {each.name for each in fields(Costs)}:
        parser.error(f"no such costs: {', '.join(sorted(unknown))}")
    found = scaling(replace(MEASURED, **{name: float(value) for name, value in given.items()}))
    print(terminal(found))
    if options.write:
        DOCUMENT.write_text(written(DOCUMENT.read_text(), found))
        for name, image in found.images.items():
            (IMAGES / f"{name}.svg").write_text(image)
    return 0


if __name__ == "__main__":
    sys.exit(main())
