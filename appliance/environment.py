"""Time, randomness and outgoing connections, injected so that tests can replace them; and ids, which are made of time
and randomness."""

import ipaddress
import os
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import shake_128
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    import trio

_RANDOM_BITS = 74
_RANDOM_BYTES, _SURPLUS_BITS = 10, 6  # the least bytes with so many bits
_IDENTIFIER = 16  # bytes
_SEED = 10  # bytes
_UNUSED_BITS = 8 * _SEED - _RANDOM_BITS


# Linux: choose the port when connecting, or all connections from an address share one range of ports.
_IP_BIND_ADDRESS_NO_PORT = 24


class CannotBind(OSError):
    """A connection cannot leave from the requested address of this machine."""


async def _dial(address: str, port: int, source: str | None = None) -> "trio.abc.Stream":
    """A TCP connection to an IP address; no name is resolved here, so the checked address is the one dialled."""
    import trio  # slow to import, and few commands dial

    family = trio.socket.AF_INET if ipaddress.ip_address(address).version == 4 else trio.socket.AF_INET6
    connection = trio.socket.socket(family, trio.socket.SOCK_STREAM)
    try:
        if source is not None:
            with suppress(OSError):
                connection.setsockopt(trio.socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
            try:
                await connection.bind((source, 0))
            except OSError as error:
                raise CannotBind(error.errno, os.strerror(error.errno or 0)) from error
        await connection.connect((address, port))
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError) and not isinstance(error, CannotBind) and error.errno is not None:
            # Trio's text contains the address, and customers read it.
            raise OSError(error.errno, os.strerror(error.errno)) from error
        raise
    return trio.SocketStream(connection)


class Environment(Struct, frozen=True):
    """`now` is whole microseconds since 1970, UTC; `random_bits` are 74, for ids."""

    now: Callable[[], int] = lambda: time.time_ns() // 1000
    token_bytes: Callable[[int], bytes] = secrets.token_bytes
    random_bits: Callable[[], int] = lambda: int.from_bytes(os.urandom(_RANDOM_BYTES), "big") >> _SURPLUS_BITS
    random: Callable[[], float] = random.random  # from 0 to 1, for jitter and shuffling; not for secrets
    dial: "Callable[[str, int], Awaitable[trio.abc.Stream]]" = _dial
    dial_from: "Callable[[str, int, str], Awaitable[trio.abc.Stream]]" = _dial  # the last is an address of this machine

    def identifier(self, prefix: str) -> str:
        """A new id such as `msg_19a8…`: 54 bits of microseconds, then 74 random bits, so ids sort by creation."""
        number = self.now() << _RANDOM_BITS | self.random_bits()
        return f"{prefix}_{number.to_bytes(_IDENTIFIER, 'big').hex()}"  # twice as fast as a format with `032x`

    def identifiers(self, prefix: str, count: int) -> list[str]:
        """New ids in ascending order; their random bits cost one system call.

        They are expanded from one number, which is as hard to guess as any of them.
        """
        if count <= 1:
            return [self.identifier(prefix) for _ in range(count)]
        seed = self.random_bits().to_bytes(_SEED, "big")
        drawn, time_bits = shake_128(seed).digest(count * _SEED), self.now() << _RANDOM_BITS
        starts = range(0, count * _SEED, _SEED)
        numbers = [int.from_bytes(drawn[start : start + _SEED], "big") >> _UNUSED_BITS for start in starts]
        return sorted([f"{prefix}_{(time_bits | number).to_bytes(_IDENTIFIER, 'big').hex()}" for number in numbers])

    def identifier_after(self, prefix: str, last: str | None) -> str:
        """A new id that sorts after another of its kind, even if the clock was set back."""
        fresh = self.identifier(prefix)
        if last is None or fresh > last:
            return fresh
        return f"{prefix}_{identifier_time(last) + 1 << _RANDOM_BITS | self.random_bits():032x}"


def identifier_from(prefix: str, microseconds: int) -> str:
    """The lowest id of this time: for reading a range of time by id."""
    return f"{prefix}_{microseconds << _RANDOM_BITS:032x}"


def identifier_time(identifier: str) -> int:
    return int(identifier.rpartition("_")[2], 16) >> _RANDOM_BITS
