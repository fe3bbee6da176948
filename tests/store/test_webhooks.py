"""Webhook settings: one for an account, its secret sealed, gone for good when it is deleted."""

import json

import msgspec
import pytest
from msgspec.structs import replace

from appliance.errors import Code, Refused
from appliance.model.accounts import Account
from appliance.model.mail import RecipientStatus
from appliance.model.webhooks import (
    PING_SUBJECT,
    DuePost,
    EventType,
    Lane,
    PostOutcome,
    PostResult,
    PostStatus,
    SealedSecret,
    Trigger,
    WebhookHour,
)
from appliance.store import Store
from appliance.store.engine import Row
from appliance.store.webhook_history import PING_COOLDOWN
from appliance.times import HOUR
from tests.store.hooks import SECRET, URL, attempt, events, results, save
from tests.store.samples import DAY, HASH, SECOND, WEBHOOK_LOG, Clock, Messages, expire, refusal


async def test_the_first_save_makes_it_and_the_next_changes_it(store: Store, account: Account, clock: Clock) -> None:
    made = await save(store, account.id)
    assert (made.account_id, made.url, made.events, made.enabled) == (account.id, URL, tuple(EventType), True)
    assert (made.secret, made.secret_hint) == (SECRET.sealed, SECRET.hint)
    clock.now += SECOND
    changed = await save(store, account.id, EventType.FAILED, enabled=False, url="https://other.example/")
    assert (changed.id, changed.created_at, changed.secret) == (made.id, made.created_at, made.secret)
    assert (changed.url, changed.events, changed.enabled) == ("https://other.example/", (EventType.FAILED,), False)
    assert changed.updated_at > made.updated_at
    assert await store.webhooks.of(account.id) == await store.webhooks.by_id(made.id) == changed


async def test_a_new_secret_takes_the_place_of_the_old(store: Store, account: Account) -> None:
    webhook = await save(store, account.id)
    await store.webhooks.replace_secret(webhook, SealedSecret(b"other", "wxyz"))
    found = await store.webhooks.existing(account.id)
    assert (found.secret, found.secret_hint) == (b"other", "wxyz")
    await store.webhooks.delete(account.id)
    await save(store, account.id)
    with refusal(Code.NOT_FOUND):
        await store.webhooks.replace_secret(webhook, SECRET)
    assert (await store.webhooks.existing(account.id)).secret == SECRET.sealed


async def test_a_deleted_one_is_gone(store: Store, account: Account, messages: Messages, clock: Clock) -> None:
    old = await save(store, account.id)
    await results(store, messages, clock, RecipientStatus.DELIVERED)
    await store.webhooks.delete(account.id)
    assert await store.webhooks.of(account.id) is await store.webhooks.by_id(old.id) is None
    assert await store.webhook_history.page(account.id, None, None, 10) == []
    secrets = await store.engine.rows("SELECT secret, secret_hint FROM webhooks", {})
    assert secrets == [(b"", "")]
    with pytest.raises(Refused):
        await store.webhooks.delete(account.id)
    new = await save(store, account.id)
    assert new.id != old.id
    assert await store.webhook_history.page(account.id, None, None, 10) == []


async def test_retention_deletes_the_log_of_a_deleted_one(store: Store, messages: Messages, clock: Clock) -> None:
    other = await store.accounts.create("other", "other@example.org", HASH)
    await save(store, messages.account_id)
    kept = await save(store, other.id)
    await results(store, messages, clock, *[RecipientStatus.DELIVERED] * 3)
    await results(store, Messages(messages.env, other.id), clock, RecipientStatus.DELIVERED)
    await store.webhooks.delete(messages.account_id)
    assert await expire(store) == 4  # three posts and the webhook
    assert await expire(store) == 0
    assert [each.lane for each in (await store.webhook_posts.lanes())[0]] == [events(kept)]
    assert await store.webhooks.of(other.id) == kept


# ---- webhook posts: written with their event, found when they are due, changed by each attempt, listed, replayed

FINAL = (RecipientStatus.DELIVERED, RecipientStatus.BOUNCED, RecipientStatus.FAILED)


async def test_each_final_result_is_a_post(store: Store, account: Account, messages: Messages, clock: Clock) -> None:
    webhook = await save(store, account.id)
    await results(store, messages, clock, *FINAL, RecipientStatus.DEFERRED)
    due = (await store.webhook_posts.due(events(webhook), 10))[0]
    bodies = [bytes(body) for (body,) in await stored(store, "SELECT body FROM events ORDER BY id")]
    assert sorted(post.body for post in due) == sorted(bodies)
    assert [post.attempt for post in due] == [0, 0, 0]
    for delivery in await store.webhook_history.page(account.id, None, None, 10):
        event = json.loads(delivery.request_body)
        assert (event["id"], event["type"]) == (delivery.event_id, delivery.type)
        assert (event["data"]["email_id"], event["data"]["recipient_id"]) == (
            delivery.message_id,
            delivery.recipient_id,
        )
        assert (delivery.url, delivery.status, delivery.trigger) == (URL, PostStatus.PENDING, Trigger.EVENT)


