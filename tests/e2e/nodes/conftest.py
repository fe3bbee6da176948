"""A PostgreSQL for the nodes."""

from collections.abc import Iterator

import pytest

from tests.postgresql_server import postgresql
from tests.programs import require


@pytest.fixture
def url() -> Iterator[str]:
    require("postgresql")
    with postgresql() as server:
        yield server.new_database()
