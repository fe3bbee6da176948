"""The audit log: a line is written with the change it tells of, shown to its account, and kept for a year."""

from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from appliance.errors import Code, Refused, StorageUnavailable
from appliance.model.accounts import Account, Scope
from appliance.model.dashboard import Actor
from appliance.store import Store
from appliance.store.audit import AUDIT_KEPT, AUDIT_SURE, about, unnoted
from appliance.store.engine import START
from appliance.times import DAY, MINUTE, SECOND
from appliance.web.api.account import audit_csv
from tests.store.samples import HASH, Clock, existing

BOSS = Actor("user", "boss@example.org")


async def actions(store: Store, account_id: str | None, **filters: Any) -> list[str]:
    return [each.action for each in await store.audit.page(account_id, **filters)]


async def test_a_line_goes_with_the_change(store: Store, account: Account) -> None:
    async with store.audit.noting(BOSS, "api_key.created", "192.0.2.1", (account.id,)):
        about(None, {"name": "shop", "domain": None}, made=lambda made: str(made[0]))
        key_id, _ = await store.access.create_key(account.id, scope=Scope.SEND, test=False)
        await store.access.revoke_key(key_id)
    (line,) = await store.audit.page(account.id)
    assert line.action == "api_key.created"
    assert (line.actor_kind, line.actor, line.address) == ("user", "boss@example.org", "192.0.2.1")
    assert (line.object, line.details, line.account_id) == (key_id, {"name": "shop"}, account.id)


async def test_what_fails_leaves_no_line(store: Store, account: Account) -> None:
    def fail(_: object) -> None:
        raise Refused(Code.CONFLICT, "no")

    with pytest.raises(Refused):
        async with store.audit.noting(BOSS, "api_key.revoked", "192.0.2.1", (account.id,)):
            await store.engine.write(fail)
    assert await actions(store, account.id) == []


async def test_a_failure_that_is_passed_over_takes_no_line(store: Store, account: Account) -> None:
    def fail(_: object) -> None:
        raise StorageUnavailable("busy")

    async with store.audit.noting(BOSS, "account.suspended", "192.0.2.1", (account.id,), always=False):
        with suppress(StorageUnavailable):
            await store.engine.write(fail)
        await store.accounts.set_suspended(account.id, True)
    assert await actions(store, account.id) == ["account.suspended"]
    async with store.audit.noting(BOSS, "nothing", "192.0.2.1", (account.id,), always=False):
        with unnoted():
            await store.accounts.set_suspended(account.id, False)
    assert await actions(store, account.id) == ["account.suspended"]


async def test_a_write_that_changed_nothing_leaves_no_line(store: Store, account: Account) -> None:
    user = existing(await store.accounts.user_by_email(account.email))
    async with store.audit.noting(BOSS, "nothing", "192.0.2.1", (account.id,), always=False):
        assert await store.people.use_link("none", HASH) is None
        assert not await store.accounts.set_password(user.id, HASH, user.token_epoch + 1)
        assert await store.sessions.begin(replace(user, token_epoch=user.token_epoch + 1), "192.0.2.1", "curl") is None
        assert not await store.sessions.end("ses_none", user.id)
    assert await actions(store, account.id) == []
    async with store.audit.noting(BOSS, "session.begun", "192.0.2.1", (account.id,), always=False):
        assert not await store.sessions.end("ses_none", user.id)
        assert await store.sessions.begin(user, "192.0.2.1", "curl") is not None
    assert await actions(store, account.id) == ["session.begun"]


async def test_a_change_without_a_write_is_told_too(store: Store, account: Account) -> None:
    async with store.audit.noting(BOSS, "node.drained", "192.0.2.1", (account.id,)):
        pass
    async with store.audit.noting(BOSS, "nothing", "cli", (account.id,), always=False):
        pass
    assert await actions(store, account.id) == ["node.drained"]


async def test_an_account_sees_its_own_lines(store: Store, account: Account) -> None:
    other = await store.accounts.create("other", "other@example.org", HASH)
    async with store.audit.noting(BOSS, "account.suspended", "192.0.2.1", (account.id, other.id)):
        await store.accounts.set_suspended(other.id, True)
    async with store.audit.noting(Actor("operator", "root"), "mail.paused", "cli"):
        pass
    assert await actions(store, account.id) == await actions(store, other.id) == ["account.suspended"]
    assert sorted(await actions(store, None)) == ["account.suspended", "account.suspended", "mail.paused"]


async def test_pages_and_filters(store: Store, account: Account) -> None:
    """Newest first; by a whole action or the word before its dot; by time."""
    for action in ("api_key.created", "api_keys.x", "api_key.revoked", "domain.added"):
        async with store.audit.noting(BOSS, action, "192.0.2.1", (account.id,)):
            pass
    assert await actions(store, account.id, most=1) == ["domain.added"]
    newest = (await store.audit.page(account.id))[0]
    assert (await actions(store, account.id, before=newest.id))[0] == "api_key.revoked"
    assert await actions(store, account.id, action="api_key") == ["api_key.revoked", "api_key.created"]
    assert await actions(store, account.id, action="api_key.created") == ["api_key.created"]
    assert await actions(store, account.id, since=newest.created_at + 10**9) == []
    assert await actions(store, account.id, until=0) == []