async def test_without_a_wish_there_is_no_post(store: Store, messages: Messages, clock: Clock) -> None:
    await results(store, messages, clock, *FINAL)
    await save(store, messages.account_id, enabled=False)
    await results(store, messages, clock, *FINAL)
    await save(store, messages.account_id, EventType.BOUNCED)
    await results(store, messages, clock, *FINAL)
    assert await stored(store, "SELECT count(*) FROM events") == [(9,)]
    assert await stored(store, "SELECT type FROM webhook_deliveries") == [("email.bounced",)]


async def test_accounts_with_new_posts_are_named(store: Store, messages: Messages, clock: Clock) -> None:
    take_new = store.webhook_posts.take_new
    await results(store, messages, clock, RecipientStatus.DELIVERED)
    assert take_new() == set()
    await save(store, messages.account_id)
    await results(store, messages, clock, RecipientStatus.DELIVERED)
    assert take_new() == {messages.account_id}
    await store.suppressions.add(messages.account_id, "b@example.net", "by hand")
    await store.messages.accept(messages.new())
    assert take_new() == {messages.account_id}
    waiting = messages.new("c@example.net")
    await store.messages.accept(waiting)
    assert take_new() == set()
    await store.queue_control.cancel(waiting.id, "unwanted")
    assert take_new() == {messages.account_id}


async def test_lanes_are_found_by_what_waits_in_them(store: Store, messages: Messages, clock: Clock) -> None:
    other = await store.accounts.create("other", "other@example.org", HASH)
    mine, theirs = await save(store, messages.account_id), await save(store, other.id)
    await results(store, messages, clock, *[RecipientStatus.DELIVERED] * 3)
    await results(store, Messages(messages.env, other.id), clock, RecipientStatus.FAILED)
    ping = await store.webhook_history.ping(other.id)
    found = {each.lane: (each.first_due, each.last_due) for each in (await store.webhook_posts.lanes())[0]}
    assert set(found) == {events(mine), events(theirs), Lane(theirs.id, Trigger.PING)}
    assert found[Lane(theirs.id, Trigger.PING)] == (ping.next_attempt_at, ping.next_attempt_at)
    due = [each.next_attempt_at or 0 for each in await store.webhook_history.page(messages.account_id, None, None, 9)]
    assert found[events(mine)] == (min(due), max(due))
    assert await store.webhook_posts.lanes_of([messages.account_id]) == [(events(mine), False)]
    assert sorted(await store.webhook_posts.lanes_of([other.id, messages.account_id, "acc_unknown"])) == [
        (lane, False) for lane in sorted(found)
    ]


async def test_a_receiver_is_proven_by_its_last_post(store: Store, messages: Messages, clock: Clock) -> None:
    webhook = await save(store, messages.account_id)
    await results(store, messages, clock, *[RecipientStatus.DELIVERED] * 4)
    for ok in (True, False, True):
        clock.now += SECOND
        post, *_ = (await store.webhook_posts.due(events(webhook), 10))[0]
        await store.webhook_posts.record([attempt(post, clock, None if ok else clock.now + DAY, ok=ok)])
        assert await store.webhook_posts.lanes_of([messages.account_id]) == [(events(webhook), ok)]
        assert [each.proven for each in (await store.webhook_posts.lanes())[0]] == [ok]


async def test_an_attempt_changes_the_post(store: Store, account: Account, messages: Messages, clock: Clock) -> None:
    webhook = await save(store, account.id)
    await results(store, messages, clock, RecipientStatus.DELIVERED)
    (post,) = (await store.webhook_posts.due(events(webhook), 10))[0]
    again = clock.now + 5 * SECOND
    await store.webhook_posts.record([attempt(post, clock, again)])
    assert await store.webhook_posts.due(events(webhook), 10) == ([], again)
    (waiting,) = await store.webhook_history.page(account.id, None, None, 10)
    assert (waiting.status, waiting.attempt, waiting.next_attempt_at) == (PostStatus.PENDING, 1, again)
    clock.now = again
    (post,) = (await store.webhook_posts.due(events(webhook), 10))[0]
    assert post.attempt == 1
    await store.webhook_posts.record([attempt(post, clock, ok=True)])
    (done,) = await store.webhook_history.page(account.id, None, None, 10)
    assert (done.status, done.attempt, done.next_attempt_at, done.url) == (PostStatus.SUCCESS, 2, None, f"{URL}200")
    assert (done.response_status, done.response_body, done.duration_ms) == (200, "answer", 7)
    assert (await store.webhook_posts.lanes())[0] == []
    assert await store.webhook_posts.due(events(webhook), 10) == ([], None)
    found = await store.webhooks.existing(account.id)
    assert found.last_success_at == done.attempted_at
    assert found.last_failure_at == waiting.attempted_at


