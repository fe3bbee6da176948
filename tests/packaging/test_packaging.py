"""Holds packaging/run and packaging/test to what the README promises, without a network."""

import os
import re
import shutil
import stat
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.programs import PROGRAMS

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
SCRIPTS = [
    "packaging/run",
    "packaging/test",
    "packaging/test-clients",
    "packaging/test-newest-python",
    "packaging/lock",
    "packaging/build-binary",
    "packaging/build-deb",
    "packaging/build-all",
    "packaging/build-twice",
    "packaging/release",
    "packaging/install-test-programs",
    "packaging/debian/postinst",
    "packaging/debian/prerm",
    "packaging/debian/postrm",
    ".ci/run",
]
REQUIREMENTS = ["requirements.txt", "requirements-build.txt", "requirements-binary.txt", "requirements-test.txt"]

# Stands in for Python: knows what setup.sh asks of one, and writes down every installation.
FAKE_PYTHON = """\
#!/bin/sh
case "$*" in
*ENABLE_SHARED*) [ -z "$FAKE_STATIC" ] ;;
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
        """Run one of the scripts as a user does, from some other directory."""
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
        """What was installed and run since the last time this was asked."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


def shell() -> str:
    """The machine's own sh: dash on Debian, and the scripts must not need more."""
    found = shutil.which("sh")
    assert found
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """The scripts and what they read, with a PATH of the few commands they may use."""
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
    """On a bare machine, with nothing at all in PATH, there is one line of advice and exit code 1."""
    ran = tree.sh(script, PATH="/nonexistent")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == "Python 3.11 or newer is needed; on Debian: apt-get install python3 python3-venv\n"


def test_without_venv_one_line_says_what_to_install(tree: Tree) -> None:
    """Debian's Python without python3-venv is told from no Python at all."""
    ran = tree.sh("packaging/run", FAKE_WITHOUT_VENV="yes")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == "Python 3.11.2 is here without its venv module; on Debian: apt-get install python3-venv\n"
    assert not (tree.root / ".venv").exists()


def test_a_python_that_does_not_run_is_passed_over(tree: Tree) -> None:
    """A pyenv shim that only complains does not hide the next Python, and its complaint is not shown."""
    for name in ("python3.15", "python3.12"):
        shim = tree.tools / name
        shim.write_text(f"#!{shell()}\necho 'pyenv: command not found' >&2\nexit 127\n")
        shim.chmod(0o755)
    ran = tree.sh("packaging/run")
    assert ran.returncode == 0
    assert "pyenv" not in ran.stderr


@pytest.mark.parametrize("version", ["3.14.0", "3.16.1"])
def test_a_newer_python_is_taken(tree: Tree, version: str) -> None:
    """Neither a supported version nor one that came after this release is refused."""
    assert f"with Python {version} ..." in tree.sh("packaging/run", FAKE_VERSION=version).stderr


def test_python_can_be_chosen(tree: Tree) -> None:
    """$PYTHON is the only one tried, whatever else is there."""
    chosen = tree.root / "chosen"
    shutil.move(tree.tools / "python3", chosen)
    assert tree.sh("packaging/run", PYTHON=str(chosen)).returncode == 0
    shutil.copy(chosen, tree.tools / "python3")
    ran = tree.sh("packaging/run", PYTHON="gone")
    assert (ran.returncode, ran.stderr) == (1, "PYTHON=gone is not a Python 3.11 or newer that runs\n")


# The newest Python, in Debian testing


@pytest.mark.parametrize(
    ("programs", "reason"),
    [
        ({"id": "echo 1000"}, "installing Debian testing needs root"),
        ({"id": "echo 0"}, "this machine has no apt, whose mirror would be used"),
        (
            {"id": "echo 0", "apt-get": ":"},
            "debootstrap is missing; on Debian: apt-get install debootstrap",
        ),
        (
            {"id": "echo 0", "apt-get": ":", "debootstrap": ":", "unshare": "exit 1"},
            "this process may not mount /proc, which the tests read",
        ),
        (
            {"id": "echo 0", "apt-get": ":", "debootstrap": ":", "sort": "cat"},
            "no mirror of apt's configuration has Debian testing (apt-get update first?)",
        ),
    ],
    ids=["not root", "not Debian", "no debootstrap", "no mounts", "no mirror"],
)
def test_without_debian_testing_one_line_says_why(tree: Tree, programs: dict[str, str], reason: str) -> None:
    """Where the newest Python cannot be had, its tests are skipped with the reason, and nothing is left behind."""
    for name, command in programs.items():
        program = tree.tools / name
        program.write_text(f"#!{shell()}\n{command}\n")
        program.chmod(0o755)
    own_mounts = "" if "unshare" in programs else "yes"  # as after `unshare`
    ran = tree.sh("packaging/test-newest-python", "tests/message", APPLIANCE_OWN_MOUNTS=own_mounts)
    assert (ran.returncode, ran.stdout) == (0, "")
    assert ran.stderr == f"skipped the newest Python: {reason}\n"
    assert not list(tree.root.glob("build/*"))


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
    """With everything in place a start is silent and needs no network, nor a Python besides that in .venv."""
    tree.sh("packaging/run")
    tree.installed()
    (tree.tools / "python3").unlink()
    ran = tree.sh("packaging/run")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert tree.installed() == []


