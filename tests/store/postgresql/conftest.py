"""A PostgreSQL that is also reached by TCP, and a new database of it for each test."""

from collections.abc import Iterator

import pytest
import trio

from appliance.store.postgresql.engine import prepare
from tests.ports import free_port
from tests.postgresql_server import PostgresServer, empty, postgresql
from tests.programs import require
from tests.store.postgresql.stepping import Meet


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    require("postgresql")
    with postgresql(listen_addresses="'127.0.0.1'", port=str(free_port())) as running:
        yield running


@pytest.fixture(scope="session")
def prepared(server: PostgresServer) -> str:
    url = server.new_database()
    trio.run(prepare, url, 0)
    return url


@pytest.fixture
def url(prepared: str) -> str:
    empty(prepared)
    return prepared


@pytest.fixture
def meet(url: str, monkeypatch: pytest.MonkeyPatch) -> Meet:
    return Meet(url, monkeypatch)
