"""Runs the shell commands of a document as they stand there, with a service user, a data directory and a `sudo`."""

import os
import pwd
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
USER = "nobody"  # stands in for the user `appliance`
CONFIG = '[server]\nhostname = "mail.example.com"\ndata_dir = "{data_dir}"\n[dns]\nresolvers = ["127.0.0.1:9"]\n'
# What `sudo` does with the options that the documents use; the program is run by tests/other_user.py.
SUDO = """#!/bin/sh
user=root
if [ "$1" = -u ]; then user={user}; shift 2; fi
if [ "$1" = nice ]; then shift; fi
if [ "$1" = appliance ]; then exec {python} -P -m tests.other_user $user "$@"; fi
exec "$@"
"""


@dataclass(frozen=True)
class Installed:
    """A service that was installed: its directories, and a shell in which `sudo` works on it."""

    directory: Path
    data_dir: Path

    def shell(self, commands: str, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run these commands as root, in this directory; the first one that fails is the last."""
        environment = {
            **os.environ,
            "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "SYSTEM_CONFIG": str(self.directory / "config.toml"),
        }
        return subprocess.run(
            ["sh", "-e", "-c", commands],
            cwd=cwd,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@contextmanager
def installed() -> Iterator[Installed]:
    """A data directory of the service's user, and a closed directory `root` like root's home."""
    with TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        data_dir, shim = directory / "data", directory / "bin" / "sudo"
        for made in (data_dir, directory / "root", shim.parent):
            made.mkdir(mode=0o700)
        entry = pwd.getpwnam(USER)
        os.chown(data_dir, entry.pw_uid, entry.pw_gid)
        (directory / "config.toml").write_text(CONFIG.format(data_dir=data_dir))
        shim.write_text(SUDO.format(python=sys.executable, user=USER))
        shim.chmod(0o755)
        yield Installed(directory, data_dir)


def blocks(document: str, language: str = "sh") -> list[str]:
    """The code blocks of a document in one language."""
    text = (ROOT / "docs" / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
