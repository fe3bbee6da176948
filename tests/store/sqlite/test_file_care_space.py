"""Space given back to the disk: many free pages make the file shorter, few are kept for new mail."""

import os
from pathlib import Path

import apsw

from appliance.environment import Environment
from appliance.store import FILE_NAME, Store, open_store
from appliance.store.sqlite.file_care import FREE_BYTES, Space, Usage
from tests.store.samples import DAY, Clock, Faults, Messages
from tests.store.test_retention import bodies

PAGE = 4096
MANY = FREE_BYTES // PAGE + 1


def test_few_free_pages_are_kept() -> None:
    assert Usage(PAGE, 4 * MANY, MANY, True).to_give_back(at_once=False) == MANY - int(0.05 * 4 * MANY)
    assert Usage(PAGE, 6 * MANY, MANY, True).to_give_back(at_once=False) == 0  # a sixth of the file
    assert Usage(PAGE, MANY, MANY - 2, True).to_give_back(at_once=False) == 0  # nearly all of it, but little


def test_a_disk_that_is_nearly_full_gets_all_of_them() -> None:
    assert Usage(PAGE, 1_000, 10, True).to_give_back(at_once=True) == 10


def test_a_file_that_cannot_become_shorter_is_left_alone() -> None:
    assert Usage(PAGE, 4 * MANY, MANY, False).to_give_back(at_once=True) == 0


async def test_the_file_becomes_shorter(tmp_path: Path, clock: Clock) -> None:
    env = Environment(now=clock)
    async with open_store(tmp_path, env, inline=True) as store:
        account = await store.accounts.create("demo", "demo@example.org", "hash")
        messages = Messages(env, account.id)
        for _ in range(20):
            await store.messages.accept(messages.new(size=500_000))
        stays = messages.new(size=300_000)
        await store.queue_control.cancel_older(clock.now, "no")
        await store.messages.accept(stays)
        space_of(store).settle()
        before = os.stat(tmp_path / FILE_NAME).st_size
        clock.now += 2 * DAY
        assert await bodies(store, clock) == 20
        given = await _give_all_back(store)
        space_of(store).settle()
        after = os.stat(tmp_path / FILE_NAME).st_size
        assert before - after >= 20 * 500_000
        assert before - after == given * PAGE
        assert (await space_of(store).usage()).free_pages == 0
        assert await store.messages.mime(stays.id) == stays.mime
        assert await store.engine.rows("PRAGMA integrity_check", {}) == [("ok",)]


async def test_a_disk_that_fails_meanwhile_ends_nothing(tmp_path: Path, clock: Clock, faults: Faults) -> None:
    async with open_store(tmp_path, Environment(now=clock), inline=True) as store:
        space_of(store).settle()
        await store.accounts.create("demo", "demo@example.org", "hash")
        with faults.raising(on_read=apsw.IOError):
            space_of(store).settle()
        space_of(store).settle()
        assert (await store.accounts.named("demo")).name == "demo"


def space_of(store: Store) -> Space:
    assert store.space is not None
    return store.space


async def _give_all_back(store: Store) -> int:
    given, more = 0, True
    while more:
        part = await space_of(store).give_back(100)
        given, more = given + part.deleted, part.more
        assert part.deleted <= 101  # with a page about the pages
    return given
