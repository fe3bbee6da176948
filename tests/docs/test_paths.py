"""Documents name files that exist, and link to pages and headings that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|\w+\.(?:py|js|sql))`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[\w-]+)?\)")
PLACES = (ROOT, ROOT / "appliance", ROOT / "tests", ROOT / "appliance" / "web", ROOT / "appliance" / "store")
OURS = tuple(f"{path.name}/" for place in (ROOT, ROOT / "appliance") for path in place.iterdir() if path.is_dir())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    """A relative link names a file beside the document."""
    for target in LINK.findall(document.read_text()):
        assert (document.parent / target).exists(), target


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
