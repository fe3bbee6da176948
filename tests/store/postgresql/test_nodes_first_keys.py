"""Two nodes need the first signing keys of a domain at once: both sign with the same."""

import trio

from appliance.environment import Environment
from appliance.keys.dkim_keys import SigningKeys
from tests.store.postgresql.stepping import FIRST, SECOND, nodes
from tests.store.samples import CREDITS, HASH, Clock

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

            async with trio.open_nursery() as nursery:
                for each in keys:
                    nursery.start_soon(use, each)
            assert len(used) == 2
            assert used[0] == used[1]
            assert len(await keys[0].known(account.id, domain)) == len(used[0]) == 2
