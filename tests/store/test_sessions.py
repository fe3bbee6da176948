"""Sessions: one generation after the other; an old generation that is used again ends the session."""

import pytest

from appliance.model.accounts import Account, User
from appliance.model.dashboard import LoginSession
from appliance.store import Store
from appliance.store.sessions import REPLACED_COOKIE_GRACE, SESSION_LIFETIME, SESSION_MAXIMUM, SESSIONS_PER_USER
from appliance.times import DAY
from tests.store.samples import Clock, existing

WHERE = ("192.0.2.1", "curl")


@pytest.fixture
async def user(store: Store, account: Account) -> User:
    return existing(await store.accounts.user_by_email(account.email))


async def begin(store: Store, user: User) -> LoginSession:
    return existing(await store.sessions.begin(user, *WHERE))


async def test_each_renewal_is_the_next_generation(store: Store, user: User, clock: Clock) -> None:
    begun = await begin(store, user)
    clock.now += SESSION_LIFETIME - 1_000_000
    renewal = await store.sessions.renew(begun.id, 0, "192.0.2.2", "wget")
    assert renewal.session is not None
    assert (renewal.session.id, renewal.session.generation) == (begun.id, 1)
    assert (renewal.session.address, renewal.session.user_agent) == ("192.0.2.2", "wget")
    assert renewal.session.expires_at - renewal.session.renewed_at == SESSION_LIFETIME
    assert await store.sessions.of(user.id) == [renewal.session]


async def test_windows_that_renew_together_share_a_generation(store: Store, user: User, clock: Clock) -> None:
    begun = await begin(store, user)
    renewed = (await store.sessions.renew(begun.id, 0, *WHERE)).session
    clock.now += REPLACED_COOKIE_GRACE - 1_000_000
    again = await store.sessions.renew(begun.id, 0, *WHERE)
    assert (again.session, again.reused) == (renewed, False)
    elsewhere = await store.sessions.renew(begun.id, 0, "198.51.100.9", WHERE[1])
    assert (elsewhere.session, elsewhere.reused) == (None, True)


async def test_the_generation_before_the_last_has_no_grace(store: Store, user: User) -> None:
    begun = await begin(store, user)
    for generation in (0, 1):
        await store.sessions.renew(begun.id, generation, *WHERE)
    assert (await store.sessions.renew(begun.id, 0, *WHERE)).reused


async def test_an_old_generation_ends_the_session(store: Store, user: User, clock: Clock) -> None:
    begun, other = await begin(store, user), await begin(store, user)
    await store.sessions.renew(begun.id, 0, *WHERE)
    clock.now += REPLACED_COOKIE_GRACE
    reused = await store.sessions.renew(begun.id, 0, *WHERE)
    assert (reused.session, reused.reused) == (None, True)
    gone = await store.sessions.renew(begun.id, 1, *WHERE)
    assert (gone.session, gone.reused) == (None, False)
    assert [each.id for each in await store.sessions.of(user.id)] == [other.id]


async def test_a_generation_to_come_is_no_reuse(store: Store, user: User) -> None:
    begun = await begin(store, user)
    renewal = await store.sessions.renew(begun.id, 5, *WHERE)
    assert (renewal.session, renewal.reused) == (None, False)
    assert await store.sessions.of(user.id) == [begun]


async def test_an_expired_session_is_over(store: Store, user: User, clock: Clock) -> None:
    begun = await begin(store, user)
    assert await store.accounts.user_of_session(begun.id) == user
    clock.now += SESSION_LIFETIME
    assert (await store.sessions.renew(begun.id, 0, *WHERE)).session is None
    assert await store.sessions.of(user.id) == []
    assert await store.accounts.user_of_session(begun.id) is None


@pytest.mark.parametrize("by_cookie", [True, False])
async def test_a_session_ends_after_a_month_however_often_it_is_renewed(
    store: Store, user: User, clock: Clock, by_cookie: bool
) -> None:
    begun, days = await begin(store, user), SESSION_MAXIMUM // DAY
    for generation in range(days - 1):
        clock.now += DAY
        if by_cookie:
            renewed = (await store.sessions.renew(begun.id, generation, *WHERE)).session
            assert renewed is not None
        else:
            await store.sessions.extend(begun.id)
        (session,) = await store.sessions.of(user.id)
        expected = min(session.renewed_at + SESSION_LIFETIME, begun.created_at + SESSION_MAXIMUM)
        assert session.expires_at == expected
    clock.now += DAY
    assert await store.accounts.user_of_session(begun.id) is None
    assert (await store.sessions.renew(begun.id, days - 1, *WHERE)).session is None


async def test_only_its_user_ends_a_session(store: Store, user: User) -> None:
    begun = await begin(store, user)
    assert not await store.sessions.end(begun.id, "usr_other")
    assert await store.sessions.end(begun.id, user.id)
    assert not await store.sessions.end(begun.id, user.id)


async def test_a_new_password_ends_them_all(store: Store, user: User) -> None:
    for _ in range(3):
        await begin(store, user)
    await store.accounts.set_password(user.id, "another hash")
    assert await store.sessions.of(user.id) == []


async def test_no_session_begins_under_an_old_password(store: Store, user: User) -> None:
    await store.accounts.set_password(user.id, "another hash")
    assert await store.sessions.begin(user, *WHERE) is None
    assert await store.sessions.of(user.id) == []


async def test_the_one_renewed_longest_ago_makes_room(store: Store, user: User) -> None:
    begun = [await begin(store, user) for _ in range(SESSIONS_PER_USER)]
    await store.sessions.renew(begun[0].id, 0, *WHERE)
    newest = await begin(store, user)
    left = {each.id for each in await store.sessions.of(user.id)}
    assert len(left) == SESSIONS_PER_USER
    assert {newest.id, begun[0].id} <= left
    assert begun[1].id not in left
