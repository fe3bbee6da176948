"""Two nodes that index at the same time: each message is in one block, and no term without one."""

from collections.abc import Awaitable, Callable
from itertools import count

import pytest

from appliance.environment import Environment
from appliance.store import Store
from appliance.store.search_index import INDEXED_AFTER, SearchIndex
from tests.store.postgresql.stepping import FIRST, SECOND, Meet, nodes
from tests.store.samples import HASH, Clock, Messages
from tests.store.test_search_index import index_all, made, small


async def _accept(store: Store, clock: Clock) -> None:
    account = await store.accounts.create("demo", "demo@example.org", HASH, credit=100)
    messages = Messages(Environment(now=clock), account.id)
    for number in range(8):
        await store.messages.accept(made(messages, number))
    clock.now += INDEXED_AFTER


async def _clean(store: Store) -> None:
    while await store.search_index._clean():
        pass


async def _check(store: Store) -> None:
    await index_all(store)
    numbers = await store.engine.rows("SELECT number FROM search_blocks ORDER BY number", {})
    assert await store.engine.rows("SELECT DISTINCT block FROM search_terms ORDER BY block", {}) == numbers
    assert await store.engine.rows("SELECT count(DISTINCT ids), sum(size) FROM search_blocks", {}) == [(2, 8)]


@pytest.mark.parametrize("others", [_clean, index_all])
@pytest.mark.parametrize("step", range(6))
async def test_a_node_that_another_has_followed_gives_its_block_up(
    url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, step: int, others: Callable[[Store], Awaitable[None]]
) -> None:
    async with nodes(url, clock, FIRST, SECOND) as (first, second):
        await _accept(small(first), clock)
        small(second)
        steps = count()

        async def rest(index: SearchIndex, _: float) -> None:
            if index is first.search_index and next(steps) == step:
                await others(second)

        monkeypatch.setattr(SearchIndex, "_rest", rest)
        await first.search_index.index_some()
        await _check(second)
        await _check(first)


async def test_a_block_is_not_deleted_beside_terms_that_are_being_written(url: str, clock: Clock, meet: Meet) -> None:
    async with nodes(url, clock, FIRST, SECOND) as (first, second):
        await _accept(small(first), clock)
        small(second)
        first_result, second_result = await meet(
            "INSERT INTO search_terms", first.search_index.index_some, second.search_index._clean, queued=True
        )
        first_result.unwrap()
        second_result.unwrap()
        await _clean(second)
        await _check(first)


async def test_terms_without_a_block_are_in_no_ones_way(url: str, clock: Clock) -> None:
    """Versions before this one could leave them behind."""
    async with nodes(url, clock, FIRST) as (store,):
        await _accept(small(store), clock)
        left = "INSERT INTO search_terms (block, term, postings) VALUES (1, '^api', '0000'), (2, 'left', '0000')"
        await store.engine.change(left, {})
        await _check(store)
        assert await store.engine.rows("SELECT block FROM search_terms WHERE term = 'left'", {}) == []
