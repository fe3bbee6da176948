"""In charge of cleaning up: what has expired goes, slice by slice, and nothing else."""

import pytest

from appliance.model.mail import Account
from appliance.store import Store
from appliance.store import expiry as janitor_module
from appliance.store.sessions import LIFETIME
from tests.store.samples import DAY, SECOND, Clock, Messages


async def test_expired_keys_go_and_their_messages_stay(
    store: Store, messages: Messages, account: Account, clock: Clock
) -> None:
    """After a day a key is forgotten, a younger one is not, and no message is touched."""
    old = messages.new(key="old")
    await store.messages.accept(old)
    clock.now += DAY // 2
    young = messages.new(key="young")
    await store.messages.accept(young)
    assert await store.janitor.sweep() == 0
    clock.now += DAY // 2 + SECOND
    assert await store.janitor.sweep() == 1
    assert await store.janitor.sweep() == 0
    assert store.messages.remembered(account.id, "key:1", "young") is not None
    for message in (old, young):
        assert store.messages.read(account.id, message.id) is not None
        assert store.messages.mime(message.id) is not None


async def test_sessions_go_when_nobody_renews_them(store: Store, account: Account, clock: Clock) -> None:
    """A session is kept until it expires, counted from its last renewal."""
    user = store.accounts.user_by_email(account.email)
    assert user is not None
    old, young = [await store.sessions.begin(user, "192.0.2.1", "curl") for _ in range(2)]
    assert old is not None
    assert young is not None
    clock.now += LIFETIME // 2
    await store.sessions.extend(young.id)
    assert await store.janitor.sweep() == 0
    clock.now += LIFETIME // 2 + SECOND
    assert [each.id for each in store.sessions.of(user.id)] == [young.id]
    assert await store.janitor.sweep() == 1
    assert store.accounts.user_of_session(old.id) is None
    assert store.accounts.user_of_session(young.id) == user


async def test_much_is_swept_in_slices(
    store: Store, messages: Messages, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sweep never takes more than a slice; called again until it says 0, all is gone."""
    monkeypatch.setattr(janitor_module, "SLICE", 10)
    for number in range(25):
        await store.messages.accept(messages.new(key=f"key-{number}"))
    clock.now += DAY + SECOND
    assert [await store.janitor.sweep() for _ in range(4)] == [10, 10, 5, 0]
