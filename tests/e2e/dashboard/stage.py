"""What the browser looks at: the real program in a small world on loopback, beside a test that waits."""

import queue
import smtplib
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import trio

from appliance.model.accounts import Role
from tests.e2e.delivery.world import World, delays, world
from tests.fakes.mx import FakeMx
from tests.running_appliance import NO_TLS, PASSWORD, START_TIMEOUT, Provisioned, add_account
from tests.waiting import wait_until

T = TypeVar("T")

GREYLISTED = b"451 4.7.1 Greylisted, please come back in five minutes\r\n"
# Streams with and without an unsubscribe link; that of broadcast needs https.
STREAMS = ("[delivery.streams.broadcast]", "unsubscribe = false", "[delivery.streams.digest]", 'priority = "low"')
ELSEWHERE = 'addresses = ["192.0.2.1"]'  # so that warm-up can be shown, and holds nothing back here
RECEIVES = ("[inbound]", 'bind = ["127.0.0.1:0"]')
UNKNOWN = b"550 5.1.1 No such user here\r\n"


@dataclass
class Stage:
    """A running world in a thread of its own, and accounts to look at it with."""

    world: World
    token: trio.lowlevel.TrioToken
    _names: "count[int]" = field(default_factory=lambda: count(1))

    @property
    def url(self) -> str:
        return self.world.running.url

    def run(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        return trio.from_thread.run(work, *arguments, trio_token=self.token)

    def account(self, name: str = "", **options: Any) -> Provisioned:
        return add_account(self.world.running.data_dir, name or f"account{next(self._names)}", **options)

    def newcomer(self) -> str:
        """The login of an account with nothing in it, made by an administrator."""
        name = f"newcomer{next(self._names)}"
        email = f"{name}@example.org"
        wanted = {"name": name, "email": email, "password": PASSWORD, "credits": 1000}
        operator = self.account(role=Role.ADMIN)
        self.ask(operator, "POST", "/v1/admin/accounts", wanted)
        return email

    def ask(self, account: Provisioned, method: str, path: str, body: Any = None, agent: str = "test") -> Any:
        with self.session(account, agent) as client:
            answer = client.request(method, path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    @contextmanager
    def session(self, account: Provisioned, agent: str = "test") -> Iterator[httpx.Client]:
        """A client with the token of a login."""
        headers = {"User-Agent": agent}
        with httpx.Client(base_url=self.url, trust_env=False, timeout=30, verify=NO_TLS, headers=headers) as client:
            logged_in = client.post("/v1/auth/login", json={"email": account.email, "password": PASSWORD})
            client.headers["Authorization"] = f"Bearer {logged_in.json()['token']}"
            yield client

    def send(self, account: Provisioned, *recipients: str, **fields: Any) -> str:
        body = {"from": f"Shop <shop@{account.domain}>", "to": list(recipients), "subject": "Hello", "text": "Hello.\n"}
        headers = {**account.bearer, "Idempotency-Key": f"key {next(self._names)}"}
        answer = httpx.post(
            f"{self.url}/emails", json={**body, **fields}, headers=headers, trust_env=False, timeout=30, verify=NO_TLS
        )
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def receive(self, account: Provisioned, message: EmailMessage) -> str:
        """Deliver a message to a receiving address of this account; return its id."""
        listener = urlsplit(self.world.running.inbound[0])
        before = self._received(account)
        with smtplib.SMTP(listener.hostname or "", listener.port or 0) as client:
            client.send_message(message)
        wait_until(lambda: self._received(account) != before)
        return self._received(account)[0]

    def _received(self, account: Provisioned) -> list[str]:
        return [each["id"] for each in self.ask(account, "GET", "/v1/inbound?limit=1")["emails"]]

    def tried(self, *messages: str) -> None:
        self.run(self.world.tried, *messages)


@contextmanager
def staged(directory: Path, *settings: str, mode: str = "direct", first_retry: str = "4m") -> Iterator[Stage]:
    """The world, with three domains: good.test takes mail, grey.test later, bad.test knows no user."""
    begun: queue.Queue[Stage | BaseException] = queue.Queue()
    ended = trio.Event()

    async def play() -> None:
        sections = [*settings, *STREAMS, "[warmup]", "enabled = true", ELSEWHERE]
        async with world(directory, delays(first_retry, "10m", "1h"), *sections, mode=mode) as made:
            await made.domain("good.test", FakeMx())
            await made.domain("grey.test", FakeMx(answers={"RCPT": GREYLISTED}))
            await made.domain("bad.test", FakeMx(answers={"RCPT": UNKNOWN}))
            await made.domain("example.net", FakeMx())
            begun.put(Stage(made, trio.lowlevel.current_trio_token()))
            await ended.wait()

    def run() -> None:
        try:
            trio.run(play)
        except BaseException as error:  # whatever it was, the test has to know
            begun.put(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    stage = begun.get(timeout=START_TIMEOUT)
    if isinstance(stage, BaseException):
        raise stage
    try:
        yield stage
    finally:
        stage.token.run_sync_soon(ended.set)
        thread.join(30)
