"""What all tests share: generated inputs may take their time, no two tests have the same id, their files are in memory,
the engine that started programs have, and the end of a run names what was skipped for want of a program.

Programs store in SQLite, and with `--engine postgresql` in PostgreSQL. Without that option a test marked `both_engines`
runs on each. What is about SQLite's own file is marked `sqlite_only`.

With `--level` a run covers one part of the suite (tests/levels.py).

With $APPLIANCE_TESTS_NEED_ALL such a skip fails the run, and so does one for a reason that is not in MAY_SKIP.
"""

import importlib
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from appliance import store
from appliance.store.sqlite.upgrade import bring_up_to_date
from tests import engines, readable_copy, ready_database
from tests.levels import LONGEST, LONGEST_OF_REST, Level, dealt_to, runs_file, runs_test, starts_programs
from tests.postgresql_server import PostgresServer, postgresql
from tests.programs import missing_program, require

# A busy machine is no fault of a test.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A run without --level takes hypothesis' own number.
settings.register_profile(Level.FAST.value, settings.get_profile("patient"), max_examples=20)
settings.register_profile(Level.DEFAULT.value, settings.get_profile("patient"), max_examples=25)
settings.load_profile("patient")

# What no package brings: the machine is not such a one, or .ci/run runs the test later.
MAY_SKIP = re.compile(
    r"no machine of its own can be booted|systemd cannot be booted|"
    r"this kernel has no PR_SET_MDWE|systemd runs here|is not there or older than the sources|strace may not attach|"
    r"no small disk can be mounted|no space can be set aside|only root|port 8080 is in use|"
    r"this machine has a configuration|is about SQLite's own file|no container engine with the image"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    names = [kind.value for kind in engines.Kind]
    parser.addoption("--engine", choices=names, help="where started programs store; both for those marked both_engines")
    parser.addoption(
        "--level", choices=[level.value for level in Level], help="the part of the suite to run (default: all)"
    )
    parser.addoption(
        "--split", action="store_true", help="with -n N --dist each: every worker reads and runs only its own files"
    )


def _level(config: pytest.Config) -> Level | None:
    name = config.getoption("--level")
    return Level(name) if name else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of other levels unread: importing them takes longer than running many a unit test."""
    level = _level(config)
    if level is None or not collection_path.is_relative_to(config.rootpath):
        return None
    path = PurePosixPath(collection_path.relative_to(config.rootpath).as_posix())
    if collection_path.is_dir():
        return None if level is Level.REST or runs_file(level, path, has_slow_tests=False) else True
    text = collection_path.read_text(errors="replace") if collection_path.suffix == ".py" else ""
    if not runs_file(level, path, has_slow_tests=bool(SLOW.search(text))):
        return True
    return True if path.name.startswith("test_") and _belongs_to_another_worker(path, config) else None


SLOW = re.compile(r"\bmark\.(slow|both_engines)\b")


def _belongs_to_another_worker(path: PurePosixPath, config: pytest.Config) -> bool:
    """With --split the longest files are dealt out by their seconds; at the others the workers take turns."""
    worker = getattr(config, "workerinput", None)
    if worker is None or not config.getoption("--split"):
        return False
    number = 0  # of a file that no hook of ours leaves unread
    if (dealt := dealt_to(path, worker["workercount"])) is not None:
        number = dealt
    elif path.parts[0] == "tests":  # all workers meet the files in the same order
        met = config.stash.setdefault(_FILES_MET, Counter())
        number = met[starts_programs(path)] % worker["workercount"]
        met[starts_programs(path)] += 1
    return bool(number != int(worker["workerid"].removeprefix("gw")))


_FILES_MET = pytest.StashKey[Counter[bool]]()


def _deselect(items: list[pytest.Item], config: pytest.Config) -> None:
    level = _level(config)
    if level is None:
        return
    is_of = [_is_of(level, item, config) for item in items]
    config.hook.pytest_deselected(items=[item for item, kept in zip(items, is_of, strict=True) if not kept])
    items[:] = [item for item, kept in zip(items, is_of, strict=True) if kept]


def _is_of(level: Level, item: pytest.Item, config: pytest.Config) -> bool:
    path = PurePosixPath(item.path.relative_to(config.rootpath).as_posix())
    if path.parts[0] != "tests" and _belongs_to_another_worker(path, config):
        return False
    call = getattr(item, "callspec", None)  # of a test with parameters
    values = [(call.params if call else {}).get(name) for name in ("engine", "database")]
    on_postgresql = values[0] is engines.Kind.POSTGRESQL or values[1] == engines.Kind.POSTGRESQL.value
    return runs_test(level, path, is_slow=bool(item.get_closest_marker("slow")), on_postgresql=on_postgresql)


class _LateGrammar(ModuleType):
    """A module that jsonschema imports, and that takes seconds to read its grammar; it is read when it is used."""

    @staticmethod
    def is_valid_syntax(*given: str) -> bool:
        if isinstance(sys.modules["rfc3987_syntax"], _LateGrammar):
            del sys.modules["rfc3987_syntax"]
        return bool(importlib.import_module("rfc3987_syntax").is_valid_syntax(*given))


# A test waits long for the syncs of a disk, which show it nothing: only a loss of power would tell them from none.
MEMORY = Path("/dev/shm")
ROOM = 6 << 30  # bytes

_READABLE_COPY = pytest.StashKey[Path | None]()  # the directory to remove at the end


def _memory() -> int:
    """Bytes that the machine has left, and that its container may have."""
    (left,) = re.findall(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    with suppress(OSError, ValueError):  # without a limit it says "max"
        return min(1024 * int(left), int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return 1024 * int(left)


def pytest_configure(config: pytest.Config) -> None:
    """Spare all tests what shows them nothing; temporary directories are in memory, if programs can be run there."""
    if (level := _level(config)) in (Level.FAST, Level.DEFAULT):
        settings.load_profile(level.value)
    config.stash[_READABLE_COPY] = readable_copy.announce()
    ready_database.use_copies()
    sys.modules.setdefault("rfc3987_syntax", _LateGrammar("rfc3987_syntax"))
    if not os.access(MEMORY, os.W_OK | os.X_OK):
        return
    room = os.statvfs(MEMORY)
    enough = room.f_bavail * room.f_frsize >= ROOM and _memory() >= 2 * ROOM
    if enough and not room.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.fixture
def new_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes a database is what is tested: none begins as a copy."""
    monkeypatch.setattr(store, "bring_up_to_date", bring_up_to_date)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remove the files of a test that has passed. Its directory stays: no other test gets the same name."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    path: Path | None = getattr(item, "funcargs", {}).get("tmp_path")
    if report.when == "teardown" and path is not None and not item.stash.get(_FAILED, False):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(exist_ok=True)
    return report


_FAILED = pytest.StashKey[bool]()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failed test at once: a whole run takes many minutes."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\nFAILED {report.nodeid} ({report.when})", file=sys.__stderr__, flush=True)


