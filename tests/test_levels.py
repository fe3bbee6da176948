"""Every test runs at exactly one of the levels default and rest; the table of levels names only what exists."""

from pathlib import Path, PurePosixPath

import pytest

from tests.levels import (
    BOTH_ENGINES,
    LONG,
    LONGEST,
    LONGEST_OF_REST,
    PROGRAM,
    REST,
    Level,
    dealt_to,
    runs_file,
    runs_test,
)

ROOT = Path(__file__).parents[1]
UNIT, STORED, PROGRAMS, BROWSER = (
    PurePosixPath("tests/message/test_template.py"),
    PurePosixPath("tests/store/test_templates.py"),
    PurePosixPath("tests/e2e/contract/test_message.py"),
    PurePosixPath("tests/e2e/dashboard/test_live.py"),
)


@pytest.mark.parametrize(
    "entry", [*PROGRAM, *REST, *LONG, *BOTH_ENGINES, *LONGEST_OF_REST, *(entry for _, row in LONGEST for entry in row)]
)
def test_an_entry_exists(entry: str) -> None:
    assert (ROOT / entry).exists()


@pytest.mark.parametrize(
    ("path", "is_slow", "on_postgresql", "levels"),
    [
        (UNIT, False, False, {Level.FAST, Level.DEFAULT}),
        (UNIT, True, False, {Level.REST}),
        (UNIT, False, True, {Level.DEFAULT}),
        (STORED, False, False, {Level.FAST, Level.DEFAULT}),
        (STORED, False, True, {Level.REST}),
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


def test_the_longest_files_are_dealt_out_evenly() -> None:
    """Each row to one of two workers; no worker has more than its half and one row."""
    loads = [0, 0]
    for seconds, entries in LONGEST:
        (worker,) = {dealt_to(PurePosixPath(entry, "test_a.py"), 2) for entry in entries}
        assert worker is not None
        loads[worker] += seconds
    assert max(loads) - min(loads) <= max(seconds for seconds, _ in LONGEST)
    assert dealt_to(UNIT, 2) is None
