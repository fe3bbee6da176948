"""Streams keep kinds of mail apart, so that a newsletter neither delays a login code nor spoils its reputation."""

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Struct, field

from appliance.config.settings import StreamPriority, StreamSettings
from appliance.errors import invalid


@dataclass(frozen=True, slots=True)
class Stream:
    name: str
    is_low: bool = False  # delivery serves it after the others, with a tenth of each pool at least
    unsubscribe: bool = False  # each message has one recipient and an unsubscribe link


TRANSACTIONAL = Stream("transactional")
BROADCAST = Stream("broadcast", is_low=True, unsubscribe=True)


class Streams(Struct, frozen=True):
    """The streams of this installation, by name."""

    by_name: Mapping[str, Stream] = field(default_factory=lambda: {one.name: one for one in (TRANSACTIONAL, BROADCAST)})

    def get(self, name: str, place: str = "stream") -> Stream:
        if (stream := self.by_name.get(name)) is None:
            raise invalid(place, f"there is no such stream; expected {' or '.join(self.by_name)}")
        return stream


def configured_streams(settings: Mapping[str, StreamSettings]) -> Streams:
    """The built-in streams, and those of `[delivery.streams.NAME]`."""
    by_name = dict(Streams().by_name)
    for name, chosen in settings.items():
        default = by_name.get(name, Stream(name))
        is_low = default.is_low if chosen.priority is None else chosen.priority is StreamPriority.LOW
        unsubscribe = default.unsubscribe if chosen.unsubscribe is None else chosen.unsubscribe
        by_name[name] = Stream(name, is_low, unsubscribe)
    return Streams(by_name)
