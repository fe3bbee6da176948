"""The fingerprint of the key file: the first one stays, unless it is replaced by name."""

from appliance.environment import Environment
from appliance.model.accounts import Account
from appliance.store import Store
from tests import stored_mail
from tests.store.samples import Database, at_once


async def test_the_first_key_is_the_installations(store: Store) -> None:
    assert await store.installation.key_fingerprint() is None
    assert await store.installation.claim_key("aa") == "aa"
    assert await store.installation.claim_key("bb") == "aa"
    assert await store.installation.key_fingerprint() == "aa"
    await store.installation.replace_key("bb")
    assert await store.installation.key_fingerprint() == "bb"


async def test_of_two_nodes_that_claim_at_once_one_wins(database: Database) -> None:
    told: list[str] = []

    async with database.open() as one, database.open() as other:

        async def claim(store: Store, fingerprint: str) -> None:
            told.append(await store.installation.claim_key(fingerprint))

        await at_once(claim, ((one if number % 2 else other, f"key {number}") for number in range(10)))
    assert len(told) == 10
    assert len(set(told)) == 1


async def test_what_is_sealed_is_a_secret(store: Store, account: Account) -> None:
    assert not await store.installation.has_secrets()
    await stored_mail.webhook(store, Environment(), account.id, bytes(32))
    assert await store.installation.has_secrets()
