"""The words by which messages are found: those of a query, and those that a text has. No I/O.

A word of a query is found in a text where it begins a word, whatever follows: `exam` and `example.net` find
`ada@example.net`, `ample` does not. Case does not count, nor do compatibility forms of the same character (NFKC).

Invariant: `holds(text, word)` is true exactly when one of `terms(text)` begins with `word`.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

from appliance.errors import invalid

QUERY_LENGTH: Final = 200  # characters
QUERY_WORDS: Final = 8
TERM_LENGTH: Final = 64  # characters of a word that count

# White space, controls, and the last character of all, which ends a range of terms.
_BETWEEN = re.compile("[\\s\0-\x1f\x7f-\x9f\U0010ffff]+")
# A letter or digit after what is neither; and every one of the scripts that are written without spaces.
_START = re.compile(r"(?=[\u2e80-\U0010fffe])[^\W_]|(?<![^\W_])[^\W_]")
_RUN = re.compile(r"[a-z0-9]+")
_ESCAPED = re.compile(r"[\"\\]")


def folded(text: str) -> str:
    """A text as words are compared in it."""
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()


def query_words(text: str) -> tuple[str, ...]:
    """The words of a query, each once; raises Refused if it has none or too many."""
    if len(text) > QUERY_LENGTH:
        raise invalid("q", f"must have at most {QUERY_LENGTH} characters")
    found = dict.fromkeys(word for token in _BETWEEN.split(folded(text)) if (word := _stripped(token)))
    if not found:
        raise invalid("q", "must have a letter or a digit")
    if len(found) > QUERY_WORDS:
        raise invalid("q", f"must have at most {QUERY_WORDS} words")
    return tuple(found)


def plain_words(text: str) -> tuple[str, ...]:
    """The words of what another filter asks for, where that is ASCII: what it finds, they find too."""
    if not text.isascii():
        return ()
    return tuple(word for token in _BETWEEN.split(text.lower()) if (word := _stripped(token)))


def _stripped(token: str) -> str:
    """A word without what stands before its first letter or digit, and after its last."""
    start = _START.search(token)
    return "" if start is None else _trimmed(token[start.start() :])[:TERM_LENGTH]


def _trimmed(word: str) -> str:
    end = len(word)
    while end and not word[end - 1].isalnum():
        end -= 1
    return word[:end]


def terms(text: str) -> Iterator[str]:
    """All that a word may begin with to be found in a folded text."""
    for token in _BETWEEN.split(text):
        if token.isascii() and token.isalnum():
            yield token[:TERM_LENGTH]
        else:
            for start in _START.finditer(token):
                yield token[start.start() : start.start() + TERM_LENGTH]


def holds(text: str, word: str) -> bool:
    """Whether a folded text has this word."""
    at = text.find(word)
    while at >= 0:
        if _START.match(text, at):
            return True
        at = text.find(word, at + 1)
    return False


def plain_part(word: str) -> str:
    """A part of a word, or all of it, that stands in every ASCII text that has it, also as JSON; empty: none."""
    if word.isascii() and not _ESCAPED.search(word):
        return word
    return max(_RUN.findall(word), key=len, default="")
