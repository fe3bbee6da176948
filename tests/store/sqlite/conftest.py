"""SQLite's database, whichever engines the verbs are tested on, and a disk that tests can break."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.environment import Environment
from tests.store.samples import Clock, Database, FailingDisk, Faults


@pytest.fixture
def database(tmp_path: Path, clock: Clock) -> Database:
    return Database(tmp_path / "data", Environment(now=clock))


@pytest.fixture
def faults() -> Iterator[Faults]:
    disk = FailingDisk()
    yield disk.faults
    disk.unregister()
