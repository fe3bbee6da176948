"""The limits of intake: requests a second of each credential, and the bytes an account may keep."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from appliance.config.values import MIB, Share
from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.intake.limits import (
    CACHED_FOR,
    LEAST_SHARE,
    SHARE_KEPT,
    SPACE_CHECK_INTERVAL,
    Credentials,
    FreeSpace,
    Quota,
    RequestRate,
    share_of,
)
from appliance.intake.login_throttle import LoginThrottle
from appliance.store import open_store
from appliance.store.access import sha256
from appliance.times import SECOND
from tests.running_appliance import provision


@dataclass
class Clock:
    now: int = 1_700_000_000 * SECOND

    def __call__(self) -> int:
        return self.now


def taken(rate: RequestRate, credential: str, tries: int) -> int:
    passed = 0
    for _ in range(tries):
        try:
            rate.take(credential)
            passed += 1
        except Refused:
            pass
    return passed


def test_a_burst_is_twice_the_rate_and_then_the_rate_holds() -> None:
    clock = Clock()
    rate = RequestRate(10, Environment(now=clock))
    assert taken(rate, "key:1", 100) == 20
    clock.now += SECOND
    assert taken(rate, "key:1", 100) == 10
    clock.now += 3600 * SECOND
    assert taken(rate, "key:1", 100) == 20


def test_the_refusal_says_when_there_is_room() -> None:
    clock = Clock()
    rate = RequestRate(1, Environment(now=clock))
    assert taken(rate, "key:1", 2) == 2
    with pytest.raises(Refused) as refused:
        rate.take("key:1")
    assert refused.value.code is Code.RATE_LIMITED
    assert refused.value.retry_after == 1
    clock.now += refused.value.retry_after * SECOND
    rate.take("key:1")


def test_refused_requests_cost_nothing() -> None:
    clock = Clock()
    rate = RequestRate(10, Environment(now=clock))
    taken(rate, "key:1", 10_000)
    clock.now += SECOND // 2
    assert taken(rate, "key:1", 100) == 5


def test_each_credential_has_its_own() -> None:
    rate = RequestRate(10, Environment(now=Clock()))
    taken(rate, "key:1", 100)
    assert taken(rate, "key:2", 100) == 20


def test_zero_is_no_limit() -> None:
    rate = RequestRate(0, Environment(now=Clock()))
    assert taken(rate, "key:1", 10_000) == 10_000


def test_a_burst_of_its_own_and_a_slow_rate() -> None:
    clock = Clock()
    rate = RequestRate(0.2, Environment(now=clock), burst=30, refusal="Wait.")
    assert taken(rate, "account", 100) == 30
    with pytest.raises(Refused, match="Wait") as refused:
        rate.take("account")
    assert refused.value.retry_after == 5
    clock.now += 10 * SECOND
    assert taken(rate, "account", 100) == 2


def test_a_clock_that_jumps_back_lends_nothing_and_takes_nothing() -> None:
    clock = Clock()
    rate = RequestRate(10, Environment(now=clock))
    assert taken(rate, "key:1", 15) == 15
    clock.now -= 2 * 86_400 * SECOND
    assert taken(rate, "key:1", 100) == 5
    clock.now += SECOND
    assert taken(rate, "key:1", 100) == 10


def test_only_so_many_credentials_are_remembered() -> None:
    rate = RequestRate(10, Environment(now=Clock()), remembered=10)
    taken(rate, "busy", 100)
    for number in range(1000):
        rate.take(f"key:{number}")
        assert taken(rate, "busy", 1) == 0
    assert len(rate._buckets) == 10


@given(st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(1, 30)), max_size=30), st.integers(1, 20))
def test_no_pattern_gets_more_than_its_share(pattern: list[tuple[int, int]], per_second: int) -> None:
    """Whatever the rhythm: never more than a burst and the rate over the time that has passed."""
    clock, passed, waited = Clock(), 0, 0
    rate = RequestRate(per_second, Environment(now=clock))
    for pause, tries in pattern:
        clock.now += pause
        waited += pause
        passed += taken(rate, "key:1", tries)
        assert passed <= 2 * per_second + waited * per_second / SECOND + 1e-6


GIB = 1024 * MIB


def quota(directory: Path, setting: Share, *, min_bytes: int = 0, min_percent: int = 0, now: list[int]) -> Quota:
    return Quota(setting, FreeSpace(directory, min_bytes, min_percent, Environment(now=lambda: now[0])))


def test_a_size_is_that_size_and_0_none(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    assert quota(nowhere, Share(bytes=5 * GIB), now=[0]).bytes() == 5 * GIB
    assert quota(nowhere, Share(), now=[0]).bytes() is None


@pytest.mark.parametrize(("fillable", "expected"), [(100 * GIB, 25 * GIB), (1, LEAST_SHARE), (-5 * GIB, LEAST_SHARE)])
def test_a_share_is_of_what_mail_may_fill(fillable: int, expected: int) -> None:
    """On a disk that is nearly full already an account still has the least there is."""
    assert share_of(25, fillable) == expected


def test_what_the_database_takes_counts_as_free(tmp_path: Path) -> None:
    facts = os.statvfs(tmp_path)
    free = facts.f_bavail * facts.f_frsize
    empty = quota(tmp_path, Share(percent=50), now=[0]).bytes()
    assert empty == pytest.approx(free // 2, rel=0.05)
    with (tmp_path / "appliance.db").open("wb") as database:
        database.truncate(100 * GIB)  # a hole: nothing is written
    full = quota(tmp_path, Share(percent=50), now=[0]).bytes()
    assert full == pytest.approx(free // 2 + 50 * GIB, rel=0.05)
    below = quota(tmp_path, Share(percent=50), min_bytes=60 * GIB, now=[0]).bytes()
    assert below == pytest.approx(free // 2 + 20 * GIB, rel=0.05)


def test_it_looks_now_and_then_and_after_a_reload(tmp_path: Path) -> None:
    now = [1_000_000_000]
    limit = quota(tmp_path, Share(percent=50), now=now)
    first = limit.bytes()
    with (tmp_path / "appliance.db").open("wb") as database:
        database.truncate(100 * GIB)
    assert limit.bytes() == first
    now[0] += SHARE_KEPT
    assert limit.bytes() != first
    limit.adopt(Share(bytes=7))
    assert limit.bytes() == 7


@dataclass
class Disk:
    total: int = 100 * GIB
    free: int = 50 * GIB
    now: int = 1_700_000_000_000_000
    looks: int = 0

    def statvfs(self, _: object) -> os.statvfs_result:
        self.looks += 1
        block = 4096
        return os.statvfs_result((block, block, self.total // block, 0, self.free // block, 0, 0, 0, 0, 255))

    def pass_time(self) -> None:
        self.now += SPACE_CHECK_INTERVAL


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The disk that everything lies on: no real one can be filled by a test."""
    made = Disk()
    monkeypatch.setattr(os, "statvfs", made.statvfs)
    return made


