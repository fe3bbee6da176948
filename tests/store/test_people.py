"""People of an account: roles, the owner that is always left, invitations that are good once, and second factors."""

import pytest
import trio

from appliance.errors import Code, Refused
from appliance.model.accounts import Account, AccountRole, Role, Scope, User
from appliance.store import Store
from appliance.store.people import INVITATION_LIFETIME, PEOPLE_PER_ACCOUNT, RESET_LIFETIME, VIEWS_PER_USER
from appliance.times import DAY, HOUR
from tests.store.samples import HASH, Clock, Database, existing, refusal

OWNER, DEVELOPER, VIEWER = AccountRole.OWNER, AccountRole.DEVELOPER, AccountRole.VIEWER
WHERE = ("192.0.2.1", "curl")


async def first_user(store: Store, account: Account) -> User:
    return existing(await store.accounts.user_by_email(account.email))


async def joined(store: Store, account: Account, email: str, role: AccountRole) -> User:
    _, token = await store.people.invite(account.id, email, role)
    assert await store.people.use_link(token, HASH) is not None
    return existing(await store.accounts.user_by_email(email))


async def test_the_first_user_owns_the_account(store: Store, account: Account) -> None:
    (person,) = await store.people.of(account.id)
    assert (person.email, person.account_role, person.role) == ("demo@example.org", OWNER, Role.CUSTOMER)
    assert (person.has_totp, person.last_seen_at) == (False, None)


async def test_an_invitation_makes_one_user_once(store: Store, account: Account) -> None:
    link, token = await store.people.invite(account.id, "Ann@Example.org", VIEWER)
    assert (link.email, link.account_role, link.user_id) == ("ann@example.org", VIEWER, None)
    assert link.expires_at - link.created_at == INVITATION_LIFETIME
    assert await store.people.invitations(account.id) == [link]
    assert await store.people.open_link(token) == link
    assert await store.people.use_link(token, HASH) == link
    assert await store.people.use_link(token, HASH) is None
    assert await store.people.open_link(token) is None
    assert await store.people.invitations(account.id) == []
    user = existing(await store.accounts.user_by_email("ann@example.org"))
    assert (user.account_role, user.role, user.account_id) == (VIEWER, Role.CUSTOMER, account.id)
    assert (await store.accounts.find(account.id)).email == account.email  # that of its first owner
    assert len(await store.accounts.all()) == 1


async def test_a_token_is_stored_as_its_hash_only(store: Store, account: Account) -> None:
    _, token = await store.people.invite(account.id, "ann@example.org", VIEWER)
    stored = await store.engine.rows("SELECT * FROM password_links", {})
    assert token not in repr(stored)
    assert len(token) == 43  # 256 bits


async def test_an_invitation_expires(store: Store, account: Account, clock: Clock) -> None:
    _, token = await store.people.invite(account.id, "ann@example.org", VIEWER)
    clock.now += INVITATION_LIFETIME
    assert await store.people.open_link(token) is None
    assert await store.people.use_link(token, HASH) is None
    assert await store.people.invitations(account.id) == []
    assert (await store.deletion.expired(0, 10)).deleted == 1
    assert await store.engine.rows("SELECT id FROM password_links", {}) == []


async def test_a_new_invitation_replaces_the_last(store: Store, account: Account) -> None:
    _, former = await store.people.invite(account.id, "ann@example.org", VIEWER)
    _, token = await store.people.invite(account.id, "ann@example.org", DEVELOPER)
    assert await store.people.use_link(former, HASH) is None
    link = existing(await store.people.use_link(token, HASH))
    assert link.account_role is DEVELOPER


async def test_an_invitation_can_be_withdrawn(store: Store, account: Account) -> None:
    link, token = await store.people.invite(account.id, "ann@example.org", VIEWER)
    with refusal(Code.NOT_FOUND):
        await store.people.withdraw("acc_other", link.id)
    assert await store.people.withdraw(account.id, link.id) == "ann@example.org"
    assert await store.people.use_link(token, HASH) is None
    with refusal(Code.NOT_FOUND):
        await store.people.withdraw(account.id, link.id)


