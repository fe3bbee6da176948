"""Documents name files that exist, and link to pages and headings that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "clients").glob("*/README.md")])
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|\w+\.(?:py|js|sql))`")
LINK = re.compile(r"\]\(([^)#:]*)(?:#([\w-]+))?\)")
PLACES = (ROOT, ROOT / "appliance", ROOT / "tests", ROOT / "appliance" / "web", ROOT / "appliance" / "store")
OURS = tuple(f"{path.name}/" for place in (ROOT, ROOT / "appliance") for path in place.iterdir() if path.is_dir())


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    """A relative link names a file, and one of its headings."""
    for target, anchor in LINK.findall(document.read_text()):
        page = document.parent / target if target else document
        assert page.exists(), target
        assert not anchor or anchor in anchors(page.read_text()), f"{target}#{anchor}"


def test_every_page_is_reachable_from_the_index() -> None:
    """Following links from docs/README.md leads to every page."""
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


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/architecture.md", "docs/decisions.md"])
def test_named_files_exist(name: str) -> None:
    """What a document for contributors calls a file of this project is one."""
    folder = None
    for path in PATH.findall((ROOT / name).read_text()):
        found = [place / path for place in PLACES if (place / path).exists()]
        if not found and folder is not None:
            found = [folder / path] if (folder / path).exists() else []
        if not found:
            assert not path.startswith(OURS), path
            assert "/" in path, path
            continue
        folder = found[0].parent


def test_a_message_takes_few_files() -> None:
    """The trace of a message names files that exist: at most 45 from the request to the webhook, by HTTP or by SMTP."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    trace = text.partition("## A message, file by file\n")[2].partition("\n## ")[0]
    _, by_http, by_smtp, *shared = re.split(r"^\*\*", trace, flags=re.MULTILINE)
    for way in (by_http, by_smtp):
        files = set(re.findall(r"`([\w/]+\.py)`", way + "".join(shared))) - {"store/postgresql/engine.py"}
        assert 15 < len(files) <= 45, len(files)
        assert [file for file in sorted(files) if not (ROOT / "appliance" / file).is_file()] == []
