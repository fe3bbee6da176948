"""Holds docs/dashboard.md to the dashboard that there is."""

import re
from pathlib import Path

import pytest

from appliance.web.pages import DASHBOARD_SECTIONS, Section

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "dashboard.md").read_text()


@pytest.mark.parametrize("section", DASHBOARD_SECTIONS, ids=lambda section: section.name)
def test_every_page_is_told(section: Section) -> None:
    assert f"| {section.title} |" in TEXT
    keys = re.search(r"^\| `g` and then ([^|]*) \|", TEXT, re.MULTILINE)
    assert keys is not None
    assert f"`{section.key}`" in keys[1]


def test_pictures_are_there_and_small() -> None:
    shown = {name for page in DOCS.glob("*.md") for name in re.findall(r"\bimages/([\w-]+\.\w+)", page.read_text())}
    there = {path.name: path.stat().st_size for path in (DOCS / "images").iterdir()}
    assert shown == set(there)
    assert max(there.values()) < 200_000
