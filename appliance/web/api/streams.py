"""The streams of an account with their numbers, settings and users: /v1/streams."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from appliance.config.settings import StreamPriority
from appliance.model.accounts import User
from appliance.model.numbers import rate
from appliance.model.streams import Stream
from appliance.store.streams import StreamUse
from appliance.times import DAY
from appliance.web.api.stats import MAX_DAYS, RatedCounts, rated
from appliance.web.app import Routes, whole_number
from appliance.web.exchange import ApiAnswer, SinglePage
from appliance.web.operations import Tag, for_customers, number_parameter

_DEFAULT_DAYS = 30
_DAYS = number_parameter("days", "Number of days (UTC), including today.", _DEFAULT_DAYS, MAX_DAYS)


class StreamUserObject(msgspec.Struct):
    """A key or credential that sends by the stream."""

    id: Annotated[str, Meta(description="Key id, or SMTP username.")]
    name: Annotated[str, Meta(description="Display name.")]
    hint: Annotated[str | None, Meta(description="Last four characters of the key; null for a credential.")]


class StreamObject(RatedCounts):
    """A stream, with the account's numbers of the period."""

    name: Annotated[str, Meta(description="Name of the stream.")]
    priority: Annotated[
        StreamPriority | None, Meta(description="`high` or `low`; null if the stream is no longer configured.")
    ]
    unsubscribe: Annotated[bool, Meta(description="Whether each message has one recipient and an unsubscribe link.")]
    unsubscribed: Annotated[int, Meta(description="Addresses that have unsubscribed from the stream.")]
    unsubscribes: Annotated[int, Meta(description="Addresses that unsubscribed in the period.")]
    unsubscribe_rate: Annotated[float | None, Meta(description="Unsubscribes per delivery; null without deliveries.")]
    api_keys: Annotated[list[StreamUserObject], Meta(description="Working API keys that send by the stream.")]
    smtp_credentials: Annotated[
        list[StreamUserObject], Meta(description="Working SMTP credentials that send by the stream.")
    ]
    templates: Annotated[list[str], Meta(description="Templates that name the stream.")]


class StreamsAnswer(ApiAnswer):
    """All streams: the configured ones, and others with mail or users."""

    streams: Annotated[list[StreamObject], Meta(description="Streams; configured streams first.")]
    next: SinglePage


class StreamRoutes(Routes):
    tag = Tag.ACCOUNT

    @for_customers("GET /v1/streams", StreamsAnswer, _DAYS)
    async def list_streams(self, user: User) -> StreamsAnswer:
        """List the streams with their numbers, settings, keys, credentials and templates.

        Keys and credentials without a stream send by `transactional`, unless the message or its template names another.
        """
        days = whole_number("days", _DEFAULT_DAYS, MAX_DAYS)
        since = (self.services.env.now() // DAY - days + 1) * DAY
        numbers = await self.store.statistics.by_stream(user.account_id, since)
        uses = await self.store.stream_uses.of(user.account_id, since)
        configured = self.services.intake.streams.by_name
        names = [*configured, *sorted((numbers.keys() | uses.keys()) - configured.keys())]
        shown = [
            _stream(name, configured.get(name), numbers.get(name, {}), uses.get(name, StreamUse())) for name in names
        ]
        return StreamsAnswer(shown, None)


def _stream(name: str, stream: Stream | None, counts: Mapping[str, int], use: StreamUse) -> StreamObject:
    priority = None if stream is None else StreamPriority.LOW if stream.is_low else StreamPriority.HIGH
    return StreamObject(
        **rated(counts),
        name=name,
        priority=priority,
        unsubscribe=stream is not None and stream.unsubscribe,
        unsubscribed=use.unsubscribed,
        unsubscribes=use.unsubscribes,
        unsubscribe_rate=rate(use.unsubscribes, counts.get("delivered", 0)),
        api_keys=[StreamUserObject(*user) for user in use.api_keys],
        smtp_credentials=[StreamUserObject(*user) for user in use.smtp_credentials],
        templates=[user.id for user in use.templates],
    )
