"""Times are whole microseconds since 1970, UTC, everywhere in the program: their units, and their written form."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR


@lru_cache(maxsize=64)  # many events share a second
def _whole_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix("+00:00")


def rfc3339(microseconds: int) -> str:
    """A time as the interface writes it: UTC, RFC 3339, to the millisecond."""
    seconds, rest = divmod(microseconds, SECOND)
    return f"{_whole_second(seconds)}.{rest // 1000:03d}Z"
