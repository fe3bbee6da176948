"""A bug in a command is one line with a reference to where its details are, never a traceback."""

import re
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.failures import FAILURES_FILE, FAILURES_KEPT, explain
from appliance.config.load import parse
from appliance.store.accounts import Accounts
from tests.cli.shell import Shell


@pytest.fixture
def bug(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(_: Accounts) -> Any:
        raise ZeroDivisionError("two\nlines \x1b[31m")

    monkeypatch.setattr(Accounts, "all", fails)


def details(line: str) -> tuple[Path, str]:
    found = re.fullmatch(
        r"Error: unexpected failure, which is a bug: (.*); details in (.*), reference ([0-9a-f]{8})\n", line
    )
    assert found is not None, line
    assert found[1] == "ZeroDivisionError: two lines \\x1b[31m"
    return Path(found[2]), found[3]


@pytest.mark.usefixtures("bug")
def test_a_bug_is_one_line(acme: Shell) -> None:
    """The traceback is in a file of the data directory, for its owner only; each failure is added to it."""
    references = [details(acme.refused("account", "list"))[1] for _ in range(2)]
    file = acme.data_dir / FAILURES_FILE
    assert details(acme.refused("account", "list"))[0] == file
    text = file.read_text()
    assert all(reference in text for reference in references)
    assert text.count("Traceback (most recent call last)") >= 3
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("bug")
def test_the_file_does_not_grow_without_end(acme: Shell) -> None:
    file = acme.data_dir / FAILURES_FILE
    file.write_bytes(b"x" * (FAILURES_KEPT + 1))
    _, reference = details(acme.refused("account", "list"))
    assert reference in file.read_text()
    assert file.stat().st_size < FAILURES_KEPT


@pytest.mark.usefixtures("bug")
def test_details_go_elsewhere_when_they_must(acme: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a temporary file, where the one in the data directory cannot be written."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (acme.data_dir / FAILURES_FILE).symlink_to("/dev/null")  # is not followed
    file, reference = details(acme.refused("account", "list"))
    assert file.parent == tmp_path
    assert reference in file.read_text()


def test_what_is_no_bug_is_told_as_before(acme: Shell) -> None:
    """A refusal, wrong usage and an exit code are no failures."""
    assert "no account named" in acme.refused("account", "show", "nobody")
    acme.misused("account", "list", "more")
    assert not (acme.data_dir / FAILURES_FILE).exists()


def test_an_end_without_memory_is_one_line(tmp_path: Path) -> None:
    """Also where it shows as a thread that cannot be started; beside another failure it is that one's."""
    settings = parse("", tmp_path / "config.toml")
    ends = [MemoryError(), RuntimeError("can't start new thread")]
    line = explain(ExceptionGroup("", [ExceptionGroup("", ends)]), settings)
    assert line == "out of memory: give the process more; no accepted mail is lost"
    assert explain(ExceptionGroup("", [MemoryError(), ZeroDivisionError()]), settings) is None
