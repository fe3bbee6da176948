"""Domains that customers add: not usable before they are proven, and a limit to how many."""

import pytest
from msgspec.structs import replace

from appliance.errors import Code, Refused
from appliance.model.accounts import Account, DomainDns, RecordStatus
from appliance.store import Store
from appliance.times import DAY, MINUTE, SECOND
from tests.store.samples import HASH, Clock, existing, refusal


async def usable(store: Store, account: Account) -> frozenset[str]:
    caller = existing(await store.access.caller_by_account(account.id))
    return caller.domains


async def test_a_domain_is_usable_once_it_is_proven(store: Store, account: Account) -> None:
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
    with refusal(Code.CONFLICT):
        await domains.register(account.id, "c.example")


async def test_another_accounts_domain_is_not_found(store: Store, account: Account) -> None:
    await store.domains.register(account.id, "a.example")
    with pytest.raises(Refused):
        await store.domains.find("acc_other", "a.example")
    for verb in (store.domains.prove, store.domains.remove):
        with pytest.raises(Refused):
            await verb("acc_other", "a.example")
    assert (await store.domains.find(account.id, "a.example")).verified_at is None


# ---- what DNS shows

OK, MISSING, UNKNOWN = RecordStatus.OK, RecordStatus.MISSING, RecordStatus.UNKNOWN


async def test_what_dns_showed_is_kept_and_asked_for_again(store: Store, account: Account, clock: Clock) -> None:
    for name in ("a.example", "b.example", "c.example"):
        await store.domains.register(account.id, name)

    async def due() -> list[str]:
        found = await store.domains.due(2, 9)
        assert {owner for owner, _ in found} <= {account.id}
        return [domain.name for _, domain in found]

    assert await due() == ["a.example", "b.example"]
    for name, dkim in (("a.example", OK), ("b.example", MISSING), ("c.example", MISSING)):
        read = await store.domains.find(account.id, name)
        assert read.dns is None
        shown = DomainDns(clock.now, OK, dkim, OK, None if dkim is MISSING else OK)
        await store.domains.record_dns(account.id, read, shown)
        assert (await store.domains.find(account.id, name)).dns == shown
        assert shown in [each.dns for each in await store.domains.page(account.id, "", 9)]
        assert shown in [each.dns for each in await store.access.domains(account.id)]
        clock.now += SECOND
    assert await due() == []
    clock.now += 10 * MINUTE
    assert await due() == ["b.example", "c.example"]
    await store.domains.remove(account.id, "b.example")
    clock.now += DAY
    assert await due() == ["c.example", "a.example"]


async def test_what_dns_showed_of_a_removed_domain_is_forgotten(store: Store, account: Account, clock: Clock) -> None:
    read = await store.domains.register(account.id, "a.example")
    shown = DomainDns(clock.now, OK, OK, OK)
    await store.domains.record_dns(account.id, read, shown)
    await store.domains.remove(account.id, "a.example")
    await store.domains.record_dns(account.id, read, shown)
    again = await store.domains.register(account.id, "a.example")
    assert again.dns is None
    assert len(await store.domains.due(9, 9)) == 1
    await store.domains.record_dns(account.id, again, shown)
    await store.access.add_domain(account.id, "a.example", usable=True)
    assert await store.domains.due(9, 9) == []
    await store.access.add_domain(account.id, "a.example", usable=True, return_path="rp.a.example")
    await store.domains.record_dns(account.id, again, shown)  # of the name before
    assert len(await store.domains.due(9, 9)) == 1


async def test_accounts_take_turns(store: Store, account: Account) -> None:
    other = await store.accounts.create("other", "other@example.org", HASH)
    for number in range(5):
        await store.domains.register(account.id, f"a{number}.example")
    await store.domains.register(other.id, "b.example")
    await store.engine.change(
        "UPDATE domains SET dns_check_at = 1 WHERE account_id = :id RETURNING name", {"id": other.id}
    )
    found = [domain.name for _, domain in await store.domains.due(9, 3)]
    assert found == ["a0.example", "b.example", "a1.example", "a2.example"]
    assert [domain.name for _, domain in await store.domains.due(2, 3)] == found[:2]


