"""Holds packaging/run and packaging/test to what the README promises, without a network."""

import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
SHELL_FILES = [path for path in PACKAGING.rglob("*") if path.is_file() and path.read_bytes().startswith(b"#!/bin/sh")]
SCRIPTS = [".ci/run", *sorted(str(path.relative_to(ROOT)) for path in SHELL_FILES)]
REQUIREMENTS = ["requirements.txt", "requirements-build.txt", "requirements-binary.txt", "requirements-test.txt"]

# Stands in for Python: knows what setup.sh asks of one, and writes down every installation.
FAKE_PYTHON = """\
#!/bin/sh
case "$*" in
*INSTSONAME*) [ -z "$FAKE_STATIC" ] ;;
*version_info*) [ -n "$FAKE_VERSION" ] && echo "$FAKE_VERSION" ;;
*ensurepip*) [ -z "$FAKE_WITHOUT_VENV" ] ;;
"-c import pip") [ -z "$FAKE_WITHOUT_PIP" ] ;;
"-m venv "*)
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
    echo venv >>"$FAKE_LOG" ;;
"-m pip install "*)
    for last; do :; done
    echo "pip ${last##*/}" >>"$FAKE_LOG"
    [ "${last##*/}" != "$FAKE_FAILING" ] || exit 1
    printf '#!/bin/sh\\npwd\\necho "$@"\\n' >"${0%/*}/appliance"
    chmod +x "${0%/*}/appliance" ;;
"-m PyInstaller "*)
    echo PyInstaller >>"$FAKE_LOG"
    [ "$FAKE_FAILING" != PyInstaller ] || exit 1
    mkdir -p "$FAKE_DIST/appliance.d"
    echo '[]' >"$FAKE_DIST/../build/contents.json"
    for made in appliance appliance.d/appliance-onedir; do
        echo packed >"$FAKE_DIST/$made"
        chmod +x "$FAKE_DIST/$made"
    done ;;
"-m "*)
    echo "$*" >>"$FAKE_LOG"
    [ "$2" != pytest ] || printf %s "$FAKE_ADVICE" >"$APPLIANCE_TESTS_ADVICE"
    [ "$2" != "$FAKE_FAILING" ] ;;
esac
"""


