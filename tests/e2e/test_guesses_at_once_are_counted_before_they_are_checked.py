"""Three hundred logins at the same moment, the right password among them; and an owner whom no attacker keeps out."""

import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.running_appliance import NO_TLS, PASSWORD, Running, add_account, appliance

GUESSES = 300
RIGHT = 249  # the 250th is right
CLIENTS = 6
PROXY = 'trusted_proxies = ["127.0.0.1"]\nmax_connections_per_address = 1000'


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The appliance behind a proxy at 127.0.0.1, which says where each client is."""
    with appliance(tmp_path_factory.mktemp("guesses"), http=PROXY) as started:
        yield started


def log_in(client: httpx.Client, email: str, password: str, address: str | None = None) -> httpx.Response:
    headers = {} if address is None else {"X-Forwarded-For": address}
    return client.post("/v1/auth/login", json={"email": email, "password": password}, headers=headers)


def from_address(running: Running, address: str) -> httpx.Client:
    """A client whose connections come from this address of the loopback network."""
    transport = httpx.HTTPTransport(
        local_address=address, verify=NO_TLS, limits=httpx.Limits(max_connections=GUESSES), retries=2
    )
    return httpx.Client(base_url=running.url, timeout=60, trust_env=False, transport=transport)


def can_bind(address: str) -> bool:
    """Whether this machine lets a client choose that address of its loopback network."""
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def test_of_300_guesses_at_once_the_250th_does_not_get_in(running: Running) -> None:
    """LoginThrottle count when they arrive: so few are checked that the right one, far behind, is told to wait."""
    account = add_account(running.data_dir, "guessed")
    addresses = [f"127.0.0.{number + 2}" for number in range(CLIENTS)]
    assert all(map(can_bind, addresses))
    clients = [from_address(running, address) for address in addresses]

    def guess(number: int) -> int:
        password = PASSWORD if number == RIGHT else f"wrong {number}"
        return log_in(clients[number % CLIENTS], account.email, password).status_code

    with ThreadPoolExecutor(max_workers=GUESSES) as threads:
        statuses = list(threads.map(guess, range(GUESSES)))
    for client in clients:
        client.close()
    assert statuses[RIGHT] == 429
    counts = Counter(statuses)
    assert set(counts) == {401, 429}
    assert counts[401] <= 10 * CLIENTS  # the hard limit; that of the whole account, 10 and four turns, is met before
    assert counts[401] <= 14


def test_a_known_network_is_known_after_a_restart(tmp_path: Path) -> None:
    """Where a stored session comes from its owner logs in at once, after a restart and with guesses from everywhere."""
    with appliance(tmp_path, http=PROXY) as running:
        account = running.account
        with running.client(headers={}) as client:
            assert log_in(client, account.email, PASSWORD, "2a01:4f8:1:2::1").status_code == 200
        assert running.terminate() == 0
        running.start()
        with running.client(headers={}) as client:
            with ThreadPoolExecutor(max_workers=40) as threads:
                list(
                    threads.map(lambda n: log_in(client, account.email, "wrong", f"203.0.{n}.1").status_code, range(40))
                )
            stranger = log_in(client, account.email, PASSWORD, "198.51.100.7")
            assert stranger.status_code == 429
            assert int(stranger.headers["retry-after"]) > 10
            assert log_in(client, account.email, PASSWORD, "2a01:4f8:1:2:3::9").status_code == 200


def test_a_forged_cookie_is_a_guess(running: Running) -> None:
    """Cookies that are not ours are answered after a second and counted; a right key works from there all the same."""
    headers = {"X-Forwarded-For": "192.0.2.77", "Sec-Fetch-Site": "same-origin"}
    forged = "appliance_session=ses_" + "0" * 32 + ".0." + "0" * 64

    def renew(client: httpx.Client) -> httpx.Response:
        return client.post("/v1/auth/refresh", headers={**headers, "Cookie": forged})

    with running.client(headers={}) as client:
        with ThreadPoolExecutor(max_workers=10) as threads:
            answers = list(threads.map(lambda _: renew(client), range(10)))
        assert {answer.status_code for answer in answers} == {401}
        assert min(answer.elapsed.total_seconds() for answer in answers) >= 1.0
        again = renew(client)
        assert (again.status_code, again.headers["retry-after"].isdecimal()) == (401, True)
        assert log_in(client, running.account.email, PASSWORD, "192.0.2.77").status_code == 429
        right = client.get("/emails/none", headers={**running.account.bearer, "X-Forwarded-For": "192.0.2.77"})
        assert right.status_code == 404
