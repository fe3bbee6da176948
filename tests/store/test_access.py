"""Who may send: domains, credentials, keys, and the callers they stand for."""

from contextlib import suppress

import pytest
from msgspec.structs import replace

from appliance.errors import Code, Refused
from appliance.model.accounts import Account, CredentialKind, KeyPrincipal, Permission, Scope
from appliance.store import Store
from appliance.store.access import CredentialLimits, sha256
from tests.store.samples import HASH, Database, at_once, existing, refusal


@pytest.fixture
async def other(store: Store) -> Account:
    return await store.accounts.create("other", "other@example.org", HASH)


async def dump(store: Store) -> str:
    queries = [f"SELECT * FROM {table}" for table in ("smtp_credentials", "api_keys", "users")]
    return str([await store.engine.rows(query, {}) for query in queries])


# ---- domains
async def test_a_caller_knows_the_return_paths_in_use(store: Store, account: Account) -> None:
    for name, path in (("a.example", None), ("b.example", "mail.b.example"), ("c.example", None)):
        await store.access.add_domain(account.id, name, usable=True, return_path=path)
    for name in ("a.example", "b.example"):
        domain = await store.domains.find(account.id, name)
        await store.domains.use_return_path(account.id, domain, in_use=True)
    caller = existing(await store.access.caller_by_account(account.id))
    assert caller.domains == {"a.example", "b.example", "c.example"}
    assert caller.return_paths == {"a.example": "bounces.a.example", "b.example": "mail.b.example"}


async def test_only_usable_domains_are_a_callers(store: Store, account: Account) -> None:
    await store.access.add_domain(account.id, "b.example", usable=False)
    await store.access.add_domain(account.id, "a.example", usable=True)
    assert [(domain.name, domain.usable) for domain in await store.access.domains(account.id)] == [
        ("a.example", True),
        ("b.example", False),
    ]
    caller = existing(await store.access.caller_by_account(account.id))
    assert caller.domains == {"a.example"}
    await store.access.add_domain(account.id, "b.example", usable=True)
    await store.access.add_domain(account.id, "a.example", usable=False)
    caller = existing(await store.access.caller_by_account(account.id))
    assert caller.domains == {"a.example", "b.example"}


async def test_a_domain_may_belong_to_several_accounts(store: Store, account: Account, other: Account) -> None:
    await store.access.add_domain(account.id, "a.example", usable=True)
    await store.access.add_domain(other.id, "a.example", usable=False)
    assert [domain.usable for domain in await store.access.domains(other.id)] == [False]


async def test_nothing_belongs_to_an_account_that_is_not_there(store: Store, database: Database) -> None:
    with pytest.raises(database.broken_rule):
        await store.access.add_domain("acc_none", "a.example", usable=True)


# ---- SMTP credentials
async def test_a_credential_makes_a_caller(store: Store, account: Account) -> None:
    username, password = await store.access.create_credential(account.id)
    found = existing(await store.access.caller_by_credential(username))
    caller, digest = found
    assert digest == sha256(password)
    assert (caller.account_id, caller.kind, caller.idempotency_scope) == (
        account.id,
        CredentialKind.SMTP,
        f"smtp:{username}",
    )
    assert (caller.may_read, caller.test, caller.suspended) == (True, False, False)
    assert await store.access.caller_by_credential("smtp_none") is None


async def test_no_password_looks_like_an_option(store: Store, account: Account) -> None:
    drawn = iter([b"\xf8" * 32, b"\x01" * 32])
    env = replace(store.access.env, token_bytes=lambda size: next(drawn) if size == 32 else b"\x02" * size)
    access = replace(store.access, env=env)
    _, password = await access.create_credential(account.id)
    assert password.startswith("AQEB")


async def test_a_revoked_credential_has_no_caller(store: Store, account: Account, other: Account) -> None:
    username, _ = await store.access.create_credential(account.id)
    with refusal(Code.NOT_FOUND):
        await store.access.revoke_credential(other.id, username)
    assert await store.access.caller_by_credential(username) is not None
    await store.access.revoke_credential(account.id, username)
    assert await store.access.caller_by_credential(username) is None
    (listed,) = await store.access.credentials(account.id)
    first_time = listed.revoked_at
    assert first_time is not None
    await store.access.revoke_credential(account.id, username)
    assert (await store.access.credentials(account.id))[0].revoked_at == first_time


# ---- API keys
@pytest.mark.parametrize("test", [True, False])
@pytest.mark.parametrize("scope", list(Scope))
async def test_a_key_makes_a_caller(store: Store, account: Account, scope: Scope, test: bool) -> None:
    key_id, key = await store.access.create_key(account.id, scope=scope, test=test)
    assert key.startswith("ma_test_" if test else "ma_live_")
    caller = existing(await store.access.caller_by_key(key))
    assert (caller.kind, caller.idempotency_scope) == (CredentialKind.KEY, f"key:{key_id}")
    assert (caller.may_send, caller.may_read) == (scope is not Scope.READ, scope is not Scope.SEND)
    assert caller.test is test
    assert caller.key is not None
    manages = scope is Scope.MANAGE and not test  # a test key opens nothing under /v1
    permissions = frozenset({Permission.VIEW, Permission.DEVELOP} if manages else ())
    assert (caller.key.id, caller.key.account_id, caller.key.permissions) == (key_id, account.id, permissions)
    (listed,) = await store.access.keys(account.id)
    assert (listed.id, listed.account_name, listed.hint, listed.scope) == (key_id, "demo", key[-4:], scope)