def space(disk: Disk, min_bytes: int = GIB, min_percent: float = 10) -> FreeSpace:
    return FreeSpace(Path("data"), min_bytes, min_percent, Environment(now=lambda: disk.now))


@pytest.mark.parametrize(
    ("total", "free", "low"),
    [
        (100 * GIB, 11 * GIB, False),
        (100 * GIB, 9 * GIB, True),  # under ten percent
        (5 * GIB, 2 * GIB, False),
        (5 * GIB, GIB - 4096, True),  # under a gibibyte, though it is a fifth
    ],
)
def test_the_larger_mark_counts(disk: Disk, total: int, free: int, low: bool) -> None:
    disk.total, disk.free = total, free
    assert space(disk).low() is low


def test_the_marks_can_be_turned_off(disk: Disk) -> None:
    disk.free = 0
    assert space(disk, min_bytes=0).low() is False
    assert disk.looks == 0
    disk.free = 2 * GIB
    assert space(disk, min_percent=0).low() is False


def test_a_look_is_good_for_a_second(disk: Disk) -> None:
    watched = space(disk)
    for _ in range(1000):
        assert watched.low() is False
    assert disk.looks == 1
    disk.free = 0
    assert watched.low() is False
    disk.pass_time()
    assert watched.low() is True
    disk.free = 50 * GIB
    disk.pass_time()
    assert watched.low() is False


