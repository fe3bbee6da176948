"""In charge of what lists of credentials and of API keys have in common."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from appliance.times import rfc3339

T = TypeVar("T")


class RevokedAnswer(msgspec.Struct):
    """The answer to a revocation."""

    revoked: bool
    request_id: str


def page_before(
    found: Sequence[T], name: Callable[[T], str], before: str | None, limit: int
) -> tuple[list[T], str | None]:
    """A page of these, newest first, and what to go on before; their ids sort by time."""
    left = sorted((each for each in found if before is None or name(each) < before), key=name, reverse=True)
    return left[:limit], name(left[limit - 1]) if len(left) > limit else None


def time_or_none(at: int | None) -> str | None:
    """A time that may not have come yet."""
    return None if at is None else rfc3339(at)