async def test_a_line_is_kept_for_a_year(store: Store, account: Account) -> None:
    for age in (AUDIT_KEPT + 10**9, AUDIT_KEPT - 10**9):
        async with store.audit.noting(BOSS, "domain.added", "cli", (account.id,), str(age)):
            pass
        ((newest, at),) = await store.engine.rows("SELECT id, at FROM audit_log ORDER BY id DESC LIMIT 1", {})
        await store.engine.change("UPDATE audit_log SET at = :at WHERE id = :id", {"id": newest, "at": at - age})
    while (await store.deletion.expired(10**12, 10)).more:
        pass
    assert [each.object for each in await store.audit.page(account.id)] == [str(AUDIT_KEPT - 10**9)]


async def test_equal_lines_of_what_was_read_are_one(store: Store, account: Account, clock: Clock) -> None:
    other = await store.accounts.create("other", "other@example.org", HASH)

    async def read(what: str, *, actor: Actor = BOSS, address: str = "cli", also: str = other.id) -> None:
        async with store.audit.noting(actor, "email.read", address, (account.id, also), what):
            about(None, {"account": "other"})

    for _ in range(3):
        await read("msg_1")
    assert len(await actions(store, account.id)) == len(await actions(store, other.id)) == 1
    await read("msg_1", also="acc_third")
    assert len(await actions(store, account.id)) == len(await actions(store, "acc_third")) == 1
    for _ in range(2):
        await read("msg_2")
        await read("msg_1", actor=Actor("user", "else@example.org"))
        await read("msg_1", address="192.0.2.1")
    assert len(await actions(store, account.id)) == 4
    clock.now += MINUTE + SECOND
    await read("msg_1")
    assert len(await actions(store, account.id)) == 5
    for suspended in (True, True):
        async with store.audit.noting(BOSS, "account.suspended", "cli", (account.id,)):
            await store.accounts.set_suspended(other.id, suspended)
    assert len(await actions(store, account.id)) == 7


async def test_a_search_looks_at_so_many_lines(store: Store, account: Account) -> None:
    for number in range(7):
        async with store.audit.noting(
            BOSS, "domain.added" if number else "api_key.created", "cli", (account.id,), str(number)
        ):
            pass
    found, following = await store.audit.search(account.id, action="api_key", scanned=3)
    assert found == []
    pages = 1
    while following is not None:
        part, following = await store.audit.search(account.id, action="api_key", scanned=3, before=following)
        found, pages = found + part, pages + 1
    assert [each.action for each in found] == ["api_key.created"]
    assert pages == 3
    found, following = await store.audit.search(account.id, most=2, scanned=3)
    assert (len(found), following) == (2, found[-1].id)
    assert await store.audit.search(account.id, since=found[0].created_at + DAY) == ([], None)
    assert await store.audit.search(account.id, until=found[0].created_at - DAY) == ([], None)


async def test_an_account_keeps_so_many_lines(store: Store, account: Account, clock: Clock) -> None:
    other = await store.accounts.create("other", "other@example.org", HASH)
    for account_id, lines in (("", 6), (account.id, 9), (other.id, 3)):
        for number in range(lines):
            async with store.audit.noting(BOSS, "domain.added", "cli", (account_id,), str(number)):
                pass
    deletion, after, total = replace(store.deletion, audit_lines=4), START, 0
    clock.now += AUDIT_SURE - DAY
    assert (await deletion.audit(START, 2)).deleted == 0
    async with store.audit.noting(BOSS, "domain.added", "cli", (account.id,), "9"):
        pass
    clock.now += 2 * DAY
    while (part := await deletion.audit(after, 2)).more:
        after, total = part.after, total + part.deleted

    async def kept(account_id: str) -> list[str]:
        return [each.object for each in await store.audit.page(None) if each.account_id == account_id]

    assert await kept(account.id) == ["9", "8", "7", "6"]
    assert await kept(other.id) == ["2", "1", "0"]
    assert await kept("") == ["5", "4", "3", "2"]
    assert total == 8
    assert (await deletion.audit(part.after, 2)).deleted == 0
    for number in range(6):
        async with store.audit.noting(BOSS, "domain.added", "cli", (account.id,), f"new {number}"):
            pass
    after = START
    while (part := await deletion.audit(after, 2)).more:
        after = part.after
    assert await kept(account.id) == [*(f"new {number}" for number in (5, 4, 3, 2, 1, 0)), "9"]


async def test_a_log_has_a_ceiling_also_within_a_week(store: Store, account: Account, clock: Clock) -> None:
    async def write(names: str) -> None:
        for name in names:
            async with store.audit.noting(BOSS, "domain.added", "cli", (account.id,), name):
                pass

    async def trimmed(most: int) -> str:
        deletion, after = replace(store.deletion, audit_lines=2, audit_most=most), START
        while (part := await deletion.audit(after, 2)).more:
            after = part.after
        return "".join(each.object for each in await store.audit.page(account.id))

    await write("abc")
    clock.now += AUDIT_SURE + DAY
    await write("defghi")
    assert await trimmed(8) == "ihgfed"
    assert await trimmed(6) == "ihgfed"
    assert await trimmed(5) == "ihgfe"
    assert await trimmed(3) == "ihg"


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", " =1", "\r=1"])
async def test_a_cell_is_no_formula(store: Store, account: Account, cell: str) -> None:
    async with store.audit.noting(BOSS, "template.saved", "cli", (account.id,), cell):
        pass
    assert f"'{cell}" in audit_csv(await store.audit.page(account.id))