_COLLECTED = pytest.StashKey[dict[str, int]]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    node.config.stash.setdefault(_COLLECTED, {})[node.gateway.id] = len(ids)


def pytest_report_teststatus(config: pytest.Config) -> None:
    """With --split each worker has other tests, and xdist counts those of one: let the progress be a part of all."""
    if (collected := config.stash.get(_COLLECTED, None)) and config.getoption("--split"):
        session = config.pluginmanager.get_plugin("session")
        assert isinstance(session, pytest.Session)
        session.testscollected = sum(collected.values())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Let tests that are marked for it run on both engines; others have the one that was chosen, and keep their ids."""
    chosen, marked = metafunc.config.getoption("--engine"), metafunc.definition.get_closest_marker("both_engines")
    if marked and "engine" not in metafunc.fixturenames:
        metafunc.fixturenames.insert(0, "engine")
    if "engine" in metafunc.fixturenames:
        kinds = list(engines.Kind) if marked and not chosen else [_chosen(metafunc.config)]
        ids = [kind.value if len(kinds) > 1 else pytest.HIDDEN_PARAM for kind in kinds]
        metafunc.parametrize("engine", kinds, ids=ids, indirect=True, scope="session")


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> engines.Kind:
    """The engine of the programs that a test starts; a fixture that keeps one for several tests depends on this."""
    kind: engines.Kind = request.param
    return kind


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL for all tests of this process that need no more than databases of their own."""
    require("postgresql")
    with postgresql() as server:
        yield server


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    call = getattr(item, "callspec", None)  # of a test with parameters
    kind: engines.Kind = (call.params if call else {}).get("engine", _chosen(item.config))
    if kind is engines.Kind.POSTGRESQL:
        require("postgresql")
    engines.use(kind)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the PostgreSQL of this process, if it has one, and remove the copy that it announced."""
    engines.close()
    if copy := config.stash.get(_READABLE_COPY, None):
        shutil.rmtree(copy, ignore_errors=True)


def _chosen(config: pytest.Config) -> engines.Kind:
    return engines.Kind(config.getoption("--engine") or engines.Kind.SQLITE)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> Generator[None]:
    """Put the longest files first; else keep their order, where pytest would run one engine after the other."""
    longest = [*LONGEST_OF_REST, *(entry for _, entries in LONGEST for entry in entries)]

    def place(path: Path) -> int:
        return next(
            (at for at, entry in enumerate(longest) if path.is_relative_to(config.rootpath / entry)), len(longest)
        )

    paths = dict.fromkeys(item.path for item in items)
    files = {path: (place(path), number) for number, path in enumerate(paths)}
    _deselect(items, config)
    _give_ids(items)
    if _chosen(config) is not engines.Kind.SQLITE:
        for item in items:
            if item.get_closest_marker("sqlite_only"):
                item.add_marker(pytest.mark.skip("this is about SQLite's own file"))
    yield
    items.sort(key=lambda item: files[item.path])


def _give_ids(items: list[pytest.Item]) -> None:
    """Give each test its own id: of tests that share one, several processes would run the first and no other."""
    for item in items:
        label = getattr(item, "operation_label", None)  # of schemathesis, whose ids leave it out
        if label is not None and label not in item.nodeid:
            item._id = item.id.with_params(label)
    twice = [name for name, count in Counter(item.nodeid for item in items).items() if count > 1]
    if twice:
        raise pytest.UsageError(f"several tests have the id {twice[0]}: all but one would be left out")


NOT_WHOLE = 20  # an exit status


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that had to be whole and was not. Workers of xdist leave this to the process that has all reports.

    packaging/test retries every failed test of a run that ends with 1.
    """
    if hasattr(session.config, "workerinput") or not _must_be_whole():
        return
    if any(not MAY_SKIP.search(reason) for _, reason in _skips(session.config)):
        session.exitstatus = NOT_WHOLE


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say in one line what was skipped for want of a program; packaging/test wants to say it itself, at its own end."""
    programs: Counter[tuple[str, str]] = Counter()
    for test, reason in _skips(config):
        if program := missing_program(reason):
            programs[program] += 1
        elif _must_be_whole():
            verdict = "not run here" if MAY_SKIP.search(reason) else "may not be skipped"
            terminalreporter.write_line(f"{verdict}: {test}: {reason}")
    line = _advice(programs) if programs else ""
    if file := os.environ.get("APPLIANCE_TESTS_ADVICE"):
        Path(file).write_text(line)
    elif line:
        terminalreporter.write_line(line)


def _must_be_whole() -> bool:
    return bool(os.environ.get("APPLIANCE_TESTS_NEED_ALL"))


def _skips(config: pytest.Config) -> Iterator[tuple[str, str]]:
    """Every skipped test with its reason; under xdist the reports of all workers are here."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        yield report.nodeid, reason.removeprefix("Skipped: ")


def _advice(programs: Counter[tuple[str, str]]) -> str:
    names = sorted(name for name, _ in programs)
    return (
        f"{programs.total()} tests skipped for want of {', '.join(names)}."
        " To run them, on Debian as root: sh packaging/install-test-programs"
    )