@pytest.mark.parametrize("file", ["pyproject.toml", "packaging/requirements.txt", "packaging/requirements-build.txt"])
def test_changed_requirements_are_installed(file: str, tree: Tree) -> None:
    """After an update the next start installs again, into the same environment, once."""
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
    """Whichever step failed, the next start begins anew and never takes the half for the whole."""
    ran = tree.sh("packaging/run", FAKE_FAILING=failing)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.endswith("the installation failed (see above); the next start tries it again\n")
    tree.installed()
    assert tree.sh("packaging/run").returncode == 0
    assert tree.installed() == RUN_INSTALLS


def test_a_moved_project_is_installed_again(tree: Tree) -> None:
    """The environment points to the project, so a copy of both must not run the original's code."""
    tree.sh("packaging/run")
    tree.installed()
    moved = Tree(tree.root.with_name("moved"), tree.tools, tree.log)
    shutil.copytree(tree.root, moved.root)
    assert moved.sh("packaging/run").stdout.startswith(f"{moved.root}\n")
    assert moved.installed()[-1] == "pip moved"


def test_a_broken_environment_is_made_anew(tree: Tree) -> None:
    """An environment whose Python is gone or too old, or that has no pip, is replaced."""
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
    "-m pytest --level default -n 4 --dist loadfile --no-loadscope-reorder",
]
REST = "-m pytest --level rest -n 4 --dist loadfile --no-loadscope-reorder"


def test_test_installs_its_own_packages_too_and_checks_everything(tree: Tree) -> None:
    """packaging/test shares .venv with packaging/run, adds the test packages once, and runs every check."""
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
        ("--fast", [*ALL_CHECKS[:2], "-m pytest --level fast -n 2 --dist loadfile --no-loadscope-reorder"]),
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
    """With arguments only pytest runs, and gets them as they were given."""
    tree.sh("packaging/test")
    tree.installed()
    assert tree.sh("packaging/test", "-k", "one and two").returncode == 0
    assert tree.installed() == ["-m pytest -k one and two"]


@pytest.mark.parametrize("failing", ["ruff", "mypy", "pytest"])
def test_test_fails_if_any_check_fails(failing: str, tree: Tree) -> None:
    """One failing check fails the whole, after all of them have run; failing tests have run by themselves, too."""
    ran = tree.sh("packaging/test", FAKE_FAILING=failing)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith(f"failed: {failing}")
    ran_alone = ["-m pytest -v --last-failed --lfnf none"] if failing == "pytest" else []
    assert sorted(tree.installed()[-4 - len(ran_alone) :]) == sorted(ALL_CHECKS + ran_alone)


def test_test_ends_with_what_was_skipped(tree: Tree) -> None:
    """The last line names the missing programs, of a run that failed too, and that of an earlier run is forgotten."""
    ran = tree.sh("packaging/test", FAKE_ADVICE="2 tests skipped")
    assert ran.returncode == 0
    assert ran.stderr.splitlines()[-2:] == ["all passed", "2 tests skipped"]
    ran = tree.sh("packaging/test", FAKE_ADVICE="2 tests skipped", FAKE_FAILING="ruff")
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-2:] == ["failed: ruff ruff", "2 tests skipped"]
    assert tree.sh("packaging/test").stderr.splitlines()[-1] == "all passed"


def test_another_environment_leaves_the_usual_one_alone(tree: Tree) -> None:
    """$APPLIANCE_VENV is where the environment of another Python goes."""
    tree.sh("packaging/test")
    before = sorted(tree.installed())
    tree.sh("packaging/test", APPLIANCE_VENV=str(tree.root / "other"), FAKE_VERSION="3.13.0")
    assert sorted(tree.installed()) == before
    tree.sh("packaging/test")
    assert sorted(tree.installed()) == sorted(ALL_CHECKS)


FAKE_APT = """\
echo "apt-get $*" >>"$FAKE_LOG"
[ "$1" != install ] || "$POLICY_RC_D" || echo "services: $?" >>"$FAKE_LOG"
[ "$1" != download ] || : >package.deb
"""
FAKE_DPKG = """\
mkdir -p "$3/usr/sbin"
: >"$3/usr/sbin/exim4"
"""
FAKE_DPKG_DEB = "echo 'cron | anacron, libc6 (>= 2.34)'\n"
FAKE_DPKG_QUERY = """\
for last; do :; done
[ "$last" = "$FAKE_MISSING" ] || printf installed
"""


OF_NPM = [each for each in PROGRAMS.values() if each.package.startswith("npm:")]
FROM_NPM = " ".join(sorted(each.package.removeprefix("npm:") for each in OF_NPM))
FAKE_NPM = f"""\
echo "npm $*" >>"$FAKE_LOG"
for each in {" ".join(each.found_by[0] for each in OF_NPM)}; do
    : >"${{0%/*}}/$each"
    chmod 755 "${{0%/*}}/$each"
done
"""


