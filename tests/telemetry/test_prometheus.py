"""The metrics listener: one page, and slow or rude clients do not keep others from it."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from appliance.config.values import Endpoint
from appliance.environment import Environment
from appliance.store import Store, open_store
from appliance.store.engine import busy
from appliance.telemetry import prometheus
from appliance.telemetry.metrics import LOOP_LAG
from appliance.telemetry.prometheus import QUEUE_CACHED, Readings
from appliance.times import HOUR
from tests import stored_mail
from tests.telemetry.exposition import read

OUTSIDE = Environment()


async def told() -> str:
    return "a 1\n"


@pytest.mark.parametrize(
    ("head", "status", "body"),
    [
        (b"GET /metrics HTTP/1.1\r\n\r\n", b"200 OK", b"a 1\n"),
        (b"GET /metrics?x=y HTTP/1.0\r\nHost: a\r\n\r\n", b"200 OK", b"a 1\n"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200 OK", b""),
        (b"GET / HTTP/1.1\r\n\r\n", b"404 Not Found", b"The page is /metrics.\n"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405 Method Not Allowed", b"Use GET or HEAD.\n"),
        (b"", b"400 Bad Request", b"Not a valid HTTP request.\n"),
        (b"\x16\x03\x01" + b"x" * 8189, b"400 Bad Request", b"Not a valid HTTP request.\n"),
    ],
)
async def test_each_request_has_its_answer(head: bytes, status: bytes, body: bytes) -> None:
    answered = await prometheus.answer(head, told)
    first, _, rest = answered.partition(b"\r\n")
    assert first == b"HTTP/1.1 " + status
    assert rest.partition(b"\r\n\r\n")[2] == body
    assert b"Connection: close" in rest


async def ask(address: str) -> str:
    host, _, port = address.rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    async with stream:
        await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b"".join([chunk async for chunk in stream])
    return received.partition(b"\r\n\r\n")[2].decode()


async def test_it_tells_of_the_queue_and_the_process(tmp_path: Path, nursery: trio.Nursery) -> None:
    async with open_store(tmp_path, OUTSIDE, inline=True) as store:
        account = await stored_mail.account(store)
        await stored_mail.accept(store, OUTSIDE, account, "a@example.net", "b@example.net")
        deferred = await stored_mail.accept(store, OUTSIDE, account, "c@example.net")
        later = "UPDATE recipients SET next_attempt_at = 9000000000000000 WHERE message_id = :id"
        await store.engine.change(later, {"id": deferred.id})
        await store.pools.hold("google", "refused")
        await stored_mail.accept(store, OUTSIDE, account, "d@example.net", scheduled_at=OUTSIDE.now() + HOUR)
        before = sum(LOOP_LAG.counts)
        (address,) = await nursery.start(prometheus.serve, (Endpoint("127.0.0.1", 0),), Readings(tmp_path, store))
        await trio.sleep(0.3)
        found = read(await ask(address))
    queue = {labels: value for (_, labels), value in found["appliance_queue_recipients"].samples.items()}
    assert queue == {(("state", "due"),): 2, (("state", "deferred"),): 1}
    assert found["appliance_queue_held"].samples == {("appliance_queue_held", (("pool", "google"),)): 1}
    assert found["appliance_scheduled_messages"].samples == {("appliance_scheduled_messages", ()): 1}
    (overdue,) = found["appliance_queue_overdue_seconds"].samples.values()
    assert 0 < overdue < 30
    (memory,) = found["process_resident_memory_bytes"].samples.values()
    assert 10e6 < memory < 10e9
    (free,) = found["appliance_disk_free_bytes"].samples.values()
    assert free > 0
    assert sum(LOOP_LAG.counts) > before
    nursery.cancel_scope.cancel()


async def test_the_queue_is_not_read_for_each_request(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(tmp_path, OUTSIDE, inline=True) as store:
        readings = Readings(tmp_path, store)
        assert await _due(readings) == 0
        await _send(store)
        assert await _due(readings) == 0
        await trio.sleep(QUEUE_CACHED)
        assert await _due(readings) == 1
        monkeypatch.setattr(store.engine, "scan", _refused)
        await trio.sleep(QUEUE_CACHED)
        assert await _due(readings) is None


async def _refused(*_: object) -> None:
    raise busy()


async def _send(store: Store) -> None:
    await stored_mail.accept(store, OUTSIDE, await stored_mail.account(store), "a@example.net")


async def _due(readings: Readings) -> float | None:
    values = {each.name: each.values for each in await readings.now()}
    return values["appliance_queue_recipients"]["due"] if "appliance_queue_recipients" in values else None


async def test_without_an_address_there_is_no_listener(tmp_path: Path, nursery: trio.Nursery) -> None:
    async with open_store(tmp_path, OUTSIDE, inline=True) as store:
        assert await nursery.start(prometheus.serve, (), Readings(tmp_path, store)) == []
