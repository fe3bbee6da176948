"""A store with one account, on a clock that tests move."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

from appliance.environment import Environment
from appliance.model.accounts import Account
from appliance.store import Store
from appliance.store.postgresql.engine import prepare
from tests.postgresql_server import PostgresServer, empty
from tests.store.samples import CREDITS, HASH, MORNING, Clock, Database, Messages


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="session")
def shared_database(postgres: PostgresServer) -> str:
    url = postgres.new_database()
    trio.run(prepare, url, MORNING)  # there are partitions from then on
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(tmp_path: Path, clock: Clock, request: pytest.FixtureRequest) -> Iterator[Database]:
    if request.param == "sqlite":
        yield Database(tmp_path / "data", Environment(now=clock))
        return
    url = request.getfixturevalue("shared_database")
    empty(url)
    yield Database(tmp_path / "data", Environment(now=clock), url)


@pytest.fixture
async def store(database: Database) -> AsyncIterator[Store]:
    async with database.open(inline=True) as opened:
        yield opened


@pytest.fixture
async def account(store: Store) -> Account:
    return await store.accounts.create("demo", "Demo@example.org", HASH, credit=CREDITS)


@pytest.fixture
def messages(account: Account, clock: Clock) -> Messages:
    return Messages(Environment(now=clock), account.id)
