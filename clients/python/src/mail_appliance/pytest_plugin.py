"""The pytest fixture `appliance`: one `appliance dev` for all tests, with an empty inbox for each.

Turn it on in `conftest.py`: `pytest_plugins = ["mail_appliance.pytest_plugin"]`.
"""

from collections.abc import Iterator

import pytest

from mail_appliance.dev import DevAppliance


@pytest.fixture(scope="session")
def appliance_server() -> Iterator[DevAppliance]:
    """The running server."""
    with DevAppliance() as server:
        yield server


@pytest.fixture
def appliance(appliance_server: DevAppliance) -> DevAppliance:
    """The running server with an empty inbox."""
    appliance_server.clear()
    return appliance_server
