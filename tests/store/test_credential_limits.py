"""In charge of how many credentials and keys an account may have."""

from contextlib import suppress

import pytest
import trio

from appliance.errors import Refused
from appliance.model.mail import Account, Scope
from appliance.store import Store, credential_limits
from tests.store.samples import HASH


@pytest.fixture
async def other(store: Store) -> Account:
    """Somebody else."""
    return await store.accounts.create("other", "other@example.org", HASH)


async def new_secret(store: Store, account: Account, kind: str, *, by_owner: bool) -> tuple[str, str]:
    """A new credential or key."""
    if kind == "keys":
        return await store.access.create_key(account.id, scope=Scope.SEND, test=False, by_owner=by_owner)
    return await store.access.create_credential(account.id, by_owner=by_owner)


def listed(store: Store, account: Account, kind: str) -> set[str]:
    """The names of all that the store knows."""
    if kind == "keys":
        return {key.id for key in store.access.keys(account.id)}
    return {each.username for each in store.access.credentials(account.id)}


@pytest.mark.parametrize("kind", ["credentials", "keys"])
async def test_an_owner_may_have_so_many_at_once(
    store: Store, account: Account, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Also when all are asked for in the same moment; the operator may always make one more."""
    monkeypatch.setattr(credential_limits, "MOST", 3)
    made: list[str] = []

    async def make(*, by_owner: bool = True) -> None:
        with suppress(Refused):
            made.append((await new_secret(store, account, kind, by_owner=by_owner))[0])

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(make)
    assert len(made) == 3
    await make(by_owner=False)
    assert len(made) == 4


@pytest.mark.parametrize("kind", ["credentials", "keys"])
async def test_the_longest_revoked_are_forgotten(
    store: Store, account: Account, other: Account, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """So many revoked ones are shown beside those that work; another account's are left alone."""
    monkeypatch.setattr(credential_limits, "REVOKED", 2)

    async def make(owner: Account) -> str:
        return (await new_secret(store, owner, kind, by_owner=True))[0]

    async def revoke(owner: Account, name: str) -> None:
        if kind == "keys":
            await store.access.revoke_key(name, owner.id)
        else:
            await store.access.revoke_credential(owner.id, name)

    working = await make(account)
    for owner in (other, account):
        names = [await make(owner) for _ in range(4)]
        for name in reversed(names):
            await revoke(owner, name)
    newest = await make(account)
    assert listed(store, account, kind) == {working, names[0], names[1], newest}
    assert len(listed(store, other, kind)) == 4
