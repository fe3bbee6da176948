"""`appliance completion`: the script makes a real shell complete the installed program."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from appliance.cli import main
from tests.cli.shell import ROOT, Shell, fields
from tests.docs.test_cli import documented

# What bash does for the Tab key, without a terminal: the words and where the cursor is, then the function.
PRESS_TAB = """
source <(appliance completion bash)
COMP_WORDS=({words}) COMP_CWORD={last} COMP_TYPE=9
$(complete -p appliance | sed 's/.*-F \\([^ ]*\\) .*/\\1/') appliance
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


STREAMS = """
[delivery.streams.digest]
sources = ["news1", "news2"]
[delivery.sources.news1]
ipv4 = "192.0.2.1"
hostname = "news1.example.com"
[delivery.sources.news2]
ipv4 = "192.0.2.2"
hostname = "news2.example.com"
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a shell that finds this program under its name."""
    program = tmp_path / "bin" / "appliance"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom appliance.cli import main\nmain()\n")
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["suppr"], {"suppression"}),
        (["webhook", ""], {"show", "set", "remove", "ping", "replay"}),
        (["messages", "--sta"], {"--status"}),
        (["messages", "--status", "q"], {"queued"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
    ],
)
def test_words_are_completed(words: list[str], expected: set[str]) -> None:
    *before, incomplete = words
    completions = ShellComplete(main, {}, "appliance", "_APPLIANCE_COMPLETE").get_completions(before, incomplete)
    assert {item.value for item in completions} == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["account", "show", ""], {"acme"}),
        (["domain", "list", "--account", "ac"], {"acme"}),
        (["domain", "verify", "a"], {"acme.example"}),
        (["template", "show", "w"], {"welcome"}),
        (["queue", "pause", ""], {"google"}),
        (["queue", "re"], {"reschedule", "retry", "resume"}),
        (["ramp", "set", "5", "--provider", "g"], {"google"}),
        (["key", "create", "--stream", "d"], {"digest"}),
        (["key", "create", "--domain", ""], {"acme.example"}),
        (["account", "sources", "acme", "--stream", "digest", "--sources", ""], {"news1", "news2"}),
        (["account", "sources", "acme", "--sources", "news1,n"], {"news1,news2"}),
        (["inbound", "add", ""], {"acme.example"}),
        (["inbound", "remove", ""], {"in@acme.example"}),
        (["dev", "--smtp"], {"--smtp-port"}),
        (["key", "list", "--account", "zoo"], set()),
    ],
)
def test_names_of_the_database_are_completed(
    acme: Shell, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: set[str]
) -> None:
    """Of accounts, domains, templates, pools, receiving addresses, streams and sources."""
    acme.json("domain", "add", "acme.example")
    acme.json("inbound", "add", "in@acme.example")
    acme.config.write_text(acme.config.read_text() + STREAMS)
    acme.json("queue", "pause", "google")
    template = acme.config.parent / "templates" / "welcome"
    template.mkdir(parents=True)
    (template / "subject.txt").write_text("Welcome")
    (template / "text.txt").write_text("Hello")
    acme.json("template", "push", str(template.parent))
    monkeypatch.setenv("APPLIANCE_CONFIG", str(acme.config))
    test_words_are_completed(words, expected)


def test_bash_completes(installed: dict[str, str], acme: Shell) -> None:
    script = PRESS_TAB.format(words="appliance account show ''", last=3)
    environment = {**installed, "APPLIANCE_CONFIG": str(acme.config)}
    ran = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert (ran.stdout.split(), ran.stderr) == (["acme"], "")


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell: Shell, name: str) -> None:
    """It calls the program by the name it is installed under, and the JSON is as documented."""
    script = shell.text("completion", name)
    assert f"_APPLIANCE_COMPLETE={name}_complete" in script
    assert "appliance" in script
    answer = shell.json("completion", name)
    assert fields(answer) == fields(documented("completion"))
    assert answer["script"] == script.removesuffix("\n")


def test_another_shell_is_wrong_usage(shell: Shell) -> None:
    assert "'bash', 'zsh', 'fish'" in shell.misused("completion", "csh")


def test_the_tab_key_creates_nothing(installed: dict[str, str], tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    script = PRESS_TAB.format(words="appliance account show ''", last=3)
    ran = subprocess.run(
        ["bash", "-c", script], env=installed, cwd=empty, capture_output=True, text=True, timeout=120, check=True
    )
    assert (ran.stdout.split(), ran.stderr, list(empty.iterdir())) == ([], "", [])
