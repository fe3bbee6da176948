"""In charge of holding config.example.toml and docs/configuration.md to the table of settings.

Run as a program it writes both anew: `.venv/bin/python tests/test_docs_configuration.py`.
"""

import json
import re
import tomllib
from pathlib import Path

import pytest

from appliance.config import SYSTEM_FILE, VARIABLE, parse
from appliance.config_settings import SECTIONS, Setting, settings

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "config.example.toml"
DOCUMENT = ROOT / "docs" / "configuration.md"

HEAD = """\
# Every setting with its default: a file needs only what differs. docs/configuration.md tells more.
"""


def example() -> str:
    """The whole of config.example.toml."""
    return HEAD + "".join(f"\n[{section}]\n" + "".join(map(example_lines, settings(section))) for section in SECTIONS)


def example_lines(row: Setting) -> str:
    """One comment and one key."""
    return f"# {row.meaning}.\n{row.key} = {json.dumps(row.default)}\n"


def table(section: str) -> str:
    """One section as docs/configuration.md shows it, heading included."""
    about = (SECTIONS[section].__doc__ or "").strip()
    head = f"### `[{section}]`\n\n{about}\n\n| key | type | default | meaning |\n|---|---|---|---|\n"
    return head + "".join(map(table_row, settings(section)))


def table_row(row: Setting) -> str:
    """One key as docs/configuration.md shows it."""
    return f"| `{row.key}` | {row.kind.name} | `{json.dumps(row.default)}` | {row.meaning}. |\n"


def with_tables(document: str) -> str:
    """The document with every section's table put in, in the place of the old one."""
    for section in SECTIONS:
        old = re.compile(rf"### `\[{section}\]`\n.*?(?=\n#|\Z)", re.DOTALL)
        new = table(section)
        document = old.sub(lambda _, new=new: new, document)  # type: ignore[misc]  # binds the loop's value
    return document


def test_the_example_holds_every_key_with_its_default_and_one_comment() -> None:
    """config.example.toml is exactly what the table of settings says."""
    assert EXAMPLE.read_text() == example()


def test_the_example_parses_to_the_defaults() -> None:
    """A copy of config.example.toml configures the same as an empty file, and leaves out no key."""
    text = EXAMPLE.read_text()
    file = Path("config.toml")
    assert parse(text, file) == parse("", file)
    named = {(section, key) for section, keys in tomllib.loads(text).items() for key in keys}
    assert named == {(section, row.key) for section in SECTIONS for row in settings(section)}


@pytest.mark.parametrize("section", SECTIONS)
def test_the_document_holds_every_key(section: str) -> None:
    """docs/configuration.md has the name, type, default and meaning of each key, as the table of settings has them."""
    assert table(section) in DOCUMENT.read_text()


def test_the_document_tells_the_lookup_order() -> None:
    """docs/configuration.md names the places a file is looked for, in their order."""
    text = DOCUMENT.read_text()
    places = [text.index(place) for place in ("--config", f"${VARIABLE}", "./config.toml", str(SYSTEM_FILE))]
    assert places == sorted(places)


@pytest.mark.parametrize("row", [row for section in SECTIONS for row in settings(section)], ids=lambda row: row.key)
def test_an_explanation_is_one_short_line(row: Setting) -> None:
    """A meaning fits into one comment line and one table cell."""
    assert 10 <= len(row.meaning) <= 118
    assert not set(row.meaning) & set("\n|")
    assert not row.meaning.endswith(".")


if __name__ == "__main__":
    EXAMPLE.write_text(example())
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text()))
