"""A node whose clock is a minute off refuses mail; once the clock is right, it takes and delivers mail by itself."""

from pathlib import Path

import trio

from tests.e2e.delivery.world import delays
from tests.e2e.nodes.cluster import cluster
from tests.e2e.submission.client import smtp
from tests.fakes.mx import FakeMx
from tests.running_appliance import Running
from tests.set_clock import set_clock

MESSAGE = {"from": "shop@example.com", "to": ["refused@a.test"], "subject": "On its way", "text": "Hello"}


async def test_a_wrong_clock_stops_a_node(tmp_path: Path, url: str) -> None:
    clock, server = tmp_path / "clock", FakeMx()
    set_clock(clock, -60)
    async with cluster(tmp_path, url, ("a", "b"), delays("1s"), clocks={"a": clock}) as made:
        await made.domain("a.test", server)

        async def until_ready(status: int) -> None:
            with trio.fail_after(10):
                while (await made.request("a", "GET", "/readyz")).status_code != status:  # noqa: ASYNC110 - it asks
                    await trio.sleep(0.1)

        goes = await made.send_to("b", "goes@a.test")
        refused = await made.request("a", "POST", "/emails", json=MESSAGE, headers={"Idempotency-Key": "refused"})
        assert (refused.status_code, refused.json()["code"]) == (503, "service_unavailable"), refused.text
        assert "clock" in refused.json()["error"]
        assert "Retry-After" in refused.headers
        assert await trio.to_thread.run_sync(submit, made.nodes["a"]) == b"451 4.3.0"
        await until_ready(503)
        await made.final(goes)

        set_clock(clock, 0)
        await until_ready(200)
        await made.final(await made.send_to("a", "first@a.test"))
        received = [message.recipients for message in server.messages]
        assert received == [("goes@a.test",), ("first@a.test",)]


def submit(running: Running) -> bytes:
    with smtp(running) as client:
        code, text = client.mail("shop@example.com")
        return f"{code} ".encode() + text[:5]
