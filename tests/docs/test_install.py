"""Holds docs/install.md to the commands, files and settings that there are."""

import os
import re
import tomllib
from pathlib import Path

import pytest

from appliance.cli import leaves, main
from appliance.config.load import parse
from appliance.system import service as plan
from tests.docs.documents import USER, installed
from tests.docs.documents import blocks as shell_blocks

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "install.md").read_text()


def blocks(language: str) -> str:
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE))


def test_the_commands_are_there() -> None:
    """Every `appliance …` and every script that a reader is told to run exists."""
    commands = {" ".join(name.split()) for name, _ in leaves(main)}
    used = re.findall(r"appliance ((?:account|domain|key) \w+|install|uninstall|explain)\b", blocks("sh"))
    assert used
    assert set(used) <= commands
    for script in re.findall(r"sh (packaging/[\w-]+)", DOCUMENT):
        assert (ROOT / script).is_file()


def test_the_settings_can_be_used() -> None:
    shown = blocks("toml")
    assert tomllib.loads(shown)
    assert parse(shown, plan.CONFIG_FILE).server.hostname == "mail.example.com"


def test_the_places_are_those_of_the_program() -> None:
    for path in (plan.CONFIG_FILE, plan.DATA_DIR):
        assert f"`{path}`" in DOCUMENT
    assert "WatchdogSec=60s" in plan.file("appliance.service")
    assert "for a minute" in DOCUMENT


@pytest.mark.skipif(os.geteuid() != 0, reason="root is needed to become the service's user")
def test_the_commands_of_step_4_work_from_roots_home() -> None:
    (step,) = [block for block in shell_blocks("install.md") if "account create" in block]
    create, add, records, _, key = step.splitlines()  # `verify` needs DNS records
    with installed() as service:
        home = service.directory / "root"
        for command in (create, add, records, key):
            ran = service.shell(command, home, stdin="a long password\n")
            assert ran.returncode == 0, ran.stderr
            assert ran.stdout
        assert {each.owner() for each in service.data_dir.iterdir()} == {USER}
