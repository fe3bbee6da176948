"""One running appliance for all contract tests; each test that counts something makes an account of its own."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.contract.service import Caller
from tests.engines import Kind
from tests.fakes.dns import DnsServer
from tests.fakes.dns_thread import served
from tests.running_appliance import Running, add_account, appliance

NewAccount = Callable[..., Caller]


@pytest.fixture(scope="session")
def names() -> DnsServer:
    """The DNS that the appliance asks; what tests publish there is seen at once."""
    return DnsServer({"mail.example.com": {"A": ["192.0.2.1"]}})


@pytest.fixture(scope="session")
def resolver(names: DnsServer) -> Iterator[str]:
    with served(names) as endpoint:
        yield str(endpoint)


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory, resolver: str, engine: Kind) -> Iterator[Running]:
    """The appliance, in sandbox mode, with the account `demo`; its log holds no error at the end."""
    with appliance(tmp_path_factory.mktemp("contract"), dns=resolver) as started:
        yield started
        log = started.log_file.read_text()
    assert '"level": "error"' not in log, log


@pytest.fixture(scope="session")
def client(running: Running) -> Iterator[httpx.Client]:
    limits = httpx.Limits(max_connections=100, max_keepalive_connections=100)
    with running.client(headers={}, limits=limits) as opened:
        yield opened


@pytest.fixture(scope="session")
def caller(running: Running, client: httpx.Client) -> Caller:
    return Caller(running, running.account, client, running.account.bearer)


@pytest.fixture(scope="session")
def customer(running: Running, client: httpx.Client) -> Caller:
    return Caller(running, running.account, client, running.login())


@pytest.fixture
def new_account(running: Running, client: httpx.Client) -> NewAccount:
    """Makes accounts that no other test uses, each called through its API key of scope full."""

    def make(**options: Any) -> Caller:
        account = add_account(running.data_dir, f"account-{uuid.uuid4().hex[:12]}", **options)
        return Caller(running, account, client, account.bearer)

    return make
