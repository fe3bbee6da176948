"""The settings file that `appliance setup` writes: sets single keys, and changes nothing else in the file."""

import errno
import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from appliance.cli.database import refusals
from appliance.cli.options import named_config
from appliance.cli.output import file_errors

if TYPE_CHECKING:
    from appliance.config.settings import Config


class SettingsFile:
    """The settings file of this installation, which may not exist yet; `written` is whether this run changed it."""

    def __init__(self) -> None:
        from appliance.config import load

        named, text = named_config(), None
        with refusals(), file_errors():
            if named is None and (source := load.find(None, os.environ, Path.cwd())) is not None:
                named, text = source
            self.path = Path(os.path.abspath(named or (load.SYSTEM_FILE if os.geteuid() == 0 else load.LOCAL_FILE)))
            if text is None:
                text = self.path.read_text("utf-8") if self.path.exists() else None
            self.hostname = "" if text is None else load.named_host(text, self.path)
        self._text, self.written = text, False

    def settings(self) -> "Config":
        from appliance.config import load

        with refusals():
            return load.parse(self._text or "", self.path)

    def change(self, table: str, **values: str | bool) -> None:
        """Write these keys of a table if they differ; a new file is a copy of the packaged one."""
        from appliance.config import load
        from appliance.config.settings import ConfigError
        from appliance.system import service as plan

        text = self._text
        if text is None:
            text = plan.file("config.toml")
            if self.path != load.SYSTEM_FILE:
                text = text.replace(plan.HOSTNAME_LINE, f'{plan.HOSTNAME_LINE}\ndata_dir = "appliance-data"')
        for key, value in values.items():
            text = with_setting(text, table, key, value)
        if text == self._text:
            return
        try:
            load.parse(text, self.path)
        except ConfigError:
            keys = " and ".join(f"{table}.{key}" for key in values)
            raise click.ClickException(f"{self.path}: set {keys} by hand, and run this again") from None
        with file_errors():
            _write(self.path, text)
        self._text, self.written = text, True

    def restart_service(self) -> None:
        """Restart the running service with the changed settings; does nothing without systemd."""
        from appliance.config import load
        from appliance.system import service as plan
        from appliance.system.service import StepFailed, run

        if self.written and self.path == load.SYSTEM_FILE and has_systemd():
            with suppress(StepFailed):  # its log says why; a later step checks whether a server runs
                run("systemctl", "try-restart", plan.UNIT).do()


def has_systemd() -> bool:
    """Whether this process may start and stop services."""
    from appliance.system.service import RUNNING_SYSTEMD

    return os.geteuid() == 0 and RUNNING_SYSTEMD.is_dir()


def with_setting(text: str, table: str, key: str, value: str | bool) -> str:
    """Return the text of a settings file with one key set; everything else, comments too, stays."""
    line = f"{key} = {json.dumps(value)}"
    text = text if not text or text.endswith("\n") else f"{text}\n"
    head = re.search(rf"^\[{table}\][^\n]*\n", text, re.MULTILINE)
    if head is None:
        return f"{text.rstrip()}\n\n[{table}]\n{line}\n".lstrip()
    following = re.compile(r"^\[", re.MULTILINE).search(text, head.end())
    end = following.start() if following else len(text)
    old = re.compile(rf"""^[ \t]*{key}[ \t]*=[ \t]*(?:"[^"\n]*"|'[^'\n]*'|true|false)""", re.MULTILINE)
    body, count = old.subn(lambda _: line, text[head.end() : end], count=1)
    return text[: head.end()] + (body if count else f"{line}\n{body}") + text[end:]


def _write(file: Path, text: str) -> None:
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
