"""Dials the addresses of a host one after the other, for clients that need a connection to any one of them."""

from collections.abc import Awaitable, Callable, Sequence

import trio

from appliance.net.address_policy import Address
from appliance.system.shortage import raise_if_short

Dial = Callable[[str, int], Awaitable[trio.abc.Stream]]


async def dial_first(
    dial: Dial, addresses: Sequence[Address], port: int, *, patience: float
) -> tuple[Address, trio.abc.Stream]:
    """The first address that accepts a connection, and the connection; at least one address must be given.

    Each address but the last has `patience` seconds: an IPv6 route that leads nowhere mostly says nothing. The OSError
    of the last one is raised, or at once `Shortage` when this machine has no socket left.
    """
    for address in addresses[:-1]:
        with trio.move_on_after(patience):
            try:
                return address, await dial(str(address), port)
            except OSError as error:
                raise_if_short(error, str(address))
    address = addresses[-1]
    try:
        return address, await dial(str(address), port)
    except OSError as error:
        raise_if_short(error, str(address))
        raise
