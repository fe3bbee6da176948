"""Holds config.example.toml and docs/configuration.md to the table of settings.

To regenerate both, run it as a program: `.venv/bin/python tests/docs/test_configuration.py`.
"""

import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

from appliance.config.load import SYSTEM_FILE, VARIABLE, lifted, parse
from appliance.config.settings import SECTIONS, named_tables, settings
from appliance.config.values import NamedTables, Setting, place_of

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "config.example.toml"
DOCUMENT = ROOT / "docs" / "configuration.md"

HEAD = """\
# Every setting with its default. Your file needs only the keys you change. See docs/configuration.md.
"""

TABLES = [kind for section in SECTIONS for kind in named_tables(section)]
ALL_ROWS = [row for section in SECTIONS for row in settings(section)]
ALL_ROWS += [row for kind in TABLES for row in kind.settings(kind.example)]


def example() -> str:
    return HEAD + "".join(map(example_section, SECTIONS))


def example_section(section: str) -> str:
    keys = "".join(map(example_lines, settings(section)))
    return f"\n[{section}]\n{keys}" + "".join(map(example_table, named_tables(section)))


def example_table(kind: NamedTables) -> str:
    lines = [f"[{place_of(kind.place, kind.example)}]"]
    lines += [f"{row.key} = {json.dumps(row.default)}  # {row.meaning}." for row in kind.settings(kind.example)]
    return f"\n# {about(kind.record)}\n" + "".join(f"# {line}\n" for line in lines)


def about(record: type) -> str:
    return " ".join((record.__doc__ or "").split())


def example_lines(row: Setting) -> str:
    return f"# {row.meaning}.\n{row.key} = {json.dumps(row.default)}\n"


def table(section: str) -> str:
    return table_of(section, SECTIONS[section], settings(section))


def named_table(kind: NamedTables) -> str:
    return table_of(named_heading(kind), kind.record, kind.settings(kind.example))


def named_heading(kind: NamedTables) -> str:
    return f"{kind.place}.{kind.name.name.upper()}"


def table_of(heading: str, record: type, rows: Iterable[Setting]) -> str:
    head = f"### `[{heading}]`\n\n{about(record)}\n\n| key | type | default | meaning |\n|---|---|---|---|\n"
    return head + "".join(map(table_row, rows))


def table_row(row: Setting) -> str:
    return f"| `{row.key}` | {row.kind.name} | `{json.dumps(row.default)}` | {row.meaning}. |\n"


def with_tables(document: str) -> str:
    made = {section: table(section) for section in SECTIONS}
    made |= {named_heading(kind): named_table(kind) for kind in TABLES}
    for heading, new in made.items():
        old = re.compile(rf"### `\[{re.escape(heading)}\]`\n\n.*\n\n(?:\|.*\n)+")  # text after the table stays
        document = old.sub(lambda _, new=new: new, document)  # type: ignore[misc]  # binds the loop's value
    return document


def test_the_example_holds_every_key_with_its_default_and_one_comment() -> None:
    assert EXAMPLE.read_text() == example()


def test_the_example_parses_to_the_defaults() -> None:
    text = EXAMPLE.read_text()
    file = Path("config.toml")
    assert parse(text, file) == parse("", file)
    named = {(section, key) for section, keys in lifted(tomllib.loads(text)).items() for key in keys}
    assert named == {(section, row.key) for section in SECTIONS for row in settings(section)}


@pytest.mark.parametrize("section", SECTIONS)
def test_the_document_holds_every_key(section: str) -> None:
    assert table(section) in DOCUMENT.read_text()


@pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.key)
def test_the_document_holds_every_kind_of_table(kind: NamedTables) -> None:
    assert named_table(kind) in DOCUMENT.read_text()


@pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.key)
def test_an_example_table_can_be_uncommented(kind: NamedTables) -> None:
    lines = [line.removeprefix("# ") for line in example_table(kind).splitlines()[2:]]
    made = tomllib.loads("\n".join(lines))
    assert made == {
        kind.section: {kind.key: {kind.example: {row.key: row.default for row in kind.settings(kind.example)}}}
    }


def test_the_document_tells_the_lookup_order() -> None:
    text = DOCUMENT.read_text()
    places = [text.index(place) for place in ("--config", f"${VARIABLE}", "./config.toml", str(SYSTEM_FILE))]
    assert places == sorted(places)


@pytest.mark.parametrize("row", ALL_ROWS, ids=lambda row: row.key)
def test_an_explanation_is_one_short_line(row: Setting) -> None:
    assert 10 <= len(row.meaning) <= 118
    assert not set(row.meaning) & set("\n|")
    assert not row.meaning.endswith(".")


if __name__ == "__main__":
    EXAMPLE.write_text(example())
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text()))
