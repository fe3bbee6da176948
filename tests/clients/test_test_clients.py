"""`packaging/test-clients` on a machine of stand-ins: what it installs, what it runs, and what it says of failures."""

from pathlib import Path

import pytest

from tests.packaging.test_packaging import Tree, shell, tree

__all__ = ["tree"]  # a fixture

PROGRAMS = ("node", "npm", "go", "php", "composer", "phpunit", "ruby", "rake")
STAND_IN = """#!/bin/sh
echo "${0##*/} $*" >>"$FAKE_LOG"
[ "${0##*/}" != "$FAKE_FAILING" ]
"""
DPKG = """#!/bin/sh
for last; do :; done
[ "$last" = "$FAKE_MISSING" ] || echo installed
"""


@pytest.fixture
def machine(tree: Tree) -> Tree:
    for language in ("python", "node", "go", "php", "ruby"):
        (tree.root / "clients" / language).mkdir(parents=True)
    for program in (*PROGRAMS, "apt-get"):
        put(tree.tools / program, STAND_IN)
    put(tree.tools / "dpkg-query", DPKG)
    put(tree.tools / "id", "#!/bin/sh\necho ${FAKE_USER-0}\n")
    return tree


def put(file: Path, text: str) -> None:
    file.write_text(text.replace("#!/bin/sh", f"#!{shell()}", 1))
    file.chmod(0o755)


def test_all_languages_are_tested_and_tried(machine: Tree) -> None:
    """Each library's own tests, then the scenarios of all; nothing is installed when nothing is missing."""
    ran = machine.sh("packaging/test-clients")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.endswith("\nall passed\n")
    assert [line for line in machine.installed() if not line.startswith(("pip", "venv"))] == [
        "-m pytest -q tests",
        "npm install --no-package-lock --no-audit --no-fund --silent",
        "npm test",
        "go vet ./...",
        "go test ./...",
        "phpunit --fail-on-skipped",
        "rake test",
        "-m clients.conformance python python-async node go php ruby",
    ]


def test_only_what_is_named(machine: Tree) -> None:
    (machine.tools / "php").unlink()
    ran = machine.sh("packaging/test-clients", "go")
    assert ran.returncode == 0, ran.stderr
    assert machine.installed()[-3:] == ["go vet ./...", "go test ./...", "-m clients.conformance go"]
    wrong = machine.sh("packaging/test-clients", "cobol")
    assert (wrong.returncode, wrong.stderr) == (
        1,
        "usage: sh packaging/test-clients [python] [node] [go] [php] [ruby]\n",
    )


def test_what_is_missing_is_installed(machine: Tree) -> None:
    """By root with apt-get, before anything else is done."""
    (machine.tools / "go").unlink()
    machine.sh("packaging/test-clients", "go", "ruby", FAKE_MISSING="ruby-minitest")
    assert machine.installed()[:2] == [
        "apt-get update -qq",
        "apt-get install -y -qq --no-install-recommends golang-go ruby-minitest",
    ]


@pytest.mark.parametrize("lacking", ["root", "apt-get"])
def test_what_is_missing_is_named(machine: Tree, lacking: str) -> None:
    (machine.tools / "go").unlink()
    if lacking == "apt-get":
        (machine.tools / "apt-get").unlink()
    ran = machine.sh("packaging/test-clients", FAKE_USER="1000" if lacking == "root" else "0")
    assert (ran.returncode, ran.stderr) == (1, "missing: golang-go; on Debian as root: apt-get install golang-go\n")
    assert machine.installed() == []


def test_a_failure_does_not_hide_others(machine: Tree) -> None:
    ran = machine.sh("packaging/test-clients", "php", "ruby", FAKE_FAILING="phpunit")
    assert ran.returncode == 1
    assert ran.stderr.endswith("\nfailed: php\n")
    assert machine.installed()[-2:] == ["rake test", "-m clients.conformance php ruby"]
    ran = machine.sh("packaging/test-clients", "ruby", FAKE_FAILING="clients.conformance")
    assert ran.stderr.endswith("\nfailed: conformance\n")


def test_ci_runs_what_the_suite_leaves_out() -> None:
    """The suite has the Python library; `.ci/run` has the four others besides."""
    text = (Path(__file__).parents[2] / ".ci" / "run").read_text()
    assert " sh packaging/test-clients node go php ruby\n" in text
