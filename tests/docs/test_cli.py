"""Holds docs/cli.md to the commands that there are."""

import json
import re
from pathlib import Path

import click
import pytest

from appliance.cli import leaves, main

DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
SHARED = {"--config", "--json", "--help", "--version"}
COMMANDS = dict(leaves(main))


def section(name: str) -> str:
    found = re.search(rf"^### `appliance {name}`\n(.*?)(?=^##|\Z)", DOCUMENT, re.DOTALL | re.MULTILINE)
    assert found is not None, f"docs/cli.md has no section about {name}"
    return found[1]


def documented(name: str) -> dict[str, object]:
    blocks: list[str] = re.findall(r"^```json\n(.*?)^```", section(name), re.DOTALL | re.MULTILINE)
    (block,) = blocks
    parsed: dict[str, object] = json.loads(block)
    return parsed


@pytest.mark.parametrize("name", COMMANDS)
def test_the_document_tells_of_every_command_and_option(name: str) -> None:
    text = section(name)
    assert f"appliance {name}" in text
    options = {
        spelling for option in COMMANDS[name].params if isinstance(option, click.Option) for spelling in option.opts
    }
    for option in options:
        assert f"`{option}" in (DOCUMENT if option in SHARED else text)


def test_the_document_tells_of_no_command_that_does_not_exist() -> None:
    assert set(re.findall(r"^### `appliance (.*)`$", DOCUMENT, re.MULTILINE)) == set(COMMANDS)


def test_the_document_tells_of_the_options_of_the_program() -> None:
    for option in main.params:
        assert f"`{option.opts[0]}" in DOCUMENT


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("serve", "mcp")])
def test_every_provisioning_command_shows_its_json(name: str) -> None:
    """Each provisioning command takes --json and --config and has one JSON object in the document."""
    assert {"--json", "--config"} <= {option.opts[0] for option in COMMANDS[name].params}
    assert documented(name)
