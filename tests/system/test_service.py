"""The systemd service: notifications over a real socket, the steps of an installation, and their plan."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from appliance.config.load import parse
from appliance.system import service as plan
from appliance.system.service import (
    BACKUP_UNIT_FILE,
    CONFIG_FILE,
    DATA_DIR,
    PROGRAM,
    UNIT_FILE,
    Installation,
    InstallStep,
    Program,
    ServiceManager,
    StepFailed,
    copy,
    keep,
    link,
    own_environment,
    remove,
    run,
    service_manager,
    write,
)


@contextmanager
def listening(name: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(name.replace("@", "\0", 1))
        bound.setblocking(False)
        yield bound


def heard(bound: socket.socket) -> list[str]:
    told = []
    try:
        while True:
            told.append(bound.recv(4096).decode())
    except BlockingIOError:
        return told


@pytest.fixture(params=["path", "abstract"])
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "notify") if request.param == "path" else f"@appliance-test-{os.getpid()}"


def test_each_state_is_told(name: str) -> None:
    """Every state comes as one datagram of assignments, as sd_notify(3) has them."""
    with listening(name) as bound:
        manager = service_manager({"NOTIFY_SOCKET": name})
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        manager.status("opening")
        manager.ready("serving")
        manager.reloading()
        manager.stopping("ending")
        opening, ready, reloading, stopping = heard(bound)
    assert opening == "STATUS=opening"
    assert ready == "READY=1\nSTATUS=serving"
    assert stopping == "STOPPING=1\nSTATUS=ending"
    first, _, usec = reloading.partition("\nMONOTONIC_USEC=")
    assert first == "RELOADING=1"
    assert before <= int(usec) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1234"}])
def test_without_a_manager_nothing_happens(environ: dict[str, str]) -> None:
    manager = service_manager({**environ, "WATCHDOG_USEC": "1000000"})
    assert manager == ServiceManager()
    manager.ready("serving")


def test_a_manager_that_is_gone_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    service_manager({"NOTIFY_SOCKET": str(tmp_path / "missing")}).ready("serving")
    assert [record.message for record in caplog.records] == ["service manager not notified"]


def test_a_manager_that_does_not_read_stops_nothing(name: str) -> None:
    with listening(name):
        manager = service_manager({"NOTIFY_SOCKET": name})
        begin = time.monotonic()
        for _ in range(600):
            manager.status("x")
        assert time.monotonic() - begin < 5


@pytest.mark.parametrize(
    ("environ", "every"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getppid())}, 30.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_fed_twice_as_often_as_needed(environ: dict[str, str], every: float | None) -> None:
    assert service_manager({"NOTIFY_SOCKET": "/run/notify", **environ}).keepalive_interval == every


async def test_beats_come_at_their_pace(name: str, autojump_clock: MockClock) -> None:
    with listening(name) as bound:
        with trio.move_on_after(95):
            await service_manager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "60000000"}).keep_alive()
        assert heard(bound) == ["WATCHDOG=1"] * 4
        await service_manager({"NOTIFY_SOCKET": name}).keep_alive()
        assert heard(bound) == []


async def test_a_stuck_loop_falls_silent(name: str) -> None:
    with listening(name) as bound:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service_manager({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "40000"}).keep_alive)
            await trio.testing.wait_all_tasks_blocked()
            assert heard(bound) == ["WATCHDOG=1"]
            time.sleep(0.3)  # noqa: ASYNC251 - the fault that is to be noticed
            assert heard(bound) == []
            nursery.cancel_scope.cancel()


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "a" / "file"
    for content in ("one", "two"):
        write(path, content, 0o640).do()
        assert path.read_text() == content
        assert path.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in path.parent.iterdir()] == ["file"]


def test_a_program_is_copied_beside_the_one_that_runs(tmp_path: Path) -> None:
    source, path = tmp_path / "new", tmp_path / "bin" / "appliance"
    source.write_bytes(b"new")
    write(path, "old").do()
    with path.open("rb") as running:
        copy(source, path).do()
        assert running.read() == b"old"
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o755


def test_a_link_replaces_an_earlier_one(tmp_path: Path) -> None:
    for target in (Path("/a"), Path("/b")):
        link(tmp_path / "bin" / "link", target).do()
        assert (tmp_path / "bin" / "link").readlink() == target


def test_removing_takes_all_of_it_and_no_more(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    write(kept / "file", "").do()
    write(tmp_path / "tree" / "file", "").do()
    link(tmp_path / "link", kept).do()
    for name in ("tree", "link", "gone"):
        remove(tmp_path / name).do()
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]
    assert (kept / "file").exists()


def test_a_command_that_fails_is_told() -> None:
    run("true").do()
    with pytest.raises(StepFailed, match=r"^`sh -c echo no >&2; exit 3` failed: no$"):
        run("sh", "-c", "echo no >&2; exit 3").do()
    with pytest.raises(StepFailed, match=r"^no-such-command: No such file"):
        run("no-such-command").do()


def test_the_systems_commands_get_the_systems_libraries() -> None:
    inside = {"LD_LIBRARY_PATH": "/tmp/_MEI1", "PATH": "/bin"}
    assert own_environment(inside, frozen=True) == {"PATH": "/bin"}
    before = {**inside, "LD_LIBRARY_PATH_ORIG": "/opt/lib"}
    assert own_environment(before, frozen=True) == {"PATH": "/bin", "LD_LIBRARY_PATH": "/opt/lib"}
    assert own_environment(inside, frozen=False) == inside


BINARY = Program(Path("/home/me/Downloads/appliance"), single_file=True)
SCRIPT = Program(Path("/opt/appliance/bin/appliance"), single_file=False)


def written(steps: list[InstallStep], path: Path) -> InstallStep:
    (found,) = [step for step in steps if step.line.startswith(f"write {path} (")]
    return found


def commands(steps: list[InstallStep]) -> list[str]:
    return [step.line.removeprefix("run ") for step in steps if step.line.startswith("run ")]


def test_a_binary_is_copied_and_started() -> None:
    steps = list(plan.install(BINARY, Installation()))
    assert steps[0].line == f"copy {BINARY.path} to /usr/local/bin/appliance (0755)"
    assert [step.line.split()[0] for step in steps[1:7]] == ["write"] * 6
    assert commands(steps) == [
        "systemd-sysusers appliance.conf",
        "systemd-tmpfiles --create appliance.conf",
        "systemctl daemon-reload",
        "systemctl enable appliance.service",
        "systemctl restart appliance.service",
    ]


def test_the_binarys_child_may_speak() -> None:
    unit = plan.unit(BINARY, Installation())
    assert "ExecStart=/usr/local/bin/appliance serve --config /etc/appliance/config.toml\n" in unit
    assert "\nNotifyAccess=all\n" in unit
    unit = plan.unit(SCRIPT, Installation())
    assert "ExecStart=/opt/appliance/bin/appliance serve --config /etc/appliance/config.toml\n" in unit
    assert "\nNotifyAccess=main\n" in unit


def test_a_script_is_linked() -> None:
    assert next(iter(plan.install(SCRIPT, Installation()))).line == link(PROGRAM, SCRIPT.path).line


def test_below_another_root_nothing_is_started(tmp_path: Path) -> None:
    steps = list(plan.install(BINARY, Installation(tmp_path)))
    paths = [step.line.removesuffix(")").rpartition(" (")[0].split()[-1] for step in steps if step.line[:4] != "run "]
    assert len(paths) == 7
    assert all(Path(path).is_relative_to(tmp_path) for path in paths)
    assert commands(steps) == [
        f"systemd-sysusers --root={tmp_path} appliance.conf",
        f"systemd-tmpfiles --root={tmp_path} --create appliance.conf",
        f"systemctl --root={tmp_path} enable appliance.service",
    ]


def test_no_start_enables_only() -> None:
    assert commands(list(plan.install(BINARY, Installation(start=False))))[-1] == "systemctl enable appliance.service"


def test_settings_that_are_there_are_kept(tmp_path: Path) -> None:
    target = Installation(tmp_path, hostname="mail.example.com")
    file = target.at(CONFIG_FILE)
    first = written(list(plan.install(BINARY, target)), file)
    assert first.line.endswith(" (0640)")
    assert parse(first.content, CONFIG_FILE).server.hostname == "mail.example.com"
    first.do()
    assert keep(file).line in [step.line for step in plan.install(BINARY, target)]


def test_the_first_settings_are_those_of_an_empty_file() -> None:
    assert parse(plan.file("config.toml"), CONFIG_FILE) == parse("", CONFIG_FILE)


def test_a_data_directory_of_ones_own_can_be_written() -> None:
    target = Installation(data_dir=Path("/srv/mail data"))
    steps = list(plan.install(SCRIPT, target))
    for file in (UNIT_FILE, BACKUP_UNIT_FILE):
        assert '\nReadWritePaths="/srv/mail data"\n' in written(steps, file).content
    assert 'd "/srv/mail data" 0700 appliance appliance -\n' in written(steps, plan.DIRECTORIES_FILE).content
    assert "ReadWritePaths" not in plan.unit(SCRIPT, Installation())


def test_the_advice_to_start_it_fits_the_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service is started by its manager, if one runs and its service has these settings."""
    config = parse(f'[server]\ndata_dir = "{tmp_path}"', tmp_path / "config.toml")
    unit, by_hand = tmp_path / "unit", f"Start it: appliance serve --config {tmp_path}/config.toml"
    monkeypatch.setattr(plan, "UNIT_FILE", unit)
    monkeypatch.setattr(plan, "RUNNING_SYSTEMD", tmp_path)
    unit.write_text(plan.unit(SCRIPT, Installation()))
    assert plan.start_advice(config) == by_hand
    assert plan.start_advice(replace(config, source=CONFIG_FILE)) == "Start it: systemctl start appliance"
    unit.write_text(plan.unit(SCRIPT, Installation(config_file=tmp_path / "config.toml")))
    assert plan.start_advice(config) == "Start it: systemctl start appliance"
    monkeypatch.setattr(plan, "RUNNING_SYSTEMD", tmp_path / "none")
    assert plan.start_advice(config) == by_hand
    assert plan.start_advice(replace(config, source=CONFIG_FILE)) == "Start it: appliance serve"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs a program as another user")
