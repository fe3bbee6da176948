"""Databases of an earlier version: commands that show something leave them alone, `upgrade` tells and does the rest."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from appliance import __version__
from appliance.cli import leaves, main
from appliance.cli.options import Command
from appliance.config.load import known_keys
from appliance.environment import Environment
from appliance.model.database import LastStart
from appliance.store import FILE_NAME, open_store, pending
from appliance.store.postgresql import migrate as postgresql
from appliance.store.sqlite import migrate as sqlite
from tests import engines
from tests.docs.test_cli import documented
from tests.e2e.test_a_data_directory_that_cannot_be_used_is_one_line import COMMANDS
from tests.fakes.dns import DnsServer
from tests.fakes.dns_thread import served
from tests.programs import needs
from tests.running_appliance import add_account

# Commands that change what the audit log does not name, or all of it; those that open no database; and those that open
# it in their own way.
CHANGING = {"setup", "domain verify", "queue retry", "send-test", "webhook ping", "webhook replay", "restore", "serve"}
NEITHER = {"verify", "config path", "config check", "config show", "completion", "health", "install", "uninstall"}
NEITHER |= {"version", "help", "dev"}
READING = {name for name, command in leaves(main) if isinstance(command, Command) and command.reads}
AUDITED = {name for name, command in leaves(main) if isinstance(command, Command) and command.action}
IN_THEIR_OWN_WAY = {"backup", "doctor", "store copy", "upgrade"}
FILE_STEP = "CREATE TABLE more (a TEXT) STRICT"
SERVER_STEP = "-- compatible since: 1\nCREATE TABLE more (a TEXT)"


class Installation:
    """A data directory with an account, and the settings that name its database."""

    def __init__(self, directory: Path) -> None:
        self.data_dir, self.config = directory / "data", directory / "settings.toml"
        add_account(self.data_dir, "demo")
        self.settings = f'[server]\ndata_dir = "{self.data_dir}"\n[dns]\nresolvers = ["127.0.0.1:9"]\n'
        self.config.write_text(self.settings + engines.settings_of(self.data_dir))

    def run(self, *words: str, given: str = "", program: str = "appliance") -> Result:
        return CliRunner().invoke(main, [*words, "--config", str(self.config)], input=given, prog_name=program)

    def state(self) -> object:
        """Which steps the database has taken, its tables, and every byte of a file."""
        if engines.url_of(self.data_dir):
            tables = engines.rows(self.data_dir, "SELECT relname::text FROM pg_class ORDER BY 1")
            return engines.rows(self.data_dir, "SELECT number FROM migrations ORDER BY 1"), tables
        return (self.data_dir / FILE_NAME).read_bytes()


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("APPLIANCE_CONFIG", raising=False)
    installation = Installation(tmp_path)
    learn(monkeypatch)
    return installation


def learn(monkeypatch: pytest.MonkeyPatch) -> None:
    in_file, in_server = sqlite.migrations(), postgresql.migrations()
    further = sqlite.Migration(in_file[-1].number + 1, "more", FILE_STEP)
    monkeypatch.setattr(sqlite, "migrations", lambda: [*in_file, further])
    step = postgresql.SchemaStep(in_server[-1].number + 1, "more", SERVER_STEP, in_server[-1].since)
    monkeypatch.setattr(postgresql, "migrations", lambda: [*in_server, step])


def newest() -> int:
    return postgresql.newest_known() if engines.in_use() is engines.Kind.POSTGRESQL else sqlite.newest_known()


def test_every_command_is_known_to_change_something_or_not() -> None:
    """A new command has to be put into one of the sets, so that none upgrades a database by oversight."""
    commands = {name for name, _ in leaves(main)}
    assert commands == READING | AUDITED | CHANGING | NEITHER | IN_THEIR_OWN_WAY
    assert not READING & (AUDITED | CHANGING | NEITHER | IN_THEIR_OWN_WAY)


@pytest.mark.both_engines
def test_what_only_shows_leaves_an_older_database_alone(older: Installation) -> None:
    """Every such command says in one line that it is older and what to do, and not a byte is changed."""
    before = older.state()
    for name in sorted(READING - {"mcp"}):
        if name == "node list" and not engines.url_of(older.data_dir):
            continue
        words = COMMANDS.get(name, ())
        ran = older.run(*name.split(), *words)
        assert (name, ran.exit_code, ran.stdout) == (name, 1, "")
        assert ran.stderr.count("\n") == 1
        assert f"of an earlier version (schema {newest() - 1}, and this version needs {newest()})" in ran.stderr
        assert "start the service, or run `appliance upgrade`" in ran.stderr
        assert older.state() == before, name


def test_a_command_is_known_however_the_program_is_called(older: Installation) -> None:
    """`python -m appliance` names itself in three words: it leaves the file alone, and its changes are in the log."""
    before = older.state()
    assert older.run("account", "list", program="python -m appliance").exit_code == 1
    assert older.state() == before
    assert older.run("pause", program="python -m appliance").exit_code == 0
    assert "mail.paused" in older.run("audit").stdout


def test_an_empty_file_is_left_without_a_schema(older: Installation) -> None:
    (older.data_dir / FILE_NAME).write_bytes(b"")
    assert older.run("account", "list", "--json").stdout == '{"accounts": []}\n'
    assert engines.rows(older.data_dir, "SELECT name FROM sqlite_master") == []


@pytest.mark.both_engines
def test_an_assistant_leaves_an_older_database_alone(older: Installation) -> None:
    before = older.state()
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "queue"}}
    ran = older.run("mcp", given=json.dumps(call) + "\n")
    result = json.loads(ran.stdout)["result"]
    assert result["isError"]
    assert "of an earlier version" in result["content"][0]["text"]
    assert older.state() == before


@pytest.mark.both_engines
def test_doctor_backup_and_copy_leave_an_older_database_alone(older: Installation) -> None:
    before = older.state()
    with served(DnsServer({})) as resolver:
        older.config.write_text(older.config.read_text().replace("127.0.0.1:9", str(resolver)))
        assert "Traceback" not in older.run("doctor").output
    for words in (("backup", "saved.tar"), ("store", "copy", "--to-sqlite", "elsewhere")):
        ran = older.run(*words)
        assert "Traceback" not in ran.output
        assert older.state() == before, words


@pytest.mark.both_engines
def test_what_changes_something_upgrades_first(older: Installation) -> None:
    """As before: an operator who pauses a restored database need not know of its version."""
    assert older.run("pause").exit_code == 0
    assert (newest(),) in engines.rows(older.data_dir, "SELECT number FROM migrations")


@pytest.mark.both_engines
def test_check_tells_the_steps_and_changes_nothing(older: Installation) -> None:
    """Exit code 3, the fields of the document, and the same database; after the upgrade 0."""
    before = older.state()
    ran = older.run("upgrade", "--check", "--json")
    assert (ran.exit_code, ran.stderr) == (3, "")
    told: dict[str, Any] = json.loads(ran.stdout)
    assert told.keys() == documented("upgrade").keys()
    assert (told["schema"], told["newest_schema"], told["pending"]) == (newest() - 1, newest(), True)
    assert told["steps"] == [f"{newest():04}_more"]
    assert older.state() == before
    assert f"schema {newest() - 1} becomes {newest()}" in older.run("upgrade", "--check").stdout

    done: dict[str, Any] = json.loads(older.run("upgrade", "--json").stdout)
    assert (done["version"], done["schema"], done["steps"]) == (__version__, newest(), told["steps"])
    assert done["kept"] == told["kept"]
    if not engines.url_of(older.data_dir):
        assert Path(done["kept"]).read_bytes()
        assert told["bytes_needed"] > 0
    assert engines.rows(older.data_dir, "SELECT count(*) FROM more") == [(0,)]
    again = older.run("upgrade", "--check", "--json")
    assert (again.exit_code, json.loads(again.stdout)["pending"]) == (0, False)
    assert older.run("account", "list").exit_code == 0
    assert "up to date" in older.run("upgrade").stdout


@pytest.mark.both_engines
async def test_check_tells_settings_that_are_new(tmp_path: Path) -> None:
    """They are those that the server which started last did not know; it is told which version that was."""
    data_dir = tmp_path / "data"
    async with open_store(data_dir, Environment(), url=engines.url_of(data_dir), inline=True) as store:
        await store.installation.note_start(LastStart("0.5.0", known_keys()[1:]))
    found = await pending(data_dir, engines.url_of(data_dir))
    assert found.last_start is not None
    assert (found.last_start.version, set(known_keys()) - set(found.last_start.settings)) == (
        "0.5.0",
        {known_keys()[0]},
    )


@pytest.mark.both_engines
def test_check_tells_settings_that_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with sections and keys that this version lacks is read without them; the upgrade itself refuses it."""
    monkeypatch.chdir(tmp_path)
    installation = Installation(tmp_path)
    lost = '[old]\nkey = 1\n[http]\nbnd = 1\n[delivery.relays."example.com"]\nhost = "relay.example.com"\nhst = 1\n'
    installation.config.write_text(installation.config.read_text() + lost)
    ran = installation.run("upgrade", "--check", "--json")
    told = json.loads(ran.stdout)
    assert (ran.exit_code, told["steps"], told["pending"]) == (3, [], True)
    assert told["settings"] == {"gone": ["old", "http.bnd", 'delivery.relays."example.com".hst'], "new": None}
    assert "Setting gone: http.bnd." in installation.run("upgrade", "--check").stdout
    refused = installation.run("upgrade")
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1)
    assert "unknown" in refused.stderr


