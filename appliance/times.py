"""Times are whole microseconds since 1970, UTC, everywhere in the program: units and text form."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
LATEST: Final = 2**53  # in the year 2255: the limit of the bits in an id


@lru_cache(maxsize=64)  # many events share a second
def _whole_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix("+00:00")


def rfc3339(microseconds: int) -> str:
    """Format a time as the API does: RFC 3339, UTC, with milliseconds."""
    seconds, rest = divmod(microseconds, SECOND)
    return f"{_whole_second(seconds)}.{rest // 1000:03d}Z"


def microseconds(text: str) -> int:
    """Parse an RFC 3339 time, or a date (midnight UTC), as a time from 1970 to LATEST; raises ValueError."""
    try:
        moment = datetime.fromisoformat(text)
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except OverflowError as error:
        raise ValueError(text) from error
    return min(max(0, round(seconds * SECOND)), LATEST)
