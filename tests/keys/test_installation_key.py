"""Nodes on one database need its key file; a single server notices that its key file was replaced."""

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
import trio

from appliance.environment import Environment
from appliance.keys.installation_key import key_check, record_own_key, shared_key
from appliance.keys.keyfile import KEY_FILE, KeyFileError, fingerprint, load_or_create
from appliance.store import Store, open_store
from appliance.store.postgresql import migrate
from tests import stored_mail
from tests.postgresql_server import PostgresServer
from tests.programs import needs

OUTSIDE = Environment()


@pytest.fixture
async def store(postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(tmp_path, OUTSIDE, url=postgres.new_database(), inline=True) as opened:
        yield opened


@needs("postgresql")
async def test_a_new_database_gets_a_key_and_every_node_needs_it(store: Store, tmp_path: Path) -> None:
    """Another node without it, or with another, is refused, and no file is left or changed; with a copy it may."""
    key = await shared_key(tmp_path / "one", store)
    assert await shared_key(tmp_path / "one", store) == key
    with pytest.raises(KeyFileError, match=r"appliance\.key: missing.*Copy the key file from another node"):
        await shared_key(tmp_path / "two", store)
    assert not (tmp_path / "two" / KEY_FILE).exists()
    other = load_or_create(tmp_path / "three")
    with pytest.raises(KeyFileError, match="wrong key file for this database"):
        await shared_key(tmp_path / "three", store)
    assert (tmp_path / "three" / KEY_FILE).read_bytes() == other
    (tmp_path / "two").mkdir(exist_ok=True)
    (tmp_path / "two" / KEY_FILE).write_bytes(key)
    assert await shared_key(tmp_path / "two", store) == key


@needs("postgresql")
async def test_two_nodes_that_start_first_at_once(store: Store, tmp_path: Path) -> None:
    made: list[bytes] = []
    refused: list[Path] = []

    async def start(directory: Path) -> None:
        try:
            made.append(await shared_key(directory, store))
        except KeyFileError:
            refused.append(directory)

    async with trio.open_nursery() as nursery:
        for name in ("one", "two", "three"):
            nursery.start_soon(start, tmp_path / name)
    assert len(made) == 1
    assert len(refused) == 2
    assert not any((directory / KEY_FILE).exists() for directory in refused)
    assert await store.installation.key_fingerprint() == fingerprint(made[0])


@needs("postgresql")
async def test_a_database_with_secrets_is_not_new(store: Store, tmp_path: Path) -> None:
    """One that was copied from elsewhere without its fingerprint: a new key would open nothing."""
    account = await stored_mail.account(store)
    await stored_mail.webhook(store, OUTSIDE, account, bytes(32))
    with pytest.raises(KeyFileError, match="missing, but"):
        await shared_key(tmp_path / "node", store)
    assert not (tmp_path / "node" / KEY_FILE).exists()


@needs("postgresql")
async def test_a_wrong_key_is_told_before_the_schema_is_changed(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.new_database()
    async with open_store(tmp_path, OUTSIDE, url=url, inline=True) as store:
        key = await shared_key(tmp_path / "one", store)
    later = (*migrate.migrations(), migrate.SchemaStep(9_999, "later", "CREATE TABLE later (id BIGINT)", 1))
    monkeypatch.setattr(migrate, "migrations", lambda: list(later))
    with pytest.raises(KeyFileError, match="missing, but"):
        async with open_store(tmp_path, OUTSIDE, url=url, check_key=key_check(tmp_path / "two"), inline=True):
            pass
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT to_regclass('later')").fetchone() == (None,)
    async with open_store(tmp_path, OUTSIDE, url=url, check_key=key_check(tmp_path / "one"), inline=True) as store:
        assert await store.installation.key_fingerprint() == fingerprint(key)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT to_regclass('later')").fetchone() == ("later",)


def test_the_check_before_anything_is_written(tmp_path: Path) -> None:
    check = key_check(tmp_path)
    check(None)
    with pytest.raises(KeyFileError, match="missing, but"):
        check("aa")
    own = fingerprint(load_or_create(tmp_path))
    check(None)
    check(own)
    with pytest.raises(KeyFileError, match="wrong key file"):
        check("aa")
    (tmp_path / KEY_FILE).unlink()
    (tmp_path / KEY_FILE).write_bytes(b"short")
    with pytest.raises(KeyFileError, match="expected 32 bytes"):
        check(None)


async def test_beside_a_file_the_key_in_use_is_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """SQLite's database goes on with any key; one that was exchanged is told, once, where secrets are stored."""
    async with open_store(tmp_path, OUTSIDE, inline=True) as store:
        await record_own_key(tmp_path, store, bytes(32), created=False)
        await record_own_key(tmp_path, store, b"1" * 32, created=False)
        assert caplog.messages == []
        account = await stored_mail.account(store)
        await stored_mail.webhook(store, OUTSIDE, account, b"1" * 32)
        for _ in range(2):
            await record_own_key(tmp_path, store, bytes(32), created=False)
        assert await store.installation.key_fingerprint() == fingerprint(bytes(32))
    (told,) = caplog.messages
    assert "key file changed since the last start" in told
