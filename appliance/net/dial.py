"""Dials the addresses of a host, and tells a shortage of this machine from a fault of the other side.

A shortage (of descriptors, ports, memory) says nothing about the mail server, webhook receiver or name that was to be
reached. So the work waits and is repeated, and no attempt is counted.
"""

import errno
from collections.abc import Awaitable, Callable, Sequence
from math import inf

import trio

from appliance.net.address_policy import Address

SHORTAGE_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
SHORTAGE_PAUSE = 1.0  # seconds before what met a shortage is tried again

Dial = Callable[[str, int], Awaitable[trio.abc.Stream]]


class Shortage(Exception):
    """This machine has run out of a resource; the text is the system's."""


def lack_behind(error: BaseException, address: str = "") -> str | None:
    """The system's text of a shortage, if one is the cause of an error; `address` is the one dialled.

    EADDRNOTAVAIL is a shortage of local ports only for IPv4; for IPv6 it mostly means that this machine has no address.
    """
    if isinstance(error, OSError):
        no_port = error.errno == errno.EADDRNOTAVAIL and "." in address
        if error.errno in SHORTAGE_ERRNOS or no_port:
            return error.strerror or str(error)
    behind: list[BaseException] = [] if error.__cause__ is None else [error.__cause__]
    if isinstance(error, BaseExceptionGroup):
        behind += error.exceptions
    return next((lack for each in behind if (lack := lack_behind(each, address)) is not None), None)


def raise_if_short(error: BaseException, address: str = "") -> None:
    if (lack := lack_behind(error, address)) is not None:
        raise Shortage(lack) from error


async def dial_first(
    dial: Dial, addresses: Sequence[Address], port: int, *, patience: float
) -> tuple[Address, trio.abc.Stream]:
    """The first address that accepts a connection, and the connection; at least one address must be given.

    Each address but the last has `patience` seconds: an IPv6 route that leads nowhere mostly says nothing. The OSError
    of the last one is raised, or at once `Shortage` when this machine has no socket left.
    """
    for number, address in enumerate(addresses, 1):
        last = number == len(addresses)
        with trio.move_on_after(inf if last else patience):
            try:
                return address, await dial(str(address), port)
            except OSError as error:
                raise_if_short(error, str(address))
                if last:
                    raise
    raise AssertionError("the last address returns or raises")
