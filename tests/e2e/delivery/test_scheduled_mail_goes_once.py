"""Scheduled mail goes out once and never early: whenever it is cancelled, killed, restored, or the clock is set."""

import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import trio

from appliance.times import SECOND
from tests import engines
from tests.e2e.delivery.test_the_shell_steers_a_running_server import shell
from tests.e2e.delivery.world import CREDITS, SENDER, World, world
from tests.e2e.storms.wrong_clock import wrong_clock
from tests.fakes.mx import FakeMx

KILLED = 900  # messages: the release of them takes several transactions
CANCELLED = 40


def ahead(**since_now: float) -> str:
    return (datetime.now(UTC) + timedelta(**since_now)).isoformat()


def recipients(server: FakeMx) -> Counter[str]:
    return Counter(address for message in server.messages for address in message.recipients)


def scheduled(made: World) -> int:
    ((count,),) = made.rows("SELECT count(*) FROM scheduled_messages")
    return int(count)


async def all_final(made: World) -> None:
    await made.until(lambda: not made.rows("SELECT 1 FROM messages WHERE status = 'queued' LIMIT 1"))


async def schedule(made: World, addresses: list[str], at: str) -> None:
    emails = [{"from": SENDER, "to": to, "subject": "s", "text": "t", "scheduled_at": at} for to in addresses]
    headers = {**made.running.account.bearer, "Idempotency-Key": addresses[0]}
    async with httpx.AsyncClient(base_url=made.running.url, trust_env=False, timeout=30) as client:
        answer = await client.post("/emails/batch", json={"emails": emails}, headers=headers)
    assert answer.status_code == 202, answer.text


@pytest.mark.slow
@pytest.mark.both_engines
async def test_killed_while_it_is_queued(tmp_path: Path) -> None:
    """Killed with SIGKILL between two transactions of the release, twice. Delivery is paused until then."""
    addresses = [f"user{number}@shop.test" for number in range(KILLED)]
    async with world(tmp_path) as made:
        server = FakeMx()
        await made.domain("shop.test", server)
        await shell(made, "pause", "--reason", "kills")
        for first in range(0, KILLED, 100):
            await schedule(made, addresses[first : first + 100], ahead(hours=1))
        async with engines.beside(made.running.data_dir) as store:  # accepting so many may take very long
            due_at = time.time_ns() // 1000 + SECOND
            await store.engine.change("UPDATE scheduled_messages SET due_at = :due_at", {"due_at": due_at})
        left = KILLED
        for _ in range(2):
            await made.until(lambda: scheduled(made) < max(left, 1))  # noqa: B023 - bound as it is now
            made.running.kill()
            left = scheduled(made)
            await made.start()
        await made.until(lambda: not scheduled(made))
        assert time.time_ns() // 1000 >= due_at
        assert not server.messages
        await shell(made, "resume")
        await all_final(made)
        assert recipients(server) == Counter(addresses)
        assert made.credits() == CREDITS - KILLED


@pytest.mark.both_engines
async def test_cancelled_at_the_moment_it_is_due(tmp_path: Path) -> None:
    """Each message is cancelled, with its credit back, or delivered; the answer to the cancellation says which."""
    async with world(tmp_path) as made:
        server, due, cancelled = FakeMx(), time.time() + 2, set[str]()
        await made.domain("shop.test", server)
        at = datetime.fromtimestamp(due, UTC).isoformat()
        sent = {f"user{number}@shop.test": "" for number in range(CANCELLED)}
        for address in sent:
            sent[address] = await made.send(address, scheduled_at=at)

        async def cancel(client: httpx.AsyncClient, address: str, delay: float) -> None:
            await trio.sleep(max(0.0, due + delay - time.time()))
            answer = await client.post(f"/emails/{sent[address]}/cancel", headers=made.running.account.bearer)
            assert answer.status_code in (200, 409), answer.text
            if answer.status_code == 200:
                cancelled.add(address)
                assert answer.json()["status"] == "failed"

        client = httpx.AsyncClient(base_url=made.running.url, trust_env=False, timeout=30)
        async with client, trio.open_nursery() as nursery:
            for number, address in enumerate(sent):
                nursery.start_soon(cancel, client, address, (number - CANCELLED / 2) / 100)
        await all_final(made)
        assert recipients(server) == Counter(sent.keys() - cancelled)
        assert made.credits() == CREDITS - len(sent) + len(cancelled)
        assert cancelled


@pytest.mark.slow
@pytest.mark.sqlite_only  # a node whose clock differs from the database's stops (tests/e2e/nodes)
async def test_a_clock_that_is_set(tmp_path: Path) -> None:
    """Set back, a message waits longer; set forward, it goes; set back again, nothing is repeated."""
    clock = wrong_clock(tmp_path)
    async with world(tmp_path, program=clock.program) as made:
        server = FakeMx()
        await made.domain("shop.test", server)
        soon = await made.send("soon@shop.test", scheduled_at=ahead(seconds=2))
        clock.set_by(-2)
        later = await made.send("later@shop.test", scheduled_at=ahead(days=1))
        await trio.sleep(4)
        assert not server.messages
        clock.set_by(0)
        await made.until(lambda: made.status(soon) == "delivered")
        clock.set_by(2)
        await made.until(lambda: made.status(later) == "delivered")
        clock.set_by(0)
        await trio.sleep(2)
        assert recipients(server) == {"soon@shop.test": 1, "later@shop.test": 1}


@pytest.mark.slow
@pytest.mark.sqlite_only
async def test_a_restored_backup_has_the_schedule(tmp_path: Path) -> None:
    """It holds all mail until an operator resumes it. What is due then goes at once, the others at their time."""
    async with world(tmp_path) as made:
        server, file = FakeMx(), str(tmp_path / "backup.tar")
        await made.domain("shop.test", server)
        first = await made.send("first@shop.test", scheduled_at=ahead(seconds=1))
        second = await made.send("second@shop.test", scheduled_at=ahead(hours=1))
        await shell(made, "pause", "--reason", "a backup")
        await made.until(lambda: scheduled(made) == 1)
        await shell(made, "backup", file)
        assert await made.terminate() == 0
        await shell(made, "restore", file, "--force")
        await made.start()
        await trio.sleep(1.5)
        assert (server.messages, made.status(first), scheduled(made)) == ([], "queued", 1)
        await shell(made, "resume")
        await made.until(lambda: made.status(first) == "delivered")
        assert made.status(second) == "queued"
        await shell(made, "reschedule", second, ahead(seconds=10))
        await all_final(made)
        assert recipients(server) == {"first@shop.test": 1, "second@shop.test": 1}