async def test_an_address_logs_in_to_one_account(store: Store, account: Account) -> None:
    with refusal(Code.CONFLICT):
        await store.people.invite(account.id, "demo@example.org", VIEWER)
    other = await store.accounts.create("other", "other@example.org", HASH)
    _, taken = await store.people.invite(account.id, "other@example.org", VIEWER)
    with refusal(Code.CONFLICT):
        await store.people.use_link(taken, HASH)
    _, here = await store.people.invite(account.id, "ann@example.org", VIEWER)
    _, there = await store.people.invite(other.id, "ann@example.org", OWNER)
    assert await store.people.use_link(there, HASH) is not None
    with refusal(Code.CONFLICT):
        await store.people.use_link(here, HASH)


async def test_an_account_has_so_many_people(store: Store, account: Account, clock: Clock) -> None:
    for number in range(PEOPLE_PER_ACCOUNT - 1):
        await store.people.invite(account.id, f"user{number}@example.org", VIEWER)
    with refusal(Code.CONFLICT):
        await store.people.invite(account.id, "ann@example.org", VIEWER)
    await store.people.invite(account.id, "user1@example.org", VIEWER)  # takes its own place
    clock.now += INVITATION_LIFETIME
    await store.people.invite(account.id, "ann@example.org", VIEWER)


async def test_a_new_role_ends_the_tokens_of_the_former(store: Store, account: Account) -> None:
    user = await joined(store, account, "ann@example.org", DEVELOPER)
    session = existing(await store.sessions.begin(user, *WHERE))
    await store.people.set_role(account.id, user.id, DEVELOPER)
    assert await store.accounts.user(user.id) == user
    await store.people.set_role(account.id, user.id, VIEWER)
    changed = existing(await store.accounts.user_of_session(session.id))
    assert (changed.account_role, changed.token_epoch) == (VIEWER, user.token_epoch + 1)
    with refusal(Code.NOT_FOUND):
        await store.people.set_role("acc_other", user.id, OWNER)


async def test_a_removed_user_is_gone(store: Store, account: Account) -> None:
    user = await joined(store, account, "ann@example.org", OWNER)
    session = existing(await store.sessions.begin(user, *WHERE))
    await store.second_factors.begin(user.id, b"sealed")
    await store.second_factors.confirm(user.id, b"sealed", 7, ["a", "b"])
    _, token = await store.people.reset(user.id)
    with refusal(Code.NOT_FOUND):
        await store.people.remove("acc_other", user.id)
    assert (await store.people.remove(account.id, user.id)).email == "ann@example.org"
    assert await store.accounts.user(user.id) is None
    assert await store.accounts.user_of_session(session.id) is None
    assert await store.people.use_link(token, HASH) is None
    assert [person.email for person in await store.people.of(account.id)] == ["demo@example.org"]
    await joined(store, account, "ann@example.org", VIEWER)


async def test_an_anonymous_request_keeps_the_link_of_an_administrator(store: Store, account: Account) -> None:
    user = await first_user(store, account)
    tokens = [(await store.people.reset(user.id, lifetime))[1] for lifetime in (DAY, HOUR, HOUR)]
    assert [await store.people.open_link(token) is not None for token in tokens] == [True, False, True]
    assert await store.people.use_link(tokens[2], HASH) is not None
    assert await store.people.open_link(tokens[0]) is None  # a new password ends every link
    tokens = [(await store.people.reset(user.id, lifetime))[1] for lifetime in (HOUR, DAY)]
    assert await store.people.open_link(tokens[0]) is None


