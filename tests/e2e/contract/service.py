"""A caller of the running appliance who knows only the interface: what each contract test talks through."""

import json
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
import trio

from appliance.environment import Environment
from appliance.store import Store
from appliance.store.engine import Row
from appliance.times import HOUR
from tests import engines
from tests.running_appliance import PASSWORD, Provisioned, Running
from tests.store.samples import Messages

Item = TypeVar("Item")
Result = TypeVar("Result")

POLL_EVERY = 0.02  # seconds
PATIENCE = 30.0  # seconds until a simulated delivery must be over, on a starved machine
MESSAGE: dict[str, Any] = {"from": "sender@example.com", "to": "ada@example.net", "subject": "Hello", "text": "Hi Ada"}


def message(**changes: Any) -> dict[str, Any]:
    """A valid send request with some fields changed; a field set to `...` is left out."""
    fields = MESSAGE | {("from" if name == "from_" else name): value for name, value in changes.items()}
    return {name: value for name, value in fields.items() if value is not ...}


def new_key() -> str:
    return uuid.uuid4().hex


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@dataclass(frozen=True)
class Caller:
    """A client with one credential of one account."""

    running: Running
    account: Provisioned
    client: httpx.Client  # shared by all, and so without a credential
    authorization: dict[str, str]

    def request(
        self, method: str, path: str, *, headers: dict[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        return self.client.request(method, path, headers=self.authorization | (headers or {}), **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(
        self, body: Any, *, key: str | None = None, headers: dict[str, str] | None = None, content: bytes | None = None
    ) -> httpx.Response:
        data = json.dumps(body).encode("ascii") if content is None else content
        sent = {"Content-Type": "application/json", "Idempotency-Key": new_key() if key is None else key}
        return self.request("POST", "/emails", content=data, headers=sent | (headers or {}))

    def send(self, **changes: Any) -> Any:
        """Send a valid request with changes, which must be accepted; the response's body."""
        return accepted(self.post(message(**changes)))

    def refused(self, **changes: Any) -> str:
        """Send a request that must be refused as invalid; the error's text."""
        return error(self.post(message(**changes)), 400, "invalid_request")

    def read(self, message_id: str) -> Any:
        response = self.get(f"/emails/{message_id}")
        assert response.status_code == 200, response.text
        return response.json()

    def final(self, message_id: str) -> Any:
        return eventually(lambda: self.read(message_id), lambda found: found["status"] != "queued")

    def delivered(self, **changes: Any) -> Any:
        return self.final(self.send(**changes)["id"])

    def mime(self, message_id: str) -> bytes:
        found = self.stored(lambda store: store.messages.mime(message_id))
        assert found is not None
        return found

    def credits(self) -> int | None:
        return self.stored(lambda store: store.accounts.named(self.account.name)).credits

    def using(self, authorization: dict[str, str]) -> "Caller":
        return replace(self, authorization=authorization)

    def login(self, password: str = PASSWORD) -> httpx.Response:
        """One POST /v1/auth/login."""
        body = {"email": self.account.email, "password": password}
        return self.client.post("/v1/auth/login", json=body)

    def token(self) -> str:
        return str(self.login().json()["token"])

    def stored(self, look: Callable[[Store], Awaitable[Result]]) -> Result:
        return stored(self.running.data_dir, look)

    def rows(self, query: str, **bindings: object) -> list[Row]:
        return self.stored(lambda store: store.engine.rows(query, bindings))


def owner(caller: Caller) -> Caller:
    return caller.using(bearer(caller.token()))


def stored(data_dir: Path, look: Callable[[Store], Awaitable[Result]]) -> Result:
    async def open_and_look() -> Result:
        async with engines.beside(data_dir) as store:
            return await look(store)

    return trio.run(open_and_look)


def change(data_dir: Path, work: Callable[[Store], Awaitable[Any]]) -> None:
    """Change something in the database, as the operator's shell does."""
    stored(data_dir, work)


def waiting(caller: Caller, *addresses: str, pools: dict[str, str] | None = None) -> str:
    """A message of the account that is not to be tried before an hour has passed; its id.

    `pools` are those that domains are known to belong to.
    """
    env = Environment()
    new = Messages(env, caller.account.account_id).new(*addresses, simulated=False)
    later = msgspec.structs.replace(new, created_at=env.now() + HOUR)

    async def store_it(store: Store) -> None:
        await store.messages.accept(later)
        await store.pools.say([], pools or {})

    change(caller.running.data_dir, store_it)
    return new.id


def accepted(response: httpx.Response) -> Any:
    """The body of a 202."""
    assert response.status_code == 202, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body["request_id"] == response.headers["x-request-id"]
    return body


def error(response: httpx.Response, status: int, code: str) -> str:
    """The text of a proper error: the object, the header, the status and the code."""
    text = any_error(response)
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    return text


def any_error(response: httpx.Response) -> str:
    assert 400 <= response.status_code < 500 or response.status_code == 503, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error", "code", "request_id"}
    assert all(isinstance(value, str) and value for value in body.values())
    assert body["request_id"] == response.headers["x-request-id"]
    return str(body["error"])


def eventually(look: Callable[[], Result], enough: Callable[[Result], bool], patience: float = PATIENCE) -> Result:
    """Look again and again until it is enough, or say what was seen last."""
    deadline = time.monotonic() + patience
    while not enough(found := look()):
        assert time.monotonic() < deadline, found
        time.sleep(POLL_EVERY)
    return found


def at_once(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Do the same with every item, all at the same time: what is refused slowly need not be waited for in turn."""
    wanted = list(items)
    with ThreadPoolExecutor(max_workers=len(wanted)) as threads:
        return list(threads.map(work, wanted))
