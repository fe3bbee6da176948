"""The feed of events: each event once, from either end, only the account's own, within a bounded time."""

from collections.abc import Callable
from itertools import count

import pytest
from msgspec.structs import replace

from appliance.model.accounts import Account
from appliance.model.mail import RecipientStatus
from appliance.store import Store
from appliance.store.event_feed import EventRange, StoredEvent
from tests.store.hooks import results
from tests.store.samples import HASH, Clock, Messages

ALL = EventRange("evt_", "evt_g", descending=False, most=100)


async def happened(store: Store, messages: Messages, clock: Clock, number: int = 5) -> list[str]:
    """The events of a message to so many recipients, by time."""
    await results(store, messages, clock, *[RecipientStatus.DELIVERED] * number)
    return await ids(store, messages.account_id, ALL)


async def ids(store: Store, account_id: str, part: EventRange) -> list[str]:
    selected, _ = await store.event_feed.page(account_id, lambda event: event.id, part)
    return selected


async def test_events_are_read_from_either_end(store: Store, messages: Messages, clock: Clock) -> None:
    events = await happened(store, messages, clock)
    assert len(set(events)) == 5
    assert events == sorted(events)
    assert await ids(store, messages.account_id, ALL._replace(descending=True)) == events[::-1]
    between = ALL._replace(after=events[0], before=events[4])
    assert await ids(store, messages.account_id, between) == events[1:4]


@pytest.mark.parametrize("descending", [False, True])
async def test_pages_have_each_event_once(store: Store, messages: Messages, clock: Clock, descending: bool) -> None:
    events, part, read = (
        await happened(store, messages, clock),
        ALL._replace(descending=descending, most=2),
        list[str](),
    )
    for _ in range(3):
        page, position = await store.event_feed.page(messages.account_id, lambda event: event.id, part)
        read += page
        if position is not None:
            part = part.behind(position)
    assert position is None
    assert read == (events[::-1] if descending else events)


async def test_only_selected_events_count(store: Store, messages: Messages, clock: Clock) -> None:
    events = await happened(store, messages, clock)
    select = lambda event: event.id if event.id in events[1::2] else None  # noqa: E731 - one expression
    page, position = await store.event_feed.page(messages.account_id, select, ALL._replace(most=2))
    assert (page, position) == (events[1::2], events[3])
    page, position = await store.event_feed.page(messages.account_id, select, ALL._replace(most=3))
    assert (page, position) == (events[1::2], None)


async def test_an_event_has_its_message(store: Store, messages: Messages, clock: Clock, account: Account) -> None:
    await happened(store, messages, clock, 1)
    (event,), _ = await store.event_feed.page(account.id, lambda event: event, ALL)
    assert isinstance(event, StoredEvent)
    assert (event.credential, event.envelope_from) == (None, "a@example.com")
    assert b'"email.delivered"' in bytes(event.body)
    other = await store.accounts.create("other", "other@example.org", HASH)
    assert await ids(store, other.id, ALL) == []


async def test_a_page_ends_when_its_time_is_over(store: Store, messages: Messages, clock: Clock) -> None:
    """It says where to continue, although nothing was selected yet."""
    await store.accounts.change_credits(messages.account_id, 200)
    for _ in range(5):
        await results(store, messages, clock, *[RecipientStatus.DELIVERED] * 50)
    events = await ids(store, messages.account_id, ALL._replace(most=1_000))
    assert len(events) == 250
    feed = replace(store.event_feed, clock=count().__next__)
    select: Callable[[StoredEvent], str | None] = lambda event: None  # noqa: E731 - one expression
    assert await feed.page(messages.account_id, select, ALL) == ([], events[199])
    rest = await feed.page(messages.account_id, lambda event: event.id, ALL.behind(events[199]))
    assert rest == (events[200:], None)
