"""One running appliance for all contract tests; each test that counts something makes an account of its own."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.contract.service import Caller
from tests.running import Provisioned, Running, add_account, appliance

NewAccount = Callable[..., Caller]


def caller_of(running: Running, account: Provisioned, authorization: dict[str, str]) -> Caller:
    """Somebody who calls with that header."""
    return Caller(running, account, running.client(headers=authorization))


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The appliance, in sandbox mode, with the account `demo`; its log holds no error at the end."""
    with appliance(tmp_path_factory.mktemp("contract")) as started:
        yield started
        log = started.log_file.read_text()
    assert '"level": "error"' not in log, log


@pytest.fixture(scope="session")
def caller(running: Running) -> Iterator[Caller]:
    """The account `demo` with its API key of scope full."""
    made = caller_of(running, running.account, running.account.bearer)
    with made.client:
        yield made


@pytest.fixture(scope="session")
def customer(running: Running) -> Iterator[Caller]:
    """The account `demo` with a customer token."""
    made = caller_of(running, running.account, running.login())
    with made.client:
        yield made


@pytest.fixture
def new_account(running: Running) -> Iterator[NewAccount]:
    """Makes accounts nobody else uses, each called through its API key of scope full."""
    clients: list[httpx.Client] = []

    def make(**options: Any) -> Caller:
        account = add_account(running.data_dir, f"account-{uuid.uuid4().hex[:12]}", **options)
        made = caller_of(running, account, account.bearer)
        clients.append(made.client)
        return made

    yield make
    for client in clients:
        client.close()
