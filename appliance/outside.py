"""In charge of what the program takes from the world (time, randomness), so that tests can hand it their own."""

import ipaddress
import os
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

SLEEP_LIMIT = 60.0  # seconds; no sleep is longer, so a jump of the clock heals within a minute

_RANDOM_BITS = 74
_IDENTIFIER = 16  # bytes


def _microseconds() -> int:
    return time.time_ns() // 1000


def _random_bits() -> int:
    return secrets.randbits(_RANDOM_BITS)


async def _dial(address: str, port: int) -> trio.abc.Stream:
    """A TCP connection to an IP address; no name is looked up here, so what was checked is what is dialled."""
    family = trio.socket.AF_INET if ipaddress.ip_address(address).version == 4 else trio.socket.AF_INET6
    connection = trio.socket.socket(family, trio.socket.SOCK_STREAM)
    try:
        await connection.connect((address, port))
    except OSError as error:
        connection.close()
        if error.errno is None:
            raise
        # Trio puts the address into the words, and customers read them.
        raise OSError(error.errno, os.strerror(error.errno)) from error
    except BaseException:
        connection.close()
        raise
    return trio.SocketStream(connection)


@dataclass(frozen=True, slots=True)
class Outside:
    """The injected world. `now` is whole microseconds since 1970, UTC; `random_bits` are 74, for ids."""

    now: Callable[[], int] = _microseconds
    token_bytes: Callable[[int], bytes] = secrets.token_bytes
    random_bits: Callable[[], int] = _random_bits
    random: Callable[[], float] = random.random  # from 0 to 1, for jitter and shuffling; nothing secret
    dial: Callable[[str, int], Awaitable[trio.abc.Stream]] = _dial

    def identifier(self, prefix: str) -> str:
        """A new id such as `msg_19a8…`: 54 bits of microseconds, then 74 random bits, so ids sort by creation."""
        number = self.now() << _RANDOM_BITS | self.random_bits()
        return f"{prefix}_{number.to_bytes(_IDENTIFIER, 'big').hex()}"  # half the price of a format with `032x`

    def identifier_after(self, prefix: str, last: str | None) -> str:
        """A new id that sorts after another of its kind, whatever the clock says."""
        fresh = self.identifier(prefix)
        if last is None or fresh > last:
            return fresh
        number = identifier_time(last) + 1 << _RANDOM_BITS | self.random_bits()
        return f"{prefix}_{number.to_bytes(_IDENTIFIER, 'big').hex()}"


def identifier_from(prefix: str, microseconds: int) -> str:
    """The least id that could have been given at this time: for reading a range of time by id."""
    return f"{prefix}_{microseconds << _RANDOM_BITS:032x}"


def identifier_time(identifier: str) -> int:
    """When an id was given."""
    return int(identifier.rpartition("_")[2], 16) >> _RANDOM_BITS


class Wake:
    """A hint that there may be work; losing one costs at most `SLEEP_LIMIT`."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        """Let the waiter look again at once."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Return after `seconds` (never more than `SLEEP_LIMIT`), or as soon as somebody calls `set`."""
        if self._event.is_set():  # as it nearly always is under load: then there is nothing to be timed
            await trio.lowlevel.checkpoint()
        else:
            with trio.move_on_after(min(seconds, SLEEP_LIMIT)):
                await self._event.wait()
        self._event = trio.Event()