@dataclass(frozen=True, slots=True)
class Tree:
    """A copy of the project's scripts, on a machine whose only Python is the fake one."""

    root: Path
    tools: Path
    log: Path

    def sh(self, script: str, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        settings = {
            "PATH": str(self.tools),
            "FAKE_LOG": str(self.log),
            "FAKE_VERSION": "3.11.2",
            "FAKE_DIST": str(self.root / "dist"),
        } | environ
        return subprocess.run(
            [shell(), str(self.root / script), *arguments],
            env=settings,
            cwd=self.tools,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def link(self, *names: str) -> None:
        """Put these commands into PATH; one that this machine lacks does nothing."""
        for name in names:
            (self.tools / name).symlink_to(shutil.which(name) or "/bin/true")

    def installed(self) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


def shell() -> str:
    found = shutil.which("sh")
    assert found
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path / "a project", tmp_path / "tools", tmp_path / "log")
    shutil.copytree(PACKAGING, made.root / "packaging")
    shutil.copy(ROOT / "pyproject.toml", made.root)
    shutil.copy(ROOT / "LICENSE", made.root)
    made.tools.mkdir()
    for name in ("cat", "chmod", "cksum", "cp", "mkdir", "rm"):
        found = shutil.which(name)
        assert found
        (made.tools / name).symlink_to(found)
    fake = made.tools / "python3"
    fake.write_text(FAKE_PYTHON.replace("#!/bin/sh", f"#!{shell()}", 1))
    fake.chmod(0o755)
    return made


RUN_INSTALLS = ["pip requirements.txt", "pip requirements-build.txt", "pip a project"]


# Finding Python


@pytest.mark.parametrize("script", ["packaging/run", "packaging/test"])
def test_without_python_one_line_says_what_to_install(script: str, tree: Tree) -> None:
    ran = tree.sh(script, PATH="/nonexistent")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == "Python 3.11 or newer is needed; on Debian: apt-get install python3 python3-venv\n"


def test_without_venv_one_line_says_what_to_install(tree: Tree) -> None:
    ran = tree.sh("packaging/run", FAKE_WITHOUT_VENV="yes")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == "Python 3.11.2 is here without its venv module; on Debian: apt-get install python3-venv\n"
    assert not (tree.root / ".venv").exists()


def test_a_python_that_does_not_run_is_passed_over(tree: Tree) -> None:
    for name in ("python3.15", "python3.12"):
        shim = tree.tools / name
        shim.write_text(f"#!{shell()}\necho 'pyenv: command not found' >&2\nexit 127\n")
        shim.chmod(0o755)
    ran = tree.sh("packaging/run")
    assert ran.returncode == 0
    assert "pyenv" not in ran.stderr


@pytest.mark.parametrize("version", ["3.14.0", "3.16.1"])
def test_a_newer_python_is_taken(tree: Tree, version: str) -> None:
    assert f"with Python {version} ..." in tree.sh("packaging/run", FAKE_VERSION=version).stderr


def test_python_can_be_chosen(tree: Tree) -> None:
    """$PYTHON is the only one tried, whatever else is there."""
    chosen = tree.root / "chosen"
    shutil.move(tree.tools / "python3", chosen)
    assert tree.sh("packaging/run", PYTHON=str(chosen)).returncode == 0
    shutil.copy(chosen, tree.tools / "python3")
    ran = tree.sh("packaging/run", PYTHON="gone")
    assert (ran.returncode, ran.stderr) == (1, "PYTHON=gone is not a Python 3.11 or newer that runs\n")


# Installing once


def test_run_sets_up_and_starts(tree: Tree) -> None:
    """The first start installs, tells so in short lines, and runs `appliance serve` in the project's root."""
    ran = tree.sh("packaging/run", "--config", "two words.toml")
    assert ran.returncode == 0
    assert ran.stdout == f"{tree.root}\nserve --config two words.toml\n"
    assert ran.stderr == (
        "setting up .venv with Python 3.11.2 ...\ninstalling the packages of packaging/requirements.txt ...\n"
    )
    assert tree.installed() == ["venv", *RUN_INSTALLS]


def test_a_second_start_installs_nothing(tree: Tree) -> None:
    tree.sh("packaging/run")
    tree.installed()
    (tree.tools / "python3").unlink()
    ran = tree.sh("packaging/run")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert tree.installed() == []


@pytest.mark.parametrize("file", ["pyproject.toml", "packaging/requirements.txt", "packaging/requirements-build.txt"])
def test_changed_requirements_are_installed(file: str, tree: Tree) -> None:
    tree.sh("packaging/run")
    tree.installed()
    with (tree.root / file).open("a") as changed:
        changed.write("# changed\n")
    tree.sh("packaging/run")
    assert tree.installed() == RUN_INSTALLS
    tree.sh("packaging/run")
    assert tree.installed() == []


@pytest.mark.parametrize("failing", ["requirements.txt", "requirements-build.txt", "a project"])
def test_an_interrupted_installation_is_done_again(failing: str, tree: Tree) -> None:
    ran = tree.sh("packaging/run", FAKE_FAILING=failing)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.endswith("the installation failed (see above); the next start tries it again\n")
    tree.installed()
    assert tree.sh("packaging/run").returncode == 0
    assert tree.installed() == RUN_INSTALLS


def test_a_moved_project_is_installed_again(tree: Tree) -> None:
    tree.sh("packaging/run")
    tree.installed()
    moved = Tree(tree.root.with_name("moved"), tree.tools, tree.log)
    shutil.copytree(tree.root, moved.root)
    assert moved.sh("packaging/run").stdout.startswith(f"{moved.root}\n")
    assert moved.installed()[-1] == "pip moved"


def test_a_broken_environment_is_made_anew(tree: Tree) -> None:
    tree.sh("packaging/run")
    (tree.root / ".venv" / "bin" / "python").unlink()
    tree.installed()
    assert tree.sh("packaging/run").returncode == 0
    assert tree.installed() == ["venv", *RUN_INSTALLS]
    tree.sh("packaging/run", FAKE_WITHOUT_PIP="yes")
    assert tree.installed() == ["venv", *RUN_INSTALLS]


def test_a_chosen_python_replaces_the_environment_of_another(tree: Tree) -> None:
    """$PYTHON means that Python, also where .venv was made with a different one."""
    tree.sh("packaging/run")
    tree.installed()
    newer = tree.tools / "newer"
    newer.write_text((tree.tools / "python3").read_text().replace('echo "$FAKE_VERSION"', "echo 3.12.1"))
    newer.chmod(0o755)
    assert "with Python 3.12.1" in tree.sh("packaging/run", PYTHON="newer").stderr
    assert tree.installed() == ["venv", *RUN_INSTALLS]
    assert tree.sh("packaging/run", PYTHON="newer").stderr == ""


# Testing

ALL_CHECKS = [
    "-m ruff check .",
    "-m ruff format --check .",
    "-m mypy",
    "-m pytest --level default -n 6 --dist each --split -p no:schemathesis",
]
REST = "-m pytest --level rest -n 6 --dist loadfile --no-loadscope-reorder"


def test_test_installs_its_own_packages_too_and_checks_everything(tree: Tree) -> None:
    tree.sh("packaging/run")
    tree.installed()
    ran = tree.sh("packaging/test")
    assert ran.returncode == 0
    assert ran.stderr.splitlines()[-1] == "all passed"
    assert sorted(tree.installed()) == sorted(["pip requirements-test.txt", *ALL_CHECKS])
    tree.sh("packaging/test")
    assert sorted(tree.installed()) == sorted(ALL_CHECKS)


@pytest.mark.parametrize(
    ("mode", "checks"),
    [
        ("--fast", [*ALL_CHECKS[:2], "-m pytest --level fast -n 2 --dist each --split -p no:schemathesis"]),
        ("--all", [*ALL_CHECKS, REST]),
        ("--rest", [REST]),
        ("--help", []),
    ],
)
def test_test_has_modes(tree: Tree, mode: str, checks: list[str]) -> None:
    """Each mode runs its part of the suite; --rest leaves out what the default run has checked."""
    tree.sh("packaging/test")
    tree.installed()
    ran = tree.sh("packaging/test", mode)
    assert ran.returncode == 0
    assert sorted(tree.installed()) == sorted(checks)
    assert tree.sh("packaging/test", mode, "tests").returncode == (0 if mode == "--help" else 1)


def test_test_hands_arguments_to_pytest(tree: Tree) -> None:
    tree.sh("packaging/test")
    tree.installed()
    assert tree.sh("packaging/test", "-k", "one and two").returncode == 0
    assert tree.installed() == ["-m pytest -k one and two"]


@pytest.mark.parametrize("failing", ["ruff", "mypy", "pytest"])
def test_test_fails_if_any_check_fails(failing: str, tree: Tree) -> None:
    ran = tree.sh("packaging/test", FAKE_FAILING=failing)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith(f"failed: {failing}")
    ran_alone = ["-m pytest -v --last-failed --lfnf none"] if failing == "pytest" else []
    assert sorted(tree.installed()[-4 - len(ran_alone) :]) == sorted(ALL_CHECKS + ran_alone)


def test_test_ends_with_what_was_skipped(tree: Tree) -> None:
    ran = tree.sh("packaging/test", FAKE_ADVICE="2 tests skipped")
    assert ran.returncode == 0
    assert ran.stderr.splitlines()[-2:] == ["all passed", "2 tests skipped"]
    ran = tree.sh("packaging/test", FAKE_ADVICE="2 tests skipped", FAKE_FAILING="ruff")
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-2:] == ["failed: ruff ruff", "2 tests skipped"]
    assert tree.sh("packaging/test").stderr.splitlines()[-1] == "all passed"


