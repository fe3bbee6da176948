"""Accounts: balances that add up, users, and what ends their tokens."""

from itertools import accumulate

import pytest

from appliance.errors import Code, Refused
from appliance.model.accounts import Account, LedgerKind, Role, Scope
from appliance.model.webhooks import EventType, SealedSecret, WebhookOptions
from appliance.store import Store
from appliance.store.accounts import MAX_CREDITS
from tests.store.samples import CREDITS, HASH, Clock, Messages, existing, refusal


async def ledger(store: Store, account: Account) -> list[tuple[LedgerKind, int, int]]:
    entries = reversed(await store.accounts.ledger(account.id))
    return [(entry.kind, entry.amount, entry.balance) for entry in entries]


async def test_an_account_has_a_user_and_a_balance(store: Store, account: Account) -> None:
    assert await store.accounts.named("demo") == account
    assert (account.email, account.credits, account.daily_cap, account.suspended) == (
        "demo@example.org",
        CREDITS,
        None,
        False,
    )
    user = existing(await store.accounts.user_by_email("DEMO@Example.org"))
    assert (user.account_id, user.role, user.password_hash, user.token_epoch) == (account.id, Role.CUSTOMER, HASH, 0)
    assert await store.accounts.user(user.id) == user
    assert await ledger(store, account) == [(LedgerKind.GRANT, CREDITS, CREDITS)]


async def test_names_and_logins_are_taken_once(store: Store, account: Account) -> None:
    for name, email in (("demo", "new@example.org"), ("new", "DEMO@example.org")):
        with refusal(Code.CONFLICT):
            await store.accounts.create(name, email, HASH)
    assert await store.accounts.all() == [account]
    assert await store.accounts.user_by_email("new@example.org") is None


async def test_accounts_are_listed_by_name(store: Store) -> None:
    for name in ("b", "c", "a"):
        await store.accounts.create(name, f"{name}@example.org", HASH)
    assert [account.name for account in await store.accounts.all()] == ["a", "b", "c"]


async def test_what_is_not_there_is_not_found(store: Store) -> None:
    with refusal(Code.NOT_FOUND):
        await store.accounts.named("unknown")
    assert await store.accounts.user_by_email("unknown@example.org") is None
    assert await store.accounts.user("usr_none") is None


# ---- credits
async def test_credits_are_added_and_taken(store: Store, account: Account) -> None:
    assert await store.accounts.change_credits(account.id, 50) == CREDITS + 50
    assert await store.accounts.change_credits(account.id, -CREDITS) == 50
    assert await store.accounts.change_credits(account.id, -50) == 0
    entries = await ledger(store, account)
    assert [balance for _, _, balance in entries] == [CREDITS, CREDITS + 50, 50, 0]
    assert sum(amount for _, amount, _ in entries) == 0


async def test_a_clock_that_was_set_back_leaves_the_ledger_in_order(
    store: Store, account: Account, messages: Messages, clock: Clock
) -> None:
    """Lines stand in the order in which they were committed, over all pages, so that the balances add up."""
    for step in (0, -86_400_000_000, 3_600_000_000, -10 * 365 * 86_400_000_000, 0):
        clock.now += step
        await store.accounts.change_credits(account.id, 5)
        new = messages.new()
        await store.messages.accept(new)
        await store.accounts.change_credits(account.id, -2)
    pages, before = [], None
    while page := await store.accounts.ledger(account.id, most=4, before=before):
        pages.append(page)
        before = page[-1].id
    lines = [line for page in pages for line in page][::-1]
    assert len(lines) == 1 + 5 * 3
    assert [line.balance for line in lines] == list(accumulate(line.amount for line in lines))
    assert [line.amount for line in lines][1:] == [5, -1, -2] * 5


@pytest.mark.parametrize("amount", [-CREDITS - 1, MAX_CREDITS, -(2**62), 2**62])
async def test_a_balance_stays_within_its_limits(store: Store, account: Account, amount: int) -> None:
    with refusal(Code.CONFLICT):
        await store.accounts.change_credits(account.id, amount)
    assert (await store.accounts.named("demo")).credits == CREDITS
    assert len(await ledger(store, account)) == 1


@pytest.mark.parametrize("balance", [-1, MAX_CREDITS + 1])
async def test_a_balance_cannot_be_set_beyond_its_limits(store: Store, account: Account, balance: int) -> None:
    with pytest.raises(Refused):
        await store.accounts.set_credits(account.id, balance)
    with pytest.raises(Refused):
        await store.accounts.create("other", "other@example.org", HASH, credit=balance)
    assert (await store.accounts.named("demo")).credits == CREDITS


