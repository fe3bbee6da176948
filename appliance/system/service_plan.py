"""Plans the steps that install or remove the systemd service. Only reads files; `service_steps.py` does the work.

Every path may be below another root, for an image; then nothing is started.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from appliance.system.service_steps import InstallStep, copy, keep, link, remove, run, write

UNIT = "appliance.service"
UNIT_FILE = Path("/etc/systemd/system/appliance.service")
BACKUP_TIMER = "appliance-backup.timer"
BACKUP_UNIT_FILE = Path("/etc/systemd/system/appliance-backup.service")
BACKUP_TIMER_FILE = Path("/etc/systemd/system/appliance-backup.timer")
USERS_FILE = Path("/etc/sysusers.d/appliance.conf")
DIRECTORIES_FILE = Path("/etc/tmpfiles.d/appliance.conf")
PACKAGES_UNIT_FILE = Path("/usr/lib/systemd/system/appliance.service")  # the Debian package's
PROGRAM = Path("/usr/local/bin/appliance")
CONFIG_FILE = Path("/etc/appliance/config.toml")
DATA_DIR = Path("/var/lib/appliance")
USER = "appliance"

# Directories that the unit hides from the service (ProtectHome, PrivateTmp).
HIDDEN = tuple(map(Path, ("/home", "/root", "/run/user", "/tmp", "/var/tmp")))  # noqa: S108 - compared, not used

# Lines of the files that depend on the installation.
_PROGRAM_LINE = "ExecStart=/usr/bin/appliance serve --config /etc/appliance/config.toml"
_CHECK_LINE = "ExecReload=/usr/bin/appliance config check --config /etc/appliance/config.toml"
_NOTIFY_LINE, _NOTIFY_FROM_CHILD = "NotifyAccess=main", "NotifyAccess=all"
_BACKUP_PROGRAM_LINE = "Environment=APPLIANCE=/usr/bin/appliance"
_BACKUP_CONFIG_LINE = "Environment=APPLIANCE_CONFIG=/etc/appliance/config.toml"
_WORKING_LINE = "WorkingDirectory=/var/lib/appliance"
HOSTNAME_LINE = 'hostname = ""'


@dataclass(frozen=True, slots=True)
class Program:
    """The program to run: a single file that is copied, or a script in a virtual environment that is linked."""

    path: Path
    single_file: bool


@dataclass(frozen=True, slots=True)
class Installation:
    """The options of an installation; `data_dir` is from the settings."""

    root: Path = Path("/")
    config_file: Path = CONFIG_FILE
    data_dir: Path = DATA_DIR
    hostname: str = ""
    start: bool = True

    def at(self, path: Path) -> Path:
        """Return the path below `root`."""
        return self.root / path.relative_to("/")

    @property
    def elsewhere(self) -> bool:
        """Whether the target is an image, whose system is not running."""
        return self.root != Path("/")


def file(name: str) -> str:
    return (resources.files("appliance.system") / "files" / name).read_text("utf-8")


def unit(program: Program, target: Installation) -> str:
    """Return the unit for this program and these settings."""
    path = PROGRAM if program.single_file else program.path
    settings = f"--config {_quoted(target.config_file)}"
    text = file("appliance.service").replace(_PROGRAM_LINE, f"ExecStart={_quoted(path)} serve {settings}")
    text = text.replace(_CHECK_LINE, f"ExecReload={_quoted(path)} config check {settings}")
    if program.single_file:
        # The process that systemd starts only unpacks; its child notifies systemd.
        text = text.replace(_NOTIFY_LINE, _NOTIFY_FROM_CHILD)
    return _with_data_dir(text, target)


def backup_unit(program: Program, target: Installation) -> str:
    """Return the unit of the nightly backup for this program and these settings."""
    path = PROGRAM if program.single_file else program.path
    text = file("appliance-backup.service")
    text = text.replace(_BACKUP_PROGRAM_LINE, f"Environment={_assigned('APPLIANCE', path)}")
    text = text.replace(_BACKUP_CONFIG_LINE, f"Environment={_assigned('APPLIANCE_CONFIG', target.config_file)}")
    return _with_data_dir(text, target)


def _with_data_dir(text: str, target: Installation) -> str:
    if target.data_dir == DATA_DIR:
        return text
    return text.replace(_WORKING_LINE, f"{_WORKING_LINE}\nReadWritePaths={_quoted(target.data_dir)}")


def _assigned(name: str, path: Path) -> str:
    """Quote a word for `Environment=`, where a dollar sign has no meaning."""
    return _quoted(Path(f"{name}={path}")).replace("$$", "$")


def _quoted(path: Path) -> str:
    """Quote a word for a systemd command line, where percent and dollar signs are doubled."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return text if shlex.quote(text) == text else f'"{text}"'


