"""In charge of cleaning up: what has expired goes, slice by slice, and nothing else."""

import pytest

from appliance.model import Account
from appliance.store import Store
from appliance.store import janitor as janitor_module
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


async def test_logged_out_tokens_go_when_they_would_have_expired(store: Store, clock: Clock) -> None:
    """A token is remembered as revoked for exactly as long as it would have been good."""
    await store.accounts.revoke_token("tok_old", clock.now + 10 * SECOND)
    await store.accounts.revoke_token("tok_young", clock.now + 30 * SECOND)
    clock.now += 20 * SECOND
    assert await store.janitor.sweep() == 1
    assert not store.accounts.is_revoked("tok_old")
    assert store.accounts.is_revoked("tok_young")


async def test_much_is_swept_in_slices(store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sweep never takes more than a slice; called again until it says 0, all is gone."""
    monkeypatch.setattr(janitor_module, "SLICE", 10)
    for number in range(25):
        await store.accounts.revoke_token(f"tok_{number}", clock.now)
    assert [await store.janitor.sweep() for _ in range(4)] == [10, 10, 5, 0]