async def test_dns_that_does_not_answer_is_asked_ever_more_rarely(store: Store, account: Account, clock: Clock) -> None:
    await store.domains.register(account.id, "a.example")

    async def waits(dkim: RecordStatus) -> int:
        read = await store.domains.find(account.id, "a.example")
        await store.domains.record_dns(account.id, read, DomainDns(clock.now, OK, dkim, OK))
        ((due,),) = await store.engine.rows("SELECT dns_check_at FROM domains", {})
        return int(due - clock.now) // MINUTE

    found = []
    for _ in range(10):
        for _ in range(3):
            found.append(await waits(UNKNOWN))
        clock.now += found[-1] * MINUTE
    assert found[::3] == found[1::3] == found[2::3] == [10, 10, 20, 40, 80, 160, 320, 640, 1280, 1440]
    assert [await waits(MISSING), await waits(UNKNOWN)] == [10, 10]


# ---- return paths
async def test_a_return_path_has_a_default_and_is_used_from_when_it_is_shown(store: Store, account: Account) -> None:
    plain = await store.domains.register(account.id, "a.example")
    chosen = await store.domains.register(account.id, "b.example", "rp.b.example")
    assert [(each.return_path, each.return_path_at) for each in (plain, chosen)] == [
        ("bounces.a.example", None),
        ("rp.b.example", None),
    ]
    assert await store.domains.return_path(account.id, "a.example") is None
    assert await store.domains.use_return_path(account.id, plain, in_use=True)
    assert not await store.domains.use_return_path(account.id, plain, in_use=True)  # it is already
    assert await store.domains.return_path(account.id, "a.example") == "bounces.a.example"
    used = await store.domains.find(account.id, "a.example")
    assert used.return_path_at is not None
    await store.access.add_domain(account.id, "a.example", usable=True)
    assert await store.domains.find(account.id, "a.example") == replace(used, usable=True)
    await store.access.add_domain(account.id, "a.example", usable=True, return_path="rp.a.example")
    assert await store.domains.return_path(account.id, "a.example") is None
    assert not await store.domains.use_return_path(account.id, used, in_use=True)  # DNS was asked for another name
    again = await store.domains.find(account.id, "a.example")
    assert await store.domains.use_return_path(account.id, again, in_use=True)
    assert await store.domains.use_return_path(account.id, again, in_use=False)
    assert await store.domains.return_path(account.id, "a.example") is None


async def test_a_removed_domain_has_no_return_path(store: Store, account: Account) -> None:
    added = await store.domains.register(account.id, "a.example", "rp.a.example")
    assert await store.domains.use_return_path(account.id, added, in_use=True)
    await store.domains.remove(account.id, "a.example")
    assert await store.domains.return_path(account.id, "a.example") is None
    assert await store.domains.of_return_path("bounces.a.example") == []
    again = await store.domains.register(account.id, "a.example")
    assert (again.return_path, again.return_path_at) == ("bounces.a.example", None)


async def test_the_owners_of_a_return_path_are_found_by_its_name(store: Store, account: Account) -> None:
    other = await store.accounts.create("other", "other@example.org", "hash")
    await store.domains.register(account.id, "news.a.example")
    await store.domains.register(account.id, "a.example", "bounces.news.a.example")
    await store.domains.register(other.id, "news.a.example")
    await store.domains.register(other.id, "b.example")
    expected = [(account.id, "a.example"), (account.id, "news.a.example"), (other.id, "news.a.example")]
    assert await store.domains.of_return_path("bounces.news.a.example") == sorted(expected)
    assert await store.domains.of_return_path("bounces.a.example") == []