@pytest.mark.parametrize("removed", [True, False])
async def test_invitations_end_with_an_owner(store: Store, account: Account, removed: bool) -> None:
    owner, user = await first_user(store, account), await joined(store, account, "ann@example.org", DEVELOPER)
    _, reset = await store.people.reset(owner.id)
    leaver = await joined(store, account, "bob@example.org", OWNER)
    _, token = await store.people.invite(account.id, "eve@example.org", OWNER)
    await store.people.set_role(account.id, leaver.id, OWNER)
    await store.people.set_role(account.id, user.id, VIEWER)
    await store.people.remove(account.id, user.id)
    assert await store.people.open_link(token) is not None
    if removed:
        await store.people.remove(account.id, leaver.id)
    else:
        await store.people.set_role(account.id, leaver.id, DEVELOPER)
    assert await store.people.invitations(account.id) == []
    assert await store.people.use_link(token, HASH) is None
    assert await store.people.open_link(reset) is not None


async def test_the_last_owner_stays(store: Store, account: Account) -> None:
    owner = await first_user(store, account)
    user = await joined(store, account, "ann@example.org", DEVELOPER)
    with refusal(Code.CONFLICT):
        await store.people.set_role(account.id, owner.id, VIEWER)
    with refusal(Code.CONFLICT):
        await store.people.remove(account.id, owner.id)
    assert await store.accounts.user(owner.id) == owner  # nothing of it was done
    await store.people.set_role(account.id, user.id, OWNER)
    await store.people.remove(account.id, owner.id)
    assert (await store.accounts.find(account.id)).email == "ann@example.org"


@pytest.mark.parametrize("how", ["roles", "removals", "both"])
async def test_two_owners_cannot_leave_at_once(database: Database, how: str) -> None:
    """Of two changes at the same moment that would together leave no owner, one is refused."""
    async with database.open() as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH)
        owners = [await first_user(store, account), await joined(store, account, "ann@example.org", OWNER)]
        refused = []

        async def leave(user: User, by_role: bool) -> None:
            try:
                if by_role:
                    await store.people.set_role(account.id, user.id, VIEWER)
                else:
                    await store.people.remove(account.id, user.id)
            except Refused as error:
                refused.append(error.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave, owners[0], how != "removals")
            nursery.start_soon(leave, owners[1], how == "roles")
        assert refused == [Code.CONFLICT]
        left = [person for person in await store.people.of(account.id) if person.account_role is OWNER]
        assert len(left) == 1


async def test_a_reset_sets_the_password_once(store: Store, account: Account, clock: Clock) -> None:
    user = await first_user(store, account)
    session = existing(await store.sessions.begin(user, *WHERE))
    _, former = await store.people.reset(user.id)
    link, token = await store.people.reset(user.id)
    assert (link.user_id, link.email) == (user.id, user.email)
    assert await store.people.invitations(account.id) == []  # it is none
    assert await store.people.use_link(former, "new") is None
    assert await store.people.use_link(token, "new") is not None
    assert await store.people.use_link(token, "newer") is None
    changed = existing(await store.accounts.user(user.id))
    assert (changed.password_hash, changed.token_epoch) == ("new", user.token_epoch + 1)
    assert await store.accounts.user_of_session(session.id) is None
    _, token = await store.people.reset(user.id)
    clock.now += RESET_LIFETIME
    assert await store.people.use_link(token, "newest") is None
    with refusal(Code.NOT_FOUND):
        await store.people.reset("usr_unknown")


async def test_a_reset_ends_with_another_password(store: Store, account: Account) -> None:
    user = await first_user(store, account)
    _, token = await store.people.reset(user.id)
    assert not await store.accounts.set_password(user.id, "new", user.token_epoch + 1)
    assert await store.people.open_link(token) is not None
    assert await store.accounts.set_password(user.id, "new", user.token_epoch)
    assert await store.people.use_link(token, "newer") is None


async def test_a_deleted_account_has_no_people(store: Store, account: Account) -> None:
    user = await joined(store, account, "ann@example.org", VIEWER)
    await store.second_factors.begin(user.id, b"sealed")
    _, token = await store.people.invite(account.id, "bob@example.org", VIEWER)
    await store.accounts.delete(account.id)
    assert await store.people.of(account.id) == []
    assert await store.people.use_link(token, HASH) is None
    await store.accounts.create("next", "ann@example.org", HASH)


