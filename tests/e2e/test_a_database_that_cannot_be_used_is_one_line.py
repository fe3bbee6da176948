"""Whatever is wrong with `store.url`, its database or the key file is one line at the start; nothing is written.

Each case is tried with the server and with a command, against a real PostgreSQL.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
import trio

from appliance.environment import Environment
from appliance.keys.keyfile import KEY_FILE, fingerprint, load_or_create
from appliance.store import open_store
from appliance.system.data_directory import LOCK_FILE
from tests.pgbouncer import pgbouncer
from tests.ports import free_port
from tests.postgresql_server import USER, PostgresServer, postgresql
from tests.programs import needs
from tests.running_appliance import ran

pytestmark = needs("postgresql")

PASSWORD = "geheim wörd/4711"
SETTINGS = """
[server]
data_dir = "data"
[store]
url = "{url}"
[http]
bind = ["127.0.0.1:0"]
[smtp]
bind = []
bind_tls = []
[delivery]
mode = "sandbox"
"""
COMMANDS = (("serve",), ("account", "list"), ("domain", "rotate", "demo", "example.com"))


@dataclass(frozen=True)
class Server:
    """A PostgreSQL that is also reached by TCP, where it asks for a password."""

    cluster: PostgresServer
    port: int

    def tcp(self, name: str, *, user: str = "appliance", password: str = PASSWORD, port: int = 0) -> str:
        return f"postgresql://{user}:{quote(password, safe='')}@127.0.0.1:{port or self.port}/{name}"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    port = free_port()
    with postgresql(listen_addresses="127.0.0.1", port=str(port)) as cluster:
        rules = cluster.directory / "data" / "pg_hba.conf"
        rules.write_text("local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
        with psycopg.connect(by_socket(cluster, port), autocommit=True) as connection:
            connection.execute("SELECT pg_reload_conf()")
            connection.execute(f"CREATE ROLE appliance LOGIN PASSWORD '{PASSWORD}'".encode())
        yield Server(cluster, port)


def by_socket(cluster: PostgresServer, port: int, name: str = USER) -> str:
    return f"{cluster.url(name)}&port={port}"


def sql(server: Server, name: str, *statements: str) -> None:
    with psycopg.connect(by_socket(server.cluster, server.port, name), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def new_database(server: Server, name: str, more: str = "") -> str:
    sql(server, USER, f"CREATE DATABASE {name} OWNER appliance {more}")
    return server.tcp(name)


def contents(server: Server, name: str) -> dict[str, int]:
    with psycopg.connect(by_socket(server.cluster, server.port, name)) as connection:
        tables = [table for (table,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname='public'")]
        return {
            table: row[0]
            for table in tables
            if (row := connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()) is not None
        }


def make_ours(url: str, data_dir: Path) -> None:
    """What the first start makes of a database; its key file is in this directory."""

    async def fill() -> None:
        async with open_store(data_dir, Environment(), url=url, inline=True) as store:
            await store.accounts.create("demo", "demo@example.org", "hash")
            await store.installation.claim_key(fingerprint(load_or_create(data_dir)))

    trio.run(fill)


def check_refused(directory: Path, url: str, expected: str, commands: tuple[tuple[str, ...], ...] = COMMANDS) -> None:
    """Server and commands end with 1 and this one line; no password is in it, and no key file is made."""
    (directory / "config.toml").write_text(SETTINGS.format(url=url))
    before = sorted((directory / "data").glob("*"))
    for words in commands:
        code, _, errors = ran(directory / "config.toml", *words, directory=directory)
        assert (code, errors.count("\n")) == (1, 1), (words, errors)
        if words == ("serve",):  # its stderr is a log
            errors = f"Error: {json.loads(errors)['reason']}\n"
        assert errors.startswith("Error: ")
        assert re.search(expected, errors), errors
        for part in ("geheim", "4711"):
            assert part not in errors
    after = sorted((directory / "data").glob("*"))
    assert [each for each in after if each.name != LOCK_FILE] == [each for each in before if each.name != LOCK_FILE]


# ---- the URL and the server


def test_a_wrong_url(server: Server, tmp_path: Path) -> None:
    port = server.port
    name = USER
    check_refused(
        tmp_path, f"postgresql://appliance:geheim%zz4711@127.0.0.1:{port}/{name}", "store.url: this is no URL"
    )
    check_refused(tmp_path, f"postgresql://appliance:geheim@4711@127.0.0.1:{port}/{name}", r"written as %40, %2F")
    check_refused(tmp_path, f"postgresql://appliance:geheim/4711@127.0.0.1:{port}/{name}", "store.url: this is no URL")
    check_refused(tmp_path, f"postgresql://127.0.0.1:{port}/{name}?sslmod=disable", "store.url: this is no URL")
    check_refused(tmp_path, f"mysql://appliance:geheim4711@127.0.0.1/{name}", r"config.toml: store.url: must be empty")
    check_refused(
        tmp_path, f"postgresql://appliance:geheim4711@nowhere.invalid/{name}", "resolve host 'nowhere.invalid'"
    )
    check_refused(tmp_path, server.tcp(name, port=free_port()), "store.url: the database cannot be used: .*refused")
    check_refused(tmp_path, server.tcp(name, password="geheim 4711"), 'password authentication failed for user "app')
    check_refused(tmp_path, server.tcp("nothing_here"), 'database "nothing_here" does not exist')


def test_a_host_that_does_not_answer(tmp_path: Path) -> None:
    """Packets that go nowhere: the start ends by itself, within seconds."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)  # accepts, and says nothing
        url = f"postgresql://appliance:geheim4711@127.0.0.1:{silent.getsockname()[1]}/appliance"
        check_refused(tmp_path, url, "store.url: the database cannot be used: .*timeout")


