"""A hundred thousand messages due at once for a server that does not answer (threats.md 26): no delay for others."""

import shutil
from functools import partial
from pathlib import Path

import trio

from tests.bench.queued import fill_queue
from tests.e2e.delivery.world import World, world
from tests.fakes.mx import FakeMx, silence

WAITING = 100_000
SESSIONS = 10  # of a pool, unless the operator says otherwise
GROWTH = 16 * 2**20  # bytes: a hundred and sixty for each that waits would be too much
LATER = 3  # messages one after the other, so that the queue is looked at again and again


def resident(made: World) -> int:
    """The most memory that the program has had, in bytes."""
    status = Path(f"/proc/{made.running.pid}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


async def test_a_long_queue_stays_on_disk(tmp_path: Path) -> None:
    """As much memory as without a queue, no more sessions than the pool has, and others are served meanwhile."""
    async with world(tmp_path) as made:
        good, tarpit = FakeMx(), FakeMx(answers={"MAIL": silence})
        await made.domain("good.test", good)
        await made.domain("backlog.test", tarpit)
        await made.final(await made.send("ada@good.test"))
        before = resident(made)
        made.running.kill()
        account, data_dir = made.running.account.account_id, made.running.data_dir
        await trio.to_thread.run_sync(partial(fill_queue, data_dir, account, WAITING, "backlog.test", told=False))
        await made.start()
        await made.until(lambda: tarpit.sessions == SESSIONS)
        for _ in range(LATER):
            await made.final(await made.send("ada@good.test"), within=10)
        assert len(good.messages) == 1 + LATER
        assert tarpit.sessions == SESSIONS
        assert resident(made) - before < GROWTH
        waiting = made.rows("SELECT count(*) FROM recipients WHERE status = 'queued' AND attempt_count = 0")
        assert waiting == [(WAITING,)]
        assert made.complaints() == []
        made.running.kill()
        await trio.to_thread.run_sync(shutil.rmtree, data_dir)  # a quarter of a gigabyte