# Building the single binary


@pytest.fixture
def workshop(tree: Tree) -> Tree:
    for name in ("appliance", "docs"):
        (tree.root / name).mkdir()
    (tree.root / "appliance" / "cli.py").write_text("one\n")
    tree.link("find", "mv", "objdump", "sort", "touch", "wc")
    return tree


def test_the_binary_is_built_once(workshop: Tree) -> None:
    ran = workshop.sh("packaging/build-binary")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.splitlines()[-1] == "built dist/appliance (7 bytes)"
    assert workshop.installed() == ["venv", *RUN_INSTALLS, "pip requirements-binary.txt", "PyInstaller"]
    assert not (workshop.root / ".venv").exists()
    assert (workshop.root / "dist/appliance.d/appliance").exists()
    assert workshop.sh("packaging/build-binary").stderr == "dist/appliance is up to date\n"
    assert workshop.installed() == []
    (workshop.root / "appliance" / "cli.py").write_text("two\n")
    workshop.sh("packaging/build-binary")
    assert workshop.installed() == ["PyInstaller"]


def test_a_build_that_failed_is_done_again(workshop: Tree) -> None:
    ran = workshop.sh("packaging/build-binary", FAKE_FAILING="PyInstaller")
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (1, "the build failed (see above)")
    workshop.installed()
    assert workshop.sh("packaging/build-binary").returncode == 0
    assert workshop.installed() == ["PyInstaller"]


