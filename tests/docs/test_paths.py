"""Documents name files that exist, and link to pages and headings that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "clients").glob("*/README.md")])
LINK = re.compile(r"\]\(([^)#:]*)(?:#([\w-]+))?\)")


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target, anchor in LINK.findall(document.read_text()):
        page = document.parent / target if target else document
        assert page.exists(), target
        assert not anchor or anchor in anchors(page.read_text()), f"{target}#{anchor}"


def test_every_page_is_reachable_from_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    reached, open_pages = {index}, [index]
    while open_pages:
        page = open_pages.pop()
        for target, _ in LINK.findall(page.read_text()):
            linked = (page.parent / target).resolve()
            if linked.suffix == ".md" and linked not in reached:
                reached.add(linked)
                open_pages.append(linked)
    assert {path.resolve() for path in (ROOT / "docs").rglob("*.md")} <= reached


def test_a_message_takes_few_files() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    trace = text.partition("## A message, file by file\n")[2].partition("\n## ")[0]
    _, by_http, by_smtp, *shared = re.split(r"^\*\*", trace, flags=re.MULTILINE)
    for way in (by_http, by_smtp):
        files = set(re.findall(r"`([\w/]+\.py)`", way + "".join(shared))) - {"store/postgresql/engine.py"}
        assert 15 < len(files) <= 45, len(files)
        assert [file for file in sorted(files) if not (ROOT / "appliance" / file).is_file()] == []