async def test_an_attempt_counts_once(store: Store, account: Account, messages: Messages, clock: Clock) -> None:
    webhook = await save(store, account.id)
    await results(store, messages, clock, RecipientStatus.DELIVERED)
    (post,) = (await store.webhook_posts.due(events(webhook), 10))[0]
    await store.webhook_posts.record([attempt(post, clock, clock.now + SECOND)])
    before = await store.webhook_history.page(account.id, None, None, 10)
    await store.webhook_posts.record([attempt(post, clock, ok=True)])
    assert await store.webhook_history.page(account.id, None, None, 10) == before


async def test_what_is_due_can_be_given_up_in_slices(store: Store, messages: Messages, clock: Clock) -> None:
    posts = replace(store.webhook_posts, posts_changed=2)
    webhook = await save(store, messages.account_id)
    await results(store, messages, clock, *[RecipientStatus.DELIVERED] * 4)
    later, *_ = (await store.webhook_posts.due(events(webhook), 10))[0]
    await store.webhook_posts.record([attempt(later, clock, clock.now + DAY)])
    assert [await posts.give_up(events(webhook), "why") for _ in range(3)] == [2, 1, 0]
    found = await store.webhook_history.page(messages.account_id, None, None, 10)
    assert (
        sorted((each.status, each.error) for each in found if each.id != later.id) == [(PostStatus.FAILED, "why")] * 3
    )
    assert {each.status for each in found if each.id == later.id} == {PostStatus.PENDING}


async def test_what_a_wrong_clock_put_off_is_brought_forward(store: Store, messages: Messages, clock: Clock) -> None:
    webhook = await save(store, messages.account_id)
    await results(store, messages, clock, *[RecipientStatus.DELIVERED] * 2)
    near, far = (await store.webhook_posts.due(events(webhook), 10))[0]
    await store.webhook_posts.record(
        [attempt(near, clock, clock.now + SECOND), attempt(far, clock, clock.now + 9 * DAY)]
    )
    assert await store.webhook_posts.bring_forward(events(webhook), clock.now + DAY) == 1
    assert [post.id for post in (await store.webhook_posts.due(events(webhook), 10))[0]] == [far.id]


async def test_a_refused_transaction_leaves_no_post(store: Store, messages: Messages, clock: Clock) -> None:
    await save(store, messages.account_id)
    message = messages.new()
    await store.messages.accept(message)
    await store.queue_control.cancel(message.id, "once")
    with pytest.raises(Refused):
        await store.queue_control.cancel(message.id, "twice")
    assert (
        await stored(store, "SELECT count(*) FROM webhook_deliveries")
        == await stored(store, "SELECT count(*) FROM events")
        == [(1,)]
    )


async def stored(store: Store, query: str) -> list[Row]:
    return await store.engine.rows(query, {})


async def test_a_page_is_newest_first(store: Store, account: Account, messages: Messages, clock: Clock) -> None:
    await save(store, account.id)
    for _ in range(2):
        await results(store, messages, clock, *[RecipientStatus.DELIVERED] * 3)
    everything = await store.webhook_history.page(account.id, None, None, 10)
    ids = [each.id for each in everything]
    assert ids == sorted(ids, reverse=True)
    assert len(ids) == 6
    assert [each.id for each in await store.webhook_history.page(account.id, None, ids[2], 2)] == ids[3:5]
    message_id = everything[-1].message_id
    assert [each.id for each in await store.webhook_history.page(account.id, message_id, None, 10)] == ids[3:]
    assert [each.id for each in await store.webhook_history.page(account.id, message_id, ids[3], 10)] == ids[4:]


async def test_a_ping_is_a_post_of_its_own_kind(store: Store, account: Account, clock: Clock) -> None:
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
    assert store.webhook_posts.take_new() == {account.id}


async def test_pings_wait_for_each_other(store: Store, account: Account, clock: Clock) -> None:
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
    other = await store.accounts.create("other", "other@example.org", HASH)
    for each in (account, other):
        await save(store, each.id)
        await store.webhook_history.ping(each.id)


