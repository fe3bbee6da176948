"""Prints the release notes: the section of a version in CHANGELOG.md, or of the unreleased changes if there are any."""

import re
import sys
from pathlib import Path

UNRELEASED = "Unreleased"


def sections(changelog: str) -> dict[str, str]:
    """The text below each heading of a release, by its version."""
    parts = re.split(r"^## (.+)\n", changelog, flags=re.MULTILINE)[1:]
    versions = [title.partition(":")[0].partition(" ")[0] for title in parts[::2]]
    return dict(zip(versions, map(str.strip, parts[1::2]), strict=True))


def release_notes(changelog: str, version: str) -> str:
    """Return the notes; raises KeyError if the changelog has no entry for the version."""
    texts = sections(changelog)
    if unreleased := texts.get(UNRELEASED):
        return (
            f"# Mail appliance after {version}\n\nNot a release: these changes have no version yet.\n\n{unreleased}\n"
        )
    return f"# Mail appliance {version}\n\n{texts[version]}\n"


if __name__ == "__main__":
    try:
        print(release_notes(Path(sys.argv[1]).read_text(), sys.argv[2]), end="")
    except KeyError as missing:
        sys.exit(f"CHANGELOG.md has no section for version {missing}: rename the section {UNRELEASED!r}")
