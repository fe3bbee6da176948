"""The pool of idle connections: the one used last first, by key and by what the caller wants, oldest out first."""

import trio
from trio.testing import MockClock

from appliance.net.dial import IdlePool


async def test_the_one_used_last_that_fits_is_taken() -> None:
    """Of one key only, and each once; the counts follow."""
    pool = IdlePool[str, int]()
    for key, connection in (("a", 1), ("b", 2), ("a", 3), ("a", 4)):
        pool.put(key, connection)
    assert pool.take("a", lambda connection: connection < 4) == 3
    assert (pool.count("a"), pool.count("b"), pool.count("c"), len(pool)) == (2, 1, 0, 3)
    assert [pool.take("a"), pool.take("a"), pool.take("a"), pool.take("b")] == [4, 1, None, 2]
    assert (pool.count("a"), len(pool)) == (0, 0)


async def test_the_oldest_goes_first(autojump_clock: MockClock) -> None:
    """Whatever its key; one that was used since is not the oldest any more, and a younger one than wanted stays."""
    pool, began = IdlePool[str, int](), trio.current_time()
    pool.put("a", 1)
    pool.put("b", 2)
    await trio.sleep(1)
    assert pool.take("a") == 1
    pool.put("a", 1)
    assert pool.take_oldest(idle_since=began) == 2
    assert pool.take_oldest(idle_since=began) is None
    assert pool.take_oldest() == 1
    assert pool.take_oldest() is None