def test_missing_programs_are_installed_and_no_service_is_started(tree: Tree) -> None:
    """Only what is missing is asked for; meanwhile Debian may start no service, and afterwards it may again."""
    fakes = {"apt-get": FAKE_APT, "dpkg": FAKE_DPKG, "dpkg-deb": FAKE_DPKG_DEB, "dpkg-query": FAKE_DPKG_QUERY}
    for name, text in {**fakes, "npm": FAKE_NPM}.items():
        (tree.tools / name).write_text(f"#!{shell()}\n{text}")
        (tree.tools / name).chmod(0o755)
    for name in ("find", "mktemp", "sed", "sort", "tr"):
        (tree.tools / name).symlink_to(shutil.which(name) or "")
    policy, unpacked = tree.root / "policy-rc.d", tree.tools.parent / "unpacked"
    table = tree.root / "packaging" / "test-programs.txt"
    table.write_text(table.read_text().replace("/usr/local/lib/test-programs", str(unpacked)))
    machine = {"POLICY_RC_D": str(policy), "UNPACKED_PROGRAMS": str(unpacked), "TMPDIR": str(tree.tools.parent)}
    ran = tree.sh("packaging/install-test-programs", FAKE_MISSING="strace", **machine)
    said = f"installing strace ...\nunpacking exim4-daemon-light ...\ninstalling {FROM_NPM} ...\n"
    assert (ran.returncode, ran.stderr) == (0, said)
    update, install = "apt-get update -qq", "apt-get install -y -qq --no-install-recommends"
    unpacking = [update, "apt-get download -qq exim4-daemon-light", f"{install} libc6", "services: 101"]
    npm = f"npm install --global --silent {FROM_NPM}"
    assert tree.installed() == [update, f"{install} strace", "services: 101", *unpacking, npm]
    assert not policy.exists()
    assert tree.sh("packaging/install-test-programs", **machine).returncode == 0
    assert tree.installed() == []


# Building the single binary


@pytest.fixture
def workshop(tree: Tree) -> Tree:
    """The project's tree with a program to pack, on a machine with the tools for that."""
    for name in ("appliance", "docs"):
        (tree.root / name).mkdir()
    (tree.root / "appliance" / "cli.py").write_text("one\n")
    tree.link("find", "mv", "objdump", "sort", "touch", "wc")
    return tree


def test_the_binary_is_built_once(workshop: Tree) -> None:
    """In an environment of its own, and again only when something that goes into it has changed."""
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
    """It ends with one line, and what was there before is not taken for the result."""
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
    """Every script is executable and parses."""
    file = ROOT / script
    assert file.stat().st_mode & stat.S_IXUSR
    subprocess.run([shell(), "-n", str(file)], check=True, timeout=60)


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_every_requirement_is_pinned_and_hashed(name: str) -> None:
    """A requirement is one version with its hashes; no option and no address of a package index is in the file."""
    text = (PACKAGING / name).read_text()
    assert "://" not in text
    statements = [line for line in text.replace("\\\n", "").splitlines() if not line.startswith("#")]
    assert statements
    for line in statements:
        assert re.fullmatch(r"[a-z0-9.-]+==[a-z0-9.]+( ; [^#]*?)?(\s+--hash=sha256:[0-9a-f]{64})+", line), line


def test_the_requirements_are_those_of_the_project() -> None:
    """A dependency added to pyproject.toml needs a run of packaging/lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    needed = project["project"]["dependencies"] + extras["postgresql"]
    assert pins("requirements.txt") >= names(needed)
    assert pins("requirements-build.txt") >= names(project["build-system"]["requires"])
    assert pins("requirements-test.txt") >= names(needed + extras["test"])


def test_run_needs_no_test_packages() -> None:
    """What only the tests use is not installed to run the program."""
    assert not pins("requirements.txt") & {"pytest", "mypy", "ruff", "hypothesis"}


def test_the_test_pins_are_those_that_run() -> None:
    """The tests see the same versions as the program; a condition on the Python may be wider for them."""
    versions = {name: re.findall(r"^\S+==\S+", (PACKAGING / name).read_text(), re.M) for name in REQUIREMENTS}
    assert set(versions["requirements.txt"]) <= set(versions["requirements-test.txt"])


def names(requirements: list[str]) -> set[str]:
    """The packages that a list in pyproject.toml names, in the spelling of the requirement files."""
    return {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower().replace("_", "-") for line in requirements}


def pins(name: str) -> set[str]:
    """The packages that a requirement file pins."""
    return set(re.findall(r"^([a-z0-9.-]+)==", (PACKAGING / name).read_text(), re.MULTILINE))


def test_no_script_depends_on_where_it_was_written() -> None:
    """Nothing here names a home directory or a package index."""
    for script in [*SCRIPTS, "packaging/setup.sh"]:
        text = (ROOT / script).read_text()
        assert os.path.expanduser("~") + "/" not in text
        assert "://" not in text
