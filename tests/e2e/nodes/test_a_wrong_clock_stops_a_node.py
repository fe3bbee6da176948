"""A node whose clock is a minute off hands over nothing and says so; once the clock is right, it goes on by itself."""

from pathlib import Path

import trio

from tests.e2e.delivery.world import delays
from tests.e2e.nodes.cluster import cluster
from tests.fakes.mx import FakeMx
from tests.set_clock import set_clock


async def test_a_wrong_clock_stops_a_node(tmp_path: Path, url: str) -> None:
    """The other node's mail goes on meanwhile."""
    clock, server = tmp_path / "clock", FakeMx()
    set_clock(clock, -60)
    async with cluster(tmp_path, url, ("a", "b"), delays("1s"), clocks={"a": clock}) as made:
        await made.domain("a.test", server)

        async def until_ready(status: int) -> None:
            with trio.fail_after(10):
                while (await made.request("a", "GET", "/readyz")).status_code != status:  # noqa: ASYNC110 - it asks
                    await trio.sleep(0.1)

        await until_ready(503)
        waits, goes = await made.send_to("a", "waits@a.test"), await made.send_to("b", "goes@a.test")
        await made.final(goes)
        await trio.sleep(1)
        assert made.recipient(waits).attempts == 0
        set_clock(clock, 0)
        await made.final(waits)
        await until_ready(200)
        assert [message.recipients for message in server.messages] == [("goes@a.test",), ("waits@a.test",)]
