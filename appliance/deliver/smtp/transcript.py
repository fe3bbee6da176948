"""In charge of the record of a dialogue: every command and every reply with its time, bounded, without secrets."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

FIRST_LINES = 64  # kept from the beginning
LAST_LINES = 32  # kept from the end, when there are more
LINE_CHARACTERS = 500  # kept of one line; the verdict has the whole reply

CLIENT, SERVER, NOTE = "C", "S", "*"


class Line(NamedTuple):
    """One line of a dialogue."""

    milliseconds: int  # since its beginning
    speaker: str  # `C` we, `S` the server, `*` a remark such as "TLSv1.3"
    text: str


class Transcript:
    """Written while a dialogue goes on, read when it is over."""

    __slots__ = ("_clock", "_first", "_last", "_left_out", "_start")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock  # seconds
        self._start = clock()
        self._first: list[Line] = []
        self._last: deque[Line] = deque(maxlen=LAST_LINES)
        self._left_out = 0

    def add(self, speaker: str, *texts: str) -> None:
        """Note what was said just now."""
        now = int((self._clock() - self._start) * 1000)
        first = self._first
        if len(first) + len(texts) > FIRST_LINES:
            self._overflow([Line(now, speaker, text[:LINE_CHARACTERS]) for text in texts])
            return
        for text in texts:
            first.append(Line(now, speaker, text[:LINE_CHARACTERS]))

    def _overflow(self, lines: list[Line]) -> None:
        room = FIRST_LINES - len(self._first)
        self._first += lines[:room]
        self._left_out += max(0, len(self._last) + len(lines[room:]) - LAST_LINES)
        self._last += lines[room:]

    def lines(self) -> tuple[Line, ...]:
        """What is kept; a remark stands where lines were left out."""
        if not self._left_out:
            return (*self._first, *self._last)
        gap = Line(self._last[0].milliseconds, NOTE, f"{self._left_out} lines left out")
        return (*self._first, gap, *self._last)
