"""`appliance install` and `uninstall`: below another root for real, and every reason to refuse."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from appliance.cli import main
from appliance.system.service import file
from tests.docs.test_cli import documented
from tests.programs import needs

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can install below another root")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in a virtual environment, at a place that the service could see."""
    # Only its path is used: nothing is run from there.
    venv = Path("/opt/mail/bin")
    monkeypatch.setattr(sys, "executable", str(venv / "python"))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    there = Path.is_file
    monkeypatch.setattr(Path, "is_file", lambda path: path == venv / "appliance" or there(path))
    return venv / "appliance"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, content in {"passwd": "root:x:0:0:root:/root:/bin/sh\n", "group": "root:x:0:\n"}.items():
        path = tmp_path / "etc" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


def test_a_dry_run_shows_everything_and_changes_nothing(root: Path, script: Path) -> None:
    before = tree(root)
    ran = run("install", "--dry-run", "--root", str(root), "--hostname", "mail.example.com")
    assert ran.exit_code == 0, ran.output
    assert tree(root) == before
    for name in ("sysusers.conf", "tmpfiles.conf"):
        assert all(f"    {line}\n" in ran.output for line in file(name).splitlines())
    assert f"    ExecStart={script} serve --config /etc/appliance/config.toml\n" in ran.output
    assert '    hostname = "mail.example.com"\n' in ran.output
    assert f"run systemctl --root={root} enable appliance.service\n" in ran.output


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_the_json_is_as_documented(command: str, root: Path, script: Path) -> None:
    """A dry run's object has the fields of docs/cli.md, and steps of the same kinds."""
    more = ["--purge"] if command == "uninstall" else []
    ran = run(command, "--dry-run", "--json", "--root", str(root), *more)
    assert ran.exit_code == 0, ran.output
    answer, shown = json.loads(ran.output), documented(command)
    assert answer.keys() == shown.keys()
    assert answer["dry_run"] is True
    assert {step.split()[0] for step in answer["steps"]} <= {"link", "write", "run", "remove"}


@needs("systemd")
@needs_root
def test_installed_below_another_root(root: Path, script: Path) -> None:
    """User, directories, unit and settings are there with owner and mode, and the unit is enabled; twice is no harm."""
    for _ in range(2):
        ran = run("install", "--root", str(root), "--json")
        assert ran.exit_code == 0, ran.output
    assert json.loads(ran.output)["steps"][0] == f"link {root}/usr/local/bin/appliance to {script}"
    users = {line.split(":")[0]: line.split(":") for line in (root / "etc/passwd").read_text().splitlines()}
    uid = int(users["appliance"][2])
    assert users["appliance"][5:] == ["/var/lib/appliance", "/usr/sbin/nologin"]
    data_dir, config = (root / "var/lib/appliance").stat(), (root / "etc/appliance/config.toml").stat()
    assert (data_dir.st_uid, stat.S_IMODE(data_dir.st_mode)) == (uid, 0o700)
    assert (config.st_uid, stat.S_IMODE(config.st_mode)) == (0, 0o640)
    assert config.st_gid == int(users["appliance"][3])
    enabled = root / "etc/systemd/system/multi-user.target.wants/appliance.service"
    assert enabled.readlink() == Path("/etc/systemd/system/appliance.service")


@needs("systemd")
@needs_root
def test_uninstalled_below_another_root(root: Path, script: Path) -> None:
    """All that install has put there goes, but settings and mail stay until they are purged."""
    assert run("install", "--root", str(root)).exit_code == 0
    mail = root / "var/lib/appliance/appliance.db"
    mail.write_text("mail")
    assert run("uninstall", "--root", str(root)).exit_code == 0
    left = {
        name for name in tree(root) if not name.startswith(("etc/passwd", "etc/group", "etc/shadow", "etc/gshadow"))
    }
    assert left - {"etc/.pwd.lock"} == {"etc/appliance/config.toml", "var/lib/appliance/appliance.db"}
    refused = run("uninstall", "--root", str(root))
    assert (refused.exit_code, refused.output.count("\n")) == (1, 1)
    assert "nothing is installed" in refused.output
    assert run("uninstall", "--root", str(root), "--purge", "--yes").exit_code == 0
    assert not mail.parent.exists()
    assert not (root / "etc/appliance").exists()


@pytest.mark.parametrize(
    ("typed", "code", "text"),
    [
        ("right\n", 0, "all mail and all accounts of right"),
        ("wrong\n", 1, "nothing was deleted"),
        ("", 130, "Stopped. Nothing was changed."),  # Ctrl-C, or the end of the input
        (None, 2, "add --yes"),  # no terminal
    ],
)
def test_a_purge_is_confirmed(
    typed: str | None, code: int, text: str, tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It deletes only after the name of the host has been typed; without a terminal it names --yes."""
    root = tmp_path / "right"
    config = root / "etc/appliance/config.toml"
    config.parent.mkdir(parents=True)
    config.touch()
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: typed is not None, raising=False)
    ran = CliRunner().invoke(main, ["uninstall", "--purge", "--root", str(root)], input=typed)
    assert config.exists() is (code != 0), ran.output
    assert ran.exit_code == code
    assert text in ran.output


def refusal(*arguments: str) -> str:
    ran = run(*arguments)
    assert (ran.exit_code, ran.output.count("\n")) == (1, 1), ran.output
    return ran.output


def test_only_root_installs(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root the refusal names --dry-run, which any user may run."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "only root may do this: use sudo, or --dry-run to see the steps" in refusal("install")


@pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="systemd runs here: it would really be installed")
def test_without_systemd_it_is_refused(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "systemd is not running; `appliance serve`" in refusal("install")


def test_a_source_tree_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an installed command there is nothing that systemd could start."""
    monkeypatch.setattr(sys, "executable", str(root / "bin" / "python"))
    assert "install the package into a virtual environment first" in refusal("install", "--root", str(root))


def test_settings_that_cannot_be_used_are_refused(root: Path, script: Path) -> None:
    """An existing file is read before anything is done, so that the service does not fail later."""
    config = root / "etc/appliance/config.toml"
    config.parent.mkdir()
    config.write_text("[http]\nbnd = 1\n")
    assert 'did you mean "bind"?' in refusal("install", "--root", str(root))
    assert not (root / "etc/systemd").exists()


@pytest.mark.parametrize("command", [("install",), ("uninstall",), ("uninstall", "--purge")])
def test_nothing_is_done_beside_the_debian_package(command: tuple[str, ...], root: Path, script: Path) -> None:
    """Where it is installed, it has set up everything, and only apt may take away what is its own."""
    unit = root / "usr/lib/systemd/system/appliance.service"
    unit.parent.mkdir(parents=True)
    unit.touch()
    before = tree(root)
    assert "the Debian package is installed here" in refusal(*command, "--root", str(root))
    assert tree(root) == before


def test_a_host_name_must_be_one(root: Path, script: Path) -> None:
    ran = run("install", "--root", str(root), "--hostname", 'x"y')
    assert ran.exit_code == 2
    assert "is not a host name" in ran.output