def test_the_log_tells_when_it_begins_and_when_it_ends(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    watched = space(disk)

    def told(free: int, looks: int = 3) -> list[tuple[str, str, int, int]]:
        disk.free = free
        caplog.clear()
        for _ in range(looks):
            disk.pass_time()
            watched.low()
        found = [(record, getattr(record, "fields", {})) for record in caplog.records]
        return [
            (each.levelname, each.message.split(":")[0], of["free_bytes"], of["needed_bytes"]) for each, of in found
        ]

    caplog.set_level("INFO", "appliance")
    assert told(50 * GIB) == []
    assert told(9 * GIB) == [("WARNING", "low on disk space", 9 * GIB, 10 * GIB)]
    assert told(8 * GIB) == []
    assert told(11 * GIB) == [("INFO", "enough disk space again", 11 * GIB, 10 * GIB)]
    assert getattr(caplog.records[0], "fields", {})["seconds"] == 6
    assert len(told(0)) == 1
    watched.min_bytes = 0
    assert told(0) == [("INFO", "enough disk space again", 0, 0)]
    assert told(0) == []


def test_a_clock_that_jumps_back_is_no_excuse(disk: Disk) -> None:
    watched = space(disk)
    assert watched.low() is False
    disk.free = 0
    disk.now -= 2 * 86_400_000_000
    assert watched.low() is True


def test_a_real_disk_can_be_looked_at(tmp_path: Path) -> None:
    env = Environment()
    assert FreeSpace(tmp_path, 1, 0, env).low() is False
    assert FreeSpace(tmp_path, 2**62, 0, env).low() is True


START = 1_800_000_000_000_000  # microseconds


async def test_a_change_is_seen_within_half_a_second(tmp_path: Path) -> None:
    """A session that asks for every message is told what was true a moment ago, and no longer; wrong ones at once."""
    now = [START]
    env = replace(Environment(), now=lambda: now[0])
    async with open_store(tmp_path, env, inline=True) as store:
        account = await provision(store, "demo")
        credentials = Credentials(store, env, LoginThrottle(env))
        right, wrong = sha256(account.password), sha256("wrong")
        assert credentials.known_caller(account.username, right) is None
        found = await credentials.caller(account.username, right)
        assert found is not None
        assert found.account_id == account.account_id
        for username, password in ((account.username, wrong), ("unknown", right), ("no\0body", right)):
            assert await credentials.caller(username, password) is None
            assert credentials.known_caller(username, password) is None
        await store.access.revoke_credential(account.account_id, account.username)
        assert await credentials.caller(account.username, right) is None
        assert credentials.known_caller(account.username, right) is found
        now[0] += CACHED_FOR
        assert credentials.known_caller(account.username, right) is None


async def test_what_this_process_changes_is_seen_at_once(tmp_path: Path) -> None:
    env = Environment()
    async with open_store(tmp_path, env, inline=True) as store:
        account = await provision(store, "demo")
        credentials = Credentials(store, env, LoginThrottle(env))
        assert await credentials.caller(account.username, sha256(account.password)) is not None
        credentials.forget()
        assert credentials.known_caller(account.username, sha256(account.password)) is None


async def test_a_use_is_noted_and_written_later(tmp_path: Path) -> None:
    now = [START]
    env = replace(Environment(), now=lambda: now[0])
    async with open_store(tmp_path, env, inline=True) as store:
        account = await provision(store, "demo")
        credentials = Credentials(store, env, LoginThrottle(env))

        async def last_used() -> int | None:
            (credential,) = await store.access.credentials(account.account_id)
            return credential.last_used_at

        await credentials.look_up(account.username, sha256("wrong"))
        await credentials.record_uses()
        assert await last_used() is None
        now[0] += 1_000_000
        await credentials.look_up(account.username, sha256(account.password))
        assert await last_used() is None
        await credentials.record_uses()
        assert await last_used() == START + 1_000_000
