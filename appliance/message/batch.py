"""Decodes the messages of a batch, each with the limits and errors of one request, and the fingerprint of all. No I/O.

A batch comes as JSON, or from a door in another form; a series is one message that is made for each recipient.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from appliance.errors import Refused, invalid
from appliance.message import limits
from appliance.message.characters import cost_of_size
from appliance.message.request import (
    ORDERED,
    TOKENS,
    Body,
    check_number_of_values,
    decode,
    explain,
    fingerprint,
    json_number,
    occurrences,
    scan,
)
from appliance.message.schema import OnError, SendRequest

DECODING = 80  # microseconds to decode and fingerprint the smallest request
SMALLEST = 40  # bytes of a request
REQUESTS_PER_TOKEN = 10  # messages of a batch that count as one request


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    emails: Annotated[list[Raw], Meta(min_length=1, max_length=limits.BATCH_MESSAGES)]
    on_error: str | UnsetType | None = UNSET


_ENVELOPE = msgspec.json.Decoder(_Envelope)


class Batch(msgspec.Struct, frozen=True):
    """A decoded batch: its requests by their place, and refusals in the places of the others."""

    items: list[SendRequest | Refused]
    sizes: list[int]  # bytes of each
    skip: bool
    fingerprint: bytes
    begin: int = 0  # place of the first one

    def places(self) -> list[range]:
        """The places of the messages of each transaction."""
        return _ranges(len(self.items), limits.BATCH_MESSAGES)

    def part(self, places: range) -> "Batch":
        part = slice(places.start, places.stop)
        return Batch(self.items[part], self.sizes[part], self.skip, self.fingerprint, places.start)

    @property
    def requests(self) -> int:
        return requests_of(len(self.items))


class Series(Struct, frozen=True):
    """One message for many recipients, with a request for each. They are made in parts, when they are composed."""

    count: int
    make: Callable[[int], SendRequest]
    size: int  # bytes of the largest request

    @property
    def requests(self) -> int:
        return requests_of(self.count)

    def places(self) -> list[range]:
        return _ranges(self.count, max(1, min(limits.BATCH_MESSAGES, limits.SERIES_PART // self.size)))

    def part(self, places: range) -> Batch:
        return Batch([self.make(index) for index in places], [self.size] * len(places), False, b"", places.start)


def _ranges(count: int, step: int) -> list[range]:
    return [range(at, min(count, at + step)) for at in range(0, count, step)]


def requests_of(messages: int) -> int:
    """How many requests a batch of so many messages counts for."""
    return -(-messages // REQUESTS_PER_TOKEN)


def place(index: int) -> str:
    return f"emails[{index}]"


def cost_of_batch(size: int, most: int = limits.BATCH_MESSAGES) -> int:
    return cost_of_size(size) + (0 if most == 1 else DECODING * min(most, size // SMALLEST))


def batch_of(items: Sequence[SendRequest | Refused], *, skip: bool) -> Batch:
    """A batch of requests that came in another form. Unless it skips, the first refusal among them counts."""
    digest = hashlib.sha256()
    placed: list[SendRequest | Refused] = []
    for index, item in enumerate(items):
        if isinstance(item, Refused):
            if not skip:
                raise item.within(place(index))
            placed.append(item.within(place(index)))
            digest.update(f"-{item.text}".encode())
        else:
            placed.append(item)
            digest.update(b"+" + fingerprint(item))
    return Batch(
        placed, [0 if isinstance(item, Refused) else size_of_request(item) for item in items], skip, digest.digest()
    )


def size_of_request(request: SendRequest) -> int:
    texts = [text for text in (request.text, request.html) if isinstance(text, str)]
    texts += [file.content for file in request.attachments or ()]
    return SMALLEST + sum(map(len, texts))


def decode_batch(body: Body) -> Batch:
    """Decode a batch of any bytes; raises only Refused and MemoryError. Unless it skips, the first bad request counts.

    Each request is decoded by itself, with the limits and errors of `decode`.
    """
    texts, skip = _open_envelope(body)
    digest = hashlib.sha256(b"skip" if skip else b"reject")
    items: list[SendRequest | Refused] = []
    for index, text in enumerate(texts):
        try:
            request = decode(text)
        except Refused as refused:
            if not skip:
                raise refused.within(place(index)) from refused.__cause__
            items.append(refused.within(place(index)))
            digest.update(b"-" + _fingerprint_of_refused(text))
        else:
            items.append(request)
            digest.update(b"+" + fingerprint(request))
    return Batch(items, [len(text) for text in texts], skip, digest.digest())


_VALUES: msgspec.json.Decoder[Any] = msgspec.json.Decoder(float_hook=lambda text: json_number(float(text)))


def _fingerprint_of_refused(text: bytes) -> bytes:
    """Return a SHA-256 that is equal for equal JSON; for what is not valid JSON, that of the bytes."""
    with suppress(msgspec.DecodeError, ValueError, RecursionError):
        text = ORDERED.encode(_VALUES.decode(text))
    return hashlib.sha256(text).digest()


def _open_envelope(body: Body) -> tuple[list[bytes], bool]:
    check_number_of_values(body, limits.BATCH_JSON_VALUES)
    try:
        envelope = _ENVELOPE.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as cause:
        raise explain(cause, body, TOKENS * limits.BATCH_MESSAGES) from cause
    if envelope.on_error not in (UNSET, None, *OnError):
        raise invalid("on_error", f"expected `{OnError.REJECT}` or `{OnError.SKIP}`")
    texts = [bytes(item) for item in envelope.emails]  # copies: a view would keep the whole body in memory
    keys = 1 if envelope.on_error is UNSET else 2
    # No value has a colon but those in the requests: a pair more was dropped as the first of two with the same key.
    if occurrences(body, b":") != keys + sum(occurrences(text, b":") for text in texts):
        repeated = scan(body, len(body), TOKENS * limits.BATCH_MESSAGES)[1]
        raise invalid(repeated or "body", "this key occurs twice in one object")
    return texts, envelope.on_error == OnError.SKIP