def install(program: Program, target: Installation) -> Iterator[InstallStep]:
    """Yield the steps of an installation; repeated, they upgrade it."""
    below = (f"--root={target.root}",) if target.elsewhere else ()
    if not target.elsewhere and UNIT_FILE.exists():
        # A running single-file program reads parts of its own file later, so the file must not change.
        yield run("systemctl", "stop", UNIT)
    if program.single_file:
        if program.path != target.at(PROGRAM):
            yield copy(program.path, target.at(PROGRAM))
    elif program.path != PROGRAM:
        yield link(target.at(PROGRAM), program.path)
    yield write(target.at(USERS_FILE), file("sysusers.conf"))
    own = "" if target.data_dir == DATA_DIR else f"d {_quoted(target.data_dir)} 0700 {USER} {USER} -\n"
    yield write(target.at(DIRECTORIES_FILE), file("tmpfiles.conf") + own)
    yield write(target.at(UNIT_FILE), unit(program, target))
    yield write(target.at(BACKUP_UNIT_FILE), backup_unit(program, target))
    yield write(target.at(BACKUP_TIMER_FILE), file(BACKUP_TIMER))
    config_file = target.at(target.config_file)
    first_config = file("config.toml").replace(HOSTNAME_LINE, f'hostname = "{target.hostname}"')
    yield keep(config_file) if config_file.exists() else write(config_file, first_config, 0o640)
    yield run("systemd-sysusers", *below, USERS_FILE.name)
    yield run("systemd-tmpfiles", *below, "--create", DIRECTORIES_FILE.name)
    if not target.elsewhere:
        yield run("systemctl", "daemon-reload")
    yield run("systemctl", *below, "enable", UNIT)
    if target.start and not target.elsewhere:
        yield run("systemctl", "restart", UNIT)


def uninstall(target: Installation, *, purge: bool) -> Iterator[InstallStep]:
    """Yield the steps of a removal; settings and mail stay unless `purge`; the user always stays."""
    below = (f"--root={target.root}",) if target.elsewhere else ()
    for name, path in ((BACKUP_TIMER, BACKUP_TIMER_FILE), (UNIT, UNIT_FILE)):
        if target.at(path).exists():
            yield run("systemctl", *below, "disable", *(() if target.elsewhere else ("--now",)), name)
    for path in (UNIT_FILE, BACKUP_UNIT_FILE, BACKUP_TIMER_FILE, USERS_FILE, DIRECTORIES_FILE):
        yield remove(target.at(path))
    if not target.elsewhere:
        yield run("systemctl", "daemon-reload")
    if purge:
        for path in (CONFIG_FILE.parent, DATA_DIR):
            yield remove(target.at(path))
    # Last, because it is this program.
    yield remove(target.at(PROGRAM))


def fault(program: Program, target: Installation, base_python: Path) -> str | None:
    """Return why the service could not run from these paths, or None."""
    where = {"the settings": target.config_file, "server.data_dir": target.data_dir}
    if not program.single_file:
        where |= {"this program": program.path, "its Python": base_python}
    for what, path in where.items():
        for hidden in HIDDEN:
            if path.is_relative_to(hidden):
                why = f"because the service cannot see {hidden}; move it, e.g. to /opt"
                return f"{path}: {what} cannot be there, {why}"
    return None