async def test_counting_can_stop_and_begin_again(store: Store, account: Account) -> None:
    await store.accounts.set_credits(account.id, None)
    assert (await store.accounts.named("demo")).credits is None
    with pytest.raises(Refused) as refused:
        await store.accounts.change_credits(account.id, 1)
    assert "unlimited" in refused.value.text
    await store.accounts.set_credits(account.id, 7)
    assert (await store.accounts.named("demo")).credits == 7
    assert (await ledger(store, account))[-1] == (LedgerKind.GRANT, 7, 7)
    await store.accounts.set_credits(account.id, 3)
    assert (await ledger(store, account))[-1] == (LedgerKind.GRANT, -4, 3)


async def test_the_ledger_adds_up_after_a_time_without_limit(store: Store, account: Account) -> None:
    for _ in range(2):
        await store.accounts.set_credits(account.id, None)
    await store.accounts.set_credits(account.id, 7)
    entries = await ledger(store, account)
    assert [(amount, balance) for _, amount, balance in entries] == [(CREDITS, CREDITS), (-CREDITS, 0), (7, 7)]


async def test_the_ledger_shows_its_newest_lines(store: Store, account: Account) -> None:
    for amount in (1, 2, 3):
        await store.accounts.change_credits(account.id, amount)
    newest = await store.accounts.ledger(account.id, most=2)
    assert [entry.amount for entry in newest] == [3, 2]
    assert [entry.amount for entry in await store.accounts.ledger(account.id, before=newest[-1].id)] == [1, CREDITS]


async def test_suspension_and_cap_are_switched(store: Store, account: Account) -> None:
    await store.accounts.set_suspended(account.id, True)
    await store.accounts.set_daily_cap(account.id, 5)
    assert ((await store.accounts.named("demo")).suspended, (await store.accounts.named("demo")).daily_cap) == (True, 5)
    await store.accounts.set_suspended(account.id, False)
    await store.accounts.set_daily_cap(account.id, None)
    assert ((await store.accounts.named("demo")).suspended, (await store.accounts.named("demo")).daily_cap) == (
        False,
        None,
    )


# ---- users and tokens
async def test_a_new_password_ends_every_token(store: Store, account: Account) -> None:
    user = existing(await store.accounts.user_by_email(account.email))
    await store.accounts.set_password(user.id, "another hash")
    changed = existing(await store.accounts.user(user.id))
    assert (changed.password_hash, changed.token_epoch) == ("another hash", 1)


async def test_a_password_is_changed_once_by_who_knew_it(store: Store, account: Account) -> None:
    user = existing(await store.accounts.user_by_email(account.email))
    assert await store.accounts.set_password(user.id, "the owner's", user.token_epoch)
    assert not await store.accounts.set_password(user.id, "the thief's", user.token_epoch)
    changed = existing(await store.accounts.user(user.id))
    assert changed.password_hash == "the owner's"
    assert await store.accounts.set_password(user.id, "the operator's")


# ---- the first of all
async def test_the_first_account_is_made_once(store: Store) -> None:
    first = await store.first_start.create(name="first", email="a@example.org", password_hash=HASH, domain="x.example")
    assert first is not None
    assert await store.first_start.any_account() == "first"
    caller = existing(await store.access.caller_by_key(first.key))
    assert caller.domains == {"x.example"}
    again = await store.first_start.create(name="b", email="b@example.org", password_hash=HASH, domain="x.example")
    assert again is None
    assert [account.name for account in await store.accounts.all()] == ["first"]


async def test_a_deleted_account_can_do_nothing_and_keeps_its_books(store: Store, account: Account) -> None:
    secret = SealedSecret(b"sealed", "hint")
    await store.webhooks.save(account.id, WebhookOptions("https://x.example/", tuple(EventType), True), "whk_1", secret)
    await store.access.add_domain(account.id, "example.com", usable=True)
    username, _ = await store.access.create_credential(account.id)
    _, key = await store.access.create_key(account.id, scope=Scope.FULL, test=False)
    await store.suppressions.add(account.id, "a@x.example", "by hand")
    other = await store.accounts.create("other", "other@example.org", HASH)
    before = await store.accounts.ledger(account.id)
    await store.accounts.delete(account.id)
    assert [each.name for each in await store.accounts.all()] == ["other"]
    assert await store.accounts.user_by_email(account.email) is None
    assert await store.access.caller_by_credential(username) is None
    assert await store.access.caller_by_key(key) is None
    assert await store.access.domains(account.id) == []
    assert await store.webhooks.of(account.id) is None
    assert await store.suppressions.of_address("a@x.example") == []
    assert await store.accounts.ledger(account.id) == before
    caller = existing(await store.access.caller_by_account(account.id))
    assert caller.suspended
    again = await store.accounts.create(account.name, account.email, HASH)
    await store.accounts.delete(again.id)
    await store.accounts.delete(other.id)
    assert await store.first_start.any_account() is None