@pytest.mark.parametrize("by_itself", [True, False])
async def test_a_revoked_key_has_no_caller(store: Store, account: Account, other: Account, by_itself: bool) -> None:
    key_id, key = await store.access.create_key(account.id, scope=Scope.FULL, test=False)
    name = key if by_itself else key_id
    with pytest.raises(Refused) as foreign:
        await store.access.revoke_key(name, other.id)
    with pytest.raises(Refused) as absent:
        await store.access.revoke_key("key_none", other.id)
    assert (foreign.value.code, foreign.value.text) == (absent.value.code, absent.value.text)
    assert await store.access.caller_by_key(key) is not None
    assert await store.access.revoke_key(name, account.id) == key_id
    assert await store.access.caller_by_key(key) is None


async def test_keys_are_listed_by_account_or_all(store: Store, account: Account, other: Account) -> None:
    mine, _ = await store.access.create_key(account.id, scope=Scope.SEND, test=False)
    theirs, _ = await store.access.create_key(other.id, scope=Scope.SEND, test=False)
    assert [key.id for key in await store.access.keys(account.id)] == [mine]
    of_all = await store.access.keys()
    assert {key.id for key in of_all} == {mine, theirs}


async def test_a_key_has_its_limits(store: Store, account: Account) -> None:
    past = store.access.env.now() - 1
    key_id, key = await store.access.create_key(
        account.id, scope=Scope.MANAGE, test=False, name="deploy", domain="a.example", expires_at=past
    )
    caller = existing(await store.access.caller_by_key(key))
    assert caller.key == KeyPrincipal(key_id, account.id, "deploy", Scope.MANAGE, "a.example", past)
    listed = await store.access.key(key_id)
    assert (listed.domain, listed.expires_at, listed.last_used_from) == ("a.example", past, None)


@pytest.mark.parametrize(
    ("domain", "expires_at", "covered"),
    [
        (None, None, False),
        (None, 9, False),
        ("a.example", None, False),
        ("a.example", 11, False),
        ("b.example", 10, False),
        ("a.example", 10, True),
        ("a.example", 9, True),
    ],
)
def test_a_limited_key_covers_only_narrower_ones(domain: str | None, expires_at: int | None, covered: bool) -> None:
    key = KeyPrincipal("key_1", "acc_1", "", Scope.MANAGE, "a.example", 10)
    assert key.covers(domain, expires_at) is covered
    assert KeyPrincipal("key_1", "acc_1", "", Scope.MANAGE).covers(domain, expires_at)


async def test_a_rolled_key_has_two_secrets_for_a_while(store: Store, account: Account, other: Account) -> None:
    now = [store.access.env.now()]
    store.access = replace(store.access, env=replace(store.access.env, now=lambda: now[0]))
    key_id, first = await store.access.create_key(account.id, scope=Scope.SEND, test=True, expires_at=now[0] + 100)
    found = await store.access.key(key_id, account.id)
    with pytest.raises(Refused):
        await store.access.key(key_id, other.id)
    with pytest.raises(Refused):
        await store.access.roll_key(found, 10, other.id)
    second = await store.access.roll_key(found, 10, account.id)
    assert second.startswith("ma_test_")
    ends = [caller.key for key in (first, second) if (caller := await store.access.caller_by_key(key))]
    assert [(each.id, each.expires_at, each.replaced) for each in ends if each] == [
        (key_id, now[0] + 10, True),
        (key_id, now[0] + 100, False),
    ]
    listed = await store.access.key(key_id)
    assert (listed.hint, listed.previous_hint, listed.previous_expires_at) == (second[-4:], first[-4:], now[0] + 10)
    now[0] += 10
    assert (await store.access.key(key_id)).previous_hint is None
    third = await store.access.roll_key(listed, 0)
    assert await store.access.caller_by_key(first) is None
    assert await store.access.caller_by_key(third) is not None
    now[0] += 100
    with refusal(Code.CONFLICT):
        await store.access.roll_key(listed, 0)


async def test_expired_keys_make_room(store: Store, account: Account) -> None:
    store.access = replace(store.access, limits=CredentialLimits(working=2, revoked=1))
    now = store.access.env.now()
    for ago in (3, 2, 1):
        await store.access.create_key(account.id, scope=Scope.SEND, test=False, expires_at=now - ago, by_owner=True)
    await new_secret(store, account, "keys", by_owner=True)
    await new_secret(store, account, "keys", by_owner=True)
    with pytest.raises(Refused):
        await new_secret(store, account, "keys", by_owner=True)
    ended = [key.expires_at for key in await store.access.keys(account.id) if key.expires_at is not None]
    assert ended == [now - 1]