async def test_only_the_first_owner_becomes_an_administrator(store: Store, account: Account) -> None:
    user = await joined(store, account, "ann@example.org", OWNER)
    await store.accounts.set_role(account.id, Role.ADMIN)
    assert [person.role for person in await store.people.of(account.id)] == [Role.ADMIN, Role.CUSTOMER]
    assert await store.accounts.user(user.id) == user


async def test_every_user_becomes_a_customer_again(store: Store, account: Account) -> None:
    await store.accounts.create("operator", "operator@example.org", HASH, Role.ADMIN)
    admin, user = await first_user(store, account), await joined(store, account, "ann@example.org", OWNER)
    await store.accounts.set_role(account.id, Role.ADMIN)
    await store.people.set_role(account.id, admin.id, VIEWER, by_admin=True)
    await store.accounts.set_role(account.id, Role.CUSTOMER)
    assert [person.role for person in await store.people.of(account.id)] == [Role.CUSTOMER, Role.CUSTOMER]
    assert await store.accounts.user(user.id) == user
    ended = existing(await store.accounts.user(admin.id))
    assert ended.token_epoch == admin.token_epoch + 3


async def test_only_an_administrator_changes_an_administrator(store: Store, account: Account) -> None:
    admin = await first_user(store, account)
    await joined(store, account, "ann@example.org", OWNER)
    await store.accounts.set_role(account.id, Role.ADMIN)
    with refusal(Code.FORBIDDEN):
        await store.people.set_role(account.id, admin.id, VIEWER)
    with refusal(Code.FORBIDDEN):
        await store.people.remove(account.id, admin.id)
    with refusal(Code.CONFLICT):
        await store.people.remove(account.id, admin.id, by_admin=True)
    with refusal(Code.CONFLICT):
        await store.accounts.set_role(account.id, Role.CUSTOMER)
    assert [person.role for person in await store.people.of(account.id)] == [Role.ADMIN, Role.CUSTOMER]
    await store.accounts.create("operator", "operator@example.org", HASH, Role.ADMIN)
    assert (await store.people.remove(account.id, admin.id, by_admin=True)).email == admin.email


async def test_a_user_who_left_creates_no_key(store: Store, account: Account) -> None:
    user, viewer = [await joined(store, account, f"{name}@example.org", DEVELOPER) for name in ("ann", "bob")]
    key_id, _ = await store.access.create_key(account.id, scope=Scope.MANAGE, test=False, created_by=user.id)
    username, _ = await store.access.create_credential(account.id, created_by=user.id)
    assert (await store.access.key(key_id)).created_by == user.email
    removed = await store.people.remove(account.id, user.id)
    assert (list(removed.revoked.api_keys), list(removed.revoked.smtp_credentials)) == ([key_id], [username])
    await store.people.set_role(account.id, viewer.id, VIEWER)
    for created_by in (user.id, viewer.id):
        with refusal(Code.FORBIDDEN):
            await store.access.create_key(account.id, scope=Scope.READ, test=False, created_by=created_by)
        with refusal(Code.FORBIDDEN):
            await store.access.create_credential(account.id, created_by=created_by)


async def test_a_key_belongs_to_the_user_who_rolled_it_last(store: Store, account: Account) -> None:
    user = await joined(store, account, "ann@example.org", DEVELOPER)
    key_id, _ = await store.access.create_key(account.id, scope=Scope.FULL, test=False)
    secret = await store.access.roll_key(await store.access.key(key_id), 0, account.id, user.id)
    await store.access.roll_key(await store.access.key(key_id), 30 * 86_400_000_000)
    assert (await store.access.key(key_id)).created_by == user.email
    assert await store.access.caller_by_key(secret) is not None
    assert list((await store.people.remove(account.id, user.id)).revoked.api_keys) == [key_id]
    assert await store.access.caller_by_key(secret) is None


