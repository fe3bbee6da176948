"""Sources in both stores: those of accounts, where they are, and results by pool and day."""

from appliance.model.accounts import Role
from appliance.model.sources import OutgoingSource, PoolDay, SourceState, SourceTable
from appliance.store import Store


async def test_an_account_has_its_own_sources(store: Store) -> None:
    account = await store.accounts.create("acme", "a@example.org", "hash", Role.CUSTOMER, None)
    before = await store.sources.version()
    await store.sources.set_own(account.id, "digest", ["news", "mail"])
    after = await store.sources.version()
    assert await store.sources.own() == {account.id: {"digest": ("news", "mail")}}
    await store.sources.set_own(account.id, "digest", [])
    assert len({before, after, await store.sources.version()}) == 3
    assert await store.sources.own() == {}
    assert await store.sources.own_of(account.id) == {}


async def test_states_are_replaced_and_results_are_added(store: Store) -> None:
    node = store.engine.node
    here, gone = SourceState("news", node, True, "", 5), SourceState("news", node, False, "192.0.2.1 is away", 6)
    days = {("news", "google", 20_000): PoolDay(2, 1, 0, "451 later", 7)}
    await store.sources.say([here], days)
    await store.sources.say([gone], days | {("news", "other", 20_001): PoolDay(1)})
    table = SourceTable({"news": OutgoingSource("news", (), "")})
    if not store.engine.is_shared:
        assert await store.sources.states() == [gone]
        assert await store.sources.out(["news", "old"], table) == {
            "news": "192.0.2.1 is away",
            "old": "is not in the settings",
        }
    assert await store.sources.days(20_000) == {
        ("news", "google"): {20_000: PoolDay(4, 2, 0, "451 later", 7)},
        ("news", "other"): {20_001: PoolDay(1)},
    }
    assert list(await store.sources.days(20_001)) == [("news", "other")]
