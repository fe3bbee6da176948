"""`appliance store copy`, as an operator types it: what it says, and each refusal in one line."""

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from appliance.store import FILE_NAME
from appliance.store.sqlite.copy_endpoint import tables
from appliance.system.data_directory import only_server
from tests.cli.shell import ROOT, Shell, fields
from tests.cli.test_queue import accept, due
from tests.docs.test_cli import documented
from tests.postgresql_server import PostgresServer
from tests.programs import needs
from tests.terminal import open_terminal

pytestmark = needs("postgresql")


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database()


def on(shell: Shell, url: str) -> Shell:
    shell.config.write_text(f'[server]\ndata_dir = "{shell.data_dir}"\n[store]\nurl = "{url}"\n')
    return shell


def test_there_and_back(acme: Shell, url: str, tmp_path: Path) -> None:
    """Lines about each table on stderr, what to do next on stdout, and the documented JSON."""
    accept(acme, "a@example.net")
    result = acme.run("store", "copy", "--to", url)
    assert result.exit_code == 0, result.output
    lines = result.stderr.splitlines()
    assert "accounts: 1 rows copied" in lines
    assert "recipients: 1 rows compared" in lines
    assert all(re.fullmatch(r"\w+: [\d,]+ rows (copied|compared)", line) for line in lines)
    name, key = url.partition("?")[0].rpartition("/")[2], acme.data_dir / "appliance.key"
    assert re.match(rf"Copied \d+ rows of {len(tables())} tables to the database {name} on \S+, and ", result.stdout)
    assert "Next: set `url` in [store] to the new database,\n" in result.stdout
    assert f"copy {key} into the data_dir of every node" in result.stdout
    assert f"{acme.data_dir / FILE_NAME} is unchanged. Do not start a server on it again" in result.stdout
    assert "U+FFFD" not in result.stdout

    on(acme, url)
    assert acme.json("account", "show", "acme")["credits"] == 99
    back = tmp_path / "back"
    answer = acme.json("store", "copy", "--to-sqlite", str(back))
    assert fields(answer) == fields(documented("store copy"))
    assert (answer["to"], answer["tables"]) == (str(back / FILE_NAME), len(tables()))
    acme.config.write_text(f'[server]\ndata_dir = "{back}"\n')
    acme.data_dir = back
    assert acme.json("account", "show", "acme")["credits"] == 99
    assert due(acme) == ["a@example.net"]


@pytest.mark.slow
def test_back_into_the_old_data_directory(acme: Shell, url: str) -> None:
    acme.json("store", "copy", "--to", url)
    on(acme, url)
    file = acme.data_dir / FILE_NAME
    assert f"{file}: it holds an installation already" in acme.refused("store", "copy", "--to-sqlite", str(file))
    file.rename(acme.data_dir / "before.db")
    for end in ("-wal", "-shm"):
        Path(f"{file}{end}").unlink(missing_ok=True)
    result = acme.run("store", "copy", "--to-sqlite", str(file))
    assert f'set `data_dir` in [server] to "{acme.data_dir}", remove `url` from [store]' in result.stdout
    acme.config.write_text(f'[server]\ndata_dir = "{acme.data_dir}"\n')
    assert acme.json("account", "show", "acme")["credits"] == 100


@pytest.mark.slow
def test_what_was_replaced_is_told(acme: Shell, url: str) -> None:
    accept(acme, "a@example.net")
    acme.stored(lambda store: store.engine.change("UPDATE messages SET subject = 'a' || char(0)", {}))
    told = acme.run("store", "copy", "--to", url).stdout
    assert "In 1 texts U+FFFD replaces the character NUL, which PostgreSQL cannot store." in told


