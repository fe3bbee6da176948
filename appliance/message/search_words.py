"""The words of search queries and of texts. No I/O.

A query word matches where it starts a word of the text: `exam` and `example.net` match `ada@example.net`, `ample` does
not. Case and NFKC forms do not matter. `holds(text, word)` is true exactly when a term of `terms(text)` starts with it.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

from appliance.errors import invalid
from appliance.message.characters import fault_in_line

QUERY_LENGTH: Final = 200  # characters
QUERY_WORDS: Final = 8
TERM_LENGTH: Final = 64  # significant characters of a word

# White space, controls, and the last code point, which ends a range of terms.
_BETWEEN = re.compile("[\\s\0-\x1f\x7f-\x9f\U0010ffff]+")
# A letter or digit after another character; any letter of a script written without spaces.
_START = re.compile(r"(?=[\u2e80-\U0010fffe])[^\W_]|(?<![^\W_])[^\W_]")
_RUN = re.compile(r"[a-z0-9]+")
_ESCAPED = re.compile(r"[\"\\]")


def folded(text: str) -> str:
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()


def query_words(text: str) -> tuple[str, ...]:
    """Return the unique words of a query; raises Refused for zero or too many."""
    if len(text) > QUERY_LENGTH:
        raise invalid("q", f"must have at most {QUERY_LENGTH} characters")
    if fault := fault_in_line(text):
        raise invalid("q", f"must not contain {fault}")
    words = dict.fromkeys(word for token in _BETWEEN.split(folded(text)) if (word := _stripped(token)))
    if not words:
        raise invalid("q", "must have a letter or a digit")
    if len(words) > QUERY_WORDS:
        raise invalid("q", f"must have at most {QUERY_WORDS} words")
    return tuple(words)


def plain_words(text: str) -> tuple[str, ...]:
    """Return the words of another filter's text if it is ASCII: they match everything that the filter matches."""
    if not text.isascii():
        return ()
    return tuple(word for token in _BETWEEN.split(text.lower()) if (word := _stripped(token)))


def _stripped(token: str) -> str:
    start = _START.search(token)
    return "" if start is None else _trimmed(token[start.start() :])[:TERM_LENGTH]


def _trimmed(word: str) -> str:
    end = len(word)
    while end and not word[end - 1].isalnum():
        end -= 1
    return word[:end]


def terms(text: str) -> Iterator[str]:
    for token in _BETWEEN.split(text):
        if token.isascii() and token.isalnum():
            yield token[:TERM_LENGTH]
        else:
            for start in _START.finditer(token):
                yield token[start.start() : start.start() + TERM_LENGTH]


def holds(text: str, word: str) -> bool:
    at = text.find(word)
    while at >= 0:
        if _START.match(text, at):
            return True
        at = text.find(word, at + 1)
    return False


def plain_part(word: str) -> str:
    """Return a part of the word that every ASCII text with the word contains, also as JSON; empty: none."""
    if word.isascii() and not _ESCAPED.search(word):
        return word
    return max(_RUN.findall(word), key=len, default="")
