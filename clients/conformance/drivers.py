"""How each library's driver is built and started, and the conversation with one: a line of JSON each way.

The commands are relative to the folder that holds the libraries (`python`, `node`, `go`, `php`, `ruby`).
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

ANSWER_TIMEOUT = 90.0  # seconds for one command; the slowest of them is 7 MiB on a loaded machine
END_TIMEOUT = 20.0  # seconds from the end of its input to its own end
BUILD_TIMEOUT = 300.0
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "GOPATH", "GOCACHE", "GOFLAGS", "GOPROXY", "GEM_HOME")


class CannotRun(Exception):
    """A language that cannot be tried here: its program or its library is missing, or the build failed."""


class DriverFailed(Exception):
    """A driver that ended, took too long or wrote something that is no answer."""


@dataclass(frozen=True)
class Ready:
    """A driver that can be started."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Language:
    """A row of the table: how a driver becomes ready, given the libraries' folder and one for what is built."""

    name: str
    runtime: str  # its name in the User-Agent
    prepare: Callable[[Path, Path], Ready]


def _python(*words: str) -> Callable[[Path, Path], Ready]:
    def prepare(clients: Path, _: Path) -> Ready:
        driver = _file(clients / "python" / "conformance_driver.py")
        if "--async" in words and not (find_spec("anyio") and find_spec("httptools")):
            raise CannotRun("the asynchronous client needs anyio and httptools")
        return Ready((sys.executable, str(driver), *words), {"PYTHONPATH": str(clients / "python" / "src")})

    return prepare


def _node(clients: Path, _: Path) -> Ready:
    folder = clients / "node"
    driver, node, npm = _file(folder / "conformance" / "driver.mjs"), _program("node"), _program("npm")
    manifest, sources = _written(folder / "package.json"), _newest(folder / "src")
    if _written(folder / "node_modules" / ".package-lock.json") < manifest:  # npm's own record of what it has installed
        _run([npm, "install", "--no-package-lock", "--no-audit", "--no-fund"], folder)
    if _newest(folder / "dist") < max(sources, manifest):
        _run([npm, "run", "build"], folder)
    return Ready((node, str(driver)), {})


def _go(clients: Path, built: Path) -> Ready:
    folder = clients / "go"
    _file(folder / "conformance" / "main.go", folder / "conformance")
    program = built / "go-driver"
    _run([_program("go"), "build", "-o", str(program), "./conformance"], folder)
    return Ready((str(program),), {})


def _php(clients: Path, _: Path) -> Ready:
    driver = _file(clients / "php" / "conformance" / "driver.php")
    # Everything that PHP has to say goes to standard error, and is a failure.
    return Ready((_program("php"), "-d", "display_errors=stderr", "-d", "error_reporting=-1", str(driver)), {})


def _ruby(clients: Path, _: Path) -> Ready:
    driver = _file(clients / "ruby" / "conformance" / "driver.rb")
    return Ready((_program("ruby"), "-W2", f"-I{clients / 'ruby' / 'lib'}", str(driver)), {})


LANGUAGES = {
    item.name: item
    for item in (
        Language("python", "python", _python()),
        Language("python-async", "python", _python("--async")),
        Language("node", "node", _node),
        Language("go", "go", _go),
        Language("php", "php", _php),
        Language("ruby", "ruby", _ruby),
    )
}


def _file(*places: Path) -> Path:
    for place in places:
        if place.exists():
            return place
    raise CannotRun(f"{places[0]} is not there")


def _program(name: str) -> str:
    program = shutil.which(name)
    if program is None:
        raise CannotRun(f"{name} is not installed; sh packaging/test-clients installs it on Debian")
    return program


def _written(path: Path) -> float:
    """When a file was written; 0 if it is not there."""
    return path.stat().st_mtime if path.is_file() else 0.0


def _newest(folder: Path) -> float:
    """The modification time of the newest file of a folder; 0 for an empty folder."""
    return max(map(_written, folder.rglob("*")), default=0.0)


def _run(command: list[str], folder: Path) -> None:
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_TIMEOUT, check=False)
    if ran.returncode:
        raise CannotRun(f"{' '.join(command)} failed:\n{ran.stdout}{ran.stderr}")


class Driver:
    """A started driver."""

    def __init__(self, ready: Ready, variables: Mapping[str, str]) -> None:
        """With these environment variables besides the plain ones."""
        plain = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        self._said = TemporaryFile()  # its standard error  # noqa: SIM115  # closed by kill()
        self._process = subprocess.Popen(
            ready.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**plain, **ready.environment, **variables},
        )

    def ask(self, command: Mapping[str, Any]) -> Any:
        """The answer to a command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(ANSWER_TIMEOUT, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        finally:
            timer.cancel()
        try:
            return json.loads(line)
        except ValueError:
            raise DriverFailed(f"the driver answered {line[:500]!r}; {self._complaint()}") from None

    def end(self) -> None:
        """Close its input; it has to end by itself, without an error and without a further word."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise DriverFailed(f"the driver did not end with its input; {self._complaint()}") from None
        rest = self._process.stdout.read(500)
        if code or rest:
            raise DriverFailed(f"the driver ended with {code} and wrote {rest!r}; {self._complaint()}")

    def kill(self) -> None:
        """End it, if it still runs."""
        self._process.kill()
        with self._said, suppress(BrokenPipeError):
            self._process.__exit__(None, None, None)

    def _complaint(self) -> str:
        self._said.seek(0)
        return f"standard error: {self._said.read()[-2000:].decode(errors='replace')!r}"


class Drivers:
    """The drivers of one language: one that has answered is used for other scenarios, since a start takes long."""

    def __init__(self, ready: Ready) -> None:
        """None is started yet."""
        self._ready = ready
        self._idle: deque[Driver] = deque()

    @contextmanager
    def one(self, variables: Mapping[str, str]) -> Iterator[Driver]:
        """A driver for one scenario; with environment variables it is its own."""
        driver = Driver(self._ready, variables) if variables or not self._idle else self._idle.pop()
        try:
            yield driver
            if variables:
                driver.end()
        except BaseException:
            driver.kill()
            raise
        if variables:
            driver.kill()
        else:
            self._idle.append(driver)

    def close(self) -> None:
        """End all of them; the first that does not end well is an error, after the last has ended."""
        with ExitStack() as ends:
            for driver in self._idle:
                ends.callback(driver.kill)
                ends.callback(driver.end)
