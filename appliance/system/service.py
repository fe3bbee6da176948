"""The systemd service: notifies the service manager, and plans and runs the steps that install or remove the service.

A plan only reads files. Every path may be below another root, for an image; then no step starts a service.
"""

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import trio
from msgspec import Struct

from appliance.config.settings import Config
from appliance.system.data_directory import ENTER, READ, ROOT_UID, allows, as_user, is_roots_command, user_argument
from appliance.telemetry.log import get_logger
from appliance.times import SECOND

log = get_logger("notify")

# ---- notifications (sd_notify(3))

SOCKET, WATCHDOG, WATCHDOG_PROCESS = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"


class ServiceManager(Struct, frozen=True):
    """Its socket (None without a manager), and the interval of its watchdog's keep-alives."""

    address: bytes | None = None
    keepalive_interval: float | None = None  # seconds

    def ready(self, status: str) -> None:
        """All listeners are open, or a reload has ended."""
        self._send("READY=1", f"STATUS={status}")

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send(f"STATUS={text}")

    def reloading(self) -> None:
        """A reload starts; `ready` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", f"STATUS={status}")

    async def keep_alive(self) -> None:
        """Send keep-alives until cancelled, from the event loop: a stuck loop sends none."""
        while self.keepalive_interval is not None:
            self._send("WATCHDOG=1")
            await trio.sleep(self.keepalive_interval)

    def _send(self, *assignments: str) -> None:
        if self.address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)  # a manager that does not read must not block mail
                sender.sendto("\n".join(assignments).encode(), self.address)
        except OSError as error:
            log.warning("service manager not notified", what=assignments[0], reason=str(error))


def service_manager(environ: Mapping[str, str]) -> ServiceManager:
    name, timeout = os.fsencode(environ.get(SOCKET, "")), environ.get(WATCHDOG, "")
    if name[:1] not in (b"/", b"@"):
        if name:
            log.warning("unknown kind of NOTIFY_SOCKET", name=environ[SOCKET])
        return ServiceManager()
    # The single-file binary unpacks itself in another process, our parent, which the manager knows.
    ours = (str(os.getpid()), str(os.getppid()))
    microseconds = int(timeout) if timeout.isascii() and timeout.isdigit() else 0
    watched = microseconds and environ.get(WATCHDOG_PROCESS, ours[0]) in ours
    address = b"\0" + name[1:] if name[:1] == b"@" else name  # an abstract name starts with NUL
    # Half of the watchdog's timeout, as sd_watchdog_enabled(3) advises.
    return ServiceManager(address, microseconds / SECOND / 2 if watched else None)


# ---- steps

# PyInstaller puts its own libraries first, and keeps the previous value.
LIBRARIES, LIBRARIES_BEFORE = "LD_LIBRARY_PATH", "LD_LIBRARY_PATH_ORIG"


class StepFailed(Exception):
    """A step failed; the text is one line."""


class InstallStep(NamedTuple):
    line: str
    do: Callable[[], None]
    content: str = ""


def write(path: Path, content: str, mode: int = 0o644) -> InstallStep:
    do = _replacing(path, mode, lambda draft: draft.write_text(content, "utf-8"))
    return InstallStep(f"write {path} ({mode:04o})", do, content)


def keep(path: Path) -> InstallStep:
    return InstallStep(f"keep {path} as it is", lambda: None)


def copy(source: Path, path: Path) -> InstallStep:
    do = _replacing(path, 0o755, lambda draft: shutil.copyfile(source, draft))
    return InstallStep(f"copy {source} to {path} (0755)", do)


def link(path: Path, target: Path) -> InstallStep:
    def do() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return InstallStep(f"link {path} to {target}", do)


def remove(path: Path) -> InstallStep:
    """Remove a file, or a directory with its contents."""

    def do() -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    return InstallStep(f"remove {path}", do)


def run(*command: str) -> InstallStep:
    """Run a system command; raises StepFailed with the first line of its error output."""

    def do() -> None:
        environment = own_environment(os.environ, frozen=bool(getattr(sys, "frozen", False)))
        try:
            ran = subprocess.run(  # noqa: S603 - our own constants, and paths from the operator
                command, env=environment, capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise StepFailed(f"{command[0]}: {error.strerror}") from None
        if ran.returncode != 0:
            output = (ran.stderr.strip() or ran.stdout.strip() or f"exit code {ran.returncode}").splitlines()
            raise StepFailed(f"`{' '.join(command)}` failed: {output[0]}")

    return InstallStep(f"run {' '.join(command)}", do)


def own_environment(environ: Mapping[str, str], *, frozen: bool) -> dict[str, str]:
    """Return the environment for system commands, without the library path of the single binary."""
    environment = dict(environ)
    if frozen:
        environment.pop(LIBRARIES, None)
        if before := environment.pop(LIBRARIES_BEFORE, None):
            environment[LIBRARIES] = before
    return environment


def _replacing(path: Path, mode: int, fill: Callable[[Path], object]) -> Callable[[], None]:
    """Write a draft and rename it: a running program keeps the old file."""

    def do() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.new")
        draft.unlink(missing_ok=True)
        draft.touch(0o600)
        fill(draft)
        draft.chmod(mode)
        draft.rename(path)

    return do


# ---- the plan

RUNNING_SYSTEMD = Path("/run/systemd/system")  # sd_booted(3)
START_SERVICE = "systemctl start appliance"
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


class Program(Struct, frozen=True):
    """The program to run: a single file that is copied, or a script in a virtual environment that is linked."""

    path: Path
    single_file: bool


class Installation(Struct, frozen=True):
    """The options of an installation; `data_dir` is from the settings."""

    root: Path = Path("/")
    config_file: Path = CONFIG_FILE
    data_dir: Path = DATA_DIR
    hostname: str = ""
    start: bool = True

    def at(self, path: Path) -> Path:
        return self.root / path.relative_to("/")

    @property
    def elsewhere(self) -> bool:
        """Whether the target is an image, whose system is not running."""
        return self.root != Path("/")


def is_managed(config: Config) -> bool:
    """Whether systemd runs, and its service has these settings."""
    if config.source is None or not RUNNING_SYSTEMD.is_dir():
        return False
    settings = f" --config {_quoted(config.source.resolve())}\n"
    return any(path.exists() and settings in path.read_text("utf-8") for path in (UNIT_FILE, PACKAGES_UNIT_FILE))


def start_command(config: Config, *, by_root: bool) -> str:
    """The command that starts the server. Root starts it as the owner of its data, who must be able to read it all."""
    if is_managed(config):
        return START_SERVICE
    source, data_dir = config.source, config.server.data_dir
    written = shlex.quote(str(source))
    command = "appliance serve" if source in (None, CONFIG_FILE) else f"appliance serve --config {written}"
    if not by_root or not data_dir.is_dir() or (owner := data_dir.stat()).st_uid == ROOT_UID:
        return command
    binds = (*config.http.bind, *config.smtp.bind, *config.smtp.bind_tls, *config.inbound.bind)
    has_low = config.acme.enabled or any(0 < bind.port < 1024 for bind in binds)
    user, become = user_argument(owner.st_uid), as_user(owner.st_uid, owner.st_gid, low_ports=has_low)
    if source is None or all(allows(above, owner, ENTER) for above in source.resolve().parents):
        readable = source is None or allows(source, owner, READ)
        return f"{become} {command}" if readable else f"chown {user} {written} && {become} {command}"
    copied = shlex.quote(str(data_dir / CONFIG_FILE.name))
    return f"install -m 400 -o {user} {written} {copied} && {become} appliance serve --config {copied}"


def start_advice(config: Config) -> str:
    return f"Start it: {start_command(config, by_root=is_roots_command())}"


def file(name: str) -> str:
    return (resources.files("appliance.system") / "files" / name).read_text("utf-8")


def unit(program: Program, target: Installation) -> str:
    path = PROGRAM if program.single_file else program.path
    settings = f"--config {_quoted(target.config_file)}"
    text = file("appliance.service").replace(_PROGRAM_LINE, f"ExecStart={_quoted(path)} serve {settings}")
    text = text.replace(_CHECK_LINE, f"ExecReload={_quoted(path)} config check {settings}")
    if program.single_file:
        # The process that systemd starts only unpacks; its child notifies systemd.
        text = text.replace(_NOTIFY_LINE, _NOTIFY_FROM_CHILD)
    return _with_data_dir(text, target)


def backup_unit(program: Program, target: Installation) -> str:
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
    where = {"the settings": target.config_file, "server.data_dir": target.data_dir}
    if not program.single_file:
        where |= {"this program": program.path, "its Python": base_python}
    for what, path in where.items():
        for hidden in HIDDEN:
            if path.is_relative_to(hidden):
                why = f"because the service cannot see {hidden}; move it, e.g. to /opt"
                return f"{path}: {what} cannot be there, {why}"
    return None
