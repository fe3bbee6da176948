"""A machine in order, for each test of the doctor."""

from pathlib import Path

import pytest

from appliance.doctor import machine, relays
from tests.doctor.world import World, healthy, installation


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("original") / "data"
    installation(directory)
    return directory


@pytest.fixture
def world(tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Everything as it should be; the machine that tests run on may have a clock of its own."""
    monkeypatch.setattr(machine, "synchronised", lambda: True)
    monkeypatch.setattr(relays, "LOGIN_TIMEOUT", 300.0)  # a busy machine is no fault of the relay
    return healthy(tmp_path, original)
