"""The listener of submission: connections come out in their order, many in a turn, and nobody is starved by them."""

import errno
import socket
from typing import Any

import pytest
import trio

from appliance.config.values import Endpoint
from appliance.submission.listener import IN_A_ROW, Listener, listen


def connect(listener: Listener) -> socket.socket:
    """A client, which the kernel takes before anybody accepts it."""
    port = int(listener.url.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port))


async def test_connections_are_accepted_without_a_turn_for_each() -> None:
    """Whoever waits is accepted at once; after so many in a row others have a turn."""
    (listener,) = await listen(Endpoint("127.0.0.1", 0))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    clients = [connect(listener) for _ in range(3 * IN_A_ROW)]
    async with listener, trio.open_nursery() as nursery:
        nursery.start_soon(count)
        for client in clients:
            with client, await listener.accept() as accepted:
                assert accepted.getpeername() == client.getsockname()
        assert 1 <= turns <= 6
        nursery.cancel_scope.cancel()


async def test_it_waits_for_the_next() -> None:
    """With nobody there it waits, and can be told to wait no longer."""
    (listener,) = await listen(Endpoint("127.0.0.1", 0))
    async with listener:
        with trio.move_on_after(0.05) as scope:
            await listener.accept()
        assert scope.cancelled_caught
        with connect(listener), await listener.accept():
            pass


class Refusing:
    """A listening socket whose next connections break, and then it has no more descriptors."""

    def __init__(self, *codes: int) -> None:
        self._codes = list(codes)

    def setblocking(self, flag: bool) -> None:
        """As it is already."""

    def accept(self) -> Any:
        """Fail as the kernel would."""
        raise OSError(self._codes.pop(0), "as the kernel says it")


async def test_a_connection_that_broke_is_none() -> None:
    """What is gone before it was accepted is passed over; a full descriptor table is told."""
    listener = Listener(Refusing(errno.ECONNABORTED, errno.EPROTO, errno.EMFILE))  # type: ignore[arg-type]
    with pytest.raises(OSError, match="as the kernel says it") as error:
        await listener.accept()
    assert error.value.errno == errno.EMFILE


async def test_its_url_says_where() -> None:
    """IPv6 in brackets."""
    for host, shown in (("127.0.0.1", "127.0.0.1:"), ("::1", "[::1]:")):
        (listener,) = await listen(Endpoint(host, 0))
        async with listener:
            assert listener.url.startswith(shown)
