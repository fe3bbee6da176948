"""Hashing what is short: the same digest as in one go."""

import hashlib

import pytest

from appliance.message.hashing import PIECE, SHORT, feed, sha256


@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, 3 * PIECE, SHORT, SHORT + 1, 1_000_000])
def test_the_pieces_make_the_whole(size: int) -> None:
    """On both sides of every limit."""
    data = bytes(range(251)) * (size // 251 + 1)
    data = data[:size]
    assert sha256(data) == hashlib.sha256(data).digest()
    hasher = hashlib.sha256(b"before")
    feed(hasher, data)
    assert hasher.digest() == hashlib.sha256(b"before" + data).digest()


@pytest.mark.parametrize(("size", "most"), [(PIECE, PIECE), (SHORT, PIECE), (SHORT + 1, SHORT + 1)])
def test_nothing_short_is_long_enough_to_let_go_of_the_lock(size: int, most: int) -> None:
    """`hashlib` keeps it for up to 2,047 bytes; what is long is fed whole, for others can run meanwhile."""

    class Noted:
        longest = 0

        def update(self, data: bytes, /) -> None:
            self.longest = max(self.longest, len(data))

    noted = Noted()
    feed(noted, bytes(size))
    assert noted.longest == most
    assert PIECE == 2_047
