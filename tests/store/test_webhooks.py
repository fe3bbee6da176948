"""Webhook settings: one for an account, its secret sealed, gone for good when it is deleted."""

import pytest

from appliance.errors import Code, Refused
from appliance.model.accounts import Account
from appliance.model.mail import RecipientStatus
from appliance.model.webhooks import EventType, SealedSecret
from appliance.store import Store
from tests.store.hooks import SECRET, URL, events, results, save
from tests.store.samples import HASH, SECOND, Clock, Messages, expire


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
    with pytest.raises(Refused) as refused:
        await store.webhooks.replace_secret(webhook, SECRET)
    assert refused.value.code is Code.NOT_FOUND
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


async def test_retention_deletes_the_log_of_a_deleted_one(
    store: Store, account: Account, messages: Messages, clock: Clock
) -> None:
    other = await store.accounts.create("other", "other@example.org", HASH)
    await save(store, account.id)
    kept = await save(store, other.id)
    await results(store, messages, clock, *[RecipientStatus.DELIVERED] * 3)
    await results(store, Messages(messages.env, other.id), clock, RecipientStatus.DELIVERED)
    await store.webhooks.delete(account.id)
    assert await expire(store) == 4  # three posts and the webhook
    assert await expire(store) == 0
    assert [each.lane for each in (await store.webhook_posts.lanes())[0]] == [events(kept)]
    assert await store.webhooks.of(other.id) == kept
