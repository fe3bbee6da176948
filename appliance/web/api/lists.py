"""In charge of what lists of credentials and of API keys have in common."""

import msgspec

from appliance.times import rfc3339


class RevokedAnswer(msgspec.Struct):
    """The answer to a revocation."""

    revoked: bool
    request_id: str


def time_or_none(at: int | None) -> str | None:
    """A time that may not have come yet."""
    return None if at is None else rfc3339(at)