@pytest.mark.parametrize("uid", [65534, 54321])
@pytest.mark.parametrize(("above", "mode"), [(0o755, 0o644), (0o755, 0o600), (0o700, 0o644)])
@pytest.mark.parametrize(("port", "capabilities"), [(8587, 0), (587, 1 << 10)])  # CAP_NET_BIND_SERVICE
def test_what_root_is_told_to_run_starts_it_as_the_owner_of_its_data(
    uid: int, above: int, mode: int, port: int, capabilities: int
) -> None:
    """The commands work as they are, also if that user may not read the settings or listen on low ports."""
    with TemporaryDirectory(dir="/tmp") as made:
        place, data, programs = (Path(made) / name for name in ("of root", "data", "bin"))
        for path, path_mode in ((Path(made), 0o755), (place, above), (data, 0o700), (programs, 0o755)):
            path.mkdir(exist_ok=True)
            path.chmod(path_mode)
        os.chown(data, uid, uid)
        settings, program = place / "config.toml", programs / "appliance"
        settings.write_text(f'[server]\ndata_dir = "{data}"\n[smtp]\nbind = ["127.0.0.1:{port}"]\nbind_tls = []\n')
        settings.chmod(mode)
        shows = 'cat "$3" && id -u && sed -n "s/CapEff:.//p" /proc/self/status'
        program.write_text(f'#!/bin/sh\ntest "$1 $2" = "serve --config" && {shows}\n')
        program.chmod(0o755)
        command = plan.start_command(parse(settings.read_text(), settings), by_root=True)
        searched = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
        ran = subprocess.run(["sh", "-c", command], env=searched, capture_output=True, text=True)
        assert (ran.stdout, ran.stderr) == (f"{settings.read_text()}{uid}\n{capabilities:016x}\n", "")


