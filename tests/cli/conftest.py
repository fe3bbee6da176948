"""A configuration of its own for each test of the command line."""

from pathlib import Path

import pytest

from appliance.keys import secrets
from tests.cli.shell import Shell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("APPLIANCE_CONFIG", raising=False)
    monkeypatch.setitem(secrets.ARGON2, "memory_cost", 64)  # hashes that take no time
    return Shell(tmp_path)


@pytest.fixture
def acme(shell: Shell) -> Shell:
    """Commands, and the account acme with 100 credits."""
    shell.create("acme", "--credits", "100")
    return shell
