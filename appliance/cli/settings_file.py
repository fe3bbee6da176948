"""The settings file that `appliance setup` writes: adds the host name, and changes nothing else in the file."""

import errno
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from appliance.cli.options import named_config
from appliance.cli.output import system_text

if TYPE_CHECKING:
    from appliance.config.settings import Config


def settings_with_hostname(hostname: str | None, ask: Callable[[str, str, str], str]) -> tuple["Config", bool]:
    """Return the settings and whether this run wrote them; `ask` takes a question, an option and a default."""
    from appliance.config import load
    from appliance.config.settings import ConfigError
    from appliance.config.values import is_host_name
    from appliance.system import service as plan
    from appliance.system.service import StepFailed, run

    named, text = named_config(), None
    try:
        if named is None and (source := load.find(None, os.environ, Path.cwd())) is not None:
            named, text = source
        file = Path(os.path.abspath(named or (load.SYSTEM_FILE if os.geteuid() == 0 else load.LOCAL_FILE)))
        if text is None:
            text = file.read_text("utf-8") if file.exists() else None
        existing = "" if text is None else load.named_host(text, file)
    except (ConfigError, OSError) as error:
        raise click.ClickException(str(error)) from None
    if existing:
        if hostname and hostname != existing:
            raise click.ClickException(f"{file}: server.hostname is already {existing}: change it there")
        return load.parse(text or "", file), False
    machine = load.machine_name()
    default = machine if "." in machine else ""
    hostname = hostname or ask("Full name of this machine, such as mail.example.com", "--hostname", default)
    if not is_host_name(hostname) or "." not in hostname:
        raise click.ClickException(f"{hostname!r} is not a full host name such as mail.example.com")
    if text is None:
        text = plan.file("config.toml")
        if file != load.SYSTEM_FILE:
            text = text.replace(plan.HOSTNAME_LINE, f'{plan.HOSTNAME_LINE}\ndata_dir = "appliance-data"')
    try:
        _write(file, with_hostname(text, hostname))
        settings = load.load(file, {}, Path.cwd())
    except (ConfigError, OSError) as error:
        reason = f"{error.filename}: {system_text(error)}" if isinstance(error, OSError) else str(error)
        raise click.ClickException(reason) from None
    if file == load.SYSTEM_FILE and os.geteuid() == 0 and Path("/run/systemd/system").is_dir():
        with suppress(StepFailed):  # its log says why; a later step checks whether a server runs
            run("systemctl", "try-restart", plan.UNIT).do()
    return settings, True


def with_hostname(text: str, hostname: str) -> str:
    """Return the text of a settings file with this host name added; everything else, comments too, stays."""
    line = f"hostname = {json.dumps(hostname)}"
    changed, count = re.subn(r"^hostname[ \t]*=[ \t]*\"\"", line, text, count=1, flags=re.MULTILINE)
    if count:
        return changed
    changed, count = re.subn(r"^\[server\][^\n]*\n", lambda match: f"{match[0]}{line}\n", text, count=1, flags=re.M)
    return changed if count else f"[server]\n{line}\n\n{text}"


def _write(file: Path, text: str) -> None:
    """Replace the file atomically, with the same owner and mode; a new one is for root and the service's group."""
    import shutil

    from appliance.system.service import USER

    if file.exists() and not os.access(file, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640), "w", encoding="utf-8") as new:
        new.write(text)
        new.flush()
        os.fsync(new.fileno())
    if file.exists():
        facts = file.stat()
        if os.geteuid() == 0:
            os.chown(draft, facts.st_uid, facts.st_gid)
        draft.chmod(facts.st_mode & 0o7777)
    elif os.geteuid() == 0:
        with suppress(LookupError):  # the group does not exist yet
            shutil.chown(draft, group=USER)
    os.replace(draft, file)
