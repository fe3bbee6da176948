"""In charge of the log of posts: pages, what may be posted by hand, and how long it is kept."""

import json
from functools import partial

import pytest

from appliance.errors import Code, Refused
from appliance.model.events import PING_SUBJECT
from appliance.model.mail import Account, RecipientStatus
from appliance.model.webhooks import PostStatus, Trigger
from appliance.store import Store
from appliance.store.expiry import WEBHOOK_LOG
from appliance.store.sql import rows
from appliance.store.webhook_history import _OF_MESSAGE, _PAGE, PING_COOLDOWN
from tests.store.hooks import attempt, events, results, save
from tests.store.samples import HASH, SECOND, Clock, Messages


async def test_a_page_is_newest_first(store: Store, account: Account, messages: Messages, clock: Clock) -> None:
    """Pages follow each other by the last id of the one before, with or without a message's id."""
    await save(store, account.id)
    for _ in range(2):
        await results(store, messages, clock, *[RecipientStatus.DELIVERED] * 3)
    everything = store.webhook_history.page(account.id, None, None, 10)
    ids = [each.id for each in everything]
    assert ids == sorted(ids, reverse=True)
    assert len(ids) == 6
    assert [each.id for each in store.webhook_history.page(account.id, None, ids[2], 2)] == ids[3:5]
    message_id = everything[-1].message_id
    assert [each.id for each in store.webhook_history.page(account.id, message_id, None, 10)] == ids[3:]
    assert [each.id for each in store.webhook_history.page(account.id, message_id, ids[3], 10)] == ids[4:]


async def test_a_page_of_a_message_is_a_matter_of_an_index(store: Store) -> None:
    """Neither kind of page reads or sorts what it does not show."""
    names = dict.fromkeys(("account_id", "message_id", "before", "most"), "x")
    for condition, index in (("", "PRIMARY KEY"), (_OF_MESSAGE, "by_message")):
        query = "EXPLAIN QUERY PLAN " + _PAGE.format(condition=condition)
        plan = [step for *_, step in store.engine.read(partial(rows, sql=query, bindings=names))]
        assert any(index in step for step in plan), plan
        assert not any(step.startswith(("SCAN", "USE TEMP")) for step in plan), plan


async def test_a_ping_is_a_post_of_its_own_kind(store: Store, account: Account, clock: Clock) -> None:
    """It is due at once, in a lane of its own, and says that it is a test."""
    await save(store, account.id)
    ping = await store.webhook_history.ping(account.id)
    assert (ping.trigger, ping.type, ping.message_id, ping.status) == (
        Trigger.PING,
        "webhook.test",
        None,
        PostStatus.PENDING,
    )
    body = json.loads(ping.request_body)
    assert (body["id"], body["type"]) == (ping.event_id, "webhook.test")
    assert body["data"] == {"subject": PING_SUBJECT, "test": True}
    assert store.webhook_posts.bell.take() == {account.id}


async def test_pings_wait_for_each_other(store: Store, account: Account, clock: Clock) -> None:
    """Within 15 seconds the next is refused, with the seconds left; a new webhook does not help, a moved clock does."""
    await save(store, account.id)
    await store.webhook_history.ping(account.id)
    began = clock.now
    await store.webhooks.delete(account.id)
    await save(store, account.id)
    for passed, left in ((0, 15), (SECOND, 14), (14_500_000, 1)):
        clock.now = began + passed
        with pytest.raises(Refused) as refused:
            await store.webhook_history.ping(account.id)
        assert (refused.value.code, refused.value.retry_after) == (Code.RATE_LIMITED, left)
    clock.now = began + PING_COOLDOWN
    await store.webhook_history.ping(account.id)
    clock.now -= 1_000 * SECOND
    await store.webhook_history.ping(account.id)


async def test_accounts_ping_for_themselves(store: Store, account: Account) -> None:
    """One account's ping does not make another's wait."""
    other = await store.accounts.create("other", "other@example.org", HASH)
    for each in (account, other):
        await save(store, each.id)
        await store.webhook_history.ping(each.id)


async def test_a_replay_has_the_same_event(store: Store, account: Account, messages: Messages, clock: Clock) -> None:
    """A new post with the event id, the bytes and the recipient of the old, to where the webhook is now."""
    webhook = await save(store, account.id)
    await results(store, messages, clock, RecipientStatus.BOUNCED)
    (post,) = store.webhook_posts.due(events(webhook), 10)
    await store.webhook_posts.record([attempt(post, clock)])
    (first,) = store.webhook_history.page(account.id, None, None, 10)
    await save(store, account.id, url="https://other.example/")
    again = await store.webhook_history.replay(account.id, first.id)
    assert (again.event_id, again.type, again.request_body) == (first.event_id, first.type, first.request_body)
    assert (again.message_id, again.recipient_id) == (first.message_id, first.recipient_id)
    assert (again.trigger, again.status, again.attempt) == (Trigger.REPLAY, PostStatus.PENDING, 0)
    assert again.url == "https://other.example/"
    assert store.webhook_history.page(account.id, None, None, 10) == [again, first]


async def test_only_one_s_own_is_replayed(store: Store, account: Account, messages: Messages, clock: Clock) -> None:
    """Another account's delivery is as absent as one that never was; a disabled webhook gets nothing by hand."""
    other = await store.accounts.create("other", "other@example.org", HASH)
    await save(store, account.id)
    await save(store, other.id)
    await results(store, messages, clock, RecipientStatus.DELIVERED)
    (mine,) = store.webhook_history.page(account.id, None, None, 10)
    told = []
    for wanted in (mine.id, "whd_0"):
        with pytest.raises(Refused) as refused:
            await store.webhook_history.replay(other.id, wanted)
        told.append((refused.value.code, refused.value.text))
    assert told[0] == told[1]
    await save(store, account.id, enabled=False)
    for by_hand in (store.webhook_history.ping(account.id), store.webhook_history.replay(account.id, mine.id)):
        with pytest.raises(Refused) as refused:
            await by_hand
        assert refused.value.code is Code.CONFLICT


async def test_the_log_is_kept_for_a_week(store: Store, account: Account, messages: Messages, clock: Clock) -> None:
    """What is final goes after seven days, what still waits never does."""
    webhook = await save(store, account.id)
    await results(store, messages, clock, *[RecipientStatus.DELIVERED] * 2)
    done, waiting = store.webhook_posts.due(events(webhook), 10)
    await store.webhook_posts.record([attempt(done, clock, ok=True)])
    clock.now += WEBHOOK_LOG - SECOND
    assert await store.janitor.sweep() == 0
    clock.now += 2 * SECOND
    assert await store.janitor.sweep() == 1
    assert await store.janitor.sweep() == 0
    assert [each.id for each in store.webhook_history.page(account.id, None, None, 10)] == [waiting.id]
