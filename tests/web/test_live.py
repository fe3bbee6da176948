"""The stream of a page: a line a second, more after mail, few at once, and an end."""

from collections import Counter
from typing import Any

import apsw
import pytest
import trio
import trio.testing

from appliance.errors import Refused
from appliance.store.engine import busy
from appliance.web.exchange import Peer
from appliance.web.live import RECHECK_SECONDS, STREAM_SECONDS, STREAMS_PER_ACCOUNT, STREAMS_PER_NETWORK, LiveStreams

ROOM = 1_000


class Page:
    """A client of a stream: what it was sent, and when it ended."""

    def __init__(self, streams: LiveStreams, account: str = "acc_1", network: str = "192.0.2.1") -> None:
        self.streams, self.account, self.network = streams, account, network
        self.peer = Peer(None)
        self.lines: list[bytes] = []
        self.ended = False
        self.is_logged_in, self.checks, self.changes = True, 0, 0
        self.fault: Exception | None = None  # of the storage

    async def read(self, room: int = ROOM) -> None:
        async def write(data: bytes, more: bool) -> None:
            self.lines.append(data)
            self.ended = not more

        async def is_valid() -> bool:
            self.checks += 1
            if self.fault is not None:
                raise self.fault
            return self.is_logged_in

        await self.streams.serve(self.account, self.network, self.peer, room, write, is_valid, lambda: self.changes)


def streams(accepted: Any = None) -> LiveStreams:
    return LiveStreams(Counter() if accepted is None else accepted, trio.Event())


async def test_a_line_each_second_and_another_after_mail(autojump_clock: trio.testing.MockClock) -> None:
    accepted = Counter({"acc_1": 7})
    page = Page(streams(accepted))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(page.read)
        await trio.sleep(1.5)
        accepted["acc_2"] += 1
        await trio.sleep(1)
        accepted["acc_1"] += 2
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    assert page.lines == [b"\n", b"\n", b"\n", b":\n", b"\n"]
    assert not page.streams.by_account
    assert not page.streams.by_network


async def test_it_ends_at_once_on_shutdown(autojump_clock: trio.testing.MockClock) -> None:
    page = Page(streams())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(page.read)
        await trio.sleep(2.5)
        page.streams.stopping.set()
    assert trio.current_time() == pytest.approx(2.5, abs=0.1)
    assert page.ended


async def test_it_ends_in_time_and_with_its_client(autojump_clock: trio.testing.MockClock) -> None:
    page, gone = Page(streams()), Page(streams())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(page.read)
        nursery.start_soon(gone.read)
        await trio.sleep(5.5)
        gone.peer.gone = True
        await trio.sleep(1)
        assert gone.ended
    assert page.ended
    assert len(page.lines) == STREAM_SECONDS + 1


@pytest.mark.parametrize(("changed_here", "within"), [(True, 1), (False, RECHECK_SECONDS)])
async def test_it_ends_with_its_login(
    changed_here: bool, within: float, autojump_clock: trio.testing.MockClock
) -> None:
    page = Page(streams())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(page.read)
        await trio.sleep(0.5)
        page.is_logged_in, page.changes = False, int(changed_here)
    assert page.ended
    assert trio.current_time() <= within + 0.1
    assert page.checks == 1


@pytest.mark.parametrize("fault", [busy(), apsw.IOError("disk I/O error")], ids=["refused", "failed"])
async def test_it_ends_while_the_storage_cannot_be_read(
    fault: Exception, autojump_clock: trio.testing.MockClock
) -> None:
    page = Page(streams())
    page.fault = fault
    await page.read()
    assert page.ended
    assert set(page.lines) == {b"\n", b""}


@pytest.mark.parametrize("shared", ["account", "network", "all"])
async def test_there_are_only_so_many(shared: str, autojump_clock: trio.testing.MockClock) -> None:
    made = streams()
    most = {"account": STREAMS_PER_ACCOUNT, "network": STREAMS_PER_NETWORK, "all": 20}[shared]
    room = most if shared == "all" else ROOM

    def page(at: int) -> Page:
        account = "acc_1" if shared == "account" else f"acc_{at}"
        return Page(made, account, "192.0.2.1" if shared == "network" else f"192.0.2.{at}")

    pages = [page(at) for at in range(most)]
    async with trio.open_nursery() as nursery:
        for each in pages:
            nursery.start_soon(each.read, room)
        await trio.sleep(1)
        with pytest.raises(Refused):
            await page(most).read(room)
        pages[0].peer.gone = True
        await trio.sleep(2)
        nursery.start_soon(page(most).read, room)
        await trio.sleep(1)
        made.stopping.set()
