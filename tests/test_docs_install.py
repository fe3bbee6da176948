"""In charge of holding docs/install.md to the commands, files and settings that there are."""

import re
import tomllib
from pathlib import Path

from appliance.cli import leaves, main
from appliance.config import parse
from appliance.systemd import plan

ROOT = Path(__file__).parent.parent
DOCUMENT = (ROOT / "docs" / "install.md").read_text()


def blocks(language: str) -> str:
    """Everything the document shows in one language."""
    return "\n".join(re.findall(rf"^```{language}\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE))


def test_the_commands_are_there() -> None:
    """Every `appliance …` and every script that a reader is told to run exists."""
    commands = {" ".join(name.split()) for name, _ in leaves(main)}
    used = re.findall(r"appliance ((?:account|domain|key) \w+|install|uninstall|explain)\b", blocks("sh"))
    assert used
    assert set(used) <= commands
    for script in re.findall(r"sh (packaging/[\w-]+)", DOCUMENT):
        assert (ROOT / script).is_file()


def test_the_links_lead_somewhere() -> None:
    """Documents that are pointed to exist, with the chapter that is named."""
    for name, chapter in re.findall(r"\]\(([a-z-]+\.md)(?:#([a-z-]+))?\)", DOCUMENT):
        text = (ROOT / "docs" / name).read_text()
        headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
        assert not chapter or chapter in headings


def test_the_settings_can_be_used() -> None:
    """What is shown of the configuration file parses."""
    shown = blocks("toml")
    assert tomllib.loads(shown)
    assert parse(shown, plan.CONFIG_FILE).server.hostname == "mail.example.com"


def test_the_places_are_those_of_the_program() -> None:
    """Directories, and what the unit allows a stop, are as the document says."""
    for path in (plan.CONFIG_FILE, plan.DATA_DIR):
        assert f"`{path}`" in DOCUMENT
    assert "WatchdogSec=60s" in plan.file("appliance.service")
    assert "for a minute" in DOCUMENT
