"""One running appliance and one receiver for all tests of webhooks; each test makes an account of its own."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.contract.service import Caller, bearer
from tests.e2e.webhooks.customer import Customer
from tests.engines import Kind
from tests.fakes.dns import DnsServer
from tests.fakes.dns_thread import served
from tests.fakes.webhook_server import Hooks, hooks
from tests.running_appliance import Running, add_account, appliance

NewCustomer = Callable[..., Customer]
# Short enough to be waited for: seven attempts in a second and a half.
DELAYS = 'retry_delays = ["100ms", "200ms", "300ms", "300ms", "300ms", "300ms"]'


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("webhooks")


@pytest.fixture(scope="session")
def receiver(directory: Path) -> Iterator[Hooks]:
    with hooks(directory) as started:
        yield started


@pytest.fixture(scope="session")
def running(
    tmp_path_factory: pytest.TempPathFactory, directory: Path, receiver: Hooks, engine: Kind
) -> Iterator[Running]:
    """The appliance, in sandbox mode, with memory of its own to measure; its log holds no error at the end."""
    own = tmp_path_factory.mktemp(engine.value)  # several times, where files of one engine and of both take turns
    with (
        served(DnsServer({})) as resolver,
        appliance(own, webhooks=receiver.settings(directory) + DELAYS, dns=str(resolver), fresh=True) as started,
    ):
        yield started
        log = started.log_file.read_text()
    assert '"level": "error"' not in log, log


@pytest.fixture(scope="session")
def client(running: Running) -> Iterator[httpx.Client]:
    with running.client(headers={}) as opened:
        yield opened


@pytest.fixture
def new_customer(running: Running, client: httpx.Client, receiver: Hooks) -> NewCustomer:
    """Makes new accounts, each with a path of its own at the receiver."""

    def make(**options: Any) -> Customer:
        name = f"account-{uuid.uuid4().hex[:12]}"
        account = add_account(running.data_dir, name, **options)
        sender = Caller(running, account, client, account.bearer)
        return Customer(sender, sender.using(bearer(sender.token())), receiver, f"/{name}")

    return make


@pytest.fixture
def customer(new_customer: NewCustomer) -> Customer:
    return new_customer()
