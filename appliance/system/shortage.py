"""Tells a lack of this machine (descriptors, ports, memory) from a fault of the other side.

Nobody else can mend it, and it says nothing about the mail server, receiver or name that was to be reached. So whatever
met it waits and is tried again, and no attempt is counted.
"""

import errno

LACKS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
PAUSE = 1.0  # seconds before what met a shortage is tried again


class Shortage(Exception):
    """This machine has no more of what is needed; the text is the system's."""


def lack_behind(error: BaseException, address: str = "") -> str | None:
    """What this machine lacks, in the system's words, if that is behind an error; `address` is the one dialled.

    EADDRNOTAVAIL is a lack of local ports only for IPv4: for IPv6 it mostly means that this machine has none.
    """
    if isinstance(error, OSError):
        no_port = error.errno == errno.EADDRNOTAVAIL and "." in address
        if error.errno in LACKS or no_port:
            return error.strerror or str(error)
    behind: list[BaseException] = [] if error.__cause__ is None else [error.__cause__]
    if isinstance(error, BaseExceptionGroup):
        behind += error.exceptions
    return next((lack for each in behind if (lack := lack_behind(each, address)) is not None), None)


def raise_if_short(error: BaseException, address: str = "") -> None:
    """Raise `Shortage` if that is what is behind an error."""
    if (lack := lack_behind(error, address)) is not None:
        raise Shortage(lack) from error
