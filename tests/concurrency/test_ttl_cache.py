"""Values are kept for their time, in bounded number; work that several tasks want at once is done once."""

from random import Random

import pytest
import trio
from trio.testing import MockClock

from appliance.concurrency.ttl_cache import RecentBytes, SingleFlight, TtlCache


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_newest_bytes_are_kept() -> None:
    recent = RecentBytes[str](10)
    for name, size in (("a", 4), ("b", 4), ("a", 5), ("c", 1), ("d", 0)):
        recent.put(name, b"x" * size)
    assert [len(recent.get(name) or b"") for name in "abcd"] == [5, 4, 1, 0]
    recent.put("e", b"x")
    assert [recent.get(name) for name in "be"] == [None, b"x"]
    recent.discard("a")
    recent.put("f", b"x" * 8)
    assert [recent.get(name) for name in "cef"] == [b"x", b"x", b"x" * 8]
    recent.put("g", b"x" * 11)
    assert [recent.get(name) for name in "acefg"] == [None] * 5


def test_a_value_is_there_until_its_time_is_over(clock: Clock) -> None:
    cache: TtlCache[str, int] = TtlCache(10, 5.0, clock)
    cache.put("a", 1)
    clock.now += 4.9
    assert cache.get("a") == 1
    assert "a" in cache
    clock.now += 0.1
    assert cache.get("a") is None
    assert len(cache) == 0


def test_a_value_may_have_a_time_of_its_own(clock: Clock) -> None:
    cache: TtlCache[str, int] = TtlCache(10, 5.0, clock)
    cache.put("long", 1, 60.0)
    cache.put("none", 2, 0.0)
    clock.now += 59.9
    assert (cache.get("long"), cache.get("none")) == (1, None)


def test_putting_again_begins_anew(clock: Clock) -> None:
    cache: TtlCache[str, int] = TtlCache(10, 5.0, clock)
    cache.put("a", 1)
    clock.now += 4.0
    cache.put("a", 2)
    clock.now += 4.0
    assert cache.get("a") == 2


def test_a_clock_that_was_set_back_expires_values(clock: Clock) -> None:
    """A value that comes from the future is not believed: it might stay for years."""
    cache: TtlCache[str, int] = TtlCache(10, 5.0, clock)
    cache.put("a", 1)
    clock.now -= 1.0
    assert cache.get("a") is None


def test_values_can_be_forgotten(clock: Clock) -> None:
    cache: TtlCache[str, int] = TtlCache(10, 5.0, clock)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.discard("a")
    cache.discard("a")
    assert ("a" in cache, "b" in cache) == (False, True)
    cache.clear()
    assert len(cache) == 0


def test_a_full_cache_forgets_what_was_used_longest_ago(clock: Clock) -> None:
    cache: TtlCache[int, int] = TtlCache(5, 1e9, clock)
    used: list[int] = []
    chance = Random(1)
    for _ in range(2_000):
        clock.now += 1.0
        key = chance.randrange(9)
        if chance.random() < 0.5:
            cache.put(key, key)
            used = ([each for each in used if each != key] + [key])[-5:]
        else:
            assert cache.get(key) == (key if key in used else None)
            if key in used:
                used.remove(key)
                used.append(key)
        assert len(cache) == len(used)


async def test_work_is_shared_by_key(autojump_clock: MockClock) -> None:
    joint: SingleFlight[str, str] = SingleFlight()
    ran, got = [], []

    async def ask(key: str) -> None:
        async def work() -> str:
            ran.append(key)
            await trio.sleep(1)
            return key * 2

        got.append(await joint.run(key, work))

    for _ in range(2):
        async with trio.open_nursery() as nursery:
            for key in "aabba":
                nursery.start_soon(ask, key)
    assert sorted(ran) == ["a", "a", "b", "b"]
    assert sorted(got) == ["aa"] * 6 + ["bb"] * 4
    assert not joint._running


async def test_a_failure_is_the_workers_own(autojump_clock: MockClock) -> None:
    joint: SingleFlight[str, None] = SingleFlight()
    tries = []

    async def work() -> None:
        tries.append(1)
        await trio.sleep(1)
        if len(tries) == 1:
            raise ValueError("only once")

    async def fail() -> None:
        with pytest.raises(ValueError, match="only once"):
            await joint.run("key", work)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            nursery.start_soon(joint.run, "key", work)
    assert len(tries) == 2
