"""The manual pages: made from the program's own texts, complete, and shown by `man` without a warning."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.cli import leaves, main
from appliance.config.load import known_keys
from tests.packaging.built_binary import ROOT
from tests.programs import needs

PAGES = ("appliance.1", "appliance-config.5")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("man")
    make(directory)
    return directory


def make(directory: Path) -> None:
    command = [sys.executable, str(ROOT / "packaging/man_pages.py"), str(directory)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SOURCE_DATE_EPOCH": "1767225600"}
    subprocess.run(command, env=environment, check=True, timeout=120)


def shown(page: Path) -> str:
    command = ["man", "--local-file", "--encoding=UTF-8", "--warnings", str(page)]
    environment = {**os.environ, "MANWIDTH": "10000", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert ran.stderr == ""
    return " ".join(re.sub(r".\x08", "", ran.stdout).split())


@needs("man")
def test_every_command_is_told_with_its_options(pages: Path) -> None:
    text = shown(pages / PAGES[0])
    for name, command in leaves(main):
        assert f"appliance {name} [OPTIONS]" in text
        assert command.help is not None
        assert " ".join(command.help.partition("\n")[0].split()) in text
        for option in command.params:
            assert all(spelling in text for spelling in option.opts if spelling.startswith("-"))
    for example in ("appliance serve", "sudo appliance install --hostname mail.example.com"):
        assert example in text


@needs("man")
def test_every_setting_is_told_with_its_default(pages: Path) -> None:
    text = shown(pages / PAGES[1])
    for key in known_keys():
        assert f" {key.rpartition('.')[2]} = " in text
    assert 'retry_delays = ["5m", "10m", "15m"' in text
    assert "Port of recipients' mail servers." in text
    assert "[delivery.relays.NAME]" in text


def test_the_same_sources_make_the_same_pages(pages: Path, tmp_path: Path) -> None:
    make(tmp_path)
    for name in PAGES:
        assert (tmp_path / name).read_bytes() == (pages / name).read_bytes()
        assert b'"2026-01-01"' in (pages / name).read_bytes()
