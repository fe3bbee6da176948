"""The code blocks of the documents, and a shell in which their commands run as they stand there.

Every fenced block of README.md and `docs/` is a `Block`. What a test does with it follows from its language, or from a
comment on the line before it:

    <!-- not run: REASON -->         no test runs it
    <!-- run by PATH -->             the test in that file does, with what only that one has
    <!-- run, may exit with 1: REASON -->

A block without a language is shell; `text` is output, or a form to fill in, and no code.

`installed` is a service as a package leaves it: a data directory of another user, a closed home of root's, and `sudo`
and `appliance` as programs of the shell. The latter are forked from a process that has read the code.
"""

import json
import os
import pwd
import re
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fork_client import fork

ROOT = Path(__file__).parents[2]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
USER = "nobody"  # stands in for the user `appliance`
COMMAND_TIMEOUT = 120  # seconds for the commands of one block
CONFIG = '[server]\nhostname = "mail.example.com"\ndata_dir = "{data_dir}"\n[dns]\nresolvers = ["{resolver}"]\n{more}'
NO_RESOLVER = "127.0.0.1:9"  # where nothing answers

MARK = re.compile(r" *<!-- (not run: \S.*|run by \S+|run, may exit with 1: \S.*) -->")
FENCE = re.compile(r"( *)```(\w*)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    document: str  # its path below docs/, or README.md
    line: int  # of its fence
    language: str
    text: str
    mark: str = ""  # what the comment before it says
    heading: str = ""  # above it

    @property
    def name(self) -> str:
        return f"{self.document}:{self.line}"


def read_blocks(document: str, text: str) -> Iterator[Block]:
    """Every block of a text; one that is not closed ends with it."""
    lines, at, heading = text.splitlines(), 0, ""
    while at < len(lines):
        if lines[at].startswith("#"):
            heading = lines[at].lstrip("# ")
        fence = FENCE.fullmatch(lines[at])
        if fence is None:
            at += 1
            continue
        begin, at = at, at + 1
        while at < len(lines) and lines[at].strip() != "```":
            at += 1
        mark = MARK.fullmatch(lines[begin - 1]) if begin else None
        content = textwrap.dedent("".join(f"{line}\n" for line in lines[begin + 1 : at]))
        yield Block(document, begin + 1, fence[2], content, mark[1] if mark else "", heading)
        at += 1


def document_name(path: Path) -> str:
    """The path of a document below docs/. The index there is `docs/README.md`: `README.md` is the project's."""
    return str(path.relative_to(ROOT if path.name == "README.md" else ROOT / "docs"))


BLOCKS = [block for path in DOCUMENTS for block in read_blocks(document_name(path), path.read_text())]


def blocks(document: str, language: str = "sh") -> list[str]:
    return [block.text for block in BLOCKS if (block.document, block.language) == (document, language)]


# ---- a shell

# What `sudo` does with the options that the documents use.
SUDO = """#!/bin/sh
if [ "$1" = -u ]; then shift 2; fi
exec "$@"
"""
APPLIANCE = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as orders:
    orders.connect({socket!r})
    order = {{"words": sys.argv[1:], "directory": os.getcwd(), "environment": dict(os.environ)}}
    socket.send_fds(orders, [json.dumps(order).encode()], [0, 1, 2])
    code = int(orders.recv(100))
sys.exit(code if code >= 0 else 128 - code)
"""


@dataclass(slots=True)
class Installed:
    """A service that was installed: its directories, and a shell in which its programs are."""

    directory: Path
    data_dir: Path
    variables: dict[str, str] = field(default_factory=dict)
    user: int | None = None  # who runs `appliance`: root, if it is None

    @property
    def home(self) -> Path:
        return self.directory / "root"

    @property
    def programs(self) -> Path:
        return self.directory / "bin"

    def shell(
        self, commands: str, cwd: Path | None = None, stdin: str = "", shell: str = "sh"
    ) -> subprocess.CompletedProcess[str]:
        """Run these commands as root, from its home or another directory; the first one that fails is the last."""
        environment = {name: value for name, value in os.environ.items() if name != "APPLIANCE_CONFIG"} | {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "SYSTEM_CONFIG": str(self.directory / "config.toml"),
            "HOME": str(self.home),
            **self.variables,
        }
        return subprocess.run(
            [shell, "-e", "-c", commands] if shell != "fish" else [shell, "-c", commands],
            cwd=cwd or self.home,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT,
            check=False,
        )

    def add_program(self, name: str, text: str) -> None:
        self.programs.joinpath(name).write_text(text)
        self.programs.joinpath(name).chmod(0o755)

    def serve_orders(self, listener: socket.socket) -> None:
        """Fork the program for each order of the shell, until the listener is closed."""
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self._obey, args=(connection,), daemon=True).start()

    def _obey(self, connection: socket.socket) -> None:
        with connection:
            text, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
            order = json.loads(text)
            stdin, stdout, stderr = (os.fdopen(each, "rb+", buffering=0) for each in descriptors)
            with stdin, stdout, stderr:
                ran = fork(
                    *order["words"],
                    directory=Path(order["directory"]),
                    environment=order["environment"],
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    user=self.user,
                )
            connection.send(b"%d" % ran.wait(COMMAND_TIMEOUT))


@contextmanager
def installed(resolver: str = NO_RESOLVER, more: str = "") -> Iterator[Installed]:
    """A data directory of the service's user, a closed directory `root` like root's home, and a shell."""
    with TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        service = Installed(directory, directory / "data")
        for made in (service.data_dir, service.home, service.programs):
            made.mkdir(mode=0o700)
        own(service.data_dir)
        text = CONFIG.format(data_dir=service.data_dir, resolver=resolver, more=more)
        (directory / "config.toml").write_text(text)
        path = str(directory / "orders")
        service.add_program("sudo", SUDO)
        service.add_program("appliance", APPLIANCE.format(python=sys.executable, socket=path))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            listener.listen()
            thread = threading.Thread(target=service.serve_orders, args=(listener,), daemon=True)
            thread.start()
            try:
                yield service
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                thread.join(10)


def own(path: Path) -> None:
    """Give a file or a directory, with all in it, to the service's user."""
    entry = pwd.getpwnam(USER)
    for each in (path, *path.rglob("*")):
        os.chown(each, entry.pw_uid, entry.pw_gid)
