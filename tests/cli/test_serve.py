"""How `appliance serve` begins and ends: exit codes, and one line for every reason not to start."""

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from appliance.config.load import VARIABLE
from tests.fork_client import Piped, piped
from tests.fork_server import PRELUDE
from tests.ports import free_port
from tests.running_appliance import STOP_TIMEOUT, TRUSTS_NONE, add_account, ran
from tests.terminal import open_terminal

HINT = "appliance account create NAME EMAIL --password-stdin"


def settings(directory: Path, bind: str = "127.0.0.1:0", more: str = "") -> Path:
    file = directory / "settings.toml"
    file.write_text(
        f'[server]\ndata_dir = "data"\n{more}[http]\nbind = ["{bind}"]\n'
        '[smtp]\nbind = []\nbind_tls = []\n[delivery]\nmode = "sandbox"\n'
    )
    return file


def start(config: Path, prelude: str = "", **options: int) -> Piped:
    """`appliance serve`, after this code."""
    environment = {**os.environ, **TRUSTS_NONE, PRELUDE: prelude}
    return piped("serve", "--config", str(config), directory=Path.cwd(), environment=environment, **options)


def failure(config: Path, program: str = "") -> str:
    """The one line on stderr of a start that must fail."""
    process = start(config, program)
    output, errors = process.communicate(STOP_TIMEOUT)
    assert process.returncode == 1, errors
    assert output == ""
    assert errors.count("\n") == 1, errors
    return errors


def reason(config: Path) -> str:
    code, output, errors = ran(config, "serve", directory=config.parent)
    assert (code, output, errors.count("\n")) == (1, "", 1), errors
    line = json.loads(errors)
    assert (line["level"], line["logger"], line["event"]) == ("error", "appliance.serve", "cannot serve")
    return str(line["reason"])


def wait_until_ready(process: Piped) -> None:
    line = process.stderr.readline()
    assert json.loads(line)["event"] == "ready", line + process.stderr.read()


def rest_of_log(process: Piped) -> list[dict[str, Any]]:
    """What a process that ends in order still writes, of which each line is JSON."""
    return [json.loads(line) for line in process.stderr]


def raising(error: str) -> str:
    """A program whose supervisor ends with that error, as it would inside its nurseries."""
    return (
        "import appliance.supervisor as supervisor, trio\n"
        "async def run(*_, **__):\n"
        "    async with trio.open_nursery():\n"
        f"        raise {error}\n"
        "supervisor.run = run"
    )


# ---- a clean end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_clean_stop(tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM and Ctrl-C end the server with exit code 0."""
    process = start(settings(tmp_path))
    wait_until_ready(process)
    process.send_signal(number)
    process.communicate(STOP_TIMEOUT)
    assert process.returncode == 0


def test_an_interrupt_outside_the_supervisor_is_a_clean_stop(tmp_path: Path) -> None:
    """Ctrl-C that reaches Python itself makes no traceback and no error."""
    process = start(settings(tmp_path), raising("KeyboardInterrupt"))
    assert process.communicate(STOP_TIMEOUT) == ("", "")
    assert process.returncode == 0


NOTING = """
import importlib, click
serve = importlib.import_module("appliance.cli.serve")
check = serve.check_usable
def check_usable(*given, **named):
    click.echo("Note: a word of a library.", err=True)
    check(*given, **named)
serve.check_usable = check_usable
"""


def test_a_note_by_click_does_not_end_the_log(tmp_path: Path) -> None:
    """Click asks a stream whether it takes bytes; what it then writes stands in the log, and lines follow it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start(settings(tmp_path, f"127.0.0.1:{taken.getsockname()[1]}"), NOTING)
        output, errors = process.communicate(STOP_TIMEOUT)
    note, line = errors.splitlines()
    assert (output, note, json.loads(line)["event"]) == ("", "Note: a word of a library.", "cannot serve")


def here(directory: Path, *options: str) -> Piped:
    """`appliance serve` in that directory, where no settings are named."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE} | TRUSTS_NONE
    return piped("serve", *options, directory=directory, environment=environment)


@pytest.mark.parametrize("text", ["[servr]\n", "<xml>\n"])
def test_a_file_here_without_our_settings_stops_the_start(tmp_path: Path, text: str) -> None:
    """Its only section may have a slip in its name: the sandbox would start in the place of a mail server."""
    (tmp_path / "config.toml").write_text(text)
    process = here(tmp_path)
    output, errors = process.communicate(STOP_TIMEOUT)
    assert (process.returncode, output, errors.count("\n")) == (1, "", 1)
    assert str(json.loads(errors)["reason"]).startswith(f"{tmp_path}/config.toml: ")
    assert os.listdir(tmp_path) == ["config.toml"]


