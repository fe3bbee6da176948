"""Content on the wire: its end is found however it comes in pieces, and nothing else is taken for one."""

from hypothesis import given
from hypothesis import strategies as st

from appliance.submission.content import Chunks, Data, Room

PIECES = st.lists(st.sampled_from([b"\r", b"\n", b".", b"\r\n", b"\r\n.", b"..", b"x", b"Hello", b"\0"]), max_size=30)


def received(data: Data, wire: bytes, sizes: list[int]) -> tuple[bytes, bytes] | None:
    """The content and what follows it, when the wire is cut into pieces of these sizes."""
    place = 0
    for size in [*sizes, len(wire)]:
        piece, place = wire[place : place + size], place + size
        if piece and (rest := data.receive(piece)) is not None:
            return data.content(), rest + wire[place:]
    return None


@given(PIECES, st.lists(st.integers(1, 5), max_size=60))
def test_the_end_is_found_in_any_pieces(parts: list[bytes], sizes: list[int]) -> None:
    """A message stuffed as RFC 5321 4.5.2 says comes out as it was, with what follows it untouched."""
    message = b"".join(parts) + b"\r\n"
    stuffed = b"\r\n".join(b"." + line if line.startswith(b".") else line for line in message.split(b"\r\n"))
    assert received(Data(), stuffed + b".\r\nQUIT\r\n", sizes) == (message, b"QUIT\r\n")


def test_an_empty_message() -> None:
    """The end may come first."""
    assert received(Data(), b".\r\nNOOP\r\n", []) == (b"", b"NOOP\r\n")


@given(PIECES, st.lists(st.integers(1, 5), max_size=60))
def test_what_is_thrown_away_ends_at_the_same_place(parts: list[bytes], sizes: list[int]) -> None:
    """A message that is not kept is read to its end, and no further."""
    wire = b"".join(parts).replace(b"\r\n.\r\n", b"") + b"\r\n.\r\nQUIT\r\n"
    thrown = Data()
    thrown.discard()
    whole, found = received(Data(), wire, sizes), received(thrown, wire, sizes)
    assert whole is not None
    assert found is not None
    assert found[1] == whole[1]


def test_room_is_shared() -> None:
    """Nobody has more than half, but whoever has nothing may have one message of any size; all comes back."""
    room = Room(100)
    assert room.take("a", 40)
    assert not room.take("a", 20)
    assert room.take("b", 60)
    assert not room.take("c", 1)
    room.give_back("b", 60)
    room.give_back("a", 40)
    assert room.take("c", 100)


def test_a_last_chunk_without_a_line_end_gets_one() -> None:
    """Every message ends with CRLF."""
    chunks = Chunks()
    chunks.expect(3, last=True)
    assert chunks.receive(b"abcd") == b"d"
    assert chunks.content() == b"abc\r\n"
