"""Reads what a sender attaches to a message: metadata, and over SMTP the headers of other providers.

Our own fields are checked. Those of other providers are written by their clients for other rules: what does not fit
ours is left out, and no message is refused for it. Pure: no I/O, no state.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from appliance.errors import Refused, invalid
from appliance.message import limits
from appliance.message.characters import fault_in_line
from appliance.message.decoding import Field, header_text
from appliance.message.header_lines import check_tags
from appliance.message.schema import METADATA_KEY

_KEY: Final = re.compile(METADATA_KEY)
_KEY_SHOWN: Final = 64  # characters of a wrong key quoted in an error
_FIELD: Final = "X-Service-Metadata"
_OWN_FIELD: Final = _FIELD.lower().encode()
_CONSIDERED: Final = 100  # fields of other providers that are read, and tags and metadata in them
_encoder = msgspec.json.Encoder()


def read_metadata(pairs: Mapping[str, str], field: str = "metadata") -> str | None:
    if len(pairs) > limits.METADATA:
        raise invalid(field, f"must have at most {limits.METADATA} entries")
    for key, value in pairs.items():
        _check_pair(key, value, field)
    return _encoder.encode(dict(pairs)).decode() if pairs else None


def _check_pair(key: str, value: str, field: str) -> None:
    if not _KEY.fullmatch(key):
        reason = f"a key has 1 to {limits.METADATA_KEY_LENGTH} characters of A-Z, a-z, 0-9 and `_.-`"
        raise invalid(f"{field}.{key[:_KEY_SHOWN]}" if key else field, reason)
    if len(value) > limits.METADATA_VALUE_LENGTH:
        raise invalid(f"{field}.{key}", f"must have at most {limits.METADATA_VALUE_LENGTH} characters")
    if fault := fault_in_line(value):
        raise invalid(f"{field}.{key}", f"must not contain {fault}")


def metadata_entry(text: str) -> tuple[str, str]:
    """The entry that a filter names, `KEY:VALUE`."""
    key, colon, value = text.partition(":")
    if not colon:
        raise invalid("metadata", "expected KEY:VALUE")
    _check_pair(key, value, "metadata")
    return key, value


# ---- over SMTP
class _Offered(NamedTuple):
    tags: list[str]
    metadata: dict[str, str]


def read_labels(tags: tuple[str, ...], removed: Sequence[Field]) -> tuple[tuple[str, ...], str | None]:
    """Return tags and metadata, from our own tags and all removed fields. Our own come first and win."""
    own: dict[str, str] = {}
    offered, considered = _Offered([], {}), 0
    for name, value in removed:
        key = name.lower()
        if key == _OWN_FIELD:
            _add_own(own, value)
        elif considered == _CONSIDERED:
            continue
        elif (reader := PROVIDER_HEADERS.get(key)) is not None:
            reader(offered, value)
            considered += 1
        elif key.startswith(_POSTMARK_METADATA):
            offered.metadata[name[len(_POSTMARK_METADATA) :].decode()] = header_text(value)
            considered += 1
    if len(own) > limits.METADATA:
        raise invalid(_FIELD, f"must occur at most {limits.METADATA} times")
    more_tags = [tag for tag in offered.tags[:_CONSIDERED] if _fits(partial(check_tags, [tag], "tags", numbered=False))]
    tags = tuple(dict.fromkeys([*tags, *more_tags]))[: limits.TAGS]
    pairs = islice(offered.metadata.items(), _CONSIDERED)
    more = [pair for pair in pairs if pair[0] not in own and _fits(partial(_check_pair, *pair, _FIELD))]
    return tags, read_metadata(own | dict(more[: limits.METADATA - len(own)]))


def _add_own(own: dict[str, str], field: bytes) -> None:
    key, equals, value = header_text(field).partition("=")
    key = key.strip(" ")
    if not equals:
        raise invalid(_FIELD, "expected key=value")
    if key in own:
        raise invalid(f"{_FIELD}.{key[:_KEY_SHOWN]}", "this key occurs twice")
    _check_pair(key, value.strip(" "), _FIELD)
    own[key] = value.strip(" ")


def _fits(check: Callable[[], None]) -> bool:
    try:
        check()
    except Refused:
        return False
    return True


def _add_tag(offered: _Offered, field: bytes) -> None:
    offered.tags.append(header_text(field))


def _add_listed_tags(offered: _Offered, field: bytes) -> None:
    offered.tags.extend(tag.strip(" ") for tag in header_text(field).split(","))


def _add_object(offered: _Offered, field: bytes) -> None:
    offered.metadata.update(_strings(_decoded(field)))


def _add_smtpapi(offered: _Offered, field: bytes) -> None:
    read = _decoded(field)
    if isinstance(read, dict):
        category = read.get("category")
        listed = category if isinstance(category, list) else [category]
        offered.tags.extend(tag for tag in listed if isinstance(tag, str))
        offered.metadata.update(_strings(read.get("unique_args")))


def _decoded(field: bytes) -> Any:
    try:
        return msgspec.json.decode(field.replace(b"\r\n", b""))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _strings(value: Any) -> Iterable[tuple[str, str]]:
    """The entries of a JSON object; numbers and booleans as JSON writes them."""
    for key, item in islice(value.items(), _CONSIDERED) if isinstance(value, dict) else ():
        if isinstance(item, str):
            yield key, item
        elif isinstance(item, int | float):
            yield key, _encoder.encode(item).decode()


# All other fields with the prefixes in `header_lines.PROVIDER_PREFIXES` are removed unread.
_POSTMARK_METADATA: Final = b"x-pm-metadata-"
PROVIDER_HEADERS: Final[dict[bytes, Callable[[_Offered, bytes], None]]] = {
    b"x-mailgun-tag": _add_tag,
    b"x-mailgun-variables": _add_object,
    b"x-mc-metadata": _add_object,
    b"x-mc-tags": _add_listed_tags,
    b"x-pm-tag": _add_tag,
    b"x-smtpapi": _add_smtpapi,
}
