"""Bodies that are announced, or begun, by clients that have not logged in delay neither logins nor mail."""

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.e2e.raw import MESSAGE, Answer, Client, request, sending
from tests.running_appliance import PASSWORD, Running, appliance
from tests.stopwatch import Stopwatch

JSON = "Content-Type: application/json"
ADDRESSES = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
EACH = 90  # connections
PROMPT = 1.5  # seconds; alone it takes a tenth of a second, nearly all of it Argon2


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for all."""
    with appliance(tmp_path_factory.mktemp("running")) as started:
        yield started
        assert started.complaints() == []


def timed(running: Running, data: bytes) -> tuple[Answer, float]:
    """The answer to a request on a connection of its own, and how long it took."""
    watch = Stopwatch(running.pid)
    with Client(running.url, timeout=30) as client:
        client.send(data)
        return client.answer(), watch.taken


def check_honest_clients(running: Running, name: str) -> None:
    """Logins, small messages and large ones are served at once."""
    login = json.dumps({"email": running.account.email, "password": PASSWORD}).encode()
    large = MESSAGE[:-1] + b" " * 1_000_000 + b"}"
    for number in range(5):
        answer, took = timed(running, request("POST", "/v1/auth/login", JSON, body=login))
        assert (answer.status, took < PROMPT) == (200, True)
        for size, body in (("small", MESSAGE), ("large", large)):
            key = f"{name} {size} {number}"
            answer, took = timed(running, request("POST", "/emails", *sending(running, key), body=body))
            assert (answer.status, took < PROMPT) == (202, True)


@pytest.mark.parametrize(
    ("name", "sent"), [("promised", 0), ("begun", 1_000), ("nearly sent", 65_000)], ids=["promised", "begun", "sent"]
)
def test_unfinished_logins_from_three_addresses_delay_no_other_client(running: Running, name: str, sent: int) -> None:
    """However much of their bodies has come, of hundreds of logins that are never finished."""
    head = request("POST", "/v1/auth/login", JSON, "Content-Length: 65536")
    with ExitStack() as stack:
        for address in ADDRESSES:
            for _ in range(EACH):
                client = stack.enter_context(Client(running.url, source=address))
                client.offer(head + b" " * sent)
        check_honest_clients(running, name)


def test_one_network_does_not_take_all_memory_of_those_who_have_not_logged_in(running: Running) -> None:
    """With a hundred large logins unfinished at one address, a large one from another is read to its end."""
    body = json.dumps({"email": "a@example.org", "password": "x" * 20_000}).encode()
    with ExitStack() as stack:
        for _ in range(EACH):
            client = stack.enter_context(Client(running.url, source="127.0.0.2"))
            client.offer(request("POST", "/v1/auth/login", JSON, "Content-Length: 65536") + b" " * 65_000)
        answer, took = timed(running, request("POST", "/v1/auth/login", JSON, body=body))
        assert answer.status in (400, 401)
        assert took < 2 * PROMPT  # a wrong login is answered after a second