def test_odd_paths_are_quoted() -> None:
    odd = Program(Path("/opt/50% $off/appliance"), single_file=False)
    assert 'ExecStart="/opt/50%% $$off/appliance" serve' in plan.unit(odd, Installation())
    assert '\nEnvironment="APPLIANCE=/opt/50%% $off/appliance"\n' in plan.backup_unit(odd, Installation())


def test_the_nightly_backup_runs_this_program_with_these_settings() -> None:
    target = Installation(config_file=Path("/etc/mail.toml"))
    unit = written(list(plan.install(SCRIPT, target)), BACKUP_UNIT_FILE).content
    assert f"\nEnvironment=APPLIANCE={SCRIPT.path}\nEnvironment=APPLIANCE_CONFIG=/etc/mail.toml\n" in unit
    assert "\nReadWritePaths=/var/backups/appliance\n" in unit
    assert "d /var/backups/appliance 0700 appliance appliance -\n" in plan.file("tmpfiles.conf")


@pytest.mark.parametrize(
    ("program", "target", "what"),
    [
        (Program(Path("/root/appliance/bin/appliance"), single_file=False), Installation(), "this program"),
        (SCRIPT, Installation(config_file=Path("/home/me/config.toml")), "the settings"),
        (BINARY, Installation(data_dir=Path("/tmp/mail")), "server.data_dir"),
    ],
)
def test_what_the_service_could_not_see_is_refused(program: Program, target: Installation, what: str) -> None:
    reason = plan.fault(program, target, Path("/usr"))
    assert reason is not None
    assert f"{what} cannot be there" in reason


def test_a_python_in_a_home_directory_is_refused() -> None:
    assert "its Python" in (plan.fault(SCRIPT, Installation(), Path("/home/me/python")) or "")
    assert plan.fault(SCRIPT, Installation(), Path("/usr")) is None
    assert plan.fault(BINARY, Installation(), Path("/tmp/_MEI1")) is None


@pytest.mark.parametrize("purge", [False, True])
def test_uninstall_keeps_mail_unless_purged(tmp_path: Path, purge: bool) -> None:
    target = Installation(tmp_path)
    written(list(plan.install(SCRIPT, target)), target.at(UNIT_FILE)).do()
    steps = list(plan.uninstall(target, purge=purge))
    assert commands(steps) == [f"systemctl --root={tmp_path} disable appliance.service"]
    removed = [step.line for step in steps]
    for kept in (DATA_DIR, CONFIG_FILE.parent):
        assert (remove(target.at(kept)).line in removed) == purge
    assert removed[-1] == remove(target.at(PROGRAM)).line
