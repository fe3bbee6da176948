"""A database for the nodes."""

import pytest

from tests.postgresql_server import PostgresServer


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database()
