"""Mail servers that accept a connection and then do nothing: other accounts' mail goes on as if they were not there."""

import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
import trio

from tests.e2e.delivery.world import SENDER, World, world
from tests.fakes.mx import FakeMx
from tests.running_appliance import NO_TLS, Provisioned, add_account
from tests.stopwatch import Stopwatch

TARPITS = 200  # domains, each in a pool of its own
SESSIONS = 120
HONEST = 40  # messages of the other account


async def silent(stream: trio.SocketStream) -> None:
    """Accept, and never say anything."""
    async with stream:
        while await stream.receive_some():
            pass


async def dripping(stream: trio.SocketStream) -> None:
    """Greet with one byte every five seconds."""
    async with stream:
        for byte in b"220-" + b"welcome " * 60:
            await stream.send_all(bytes([byte]))
            await trio.sleep(5)


async def send_as(made: World, account: Provisioned, recipients: Sequence[str], **fields: object) -> list[str]:
    """Send a message to each; their ids."""
    body = {"from": SENDER, "subject": "On its way", "text": "Hello.\n", **fields}
    async with httpx.AsyncClient(base_url=made.running.url, trust_env=False, timeout=30, verify=NO_TLS) as client:
        ids = []
        for recipient in recipients:
            headers = {**account.bearer, "Idempotency-Key": f"{recipient} {time.monotonic_ns()}"}
            answer = await client.post("/emails", json=body | {"to": [recipient]}, headers=headers)
            assert answer.status_code == 202, answer.text
            ids.append(str(answer.json()["id"]))
        return ids


async def latencies(made: World, account: Provisioned, count: int, **fields: object) -> list[float]:
    """How long each of so many messages takes, one after the other, from its request until it is delivered; sorted."""
    taken = []
    for number in range(count):
        watch = Stopwatch(made.running.pid)
        (sent,) = await send_as(made, account, [f"user{number}@good.test"], **fields)
        await made.final(sent)
        assert made.recipient(sent).status == "delivered"
        taken.append(watch.taken)
    return sorted(taken)


@pytest.mark.parametrize("tarpit", [silent, dripping], ids=["silent", "dripping"])
async def test_more_tarpits_than_sessions(tmp_path: Path, tarpit: object) -> None:
    """One account sends to far more of them than there are sessions; another's mail takes no second."""
    async with world(tmp_path, f"sessions = {SESSIONS}") as made:
        other = await trio.to_thread.run_sync(lambda: add_account(made.running.data_dir, "other", credit=10_000))
        address = await made.host("tarpit.test", tarpit)  # type: ignore[arg-type]  # one of the two above
        for number in range(TARPITS):
            made.publish(f"d{number}.test", MX=[f"10 mx.d{number}.test."])
            made.publish(f"mx.d{number}.test", A=[address])
        await made.domain("good.test", FakeMx())
        alone = await latencies(made, other, HONEST)
        await send_as(made, made.running.account, [f"ada@d{number}.test" for number in range(TARPITS)])
        beside = await latencies(made, other, HONEST)
        print(f"honest mail: alone p50 {alone[20]:.3f} p99 {alone[-1]:.3f}, beside p50 {beside[20]:.3f}", end=" ")
        print(f"p99 {beside[-1]:.3f} s")
        assert beside[-1] < 1.0
        assert made.rows("SELECT count(*) FROM attempts WHERE mx_host LIKE 'mx.d%'") == [(0,)]


async def test_large_messages_to_tarpits(tmp_path: Path) -> None:
    """Sixteen large messages to two tarpits stop neither small mail nor another account's large message."""
    large = {"text": "A long line of some text.\n" * 60_000}
    async with world(tmp_path) as made:
        other = await trio.to_thread.run_sync(lambda: add_account(made.running.data_dir, "other", credit=10_000))
        for number in range(2):
            host = f"mx.tar{number}.test"
            await made.host(host, silent)
            made.publish(f"tar{number}.test", MX=[f"10 {host}."])
        await made.domain("good.test", FakeMx())
        await send_as(made, made.running.account, [f"user{n}@tar{n % 2}.test" for n in range(16)], **large)
        await send_as(made, made.running.account, ["large@good.test"], **large)  # waits for a slot for large ones
        await trio.sleep(1)
        small = await latencies(made, made.running.account, 20)
        small_of_other = await latencies(made, other, 20)
        large_of_other = await latencies(made, other, 3, **large)
        print(f"small {small[-1]:.3f}, other's {small_of_other[-1]:.3f}, other's large {large_of_other[-1]:.3f} s")
        assert max(small[-1], small_of_other[-1]) < 1.0
        assert large_of_other[-1] < 3.0
