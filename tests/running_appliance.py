"""The real program in a process of its own, with an account to use: what end-to-end tests and benchmarks talk to."""

import base64
import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import httpx
import trio
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from appliance.model.accounts import Role, Scope
from appliance.store import Store
from tests import engines
from tests.fork_client import ROOT, Forked, fork

PASSWORD = "correct horse battery staple"
# The least that Argon2id allows: tests log in hundreds of times.
PASSWORD_HASH = Argon2id(salt=bytes(16), length=32, iterations=1, lanes=1, memory_cost=8).derive_phc_encoded(
    PASSWORD.encode()
)
NO_DNS = "127.0.0.1:9"  # where nothing answers: no question of a test leaves the machine
START_TIMEOUT = 240.0  # seconds; a busy machine is no fault of the program
STOP_TIMEOUT = 240.0
# For clients that need none: to read whom this machine trusts takes each of them a tenth of a second.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
PROGRAM = (sys.executable, "-m", "appliance")
# Reading the certificates that a machine trusts is a third of what a forked start costs; no test calls a public server.
TRUSTS_NONE = {"SSL_CERT_FILE": os.devnull}


@dataclass(frozen=True)
class Provisioned:
    """An account with one of each credential."""

    account_id: str
    name: str
    email: str
    username: str
    password: str
    send_key: str
    full_key: str
    test_key: str
    domain: str

    @property
    def basic(self) -> dict[str, str]:
        pair = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}

    @property
    def bearer(self) -> dict[str, str]:
        """The Authorization header of the API key that may also read."""
        return {"Authorization": f"Bearer {self.full_key}"}


async def provision(
    store: Store, name: str, *, credit: int | None = 1_000_000, domain: str = "example.com", role: Role = Role.CUSTOMER
) -> Provisioned:
    email = f"{name}@example.org"
    account = await store.accounts.create(name, email, PASSWORD_HASH, role, credit)
    await store.access.add_domain(account.id, domain, usable=True)
    username, password = await store.access.create_credential(account.id)
    _, send_key = await store.access.create_key(account.id, scope=Scope.SEND, test=False)
    _, full_key = await store.access.create_key(account.id, scope=Scope.FULL, test=False)
    _, test_key = await store.access.create_key(account.id, scope=Scope.FULL, test=True)
    return Provisioned(account.id, name, email, username, password, send_key, full_key, test_key, domain)


def ran(config_file: Path, *words: str, directory: Path | None = None, user: int | None = None) -> tuple[int, str, str]:
    """The exit code of a real command in a process of its own, its output and its errors."""
    where = directory or Path.cwd()
    words = (*words, "--config", str(config_file))
    with TemporaryFile() as stdout, TemporaryFile() as stderr:
        process = fork(*words, directory=where, environment=os.environ, stdout=stdout, stderr=stderr, user=user)
        try:
            code = process.wait(STOP_TIMEOUT)
        finally:
            process.kill()
        stdout.seek(0)
        stderr.seek(0)
        return code, stdout.read().decode(), stderr.read().decode()


def command(config_file: Path, *words: str) -> Any:
    """The JSON of a real command that succeeds."""
    code, output, errors = ran(config_file, *words, "--json")
    assert code == 0, errors
    return json.loads(output)


def add_account(data_dir: Path, name: str, **options: Any) -> Provisioned:
    """Create an account in a database, whether or not a server runs on it."""

    async def add() -> Provisioned:
        async with engines.beside(data_dir) as store:
            return await provision(store, name, **options)

    return trio.run(add)


