"""Parts of large messages on a disk that fails, and in a file that misses some."""

from pathlib import Path

import apsw
import pytest
import trio

from appliance.environment import Environment
from appliance.errors import StorageFault, StorageUnavailable
from appliance.model.mail import NewMessage
from appliance.store import FILE_NAME, Store, open_store
from appliance.store.sqlite.faults import Damaged
from appliance.store.sqlite.integrity import examine_inside
from tests.store.samples import HASH, Clock, Faults, Messages
from tests.store.test_body_parts import cleared, large, parts
from tests.store.test_body_parts_stored_bytes import counted, recounted


async def test_a_writer_that_dies_between_parts_leaves_loose_ones(tmp_path: Path, clock: Clock, faults: Faults) -> None:
    failures: list[StorageFault] = []
    async with open_store(tmp_path / "data", Environment(now=clock), on_failure=failures.append) as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=None)
        new = large(Messages(Environment(now=clock), account.id), 8 * 1024 * 1024)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_refused, store, new)
            while (await parts(store))[0] < 3:
                await trio.lowlevel.checkpoint()
            faults.on_sync = apsw.IOError
        faults.on_sync = None
    assert len(failures) == 1
    async with open_store(tmp_path / "data", Environment(now=clock)) as store:
        found, loose = await parts(store)
        assert found >= 3
        assert loose == 1
        assert await store.messages.read(account.id, new.id) is None
        assert await counted(store) == await recounted(store) == {account.id: 0}
        assert await cleared(store) >= found
        assert await parts(store) == (0, 0)


async def _refused(store: Store, new: NewMessage) -> None:
    with pytest.raises(StorageUnavailable):
        await store.messages.accept(new)


async def test_a_database_with_a_part_missing_is_damaged(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / FILE_NAME
    async with open_store(tmp_path, Environment(now=clock)) as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=1)
        await store.messages.accept(new := large(Messages(Environment(now=clock), account.id)))
    examine_inside(path, 0, path.stat().st_size)
    async with open_store(tmp_path, Environment(now=clock)) as store:
        await store.engine.change("DELETE FROM message_body_parts WHERE number = 2", {})
    with pytest.raises(Damaged, match=f"parts of the message {new.id} are missing"):
        examine_inside(path, 0, path.stat().st_size)
