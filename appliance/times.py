"""Times are whole microseconds since 1970, UTC, everywhere in the program: their units, and their written form."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
LATEST: Final = 2**53  # in the year 2255: what an id has bits for


@lru_cache(maxsize=64)  # many events share a second
def _whole_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix("+00:00")


def rfc3339(microseconds: int) -> str:
    """A time as the interface writes it: UTC, RFC 3339, to the millisecond."""
    seconds, rest = divmod(microseconds, SECOND)
    return f"{_whole_second(seconds)}.{rest // 1000:03d}Z"


def microseconds(text: str) -> int:
    """A time of RFC 3339, or a date, which begins at midnight UTC; raises ValueError.

    What is before 1970, or after what an id has bits for, becomes the first or the last time.
    """
    try:
        moment = datetime.fromisoformat(text)
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except OverflowError as error:
        raise ValueError(text) from error
    return min(max(0, round(seconds * SECOND)), LATEST)
