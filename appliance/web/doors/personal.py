"""Texts that differ by recipient. Placeholders are found once; the text of a recipient is made when its message is.

Their number and the sizes of the texts are bounded, so that a small request does not make gigabytes.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from appliance.errors import Code, Refused, invalid
from appliance.message import limits
from appliance.message.batch import Series, place, size_of_request
from appliance.message.compose import draft
from appliance.message.schema import SendRequest

_PLACEHOLDERS: Final = 1_000  # in one text, and in all texts of a request
_WINDOW: Final = 4 * 1024  # characters per search, which holds the interpreter lock
_SEARCH_WORK: Final = 50_000_000  # characters times alternatives: about a second


class PersonalText:
    """A text as literals and names by turns: literal, name, literal, name, …, literal."""

    def __init__(self, text: str, matches: Iterator[re.Match[str]]) -> None:
        pieces, end = list[str](), 0
        for match in matches:
            if len(pieces) >= 2 * _PLACEHOLDERS:
                raise invalid("body", f"a text has more than {_PLACEHOLDERS} placeholders")
            pieces += [text[end : match.start()], match[0]]
            end = match.end()
        self._pieces = [*pieces, text[end:]]

    @property
    def placeholders(self) -> int:
        return len(self._pieces) // 2

    def filled(self, value: Callable[[str], str]) -> str:
        """The text with the value of each placeholder, which is never expanded again."""
        pieces = self._pieces
        if len(pieces) == 1:
            return pieces[0]
        values = {name: value(name) for name in set(pieces[1::2])}
        pieces = [values[piece] if at % 2 else piece for at, piece in enumerate(pieces)]
        if sum(map(len, pieces)) > limits.MESSAGE_SIZE:
            raise Refused(Code.PAYLOAD_TOO_LARGE, "a message is larger than 10 MiB")
        return "".join(pieces)


def check_placeholders(texts: Iterable[PersonalText], more: int = 0) -> None:
    """Refuse more placeholders in all texts together: each is filled for each recipient."""
    if sum(text.placeholders for text in texts) > _PLACEHOLDERS + more:
        raise invalid("body", f"has more than {_PLACEHOLDERS + more} placeholders")


def finder(keys: Sequence[str], characters: int) -> Callable[[str], Iterator[re.Match[str]]]:
    """A search for keys, the longest of those at one place, in texts of so many characters together."""
    if characters * len(keys) > _SEARCH_WORK:
        raise invalid("body", "has too many substitutions for texts of this size. Send fewer, or shorter texts")
    pattern = re.compile("|".join(map(re.escape, sorted(keys, key=len, reverse=True))))
    longest = max(map(len, keys), default=0)

    def occurrences(text: str) -> Iterator[re.Match[str]]:
        at = 0
        while keys and at < len(text):
            match = pattern.search(text, at, at + _WINDOW + longest)
            if match is not None and match.start() < at + _WINDOW:
                yield match
                at = match.end()
            else:
                at += _WINDOW

    return occurrences


def one_for_each(count: int, make: Callable[[int], SendRequest]) -> SendRequest | Series:
    """Requests for `count` recipients, all of them checked now, so that none is refused after others were accepted."""
    if count == 1:
        return make(0)
    total = largest = 0
    for index in range(count):
        try:
            request = make(index)
            size = size_of_request(request)
            largest, total = max(largest, size), total + size
            if total > limits.SERIES_SIZE:
                text = f"the messages have more than {limits.SERIES_SIZE // 2**20} MiB together. Send several requests."
                raise Refused(Code.PAYLOAD_TOO_LARGE, text)
            if not isinstance(request.template, str):
                draft(request, None)
        except Refused as refused:
            raise refused.within(place(index)) from refused.__cause__
    return Series(count, make, largest)
