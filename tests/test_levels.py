"""Every test runs at exactly one of the levels default and rest; the table of levels names only what exists."""

from pathlib import Path, PurePosixPath

import pytest

from tests.levels import LONG, LONGEST, LONGEST_OF_REST, PROGRAM, REST, Level, runs_file, runs_test

ROOT = Path(__file__).parents[1]
UNIT, PROGRAMS, BROWSER = (
    PurePosixPath("tests/message/test_template.py"),
    PurePosixPath("tests/e2e/contract/test_message.py"),
    PurePosixPath("tests/e2e/dashboard/test_live.py"),
)


@pytest.mark.parametrize("entry", [*PROGRAM, *REST, *LONG, *LONGEST, *LONGEST_OF_REST])
def test_an_entry_exists(entry: str) -> None:
    assert (ROOT / entry).exists()


@pytest.mark.parametrize(
    ("path", "is_slow", "on_postgresql", "levels"),
    [
        (UNIT, False, False, {Level.FAST, Level.DEFAULT}),
        (UNIT, True, False, {Level.REST}),
        (UNIT, False, True, {Level.DEFAULT}),
        (PROGRAMS, False, False, {Level.DEFAULT}),
        (PROGRAMS, False, True, {Level.REST}),
        (BROWSER, False, False, {Level.REST}),
    ],
)
def test_a_test_has_its_levels(path: PurePosixPath, is_slow: bool, on_postgresql: bool, levels: set[Level]) -> None:
    ran = {
        level
        for level in Level
        if runs_file(level, path, has_slow_tests=is_slow or on_postgresql)
        and runs_test(level, path, is_slow=is_slow, on_postgresql=on_postgresql)
    }
    assert ran == levels
