"""In charge of tags: the words a sender files a message under."""

import re
from collections.abc import Callable, Sequence

from appliance.errors import invalid
from appliance.message import limits

_TAG = re.compile(r"[!-+\--~](?:[ -+\--~]{0,62}[!-+\--~])?")  # printable ASCII, no comma, no space at either end


def read_tags(tags: Sequence[str], place: Callable[[int], str]) -> tuple[str, ...]:
    """Judge tags; one that is given twice counts once. `place` names a tag by its number, for the refusal."""
    if len(tags) > limits.TAGS:
        raise invalid("tags", f"at most {limits.TAGS} tags are allowed")
    for index, tag in enumerate(tags):
        if not _TAG.fullmatch(tag):
            reason = "a tag has 1 to 64 printable ASCII characters, no comma, and no space at either end"
            raise invalid(place(index), reason)
    return tuple(dict.fromkeys(tags))