async def test_a_replay_has_the_same_event(store: Store, account: Account, messages: Messages, clock: Clock) -> None:
    webhook = await save(store, account.id)
    await results(store, messages, clock, RecipientStatus.BOUNCED)
    (post,) = (await store.webhook_posts.due(events(webhook), 10))[0]
    await store.webhook_posts.record([attempt(post, clock)])
    (first,) = await store.webhook_history.page(account.id, None, None, 10)
    await save(store, account.id, url="https://other.example/")
    again = await store.webhook_history.replay(account.id, first.id)
    assert (again.event_id, again.type, again.request_body) == (first.event_id, first.type, first.request_body)
    assert (again.message_id, again.recipient_id) == (first.message_id, first.recipient_id)
    assert (again.trigger, again.status, again.attempt) == (Trigger.REPLAY, PostStatus.PENDING, 0)
    assert again.url == "https://other.example/"
    assert await store.webhook_history.page(account.id, None, None, 10) == [again, first]


async def test_only_one_s_own_is_replayed(store: Store, account: Account, messages: Messages, clock: Clock) -> None:
    other = await store.accounts.create("other", "other@example.org", HASH)
    await save(store, account.id)
    await save(store, other.id)
    await results(store, messages, clock, RecipientStatus.DELIVERED)
    (mine,) = await store.webhook_history.page(account.id, None, None, 10)
    told = []
    for wanted in (mine.id, "whd_0"):
        with pytest.raises(Refused) as refused:
            await store.webhook_history.replay(other.id, wanted)
        told.append((refused.value.code, refused.value.text))
    assert told[0] == told[1]
    await save(store, account.id, enabled=False)
    for by_hand in (store.webhook_history.ping(account.id), store.webhook_history.replay(account.id, mine.id)):
        with refusal(Code.CONFLICT):
            await by_hand


async def test_the_log_is_kept_for_a_week(store: Store, account: Account, messages: Messages, clock: Clock) -> None:
    webhook = await save(store, account.id)
    await results(store, messages, clock, *[RecipientStatus.DELIVERED] * 2)
    done, waiting = (await store.webhook_posts.due(events(webhook), 10))[0]
    await store.webhook_posts.record([attempt(done, clock, ok=True)])
    clock.now += WEBHOOK_LOG - SECOND
    assert await expire(store) == 0
    clock.now += 2 * SECOND
    assert await expire(store) == 1
    assert await expire(store) == 0
    assert [each.id for each in await store.webhook_history.page(account.id, None, None, 10)] == [waiting.id]


# ---- statistics and test events


async def test_attempts_are_counted_by_hour_and_outcome(
    store: Store, account: Account, messages: Messages, clock: Clock
) -> None:
    """Each attempt counts, with its duration; the hours leave with the log, and another webhook has its own."""
    webhook = await save(store, account.id)
    await results(store, messages, clock, *[RecipientStatus.DELIVERED] * 3)
    first, second, third = (await store.webhook_posts.due(events(webhook), 10))[0]
    done = [attempt(first, clock, ok=True), attempt(second, clock, ok=True), attempt(third, clock, clock.now + SECOND)]
    await store.webhook_posts.record([done[0]])
    await store.webhook_posts.record([replace_duration(done[1], 13), done[2]])
    hour = clock.now // HOUR
    assert await store.webhook_history.hours(account.id, hour) == [
        WebhookHour(hour, PostOutcome.SERVER_ERROR, 1, 7, 7),
        WebhookHour(hour, PostOutcome.SUCCESS, 2, 20, 13),
    ]
    assert await store.webhook_history.hours(account.id, hour + 1) == []
    clock.now += WEBHOOK_LOG + HOUR
    await expire(store)
    assert await store.webhook_history.hours(account.id, 0) == []


def replace_duration(result: PostResult, milliseconds: int) -> PostResult:
    return msgspec.structs.replace(result, duration_ms=milliseconds)


@pytest.mark.parametrize(
    ("code", "outcome"), [(302, "redirect"), (404, "client_error"), (503, "server_error"), (None, "no_response")]
)
def test_an_outcome_is_the_class_of_the_response(code: int | None, outcome: str) -> None:
    post = DuePost(Lane("whk_1", Trigger.EVENT), "whd_1", 0, b"")
    assert PostResult(post, PostStatus.FAILED, URL, code, None, None, 1, 1, None).outcome == outcome


@pytest.mark.parametrize("kind", EventType)
async def test_an_example_is_posted_as_a_test(store: Store, account: Account, kind: EventType) -> None:
    """Of any type, marked as a test, about no message; examples and pings share one limit."""
    await save(store, account.id, EventType.FAILED)
    delivery = await store.webhook_history.ping(account.id, kind)
    assert (delivery.type, delivery.trigger, delivery.message_id) == (kind, Trigger.PING, None)
    body = json.loads(delivery.request_body)
    assert (body["type"], body["id"], body["data"]["test"]) == (kind, delivery.event_id, True)
    assert body["data"]["to"] == (["support@in.example.com"] if kind is EventType.RECEIVED else "ada@example.net")
    with refusal(Code.RATE_LIMITED):
        await store.webhook_history.ping(account.id)
