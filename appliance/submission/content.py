"""In charge of message content as it comes over the wire: where it ends, and the memory it takes. PURE.

The end of DATA is CRLF.CRLF and nothing else. Whatever another server might take for an end, or a line, is content, for
which the front door refuses the message: nothing that follows an end somebody smuggled in is ever read as a command.
"""

from collections import Counter

from appliance.message.limits import MESSAGE_SIZE
from appliance.message.line_ends import replaced
from appliance.submission.limits import WIRE_SIZE

END = b"\r\n.\r\n"


class Room:
    """The memory that messages on their way in may take, all together; nobody gets more than half of it."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._used = 0
        self._used_by: Counter[str] = Counter()

    def take(self, owner: str, amount: int) -> bool:
        """Count some more for an account, if there is room."""
        mine = self._used_by[owner] + amount
        if self._used + amount > self._total or (mine > self._total // 2 and mine > amount):
            return False
        self._used += amount
        self._used_by[owner] = mine
        return True

    def give_back(self, owner: str, amount: int) -> None:
        """What was taken is free again."""
        self._used -= amount
        self._used_by[owner] -= amount
        if not self._used_by[owner]:
            del self._used_by[owner]


class Data:
    """What follows a 354, up to its end; more of it than a message may be long is read and thrown away."""

    def __init__(self) -> None:
        # As if the line before had just ended, so that an end right at the start needs no rule of its own.
        self._held = bytearray(b"\r\n")
        self._looked_at = 0
        self.size = 0  # octets that have come
        self.kept = True

    def receive(self, data: bytes) -> bytes | None:
        """Take what has come; the bytes after the end once that was among it."""
        self._held += data
        self.size += len(data)
        end = self._held.find(END, self._looked_at)
        if end < 0:
            self._looked_at = max(0, len(self._held) - len(END) + 1)
            if not self.kept or self.size > WIRE_SIZE:
                self.discard()
            return None
        rest = bytes(self._held[end + len(END) :])
        self.size -= len(rest)
        del self._held[end + 2 :]
        return rest

    def discard(self) -> None:
        """Keep no more of it than it takes to find the end."""
        self.kept = False
        del self._held[: max(0, len(self._held) - len(END) + 1)]
        self._looked_at = 0

    def content(self) -> bytes:
        """The message, without the dots that were put in for the wire (RFC 5321 4.5.2)."""
        pieces = list(replaced(self._held, b"\r\n.", b"\r\n"))
        self._held = bytearray()
        pieces[0] = pieces[0][2:]
        return b"".join(pieces)


class Chunks:
    """The content that BDAT commands bring, each of a length it tells (RFC 3030)."""

    def __init__(self) -> None:
        self._held = bytearray()
        self.size = 0
        self.announced = 0  # octets of the chunk that is being read
        self.awaited = 0  # of these, still to come
        self.last = False
        self.kept = True

    def expect(self, size: int, *, last: bool) -> None:
        """A chunk was announced."""
        self.announced = self.awaited = size
        self.last = last

    def receive(self, data: bytes) -> bytes | None:
        """Take what has come; the bytes after the chunk once it is complete."""
        taken = data[: self.awaited]
        self.awaited -= len(taken)
        self.size += len(taken)
        if self.size > MESSAGE_SIZE:
            self.discard()
        if self.kept:
            self._held += taken
        return None if self.awaited else data[len(taken) :]

    def discard(self) -> None:
        """Keep none of it."""
        self.kept = False
        self._held.clear()

    def content(self) -> bytes:
        """The message; its last line gets an end if the client gave it none."""
        content, self._held = bytes(self._held), bytearray()
        return content if content.endswith(b"\r\n") or not content else content + b"\r\n"
