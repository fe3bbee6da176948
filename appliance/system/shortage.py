"""Tells a shortage of this machine (descriptors, ports, memory) from a fault of the other side.

It says nothing about the mail server, webhook receiver or name that was to be reached. So the work waits and is
repeated, and no attempt is counted.
"""

import errno

SHORTAGE_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
SHORTAGE_PAUSE = 1.0  # seconds before what met a shortage is tried again


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