@dataclass
class Running:
    """A started appliance."""

    directory: Path
    config_file: Path
    data_dir: Path
    account: Provisioned
    log_file: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | Forked | None = None
    url: str = ""
    smtp: list[str] = field(default_factory=list)  # what listens for submission
    inbound: list[str] = field(default_factory=list)  # and for feedback
    program: tuple[str, ...] = PROGRAM
    code: Path = ROOT  # from where it is read
    fresh: bool = False  # whether a start reads the code anew instead of being forked from a process that has

    def start(self) -> None:
        """Start it and wait until it listens; the port may differ from last time."""
        log: IO[bytes]
        with self.log_file.open("ab") as log:
            begin = log.tell()
            self.spawn(log)
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            for line in self.log_lines(begin):
                if b'"event": "ready"' in line:
                    ready = json.loads(line)
                    self.url, self.smtp = ready["http"][0], ready["smtp"]
                    self.inbound = ready.get("inbound", [])
                    return
            if not self.is_alive():
                break
            time.sleep(0.02)
        self.kill()
        raise RuntimeError("the appliance did not start:\n" + self.log_file.read_text())

    def spawn(self, log: IO[bytes]) -> None:
        words = ("serve", "--config", str(self.config_file))
        environment = {**os.environ, **TRUSTS_NONE, "PYTHONPATH": str(self.code), **self.environment}
        if self.fresh or self.program != PROGRAM:
            self.process = subprocess.Popen(
                [*self.program, *words], stderr=log, stdout=log, cwd=self.directory, env=environment
            )
        else:
            self.process = fork(
                *words, directory=self.directory, environment=environment, stdout=log, stderr=log, code=self.code
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(STOP_TIMEOUT)

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def terminate(self, timeout: float = STOP_TIMEOUT) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def kill(self) -> None:
        """`kill -9`, if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        if self.process is not None:
            self.process.wait()

    def hang_up(self, said: str) -> dict[str, Any]:
        """Send SIGHUP, and wait for the event that says what came of it."""
        assert self.process is not None
        begin = self.log_file.stat().st_size
        self.process.send_signal(signal.SIGHUP)
        return self.await_event(said, begin)

    def await_event(self, said: str, begin: int = 0) -> dict[str, Any]:
        """The first event of that name in its log, from so many bytes on."""
        deadline = time.monotonic() + STOP_TIMEOUT
        while time.monotonic() < deadline:
            for line in self.log_lines(begin):
                if (event := json.loads(line))["event"] == said:
                    return dict(event)
            time.sleep(0.02)
        raise RuntimeError(f"the log does not say {said!r}:\n" + self.log_file.read_text())

    def log_lines(self, begin: int = 0) -> list[bytes]:
        """The lines of its log, from so many bytes on; one that is being written is not there yet."""
        written = self.log_file.read_bytes()[begin:]
        return written[: written.rfind(b"\n") + 1].splitlines()

    def complaints(self) -> list[str]:
        """The lines of its log that are not the plain course of things."""
        lines = [line.decode() for line in self.log_lines()]
        return [line for line in lines if '"level":"info"' not in line.replace('"level": ', '"level":')]

    def client(self, **options: Any) -> httpx.Client:
        """An HTTP client for it, with the reading API key unless told otherwise."""
        options = {"headers": self.account.bearer, "verify": NO_TLS, **options}
        return httpx.Client(base_url=self.url, timeout=30, trust_env=False, **options)

    def login(self) -> dict[str, str]:
        wanted = {"email": self.account.email, "password": PASSWORD}
        answer = httpx.post(f"{self.url}/v1/auth/login", json=wanted, trust_env=False, timeout=30, verify=NO_TLS)
        return {"Authorization": f"Bearer {answer.json()['token']}"}


CONFIG = """
[server]
hostname = "mail.example.com"
data_dir = "{data_dir}"
{server}
[smtp]
bind = {smtp_bind}
bind_tls = ["127.0.0.1:0"]
{smtp}
[http]
bind = ["127.0.0.1:0"]
{http}
[dns]
resolvers = ["{dns}"]
[delivery]
mode = "sandbox"
[webhooks]
{webhooks}
[dashboard]
{dashboard}
[retention]
{retention}
[limits]
requests_per_second = {requests_per_second}
{disk}
{store}
"""


@contextmanager
def appliance(
    directory: Path,
    *,
    server: str = "",
    http: str = "",
    smtp: str = "",
    smtp_bind: str = '["127.0.0.1:0"]',
    webhooks: str = "",
    retention: str = "",
    dashboard: str = "",
    dns: str = NO_DNS,
    requests_per_second: int = 0,
    disk: str = 'min_free_disk = "0"',
    credit: int | None = 1_000_000,
    account: Provisioned | None = None,
    environment: dict[str, str] | None = None,
    program: tuple[str, ...] = PROGRAM,
    fresh: bool = False,
) -> Iterator[Running]:
    """A running appliance with one account (made here unless given); killed at the end if it has not ended by then.

    It is forked from a process that has read the code (see tests/fork_client.py). For `fresh` the code is read anew, as
    tests of memory, speed or the start itself need it.
    """
    data_dir = directory / "data"
    config_file = directory / "config.toml"
    config_file.write_text(
        CONFIG.format(
            data_dir=data_dir,
            server=server,
            http=http,
            smtp=smtp,
            smtp_bind=smtp_bind,
            dns=dns,
            webhooks=webhooks,
            retention=retention,
            dashboard=dashboard,
            requests_per_second=requests_per_second,
            disk=disk,
            store=engines.settings_of(data_dir),
        )
    )
    account = account or add_account(data_dir, "demo", credit=credit)
    running = Running(
        directory,
        config_file,
        data_dir,
        account,
        directory / "appliance.log",
        environment or {},
        program=program,
        fresh=fresh,
    )
    try:
        running.start()
        yield running
    finally:
        running.kill()
