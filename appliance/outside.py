"""In charge of what the program takes from the world (time, randomness), so that tests can hand it their own."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import trio

SLEEP_LIMIT = 60.0  # seconds; no sleep is longer, so a jump of the clock heals within a minute

# Crockford's base 32: sorts as the number does, and no letter is mistaken for another when read aloud.
_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = tuple(high + low for high in _DIGITS for low in _DIGITS)
_RANDOM_BITS = 74


def _microseconds() -> int:
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class Outside:
    """The injected world. `now` is whole microseconds since 1970, UTC."""

    now: Callable[[], int] = _microseconds
    token_bytes: Callable[[int], bytes] = secrets.token_bytes

    def identifier(self, prefix: str) -> str:
        """A new id such as `msg_01…`: 56 bits of microseconds, then 74 random bits, so ids sort by creation."""
        random = int.from_bytes(self.token_bytes(10), "big") >> (80 - _RANDOM_BITS)
        number = (self.now() << _RANDOM_BITS) | random
        return f"{prefix}_{_base32(number)}"


def _base32(number: int) -> str:
    pairs = _PAIRS
    return "".join([pairs[(number >> shift) & 1023] for shift in range(120, -1, -10)])


class Wake:
    """A hint that there may be work; losing one costs at most `SLEEP_LIMIT`."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        """Let the waiter look again at once."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Return after `seconds` (never more than `SLEEP_LIMIT`), or as soon as somebody calls `set`."""
        with trio.move_on_after(min(seconds, SLEEP_LIMIT)):
            await self._event.wait()
        self._event = trio.Event()