@pytest.mark.both_engines
def test_where_nothing_is_there_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a list nor a check makes a database; `upgrade` says that there is none."""
    monkeypatch.chdir(tmp_path)
    installation = Installation(tmp_path)
    url = engines.url_of(installation.data_dir)
    if url:
        for statement in ("DROP SCHEMA public CASCADE", "CREATE SCHEMA public"):
            engines.rows(installation.data_dir, statement)
    else:
        (installation.data_dir / FILE_NAME).unlink()
    assert installation.run("account", "list", "--json").stdout == '{"accounts": []}\n'
    for words in (("account", "show", "demo"), ("upgrade", "--check"), ("upgrade",)):
        ran = installation.run(*words)
        assert (ran.exit_code, ran.stderr.count("\n")) == (1, 1)
        assert "there is no database in" in ran.stderr
    if url:
        assert engines.rows(installation.data_dir, "SELECT to_regclass('accounts')::text") == [(None,)]
    else:
        assert not (installation.data_dir / FILE_NAME).exists()


@needs("postgresql")
async def test_check_tells_the_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On PostgreSQL: which versions run, and which step waits for them."""
    engines.use(engines.Kind.POSTGRESQL)
    data_dir = tmp_path / "data"
    url = engines.url_of(data_dir)
    async with open_store(data_dir, Environment(), url=url, node="mail1", inline=True):
        learn(monkeypatch)
        known = postgresql.migrations()
        last = postgresql.SchemaStep(newest() + 1, "less", "DROP TABLE more", newest() + 1)
        monkeypatch.setattr(postgresql, "migrations", lambda: [*known, last])
        found = await pending(data_dir, url)
    assert found.nodes == (("mail1", __version__),)
    assert found.steps == (f"{known[-1].number:04}_more",)
    assert found.waiting == (f"{last.number:04}_less",)
    assert found.older_nodes == (f"mail1 ({__version__})",)