@pytest.mark.parametrize(
    ("script", "more"),
    [("build-binary", ""), ("build-deb", " dpkg gzip"), ("build-all", " dpkg gzip coreutils")],
)
def test_what_a_build_lacks_is_said_before_any_work(workshop: Tree, script: str, more: str) -> None:
    """One line names every missing package, as apt knows it; nothing has been installed or built by then."""
    (workshop.tools / "objdump").unlink()
    for environ, packages in (
        ({"FAKE_STATIC": "yes"}, f"binutils libpython3.11{more}"),
        ({"FAKE_VERSION": ""}, f"binutils python3 python3-venv libpython3-dev{more}"),
        ({"FAKE_WITHOUT_VENV": "yes"}, f"binutils python3 python3-venv libpython3-dev{more}"),
    ):
        ran = workshop.sh(f"packaging/{script}", **environ)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert ran.stderr == f"not installed: {packages}. On Debian, run: apt-get install {packages}\n"
    assert workshop.installed() == []
    assert not (workshop.root / "build").exists()


def test_a_python_whose_library_is_not_installed_cannot_build(tmp_path: Path) -> None:
    """As on a bare Debian, whose Python says that it is a shared build; the check runs in a real Python."""
    check = (PACKAGING / "setup.sh").read_text().split('"$builder" -c \'')[1].split("' ||")[0]
    nowhere = (
        "import ctypes.util, sys, sysconfig\n"
        "ctypes.util.find_library, sys.base_prefix = lambda name: None, '/nowhere'\n"
        "sysconfig.get_config_vars().update(Py_ENABLE_SHARED=1, LIBDIR={!r}, INSTSONAME='libpython3.so.1.0')\n"
    )
    for status in (1, 0):
        assert (
            subprocess.run([sys.executable, "-c", nowhere.format(str(tmp_path)) + check], timeout=60).returncode
            == status
        )
        (tmp_path / "libpython3.so.1.0").touch()


def test_the_documents_install_what_a_build_checks() -> None:
    """The apt line of docs/install.md stands above the first build, and names every package that the scripts check."""
    text = (ROOT / "docs/install.md").read_text()
    (line,) = re.findall(r"^sudo apt-get install (.+)$", text, re.MULTILINE)
    setup = (PACKAGING / "setup.sh").read_text()
    checked = set(re.findall(r"^    need ([\w-]+) ", setup, re.MULTILINE))
    assert set(line.split()) == checked | {"python3", "python3-venv", "libpython3-dev"}
    assert text.index(line) < text.index("sh packaging/build-")


# The files themselves


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_can_be_run(script: str) -> None:
    file = ROOT / script
    assert file.stat().st_mode & stat.S_IXUSR
    subprocess.run([shell(), "-n", str(file)], check=True, timeout=60)


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_every_requirement_is_pinned_and_hashed(name: str) -> None:
    text = (PACKAGING / name).read_text()
    assert "://" not in text
    statements = [line for line in text.replace("\\\n", "").splitlines() if not line.startswith("#")]
    assert statements
    for line in statements:
        assert re.fullmatch(r"[a-z0-9.-]+==[a-z0-9.]+( ; [^#]*?)?(\s+--hash=sha256:[0-9a-f]{64})+", line), line


def test_the_requirements_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    needed = project["project"]["dependencies"] + extras["postgresql"]
    assert pins("requirements.txt") >= names(needed)
    assert pins("requirements-build.txt") >= names(project["build-system"]["requires"])
    assert pins("requirements-test.txt") >= names(needed + extras["test"])


def test_run_needs_no_test_packages() -> None:
    assert not pins("requirements.txt") & {"pytest", "mypy", "ruff", "hypothesis"}


def test_the_test_pins_are_those_that_run() -> None:
    versions = {name: re.findall(r"^\S+==\S+", (PACKAGING / name).read_text(), re.M) for name in REQUIREMENTS}
    assert set(versions["requirements.txt"]) <= set(versions["requirements-test.txt"])


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower().replace("_", "-") for line in requirements}


def pins(name: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9.-]+)==", (PACKAGING / name).read_text(), re.MULTILINE))


def test_no_script_depends_on_where_it_was_written() -> None:
    for script in [*SCRIPTS, "packaging/setup.sh"]:
        text = (ROOT / script).read_text()
        assert os.path.expanduser("~") + "/" not in text
        assert "://" not in text
