"""How `appliance dev` starts: what it refuses, what it prints, and what it leaves behind."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.config.settings import ConfigError
from appliance.config.values import Endpoint
from appliance.dev.settings import MEMORY_PREFIX, check_loopback, data_directory, dev_settings
from tests.programs import require
from tests.running_appliance import STOP_TIMEOUT
from tests.running_dev import environment, running_dev

PROGRAM = [sys.executable, "-m", "appliance"]


def refused(directory: Path, *words: str, **variables: str) -> tuple[int, str]:
    env = environment() | variables
    ended = subprocess.run([*PROGRAM, *words], cwd=directory, env=env, capture_output=True, text=True, check=False)
    assert ended.stdout == ""
    return ended.returncode, ended.stderr


def test_it_is_no_service(tmp_path: Path) -> None:
    code, text = refused(tmp_path, "dev", NOTIFY_SOCKET="/run/systemd/notify")
    assert (code, text.count("\n")) == (1, 1)
    assert "NOTIFY_SOCKET" in text


@pytest.mark.parametrize("words", [("dev", "--config", "x.toml"), ("--config", "x.toml", "dev"), ("dev",)])
def test_it_takes_no_settings(tmp_path: Path, words: tuple[str, ...]) -> None:
    variables = {"APPLIANCE_CONFIG": "x.toml"} if words == ("dev",) else {}
    code, text = refused(tmp_path, *words, **variables)
    assert code == 2
    assert "reads no settings file" in text


def test_it_has_no_other_address(tmp_path: Path) -> None:
    assert refused(tmp_path, "dev", "--bind", "0.0.0.0")[0] == 2
    settings = dev_settings(0, 0, tmp_path)
    check_loopback(settings)
    for section in ("http", "smtp"):
        opened = replace(getattr(settings, section), bind=(Endpoint("0.0.0.0", 8080),))
        with pytest.raises(ConfigError, match=rf"{section}\.bind: 0\.0\.0\.0:8080 is not a loopback address"):
            check_loopback(replace(settings, **{section: opened}))


@pytest.mark.slow
def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    """It proposes the command as it was typed, with a free port."""
    with running_dev(tmp_path) as server:
        words = ("--smtp-port", str(server.smtp_port), "--port", "0", "--data", "my mail", "--json")
        code, text = refused(tmp_path, "dev", *words)
    assert code == 1
    assert text.startswith("Error: ")  # plain text, as everything that it prints: it is no service
    assert f"cannot listen on 127.0.0.1:{server.smtp_port}: address already in use" in text
    assert re.search(r"use another port: appliance dev --port 0 --data 'my mail' --json --smtp-port [1-9]", text)


@pytest.mark.slow
def test_data_of_a_server_is_refused(tmp_path: Path) -> None:
    """Without a login, everyone on the machine could read a server's mail."""
    words = ["account", "create", "acme", "a@acme.example", "--password-stdin"]
    env = environment() | {"APPLIANCE_DATA_DIR": str(tmp_path / "data")}
    subprocess.run([*PROGRAM, *words], cwd=tmp_path, env=env, input=b"a long password", check=True, capture_output=True)
    code, text = refused(tmp_path, "dev", "--data", "data", "--port", "0", "--smtp-port", "0")
    assert code == 1
    assert "has the data of another server" in text


def test_it_prints_its_addresses_and_a_line_for_each_message(tmp_path: Path) -> None:
    curl = require("curl")
    (tmp_path / "config.toml").write_text("[http]\n")
    command = [*PROGRAM, "dev", "--port", "0", "--smtp-port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), text=True, **pipes)  # type: ignore[call-overload]
    lines: list[str] = []
    while not lines or not lines[-1].startswith("curl"):
        lines.append(process.stdout.readline())
    shell = lines[-1] + process.stdout.readline()
    for text in (shell, shell.replace('"to"', '"too"'), shell.replace("you@example.net", "bounce@example.net")):
        subprocess.run(["sh", "-c", text.replace("curl", f"{curl} --noproxy '*'")], check=True, capture_output=True)
    read = ""
    while len(re.findall("^[0-9:]{8}  ", read, re.MULTILINE)) < 3:
        read += process.stdout.readline()
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=STOP_TIMEOUT)
    assert process.returncode == 0
    assert errors == "config.toml is not read: appliance dev has no settings.\n"
    assert [name for name in ("Inbox", "API", "SMTP") if any(name in line for line in lines)] == [
        "Inbox",
        "API",
        "SMTP",
    ]
    messages = sorted(re.sub(r"^[0-9:]{8}  ", "", line) for line in (read + printed).splitlines() if line)
    assert messages[0].startswith("POST /emails  refused 400: ")
    assert messages[1].startswith("hello@example.com → bounce@example.net  It works  bounced: 550 5.1.1")
    assert messages[2] == "hello@example.com → you@example.net  It works  delivered"


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    with data_directory(None) as directory:
        (directory / "file").write_text("x")
        assert directory.stat().st_mode & 0o777 == 0o700
    assert not directory.exists()


@pytest.mark.slow
def test_leftovers_of_a_killed_server_are_deleted(tmp_path: Path) -> None:
    with data_directory(None) as directory:
        parent = directory.parent
    old, new = parent / f"{MEMORY_PREFIX}old-{os.getpid()}", parent / f"{MEMORY_PREFIX}new-{os.getpid()}"
    for made in (old, new):
        made.mkdir()
    os.utime(old, (0, 0))
    with data_directory(None):
        assert (old.exists(), new.exists()) == (False, True)
    new.rmdir()


def test_json_is_one_object(tmp_path: Path) -> None:
    with running_dev(tmp_path) as server:
        assert json.loads(server.http.get("/healthz").text)["status"] == "ok"
    assert list(tmp_path.iterdir()) == []
