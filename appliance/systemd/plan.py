"""In charge of which steps install the appliance as a service, and which take it away; does none, only looks at files.

Every path may lie below another root, for an image that is being built; nothing is then started.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from appliance.systemd.steps import Copy, Keep, Link, Remove, Run, Step, Write

UNIT = "appliance.service"
UNIT_FILE = Path("/etc/systemd/system/appliance.service")
USERS_FILE = Path("/etc/sysusers.d/appliance.conf")
DIRECTORIES_FILE = Path("/etc/tmpfiles.d/appliance.conf")
PACKAGES_UNIT_FILE = Path("/usr/lib/systemd/system/appliance.service")  # the Debian package's
PROGRAM = Path("/usr/local/bin/appliance")
CONFIG_FILE = Path("/etc/appliance/config.toml")
DATA_DIR = Path("/var/lib/appliance")
USER = "appliance"

# What the unit keeps from the service: ProtectHome, PrivateTmp.
HIDDEN = tuple(map(Path, ("/home", "/root", "/run/user", "/tmp", "/var/tmp")))  # noqa: S108 - compared, not used

# As the files have it, for whoever wants something else.
_PROGRAM_LINE = "ExecStart=/usr/bin/appliance serve --config /etc/appliance/config.toml"
_NOTIFY_LINE, _NOTIFY_FROM_CHILD = "NotifyAccess=main", "NotifyAccess=all"
_WORKING_LINE = "WorkingDirectory=/var/lib/appliance"
_HOSTNAME_LINE = 'hostname = ""'


@dataclass(frozen=True, slots=True)
class Program:
    """What is to run: a single file that is copied, or a script in a virtual environment that is linked."""

    path: Path
    single_file: bool


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the operator asked for; `data_dir` is that of the settings."""

    root: Path = Path("/")
    config_file: Path = CONFIG_FILE
    data_dir: Path = DATA_DIR
    hostname: str = ""
    start: bool = True

    def at(self, path: Path) -> Path:
        """Where a path of the installed machine is now."""
        return self.root / path.relative_to("/")

    @property
    def elsewhere(self) -> bool:
        """Whether this is for a machine that does not run."""
        return self.root != Path("/")


def file(name: str) -> str:
    """One of the files in this package."""
    return (resources.files("appliance.systemd") / "files" / name).read_text("utf-8")


def unit(program: Program, wishes: Wishes) -> str:
    """The unit for this program and these settings."""
    path = PROGRAM if program.single_file else program.path
    text = file("appliance.service")
    command = f"ExecStart={_quoted(path)} serve --config {_quoted(wishes.config_file)}"
    text = text.replace(_PROGRAM_LINE, command)
    if program.single_file:
        # The process that systemd starts only unpacks; what tells it that we are ready is its child.
        text = text.replace(_NOTIFY_LINE, _NOTIFY_FROM_CHILD)
    if wishes.data_dir != DATA_DIR:
        text = text.replace(_WORKING_LINE, f"{_WORKING_LINE}\nReadWritePaths={_quoted(wishes.data_dir)}")
    return text


def _quoted(path: Path) -> str:
    """As systemd reads a word of a command: percent and dollar signs stand for themselves only when doubled."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return text if shlex.quote(text) == text else f'"{text}"'


def directories(wishes: Wishes) -> str:
    """The directories, and whose they are."""
    text = file("tmpfiles.conf")
    if wishes.data_dir != DATA_DIR:
        text += f"d {_quoted(wishes.data_dir)} 0700 {USER} {USER} -\n"
    return text


def install(program: Program, wishes: Wishes) -> Iterator[Step]:
    """What to do, in this order; done once more it is an upgrade."""
    if not wishes.elsewhere and UNIT_FILE.exists():
        # A running program reads parts of its own file when it first needs them: it must not find another one there.
        yield Run(("systemctl", "stop", UNIT))
    if program.single_file:
        if program.path != wishes.at(PROGRAM):
            yield Copy(program.path, wishes.at(PROGRAM))
    elif program.path != PROGRAM:
        yield Link(wishes.at(PROGRAM), program.path)
    yield Write(wishes.at(USERS_FILE), file("sysusers.conf"))
    yield Write(wishes.at(DIRECTORIES_FILE), directories(wishes))
    yield Write(wishes.at(UNIT_FILE), unit(program, wishes))
    config_file = wishes.at(wishes.config_file)
    yield Keep(config_file) if config_file.exists() else Write(config_file, _first_config(wishes.hostname), 0o640)
    yield from _activate(wishes)


def _first_config(hostname: str) -> str:
    return file("config.toml").replace(_HOSTNAME_LINE, f'hostname = "{hostname}"')


def _activate(wishes: Wishes) -> Iterator[Step]:
    below = (f"--root={wishes.root}",) if wishes.elsewhere else ()
    yield Run(("systemd-sysusers", *below, USERS_FILE.name))
    yield Run(("systemd-tmpfiles", *below, "--create", DIRECTORIES_FILE.name))
    if not wishes.elsewhere:
        yield Run(("systemctl", "daemon-reload"))
    yield Run(("systemctl", *below, "enable", UNIT))
    if wishes.start and not wishes.elsewhere:
        yield Run(("systemctl", "restart", UNIT))


def uninstall(wishes: Wishes, *, purge: bool) -> Iterator[Step]:
    """What to do to have it gone; settings and mail stay unless they are to be purged, and the user in any case."""
    below = (f"--root={wishes.root}",) if wishes.elsewhere else ()
    if wishes.at(UNIT_FILE).exists():
        yield Run(("systemctl", *below, "disable", *(() if wishes.elsewhere else ("--now",)), UNIT))
    for path in (UNIT_FILE, USERS_FILE, DIRECTORIES_FILE):
        yield Remove(wishes.at(path))
    if not wishes.elsewhere:
        yield Run(("systemctl", "daemon-reload"))
    if purge:
        for path in (CONFIG_FILE.parent, DATA_DIR):
            yield Remove(wishes.at(path))
    # Last, because it is this very program.
    yield Remove(wishes.at(PROGRAM))


def fault(program: Program, wishes: Wishes, base_python: Path) -> str | None:
    """Why the service could not run like this; None if it could."""
    where = {"the settings": wishes.config_file, "server.data_dir": wishes.data_dir}
    if not program.single_file:
        where |= {"this program": program.path, "its Python": base_python}
    for what, path in where.items():
        for hidden in HIDDEN:
            if path.is_relative_to(hidden):
                return (
                    f"{path}: {what} cannot be there, because the service does not see {hidden}; move it, e.g. to /opt"
                )
    return None
