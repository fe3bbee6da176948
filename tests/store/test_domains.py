"""Domains that customers add: not usable before they are proven, and a limit to how many."""

from dataclasses import replace

import pytest

from appliance.errors import Code, Refused
from appliance.model.mail import Account
from appliance.store import Store


async def usable(store: Store, account: Account) -> frozenset[str]:
    """What the account may send from."""
    caller = await store.access.caller_by_account(account.id)
    assert caller is not None
    return caller.domains


async def test_a_domain_is_usable_once_it_is_proven(store: Store, account: Account) -> None:
    """Registered, proven, removed, registered again: each state as it should be."""
    added = await store.domains.register(account.id, "a.example")
    assert (added.usable, added.verified_at) == (False, None)
    assert await usable(store, account) == frozenset()
    proven = await store.domains.prove(account.id, "a.example")
    assert proven.usable
    assert proven.verified_at is not None
    assert await usable(store, account) == {"a.example"}
    await store.domains.remove(account.id, "a.example")
    assert await usable(store, account) == frozenset()
    assert await store.access.domains(account.id) == []
    again = await store.domains.register(account.id, "a.example")
    assert (again.usable, again.verified_at) == (False, None)
    assert again.created_at > added.created_at


async def test_the_operators_word_stands(store: Store, account: Account) -> None:
    """What the operator adds is usable without proof, also a pending or a removed one; adding never takes it away."""
    await store.domains.register(account.id, "a.example")
    await store.access.add_domain(account.id, "a.example", usable=True)
    await store.access.add_domain(account.id, "a.example", usable=False)
    assert await usable(store, account) == {"a.example"}
    await store.domains.remove(account.id, "a.example")
    await store.access.add_domain(account.id, "a.example", usable=True)
    assert await usable(store, account) == {"a.example"}


async def test_an_account_registers_a_domain_once_and_so_many(store: Store, account: Account) -> None:
    """The same domain, and one too many, are conflicts; removed ones count, because they have keys."""
    domains = replace(store.domains, most=2)
    await domains.register(account.id, "a.example")
    with pytest.raises(Refused) as refused:
        await domains.register(account.id, "a.example")
    assert refused.value.code is Code.CONFLICT
    await domains.register(account.id, "b.example")
    await domains.remove(account.id, "b.example")
    with pytest.raises(Refused) as refused:
        await domains.register(account.id, "c.example")
    assert refused.value.code is Code.CONFLICT


async def test_another_accounts_domain_is_not_found(store: Store, account: Account) -> None:
    """It can be neither read nor proven nor removed."""
    await store.domains.register(account.id, "a.example")
    with pytest.raises(Refused):
        await store.domains.find("acc_other", "a.example")
    for verb in (store.domains.prove, store.domains.remove):
        with pytest.raises(Refused):
            await verb("acc_other", "a.example")
    assert (await store.domains.find(account.id, "a.example")).verified_at is None
