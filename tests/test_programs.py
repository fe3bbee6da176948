"""Skips for want of a program: they name the package, are told at the end, and fail a run that must be whole."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import TABLE, read_table

KNOWN = "this kernel has no PR_SET_MDWE"  # a reason that conftest.py allows
ROOT = Path(__file__).parents[1]
TESTS = sorted((ROOT / "tests").rglob("*.py"))

SUITE = """
import pytest
from tests.programs import PROGRAMS, Program, needs, require
PROGRAMS["one"] = Program("one", "package-of-one", ("no-such-program",))
PROGRAMS["two"] = Program("two", "package-of-two", ("/no/such/*/file",))

@needs("one")
def test_marked():
    raise AssertionError

@pytest.mark.parametrize("number", range(3))
def test_inside(number):
    require("two")

def test_elsewhere():
    pytest.skip({elsewhere!r})

def test_passes():
    pass

@pytest.mark.parametrize("number", range({failing}))
def test_fails(number):
    raise AssertionError
"""


def run(
    directory: Path, *options: str, need_all: bool, elsewhere: str, failing: int = 0
) -> subprocess.CompletedProcess[str]:
    (directory / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (directory / "test_skips.py").write_text(SUITE.format(elsewhere=elsewhere, failing=failing))
    command = [
        sys.executable,
        *["-m", "pytest", "-q", "-p", "xdist", "-p", "no:cacheprovider", "--rootdir"],
        str(directory),
        *options,
    ]
    return subprocess.run(
        command,
        cwd=directory,
        env={
            "PYTHONPATH": str(ROOT),
            "APPLIANCE_TESTS_NEED_ALL": "1" if need_all else "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # those of the other tests take seconds to be read
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_the_end_names_what_was_skipped_and_the_command(tmp_path: Path) -> None:
    ran = run(tmp_path, "-n", "2", need_all=False, elsewhere=KNOWN)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [line for line in ran.stdout.splitlines() if "tests skipped" in line] == [
        "4 tests skipped for want of one, two. To run them, on Debian as root: sh packaging/install-test-programs"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "elsewhere", "status", "words"),
    [
        (("-n", "2"), KNOWN, 20, f"not run here: test_skips.py::test_elsewhere: {KNOWN}"),
        (("-k", "elsewhere or passes"), KNOWN, 0, f"not run here: test_skips.py::test_elsewhere: {KNOWN}"),
        (("-k", "elsewhere or passes"), "there is no x", 20, "may not be skipped: test_skips.py::test_elsewhere"),
    ],
)
def test_a_run_that_must_be_whole(
    tmp_path: Path, options: tuple[str, ...], elsewhere: str, status: int, words: str
) -> None:
    """A skip for want of a program fails it, and so does a skip for a reason that no list knows."""
    ran = run(tmp_path, *options, need_all=True, elsewhere=elsewhere)
    assert ran.returncode == status, ran.stdout + ran.stderr
    assert words in ran.stdout


@pytest.mark.slow
def test_a_red_run_names_the_missing_programs_too(tmp_path: Path) -> None:
    """However many tests failed, the exit status is 1, on which packaging/test retries them."""
    ran = run(tmp_path, "-n", "2", need_all=False, elsewhere=KNOWN, failing=301)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "tests skipped for want of one, two" in ran.stdout


def test_tests_look_for_programs_in_one_place() -> None:
    """`shutil.which` and a skip do not meet in one file: such a skip would not be told at the end."""
    meeting = [
        str(path.relative_to(ROOT))
        for path in TESTS
        if (text := path.read_text()) and "shutil.which(" in text and re.search(r"skipif\(|pytest\.skip\(", text)
    ]
    assert meeting == ["tests/programs.py", "tests/test_programs.py"]


def test_the_table_is_read_by_both_its_readers() -> None:
    script = (ROOT / "packaging" / "install-test-programs").read_text()
    (line,) = [line for line in script.splitlines() if line.startswith("packages=")]
    ran = subprocess.run(
        ["sh", "-c", f'{line}\nprintf "%s\\n" "$packages"'],
        env={"table": str(TABLE), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(ran.stdout.split()) == {each.package for each in read_table(TABLE.read_text()).values()}
