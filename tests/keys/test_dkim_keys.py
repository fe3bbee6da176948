"""Rotations of DKIM keys: new ones are pending while the old ones sign, and sign once DNS shows all of them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from appliance.dns.records import Senders, records
from appliance.environment import Environment
from appliance.errors import StorageUnavailable
from appliance.keys.dkim_keys import ROTATION_LOOK_EVERY, SigningKeys, switch_rotations, switch_shown
from appliance.model.accounts import Role
from appliance.store import Store, open_store
from tests.fakes.dns import Trouble, ZoneResolver, zone_text

KEY, DOMAIN = b"k" * 32, "example.com"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """An empty store."""
    async with open_store(tmp_path, Environment(), inline=True) as opened:
        yield opened


async def rotating(store: Store) -> tuple[SigningKeys, str, set[str], ZoneResolver]:
    """Keys of a domain in a rotation, its account, the selectors that signed before, and a DNS that shows those."""
    account = (await store.accounts.create("demo", "demo@example.org", "hash", Role.CUSTOMER, None)).id
    await store.access.add_domain(account, DOMAIN, usable=True)
    keys = SigningKeys(store, Environment(), KEY)
    old = {key.selector for key in await keys.in_use(account, DOMAIN)}
    dns = ZoneResolver({})
    publish(dns, {key.selector: key.record for key in await keys.known(account, DOMAIN)})
    await keys.begin_rotation(account, DOMAIN)
    return keys, account, old, dns


def publish(dns: ZoneResolver, values: dict[str, str]) -> None:
    """Put the records of keys into DNS, by their selectors."""
    dns.zone |= {f"{selector}._domainkey.{DOMAIN}": {"TXT": [zone_text(value)]} for selector, value in values.items()}


async def pending(store: Store, account: str) -> dict[str, str]:
    """The records of the pending keys."""
    return {key.selector: key.record for key in await store.dkim_keys.of(account, DOMAIN) if key.pending}


async def signing(keys: SigningKeys, account: str) -> set[str]:
    """The selectors that sign."""
    return {key.selector for key in await keys.in_use(account, DOMAIN)}


async def test_the_old_keys_sign_until_dns_shows_all_new_ones(store: Store) -> None:
    """With none, with one, with another key and with DNS in trouble nothing changes; with both it is a switch."""
    keys, account, old, dns = await rotating(store)
    new = await pending(store, account)
    assert len(new) == 2
    rsa, ed25519 = sorted(new, key=lambda selector: "rsa" not in selector)
    for shown in (
        {},
        {rsa: new[rsa]},
        {rsa: new[rsa], ed25519: new[rsa]},
    ):
        publish(dns, shown)
        await switch_shown(keys, dns)
        assert await signing(keys, account) == old
    dns.zone[f"{ed25519}._domainkey.{DOMAIN}"] = {"TXT": Trouble.SERVFAIL}
    await switch_shown(keys, dns)
    assert await signing(keys, account) == old
    publish(dns, new)
    await switch_shown(keys, dns)
    assert await signing(keys, account) == set(new)
    retired = {key.selector for key in await store.dkim_keys.of(account, DOMAIN) if key.retired_at is not None}
    assert (retired, await pending(store, account)) == (old, {})
    assert await store.dkim_keys.with_pending(10) == []


async def test_what_was_begun_is_not_begun_again(store: Store) -> None:
    """The records that the operator may be publishing stay the right ones; only other keys are never activated."""
    keys, account, old, _ = await rotating(store)
    new = await pending(store, account)
    await keys.begin_rotation(account, DOMAIN)
    assert await pending(store, account) == new
    assert not await store.dkim_keys.activate(account, DOMAIN, [*new, "another"])
    assert await signing(keys, account) == old


async def test_a_removed_domain_is_not_looked_at(store: Store) -> None:
    """No more of its mail is signed."""
    _, account, _, _ = await rotating(store)
    assert await store.dkim_keys.with_pending(10) == [(account, DOMAIN)]
    await store.domains.remove(account, DOMAIN)
    assert await store.dkim_keys.with_pending(10) == []


async def test_the_records_say_what_to_do(store: Store) -> None:
    """Pending ones first, to be published; the ones that sign last, needed, and to be kept."""
    keys, account, old, _ = await rotating(store)
    found = records(DOMAIN, Senders(("mail.example.com",)), await keys.known(account, DOMAIN), Environment().now())
    assert [(each.pending, each.needed) for each in found] == [(True, True)] * 2 + [(False, True)] * 4
    assert {each.name.partition(".")[0] for each in found[4:]} == old
    assert all("keep until seven days after the new keys sign" in each.purpose for each in found[4:])


async def test_the_server_looks_by_itself(
    store: Store, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every minute, through storage that is busy as well."""
    keys, account, old, dns = await rotating(store)
    new, asked = await pending(store, account), 0
    with_pending = type(store.dkim_keys).with_pending

    async def busy_once(self: object, most: int) -> list[tuple[str, str]]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise StorageUnavailable("busy")
        return await with_pending(store.dkim_keys, most)

    monkeypatch.setattr(type(store.dkim_keys), "with_pending", busy_once)
    publish(dns, new)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(switch_rotations, keys, lambda: dns)
        await trio.sleep(1.5 * ROTATION_LOOK_EVERY)
        assert await signing(keys, account) == old
        await trio.sleep(ROTATION_LOOK_EVERY)
        assert await signing(keys, account) == set(new)
        nursery.cancel_scope.cancel()
