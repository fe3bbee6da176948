"""In charge of what lists of credentials and of API keys have in common."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from appliance.errors import Code, Refused
from appliance.events import rfc3339

MOST = 100  # of either kind that work at once, for one account

T = TypeVar("T")


class Revocable(Protocol):
    """A secret that works until it is revoked."""

    @property
    def revoked_at(self) -> int | None:
        """When it stopped working."""


class RevokedAnswer(msgspec.Struct):
    """The answer to a revocation."""

    revoked: bool
    request_id: str


def check_room(what: str, existing: Sequence[Revocable]) -> None:
    """Refuse one more than an account may have."""
    if sum(each.revoked_at is None for each in existing) >= MOST:
        raise Refused(Code.CONFLICT, f"An account may have {MOST} {what} at once. Revoke one first.")


def page_before(
    found: Sequence[T], name: Callable[[T], str], before: str | None, limit: int
) -> tuple[list[T], str | None]:
    """A page of these, newest first, and what to go on before; their ids sort by time."""
    left = sorted((each for each in found if before is None or name(each) < before), key=name, reverse=True)
    return left[:limit], name(left[limit - 1]) if len(left) > limit else None


def time_or_none(at: int | None) -> str | None:
    """A time that may not have come yet."""
    return None if at is None else rfc3339(at)