def test_the_sandbox_starts_beside_another_programs_file(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[params]\n")
    process = here(tmp_path, "--sandbox", "--port", str(free_port()), "--smtp-port", str(free_port()))
    wait_until_ready(process)
    process.terminate()
    process.communicate(STOP_TIMEOUT)
    assert process.returncode == 0


# ---- what is printed when it listens


def test_without_an_account_a_hint_is_printed(tmp_path: Path) -> None:
    """With a configuration file nothing is created; the log says how to create an account, until there is one."""
    config = settings(tmp_path)
    for expected in (True, False):
        process = start(config)
        wait_until_ready(process)
        process.terminate()
        lines = rest_of_log(process)
        assert process.communicate(STOP_TIMEOUT) == ("", "")
        hints = [line["hint"] for line in lines if line["event"] == "there is no account yet"]
        assert [hint.endswith(f"{HINT} --config {config}") for hint in hints] == [True] * expected
        add_account(tmp_path / "data", f"demo{expected}")


@pytest.mark.parametrize(("name", "warned"), [("mx", True), ("mx.example.com", False)])
def test_a_host_name_that_is_no_full_one_is_warned_of(tmp_path: Path, name: str, warned: bool) -> None:
    config = settings(tmp_path, more=f'hostname = "{name}"\n')
    config.write_text(config.read_text().replace("sandbox", "direct") + '[dns]\nresolvers = ["127.0.0.1:9"]\n')
    process = start(config)
    lines: list[dict[str, Any]] = []
    while not lines or lines[-1]["event"] != "there is no account yet":  # which it says last
        lines.append(json.loads(process.stderr.readline()))
    process.terminate()
    process.communicate(STOP_TIMEOUT)
    assert process.returncode == 0
    told = [line for line in lines if line["event"] == "server.hostname is not a full name"]
    assert [line["hostname"] for line in told] == [name] * warned


def test_on_a_terminal_both_are_text(tmp_path: Path) -> None:
    """An operator who starts it by hand reads the hint, and the reason why it does not start, as plain lines."""
    config = settings(tmp_path)
    ours, theirs = open_terminal()
    process = start(config, stdout=theirs, stderr=theirs)
    seen = b""
    while HINT.encode() not in seen:
        seen += os.read(ours, 1_000)
    process.terminate()
    process.communicate(STOP_TIMEOUT)
    assert process.returncode == 0
    config.write_text("nonsense = 1\n")
    process = start(config, stdout=theirs, stderr=theirs)
    process.communicate(STOP_TIMEOUT)
    assert process.returncode == 1
    os.close(theirs)
    while b"unknown section" not in seen:
        seen += os.read(ours, 1_000)
    os.close(ours)
    assert f"Error: {config}: nonsense: unknown section".encode() in seen
    assert b"{" not in seen


def test_a_stdout_without_a_reader_ends_nothing(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = start(settings(tmp_path), "import sys\nsys.stdout.isatty = lambda: True", stdout=writing)
    os.close(writing)
    wait_until_ready(process)
    assert json.loads(process.stderr.readline())["event"] == "greeting not written: stdout failed"
    process.terminate()
    process.communicate(STOP_TIMEOUT)
    assert process.returncode == 0


# ---- reasons not to start


def test_a_wrong_setting_is_one_line(tmp_path: Path) -> None:
    config = settings(tmp_path, more="hostnam = 1\n")
    assert reason(config) == f'{config}: server.hostnam: unknown key; did you mean "hostname"?'
    assert "cannot be read" in reason(tmp_path / "missing.toml")


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = reason(settings(tmp_path, address))
    advice = "change http.bind, or stop the program that listens there"
    assert line == f"cannot listen on {address}: address already in use; {advice}"


def test_what_stands_in_the_way_of_acme_is_one_line(tmp_path: Path) -> None:
    """Another program on port 80, and a file without a root certificate, are reported before any request."""
    (tmp_path / "ca.pem").write_text("no certificate")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        acme = f'hostname = "mail.example.com"\n[acme]\nenabled = true\nbind = ["{address}"]\n'
        acme += 'directory = "https://127.0.0.1:9/"\n'
        line = reason(settings(tmp_path, more=acme))
        assert line.startswith(f"cannot listen on {address}: address already in use; change acme.bind")
        line = reason(settings(tmp_path, more=f'{acme}ca_file = "ca.pem"\n'))
    assert "acme.ca_file: holds no usable certificates" in line


def test_a_damaged_key_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "appliance.key").write_bytes(b"short")
    assert "appliance.key: expected 32 bytes, found 5. Restore the file from the backup." in reason(settings(tmp_path))


def test_a_failed_storage_is_one_line_of_the_log(tmp_path: Path) -> None:
    """When it is unknown whether a commit is on disk the process ends with 1 and logs why."""
    line = json.loads(failure(settings(tmp_path), raising("supervisor.StorageFailed('the disk failed')")))
    assert line["level"] == "error"
    assert line["event"].startswith("storage failed")
    assert line["reason"] == "the disk failed"


def test_a_bug_is_logged_with_its_traceback(tmp_path: Path) -> None:
    """An unexpected exception ends the process with 1, and its traceback is in the log, on one line."""
    line = json.loads(failure(settings(tmp_path), raising("ZeroDivisionError('unforeseen')")))
    assert line["event"] == "ended by a bug"
    assert "ZeroDivisionError: unforeseen" in line["traceback"]


def test_what_python_would_print_is_in_the_log(tmp_path: Path) -> None:
    """An error in a thread, one in a finalizer and a warning are one line of JSON each, and the server goes on."""
    odd = (
        "import threading, warnings\n"
        "import appliance.supervisor as supervisor\n"
        "run = supervisor.run\n"
        "class Odd:\n"
        "    def __del__(self): raise ValueError('in a finalizer')\n"
        "async def odd(*given, **named):\n"
        "    thread = threading.Thread(target=lambda: 1 / 0)\n"
        "    thread.start()\n"
        "    thread.join()\n"
        "    Odd()\n"
        "    warnings.warn('an old function', DeprecationWarning)\n"
        "    await run(*given, **named)\n"
        "supervisor.run = odd\n"
        "warnings.simplefilter('always')\n"
    )
    process = start(settings(tmp_path), odd)
    lines: list[dict[str, Any]] = []
    while not lines or lines[-1]["event"] != "ready":
        lines.append(json.loads(process.stderr.readline()))
    process.terminate()
    rest_of_log(process)
    process.communicate(STOP_TIMEOUT)
    assert process.returncode == 0
    last = {line["event"]: line["traceback"].splitlines()[-1] for line in lines if "traceback" in line}
    assert last["thread failed"] == "ZeroDivisionError: division by zero"
    assert last["error ignored"] == "ValueError: in a finalizer"
    assert any("an old function" in line["event"] for line in lines)


@pytest.mark.parametrize(("name", "begins"), [("data/appliance.db", True), ("replacing-", False)])
def test_a_restore_that_was_killed_is_not_built_upon(tmp_path: Path, name: str, begins: bool) -> None:
    """One that was decided is completed by a start; one into an empty directory before that must be run again."""
    config, data_dir, backup = settings(tmp_path), tmp_path / "data", tmp_path / "saved.backup"
    add_account(data_dir, "demo")
    assert ran(config, "backup", str(backup), directory=tmp_path)[0] == 0
    for file in data_dir.glob("*"):
        file.unlink()
    killed = (
        "import os\nrename = os.rename\n"
        "def dying(old, new):\n"
        f"    if {name!r} in str(new): os.kill(os.getpid(), 9)\n"
        "    rename(old, new)\n"
        "os.rename = dying\n"
    )
    again = ["restore", str(backup), "--force"]
    environment = {**os.environ, PRELUDE: killed}
    process = piped(*again, "--config", str(config), directory=tmp_path, environment=environment)
    process.communicate(STOP_TIMEOUT)
    assert process.returncode == -signal.SIGKILL
    assert not (data_dir / "appliance.db").exists()
    if begins:
        process = start(config)
        while "ready" not in (line := process.stderr.readline()):  # before it comes that all mail is paused
            assert line
        process.terminate()
        process.communicate(STOP_TIMEOUT)
    else:
        assert "was interrupted: run `appliance restore --force`" in reason(config)
        _, _, errors = ran(config, "account", "list", directory=tmp_path)
        assert "was interrupted: run `appliance restore --force`" in errors
        assert ran(config, *again, directory=tmp_path)[0] == 0
    assert (data_dir / "appliance.db").exists()
    assert not [*data_dir.glob("restoring-*"), *data_dir.glob("replacing-*")]
