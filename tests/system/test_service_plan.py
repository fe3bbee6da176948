"""The steps that install and uninstall: their order, their files, and what each kind of program needs."""

from pathlib import Path

import pytest

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
    keep,
    link,
    remove,
)

BINARY = Program(Path("/home/me/Downloads/appliance"), single_file=True)
SCRIPT = Program(Path("/opt/appliance/bin/appliance"), single_file=False)


def written(steps: list[InstallStep], path: Path) -> InstallStep:
    """The one step that writes this file."""
    (found,) = [step for step in steps if step.line.startswith(f"write {path} (")]
    return found


def commands(steps: list[InstallStep]) -> list[str]:
    """What is run, in its order."""
    return [step.line.removeprefix("run ") for step in steps if step.line.startswith("run ")]


def test_a_binary_is_copied_and_started() -> None:
    """Program, user, directories and unit come before the commands that use them, and the start is last."""
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
    """The single file unpacks itself in one process and runs in another; systemd listens to both. A script is one."""
    unit = plan.unit(BINARY, Installation())
    assert "ExecStart=/usr/local/bin/appliance serve --config /etc/appliance/config.toml\n" in unit
    assert "\nNotifyAccess=all\n" in unit
    unit = plan.unit(SCRIPT, Installation())
    assert "ExecStart=/opt/appliance/bin/appliance serve --config /etc/appliance/config.toml\n" in unit
    assert "\nNotifyAccess=main\n" in unit


def test_a_script_is_linked() -> None:
    """A virtual environment stays where it is, and its command is found by its name."""
    assert next(iter(plan.install(SCRIPT, Installation()))).line == link(PROGRAM, SCRIPT.path).line


def test_below_another_root_nothing_is_started(tmp_path: Path) -> None:
    """Every path is below it, and only commands run that work on a system which does not run."""
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
    """It starts with the next boot."""
    assert commands(list(plan.install(BINARY, Installation(start=False))))[-1] == "systemctl enable appliance.service"


def test_settings_that_are_there_are_kept(tmp_path: Path) -> None:
    """A configuration file is written once, with the host name that was given, and never touched again."""
    target = Installation(tmp_path, hostname="mail.example.com")
    file = target.at(CONFIG_FILE)
    first = written(list(plan.install(BINARY, target)), file)
    assert first.line.endswith(" (0640)")
    assert parse(first.content, CONFIG_FILE).server.hostname == "mail.example.com"
    first.do()
    assert keep(file).line in [step.line for step in plan.install(BINARY, target)]


def test_the_first_settings_are_those_of_an_empty_file() -> None:
    """What is written for a start holds nothing but defaults, so that they can be changed one by one."""
    assert parse(plan.file("config.toml"), CONFIG_FILE) == parse("", CONFIG_FILE)


def test_a_data_directory_of_ones_own_can_be_written() -> None:
    """The unit opens it, and it belongs to the service's user."""
    target = Installation(data_dir=Path("/srv/mail data"))
    steps = list(plan.install(SCRIPT, target))
    for file in (UNIT_FILE, BACKUP_UNIT_FILE):
        assert '\nReadWritePaths="/srv/mail data"\n' in written(steps, file).content
    assert 'd "/srv/mail data" 0700 appliance appliance -\n' in written(steps, plan.DIRECTORIES_FILE).content
    assert "ReadWritePaths" not in plan.unit(SCRIPT, Installation())


def test_odd_paths_are_quoted() -> None:
    """Percent and dollar signs mean something to systemd; in a path they must not."""
    odd = Program(Path("/opt/50% $off/appliance"), single_file=False)
    assert 'ExecStart="/opt/50%% $$off/appliance" serve' in plan.unit(odd, Installation())
    assert '\nEnvironment="APPLIANCE=/opt/50%% $off/appliance"\n' in plan.backup_unit(odd, Installation())


def test_the_nightly_backup_runs_this_program_with_these_settings() -> None:
    """Its unit names both, and may write to the directory that is made for it."""
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
    """Home and temporary directories are hidden from the service, so nothing it needs can lie there."""
    reason = plan.fault(program, target, Path("/usr"))
    assert reason is not None
    assert f"{what} cannot be there" in reason


def test_a_python_in_a_home_directory_is_refused() -> None:
    """A virtual environment needs the Python that it was made of; a binary brings its own."""
    assert "its Python" in (plan.fault(SCRIPT, Installation(), Path("/home/me/python")) or "")
    assert plan.fault(SCRIPT, Installation(), Path("/usr")) is None
    assert plan.fault(BINARY, Installation(), Path("/tmp/_MEI1")) is None


@pytest.mark.parametrize("purge", [False, True])
def test_uninstall_keeps_mail_unless_purged(tmp_path: Path, purge: bool) -> None:
    """Settings and data go only when that was asked for; the program itself goes last."""
    target = Installation(tmp_path)
    written(list(plan.install(SCRIPT, target)), target.at(UNIT_FILE)).do()
    steps = list(plan.uninstall(target, purge=purge))
    assert commands(steps) == [f"systemctl --root={tmp_path} disable appliance.service"]
    removed = [step.line for step in steps]
    for kept in (DATA_DIR, CONFIG_FILE.parent):
        assert (remove(target.at(kept)).line in removed) == purge
    assert removed[-1] == remove(target.at(PROGRAM)).line
