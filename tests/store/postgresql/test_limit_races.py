"""Two nodes that both find room for one more: a limit is never overrun, for one of them starts again."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import outcome
import pytest
from msgspec.structs import replace

from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.keys.dkim_keys import SigningKeys
from appliance.model.accounts import Account, Scope, StoredDkimKey
from appliance.model.webhooks import EventType, WebhookOptions
from appliance.store import Store, templates
from appliance.store.access import Access, CredentialLimits
from appliance.store.domains import Domains
from tests.store.hooks import SECRET, URL
from tests.store.postgresql.stepping import FIRST, SECOND, Meet, Verb, nodes
from tests.store.samples import CREDITS, HASH, Clock, at_once

Nodes = tuple[Store, Store]


@pytest.fixture
async def two(url: str, clock: Clock) -> AsyncIterator[Nodes]:
    async with nodes(url, clock, FIRST, SECOND) as (one, other):
        yield one, other


@pytest.fixture
async def account(two: Nodes) -> Account:
    return await two[0].accounts.create("demo", "demo@example.org", HASH, credit=CREDITS)


def _access(store: Store) -> Access:
    return replace(store.access, limits=CredentialLimits(working=1))


def _settings(number: int) -> WebhookOptions:
    return WebhookOptions(f"{URL}{number}", tuple(EventType), True)


@dataclass(frozen=True)
class Limit:
    make: Callable[[Store, str, int], Verb]
    statement: str
    count: str
    refused: bool = True  # else it takes the place of the first


LIMITS = {
    "credentials": Limit(
        lambda store, account_id, _: lambda: _access(store).create_credential(account_id, by_owner=True),
        "INSERT INTO smtp_credentials",
        "smtp_credentials",
    ),
    "API keys": Limit(
        lambda store, account_id, _: (
            lambda: _access(store).create_key(account_id, scope=Scope.FULL, test=False, by_owner=True)
        ),
        "INSERT INTO api_keys",
        "api_keys",
    ),
    "domains": Limit(
        lambda store, account_id, number: (
            lambda: Domains(store.engine, store.accounts.env, most=1).register(account_id, f"d{number}.example")
        ),
        "INSERT INTO domains",
        "domains",
    ),
    "templates": Limit(
        lambda store, account_id, number: lambda: store.templates.save(account_id, f"t{number}", "s", "t", None),
        "INSERT INTO templates",
        "templates",
    ),
    "webhooks": Limit(
        lambda store, account_id, number: (
            lambda: store.webhooks.save(account_id, _settings(number), f"whk_{number}", SECRET)
        ),
        "INSERT INTO webhooks",
        "webhooks",
        refused=False,
    ),
    "DKIM keys": Limit(
        lambda store, account_id, number: (
            lambda: store.dkim_keys.replace(
                account_id, "example.org", [StoredDkimKey(f"s{number}", "rsa", b"sealed", "v=DKIM1", 0, None)]
            )
        ),
        "INSERT INTO dkim_keys",
        "dkim_keys WHERE retired_at IS NULL",
        refused=False,
    ),
    "accounts of one name": Limit(
        lambda store, _, number: lambda: store.accounts.create("second", f"{number}@example.org", HASH),
        "INSERT INTO accounts",
        "accounts WHERE name = 'second'",
    ),
    "users of one address": Limit(
        lambda store, _, number: lambda: store.accounts.create(f"n{number}", "same@example.org", HASH),
        "INSERT INTO users",
        "accounts WHERE name <> 'demo'",
    ),
}


@pytest.mark.parametrize("name", LIMITS)
async def test_the_last_place_is_taken_once(
    two: Nodes, account: Account, monkeypatch: pytest.MonkeyPatch, meet: Meet, name: str
) -> None:
    limit = LIMITS[name]
    monkeypatch.setattr(templates, "TEMPLATES", 1)
    if name == "DKIM keys":
        await two[0].access.add_domain(account.id, "example.org", usable=True)
    first, second = await meet(limit.statement, limit.make(two[0], account.id, 1), limit.make(two[1], account.id, 2))
    second.unwrap()
    if limit.refused:
        assert isinstance(first, outcome.Error)
        assert isinstance(first.error, Refused)
        assert first.error.code is Code.CONFLICT
    else:
        first.unwrap()
    assert await two[0].engine.rows(f"SELECT count(*) FROM {limit.count}", {}) == [(1,)]


async def test_two_rotations_of_the_same_signing_keys(two: Nodes, account: Account, meet: Meet) -> None:
    """Both have chosen the same names for the new keys: one rotates, the other is told so, and nothing is lost."""
    await two[0].access.add_domain(account.id, "example.org", usable=True)

    def rotation(store: Store, sealed: bytes) -> Verb:
        keys = [StoredDkimKey("s2026", "rsa", sealed, "v=DKIM1", 0, None)]
        return lambda: store.dkim_keys.replace(account.id, "example.org", keys)

    first, second = await meet("INSERT INTO dkim_keys", rotation(two[0], b"first"), rotation(two[1], b"second"))
    second.unwrap()
    assert isinstance(first, outcome.Error)
    assert isinstance(first.error, Refused)
    assert first.error.code is Code.CONFLICT
    (kept,) = await two[0].dkim_keys.of(account.id, "example.org")
    assert (kept.private_key, kept.retired_at) == (b"second", None)


async def test_two_nodes_start_for_the_first_time(two: Nodes, meet: Meet) -> None:
    def create(store: Store, number: int) -> Verb:
        return lambda: store.first_start.create(
            name=f"first{number}", email=f"{number}@example.org", password_hash=HASH, domain="example.org"
        )

    first, second = await meet("INSERT INTO accounts", create(two[0], 1), create(two[1], 2))
    assert first.unwrap() is None
    assert second.unwrap() is not None
    assert [account.name for account in await two[0].accounts.all()] == ["first2"]


# ---- two nodes need the first signing keys of a domain at once: both sign with the same

ROUNDS = 5


async def test_the_first_keys_are_made_once(url: str, clock: Clock) -> None:
    """Neither meets an error, and no key is retired by the other's: it may be in the DNS already."""
    async with nodes(url, clock, FIRST, SECOND) as stores:
        account = await stores[0].accounts.create("demo", "demo@example.org", HASH, credit=CREDITS)
        keys = [SigningKeys(store, Environment(now=clock), b"k" * 32) for store in stores]
        for number in range(ROUNDS):
            domain, used = f"d{number}.test", list[set[str]]()
            await stores[0].access.add_domain(account.id, domain, usable=True)

            async def use(each: SigningKeys, domain: str = domain, used: list[set[str]] = used) -> None:
                used.append({key.selector for key in await each.in_use(account.id, domain)})

            await at_once(use, ((each,) for each in keys))
            assert len(used) == 2
            assert used[0] == used[1]
            assert len(await keys[0].known(account.id, domain)) == len(used[0]) == 2
