"""A store with one account, on a clock that tests move, and a disk that they can break."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from appliance.model.mail import Account
from appliance.outside import Outside
from appliance.store import Store, open_store
from tests.store.samples import CREDITS, HASH, Clock, FailingDisk, Faults, Messages


@pytest.fixture
def clock() -> Clock:
    """The time."""
    return Clock()


@pytest.fixture
async def store(tmp_path: Path, clock: Clock) -> AsyncIterator[Store]:
    """A new database, each write committed at once."""
    async with open_store(tmp_path / "data", Outside(now=clock), inline=True) as opened:
        yield opened


@pytest.fixture
async def account(store: Store) -> Account:
    """An account with a hundred credits."""
    return await store.accounts.create("demo", "Demo@example.org", HASH, credit=CREDITS)


@pytest.fixture
def messages(account: Account, clock: Clock) -> Messages:
    """Messages of that account."""
    return Messages(Outside(now=clock), account.id)


@pytest.fixture
def faults() -> Iterator[Faults]:
    """What the disk under every database opened from now on does wrong: nothing, until a test says so."""
    disk = FailingDisk()
    yield disk.faults
    disk.unregister()
