"""The scenarios themselves: they are well-formed, cover the interface's codes and every class, and are documented."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from appliance.errors import Code
from clients.conformance.matching import CONDITIONS
from clients.conformance.scenarios import FAULTS, FOLDER, Scenario, read_all, scenario

README = (FOLDER.parent / "README.md").read_text()
GOOD = {"name": "x", "steps": [{"send": {}, "result": {}}], "calls": 0, "stored": 0}


@pytest.mark.parametrize(
    "wrong",
    [
        {"cals": 1},
        {"listener": "half-open"},
        {"steps": [{"send": {}}]},
        {"steps": [{"send": {}, "result": {}, "error": {}}]},
        {"steps": [{"sned": {}, "result": {}}]},
        {"faults": [{"answr": 500}]},
        {"faults": [{"answer": 500, "cod": "x"}]},
        {"faults": [{"reset": "before", "drop": "reset"}]},
    ],
    ids=str,
)
def test_a_misspelled_scenario_is_an_error(wrong: dict[str, Any]) -> None:
    scenario(GOOD)
    with pytest.raises(ValueError, match=r"unknown|listener|expects|no such|unpack"):
        scenario({**GOOD, **wrong})


def test_every_code_and_class_is_expected_somewhere() -> None:
    written = "".join(path.read_text() for path in FOLDER.glob("*.json"))
    assert {code.value for code in Code} <= set(re.findall(r'"code": "(\w+)"', written))
    classes = set(re.findall(r"`([A-Z]\w+)`", README[README.index("### Errors") :])) - {"MailApplianceError"}
    assert len(classes) == 21
    assert classes == set(re.findall(r'"class": "(\w+)"', written)) | {"WaitTimeout"}


def test_the_readme_names_every_field_fault_and_condition() -> None:
    for name in (*(f"`{each}`" for each in Scenario.__dataclass_fields__), *(f'`"{each}": ' for each in FAULTS)):
        assert name in README
    for name in CONDITIONS:
        assert f"`{name}`" in README
    block = re.search(r"```json\n(.*?)```", README, re.DOTALL)
    assert block is not None
    assert scenario(json.loads(block[1])) in read_all()


def test_names_are_unique(tmp_path: Path) -> None:
    """Two of one name would be told apart by no report."""
    (tmp_path / "a.json").write_text(json.dumps([GOOD]))
    assert [each.name for each in read_all(tmp_path)] == ["x"]
    (tmp_path / "b.json").write_text(json.dumps([GOOD]))
    with pytest.raises(ValueError, match="two scenarios"):
        read_all(tmp_path)
