"""Holds docs/monitoring.md and the Grafana dashboard to the metrics that there are."""

import json
import re
import subprocess
from pathlib import Path

import trio

from appliance.environment import Environment
from appliance.store import open_store
from appliance.telemetry.metrics import COUNTERS, HISTOGRAMS, Counter
from appliance.telemetry.prometheus import Reading, Readings
from tests.programs import needs

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "monitoring.md").read_text()
DASHBOARD = ROOT / "packaging" / "grafana" / "appliance.json"
METRIC = re.compile(r"\b(?:appliance|process)_[a-z_]+\b")


def rows(directory: Path) -> dict[str, str]:
    async def readings() -> list[Reading]:
        async with open_store(directory, Environment(), inline=True) as store:
            return await Readings(directory, store).now()

    labelled: list[Counter | Reading] = [*COUNTERS, *trio.run(readings)]
    found = [(each.name, ", ".join(f"`{label}`" for label in each.labels), each.about) for each in labelled]
    found += [(each.name, "histogram", each.about) for each in HISTOGRAMS]
    return {
        name: " | ".join([f"| `{name}`", labels, f"{about} |"]).replace("|  |", "| |") for name, labels, about in found
    }


def base(name: str) -> str:
    return re.sub(r"_(bucket|sum|count)$", "", name)


def test_the_document_has_every_metric_and_no_other(tmp_path: Path) -> None:
    wanted = rows(tmp_path)
    for row in wanted.values():
        assert row in DOCUMENT
    assert {base(name) for name in METRIC.findall(DOCUMENT)} == set(wanted)


def test_the_dashboard_shows_metrics_that_exist(tmp_path: Path) -> None:
    board = json.loads(DASHBOARD.read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    used = {base(name) for expression in expressions for name in METRIC.findall(expression)}
    known = set(rows(tmp_path))
    assert used <= known
    assert known - used == {"appliance_build_info", "process_open_fds", "process_start_time_seconds"}
    for expression in expressions:
        assert expression.count("(") == expression.count(")")


def test_the_dashboard_can_be_imported_anywhere() -> None:
    board = json.loads(DASHBOARD.read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {panel["datasource"]["uid"] for panel in panels} == {"${source}"}
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken
        taken |= cells


@needs("promtool")
def test_prometheus_takes_the_alert_rules(tmp_path: Path) -> None:
    (rules,) = re.findall(r"^```yaml\n(groups:.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)
    file = tmp_path / "rules.yml"
    file.write_text(rules)
    checked = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr + checked.stdout
    assert f"SUCCESS: {rules.count('alert:')} rules found" in checked.stdout