def test_refusals_are_one_line(acme: Shell, url: str, tmp_path: Path) -> None:
    """A server that runs, no database, a target in use, one that is not there, and one that is not empty."""
    elsewhere = tmp_path / "elsewhere"
    with only_server(acme.data_dir):
        assert "another server runs on this data directory" in acme.refused("store", "copy", "--to", url)
    with only_server(elsewhere):
        told = acme.refused("store", "copy", "--to-sqlite", str(elsewhere))
    assert f"{elsewhere}: another server runs on this data directory; stop it first" in told
    assert "the database cannot be used: " in acme.refused("store", "copy", "--to", url.replace("test", "gone"))
    assert "cannot be created" in acme.refused("store", "copy", "--to-sqlite", f"{acme.config}/data")
    acme.json("store", "copy", "--to", url)
    assert "it holds an installation already (accounts)" in acme.refused("store", "copy", "--to", url)
    acme.data_dir.rename(tmp_path / "moved")
    assert f"there is no database in {acme.data_dir}" in acme.refused("store", "copy", "--to", url)
    assert not acme.data_dir.exists()


@pytest.mark.slow
def test_an_unfinished_copy_is_opened_by_no_command(
    acme: Shell, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says that the copy is to be finished, of a file and of a PostgreSQL; then it is finished."""
    words = "`appliance store copy` into it has not been finished: run that again"
    first, directory = acme.config.read_text(), tmp_path / "new"
    second = f'[server]\ndata_dir = "{directory}"\n'
    with monkeypatch.context() as patched:
        patched.setattr("appliance.store.copying._compare", interrupted)
        for where in (("--to", url), ("--to-sqlite", str(directory))):
            assert acme.run("store", "copy", *where).exit_code == 1
    for settings, name in ((second, directory / FILE_NAME), (f'{first}[store]\nurl = "{url}"\n', "store.url")):
        acme.config.write_text(settings)
        assert f"{name}: {words}" in acme.refused("account", "list")
        assert f"{name}: {words}" in (acme.run("serve").stderr)
        assert "is itself an unfinished copy" in acme.refused("store", "copy", "--to-sqlite", str(tmp_path / "third"))
    acme.config.write_text(first)
    assert acme.json("store", "copy", "--to", url)["resumed"]
    assert acme.json("store", "copy", "--to-sqlite", str(directory))["resumed"]
    acme.config.write_text(second)
    assert [each["name"] for each in acme.json("account", "list")["accounts"]] == ["acme"]


@pytest.mark.slow
def test_a_difference_is_one_line(acme: Shell, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An account that got credits between two runs of the copy."""
    with monkeypatch.context() as patched:
        patched.setattr("appliance.store.copying._compare", interrupted)
        assert acme.run("store", "copy", "--to", url).exit_code == 1
    acme.text("account", "credit", "acme", "5")
    told = acme.refused("store", "copy", "--to", url, "--json")
    assert re.search(r"accounts \(acc_\w+\) differs from the source in credits: the source was changed since", told)


def interrupted(*_: object) -> int:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "Use either --to URL or --to-sqlite PATH."),
        (("--to", "postgresql://h/d", "--to-sqlite", "d"), "Use either --to URL or --to-sqlite PATH."),
        (("--to", "/var/lib/appliance"), "--to must be"),
        (("--to", "mysql://db.example.com/d"), "--to must be"),
    ],
)
def test_wrong_usage(acme: Shell, words: tuple[str, ...], told: str) -> None:
    assert told in acme.misused("store", "copy", *words)


@pytest.mark.slow
def test_a_terminal_has_a_bar(acme: Shell, url: str) -> None:
    ours, theirs = open_terminal()
    words = [sys.executable, "-m", "appliance", "store", "copy", "--to", url, "--config", str(acme.config)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=theirs, env=environment) as copying:
        os.close(theirs)
        written = b""
        with suppress(OSError):  # the terminal's other end is closed
            while part := os.read(ours, 4_096):
                written += part
        os.close(ours)
    shown = written.decode()
    assert copying.returncode == 0, shown
    assert "100%" in shown
    assert "rows copied" not in shown
