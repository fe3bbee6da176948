"""`appliance config`: the file that is used, whether it is right, and every setting in effect."""

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from appliance.cli import main
from appliance.config.load import parse
from tests.docs.test_cli import documented

SETTINGS = """
[server]
hostname = "mail.example.com"
data_dir = "data"
[store]
url = "postgresql://user:geheim@db.example/mail"
[delivery]
mode = "relay"
relay_host = "smart.example"
relay_username = "me"
relay_password = "hunter2"
[delivery.relays."partner.example"]
host = "other.example"
username = "me"
password = "hunter3"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("APPLIANCE_CONFIG", raising=False)
    made = tmp_path / "config.toml"
    made.write_text(SETTINGS)
    return made


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["config", *words])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def test_the_file_is_told_and_where_else_one_is_looked_for(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the search; a named one comes first."""
    told = json.loads(run("path", "--json"))
    assert told["file"] == str(file)
    assert [each["by"] for each in told["looked_for"]] == ["--config", "$APPLIANCE_CONFIG", "here", "the system"]
    assert told.keys() == documented("config path").keys()
    other = file.with_name("other.toml")
    other.write_text(SETTINGS)
    monkeypatch.setenv("APPLIANCE_CONFIG", str(other))
    assert f"{other} is used" in run("path")
    assert f"{file} is used" in run("path", "--config", str(file))


def test_a_file_is_checked(file: Path) -> None:
    """A right one is told; a wrong one is one line with the key and the one that was meant."""
    assert json.loads(run("check", "--json")) == {"file": str(file), "ok": True}
    file.write_text('[server]\nhostnam = "x"\n')
    said = run("check", code=1)
    assert said.count("\n") == 1
    assert 'did you mean "hostname"?' in said
    file.write_text("[server\n")
    assert "line 1" in run("check", code=1)


def test_every_setting_is_shown_and_no_secret(file: Path) -> None:
    """As TOML that can be read again: what the file says, and defaults for what it leaves out."""
    told = run("show")
    for secret in ("geheim", "hunter2", "hunter3"):
        assert secret not in told
    tables = tomllib.loads(told)
    assert tables["server"]["hostname"] == "mail.example.com"
    assert tables["store"]["url"] == "postgresql://user:***@db.example/mail"
    assert tables["delivery"]["relay_password"] == "***"
    assert tables["delivery"]["relays"]["partner.example"]["host"] == "other.example"
    assert 'log_level = "info"  # default' in told
    shown = json.loads(run("show", "--json"))
    assert shown["settings"] == tables
    assert shown["file"] == str(file)


def test_what_is_shown_is_what_is_in_effect(file: Path) -> None:
    """Read as a settings file it gives the same settings; values that depend on others are told as they are."""
    file.write_text('[server]\nhostname = "mail.example.com"\ndata_dir = "data"\n')
    again = parse(run("show"), file)
    assert again == parse(file.read_text(), file)
    assert again.http.base_url == tomllib.loads(run("show"))["http"]["base_url"]