async def test_the_last_use_is_told_with_its_address(store: Store, account: Account) -> None:
    key_id, _ = await store.access.create_key(account.id, scope=Scope.SEND, test=False)
    await store.access.record_uses({f"key:{key_id}": (5, "192.0.2.1"), "smtp:none": (5, ""), "account:x": (5, "")})
    found = await store.access.key(key_id)
    assert (found.last_used_at, found.last_used_from) == (5, "192.0.2.1")


# ---- callers
async def test_a_suspended_account_is_known_by_every_credential(store: Store, account: Account) -> None:
    username, _ = await store.access.create_credential(account.id)
    _, key = await store.access.create_key(account.id, scope=Scope.SEND, test=False)
    await store.accounts.set_suspended(account.id, True)
    by_credential = existing(await store.access.caller_by_credential(username))
    for caller in (
        by_credential[0],
        await store.access.caller_by_key(key),
        await store.access.caller_by_account(account.id),
    ):
        assert caller is not None
        assert caller.suspended


async def test_a_token_makes_a_caller_of_its_account(store: Store, account: Account) -> None:
    caller = existing(await store.access.caller_by_account(account.id))
    assert (caller.kind, caller.idempotency_scope, caller.may_read) == (
        CredentialKind.TOKEN,
        f"account:{account.id}",
        True,
    )
    assert await store.access.caller_by_account("acc_none") is None


async def test_no_secret_is_stored(store: Store, account: Account) -> None:
    secrets = set()
    for _ in range(20):
        secrets.add((await store.access.create_credential(account.id))[1])
        secrets.add((await store.access.create_key(account.id, scope=Scope.SEND, test=False))[1])
    assert len(secrets) == 40
    stored = await dump(store)
    for secret in secrets:
        assert len(secret.removeprefix("ma_live_")) == 43
        assert secret not in stored
        assert secret[:-4] not in stored


async def test_a_page_of_keys_or_credentials_is_newest_first(store: Store, account: Account, other: Account) -> None:
    await store.access.create_key(other.id, scope=Scope.SEND, test=False)
    await store.access.create_credential(other.id)
    made = [(await store.access.create_key(account.id, scope=Scope.SEND, test=False))[0] for _ in range(5)]
    usernames = [(await store.access.create_credential(account.id))[0] for _ in range(5)]
    keys = sorted(made, reverse=True)
    assert [each.id for each in await store.access.newest_keys(account.id, None, 2)] == keys[:2]
    assert [each.id for each in await store.access.newest_keys(account.id, keys[1], 9)] == keys[2:]
    credentials = sorted(usernames, reverse=True)
    assert [each.username for each in await store.access.newest_credentials(account.id, None, 2)] == credentials[:2]
    assert [
        each.username for each in await store.access.newest_credentials(account.id, credentials[1], 9)
    ] == credentials[2:]


async def new_secret(store: Store, account: Account, kind: str, *, by_owner: bool) -> tuple[str, str]:
    if kind == "keys":
        return await store.access.create_key(account.id, scope=Scope.SEND, test=False, by_owner=by_owner)
    return await store.access.create_credential(account.id, by_owner=by_owner)


async def listed(store: Store, account: Account, kind: str) -> set[str]:
    if kind == "keys":
        return {key.id for key in await store.access.keys(account.id)}
    return {each.username for each in await store.access.credentials(account.id)}


@pytest.mark.parametrize("kind", ["credentials", "keys"])
async def test_an_owner_may_have_so_many_at_once(store: Store, account: Account, kind: str) -> None:
    store.access = replace(store.access, limits=CredentialLimits(working=3))
    made: list[str] = []

    async def make(*, by_owner: bool = True) -> None:
        with suppress(Refused):
            made.append((await new_secret(store, account, kind, by_owner=by_owner))[0])

    await at_once(make, [()] * 10)
    assert len(made) == 3
    await make(by_owner=False)
    assert len(made) == 4


@pytest.mark.parametrize("kind", ["credentials", "keys"])
async def test_the_longest_revoked_are_forgotten(store: Store, account: Account, other: Account, kind: str) -> None:
    store.access = replace(store.access, limits=CredentialLimits(revoked=2))

    async def make(owner: Account) -> str:
        return (await new_secret(store, owner, kind, by_owner=True))[0]

    async def revoke(owner: Account, name: str) -> None:
        if kind == "keys":
            await store.access.revoke_key(name, owner.id)
        else:
            await store.access.revoke_credential(owner.id, name)

    working = await make(account)
    for owner in (other, account):
        names = [await make(owner) for _ in range(4)]
        for name in reversed(names):
            await revoke(owner, name)
    newest = await make(account)
    assert await listed(store, account, kind) == {working, names[0], names[1], newest}
    assert len(await listed(store, other, kind)) == 4