@needs("pgbouncer")
def test_a_pooler_that_does_not_pool_by_session(tmp_path: Path) -> None:
    with postgresql() as cluster, pgbouncer(cluster, "transaction") as pooler:
        url = pooler.url(cluster.new_database())
        check_refused(tmp_path, url, "store.url: the database cannot be used: a pooler .*pool_mode = session")


# ---- the database


def test_the_database_of_another_program(server: Server, tmp_path: Path) -> None:
    told = "store.url: the database holds tables that are not the appliance's"
    url = new_database(server, "another")
    sql(server, "another", "SET ROLE appliance", "CREATE TABLE migrations (id serial, migration text, batch int)")
    check_refused(tmp_path, url, told)
    assert contents(server, "another") == {"migrations": 0}


# ---- the key file


def test_a_missing_or_wrong_key_file(server: Server, tmp_path: Path) -> None:
    """A node without the installation's key file is refused, and makes none; with a copy of it, it may."""
    url = new_database(server, "keyed")
    make_ours(url, tmp_path / "first")
    before = contents(server, "keyed")
    node = tmp_path / "node"
    node.mkdir()
    check_refused(node, url, r"data/appliance.key: missing, .* Copy the key file from another node or from the backup")
    load_or_create(node / "data")
    check_refused(node, url, r"data/appliance.key: wrong key file for this database. Copy")
    (node / "data" / KEY_FILE).unlink()
    (node / "data" / KEY_FILE).write_bytes(b"half a key")
    check_refused(node, url, r"data/appliance.key: expected 32 bytes, found 10")
    assert contents(server, "keyed") == before
    shutil.copy(tmp_path / "first" / KEY_FILE, node / "data" / KEY_FILE)
    assert ran(node / "config.toml", "account", "list", directory=node)[0] == 0


# ---- the driver


def test_without_psycopg(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(SETTINGS.format(url="postgresql://appliance:geheim4711@127.0.0.1/appliance"))
    (tmp_path / "psycopg.py").write_text("raise ImportError('not here')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    for words in COMMANDS:
        command = [sys.executable, "-m", "appliance", *words, "--config", str(tmp_path / "config.toml")]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
        assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), ended.stderr
        assert "store.url: psycopg is not installed: pip install 'mail-appliance[postgresql]'" in ended.stderr
    assert not (tmp_path / "data" / KEY_FILE).exists()