# ---- second factors
async def test_a_factor_is_in_force_once_confirmed(store: Store, account: Account) -> None:
    user = await first_user(store, account)
    assert await store.second_factors.of(user.id) is None
    await store.second_factors.begin(user.id, b"one")
    await store.second_factors.begin(user.id, b"two")
    with refusal(Code.CONFLICT):
        await store.second_factors.confirm(user.id, b"one", 5, ["a"])
    before = existing(await store.accounts.user(user.id))
    assert not before.has_totp
    assert not await store.second_factors.use_step(user.id, 9)  # not in force
    await store.second_factors.confirm(user.id, b"two", 5, ["a", "b"])
    after = existing(await store.accounts.user(user.id))
    assert after.has_totp
    for again in (store.second_factors.begin(user.id, b"three"), store.second_factors.confirm(user.id, b"two", 6, [])):
        with refusal(Code.CONFLICT):
            await again
    assert await store.second_factors.recovery_codes_left(user.id) == 2
    assert await store.installation.has_secrets()


async def test_a_step_is_spent_with_those_before(store: Store, account: Account) -> None:
    user = await first_user(store, account)
    await store.second_factors.begin(user.id, b"sealed")
    await store.second_factors.confirm(user.id, b"sealed", 5, [])
    assert not await store.second_factors.use_step(user.id, 5)
    assert await store.second_factors.use_step(user.id, 7)
    assert not await store.second_factors.use_step(user.id, 7)
    assert not await store.second_factors.use_step(user.id, 6)
    assert await store.second_factors.use_step(user.id, 8)


async def test_a_recovery_code_is_good_once(store: Store, account: Account) -> None:
    user = await first_user(store, account)
    other = await joined(store, account, "ann@example.org", VIEWER)
    await store.second_factors.begin(user.id, b"sealed")
    await store.second_factors.confirm(user.id, b"sealed", 5, ["aaaa", "bbbb"])
    assert not await store.second_factors.use_recovery_code(other.id, "aaaa")
    assert await store.second_factors.use_recovery_code(user.id, "aaaa")
    assert not await store.second_factors.use_recovery_code(user.id, "aaaa")
    assert await store.second_factors.recovery_codes_left(user.id) == 1
    assert "bbbb" not in repr(await store.engine.rows("SELECT * FROM recovery_codes", {}))
    assert await store.second_factors.remove(user.id)
    assert not await store.second_factors.remove(user.id)
    assert await store.second_factors.recovery_codes_left(user.id) == 0


# ---- saved views
async def test_a_view_is_its_users_own(store: Store, account: Account) -> None:
    user = existing(await store.accounts.user_by_email(account.email))
    view = await store.saved_views.save(user.id, "Bounced", {"outcome": "bounced"})
    assert await store.saved_views.of(user.id) == [view]
    assert await store.saved_views.of("usr_other") == []
    changed = await store.saved_views.save(user.id, "Bounced", {"outcome": "bounced", "since": "today"})
    assert await store.saved_views.of(user.id) == [changed]
    assert changed.id == view.id
    with refusal(Code.NOT_FOUND):
        await store.saved_views.delete("usr_other", view.id)
    await store.saved_views.delete(user.id, view.id)
    assert await store.saved_views.of(user.id) == []


async def test_a_user_has_so_many_views(store: Store, account: Account) -> None:
    user = existing(await store.accounts.user_by_email(account.email))
    for number in range(VIEWS_PER_USER):
        await store.saved_views.save(user.id, f"View {number}", {})
    with refusal(Code.CONFLICT):
        await store.saved_views.save(user.id, "One more", {})
    await store.saved_views.save(user.id, "View 0", {"tag": "new"})
    assert len(await store.saved_views.of(user.id)) == VIEWS_PER_USER


async def test_views_go_with_their_user(store: Store, account: Account) -> None:
    link, token = await store.people.invite(account.id, "ann@example.org", VIEWER)
    await store.people.use_link(token, HASH)
    user = existing(await store.accounts.user_by_email(link.email))
    await store.saved_views.save(user.id, "Mine", {})
    await store.people.remove(account.id, user.id)
    assert await store.saved_views.of(user.id) == []
