"""Readings on the thread: accounts take turns, an account's queue is bounded, the server's own is not."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from appliance.concurrency.fair_share import QUEUED_PER_OWNER, SERVER_WORK
from appliance.errors import Code, Refused
from appliance.store.engine import rows
from appliance.store.sqlite.background_reader import Scanner
from appliance.store.sqlite.connection import open_writer


@pytest.fixture
def scanner(tmp_path: Path) -> Scanner:
    """A scanner of an empty database."""
    apsw.Connection(str(tmp_path / "db")).close()
    return Scanner(tmp_path / "db", inline=True)


def noted(order: list[str], name: str) -> Callable[[object], None]:
    """A reading that notes whose it is."""
    return lambda _: order.append(name)


async def test_an_account_with_many_readings_waits_for_its_turn(tmp_path: Path) -> None:
    """Another account's only reading, which came last, is not behind all of them."""
    apsw.Connection(str(tmp_path / "db")).close()
    scanner, order, released = Scanner(tmp_path / "db", inline=False), list[str](), threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scanner.read, lambda _: released.wait(10), "many")
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(20):
            nursery.start_soon(scanner.read, noted(order, "many"), "many")
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(scanner.read, noted(order, "few"), "few")
        await trio.testing.wait_all_tasks_blocked()
        released.set()
    scanner.close()
    assert (order.index("few"), len(order)) == (0, 21)


async def test_the_first_read_of_a_server_opens_no_file(tmp_path: Path) -> None:
    """A server that is out of descriptors by then reads all the same."""
    writer = open_writer(tmp_path / "db")
    writer.execute("CREATE TABLE t (a); INSERT INTO t VALUES (1)")
    scanner = Scanner(tmp_path / "db", inline=False)
    opened = os.listdir("/proc/self/fd")
    assert await scanner.read(lambda tx: rows(tx, "SELECT a FROM t", {})) == [(1,)]
    assert os.listdir("/proc/self/fd") == opened
    scanner.close()
    writer.close()


async def test_only_an_account_is_refused(scanner: Scanner) -> None:
    """Beyond a number of readings that wait an account is told to retry; the server's own go on."""
    refused: list[Refused] = []
    order: list[str] = []

    async def read(owner: str) -> None:
        try:
            await scanner.read(noted(order, owner), owner)
        except Refused as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        for owner in ("acc_1", SERVER_WORK):
            for _ in range(QUEUED_PER_OWNER + 10):
                nursery.start_soon(read, owner)
    assert order.count(SERVER_WORK) == QUEUED_PER_OWNER + 10
    assert {each.code for each in refused} == {Code.TEMPORARY_FAILURE}
