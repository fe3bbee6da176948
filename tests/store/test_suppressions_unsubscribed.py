"""Who has unsubscribed from what: kept once, counted, and obeyed when messages are accepted."""

import pytest
from msgspec.structs import replace

from appliance.errors import Code, Refused
from appliance.model.accounts import Account
from appliance.model.mail import RecipientStatus
from appliance.store import Store
from appliance.store.body_parts import SUPPRESSION
from tests.store.samples import CREDITS, HASH, Messages

ADA, NEWS = "ada@example.net", "tag:news"


async def stored_bytes(store: Store) -> int:
    return (await store.accounts.named("demo")).stored_bytes


async def test_an_address_unsubscribes_once(store: Store, account: Account) -> None:
    before = await stored_bytes(store)
    assert await store.unsubscriptions.add(account.id, NEWS, ADA)
    assert not await store.unsubscriptions.add(account.id, NEWS, ADA)
    assert await store.unsubscriptions.add(account.id, "template:news", ADA)
    assert await stored_bytes(store) == before + 2 * SUPPRESSION


async def test_a_link_of_an_account_that_is_gone_writes_nothing(store: Store) -> None:
    assert not await store.unsubscriptions.add("acc_gone", NEWS, ADA)


async def test_an_unsubscription_is_removed(store: Store, account: Account) -> None:
    other = await store.accounts.create("other", "other@example.org", HASH)
    before = await stored_bytes(store)
    await store.unsubscriptions.add(account.id, NEWS, ADA)
    for wanted in ((other.id, NEWS, ADA), (account.id, "tag:new", ADA), (account.id, NEWS, "eve@example.net")):
        with pytest.raises(Refused) as refused:
            await store.unsubscriptions.remove(*wanted)
        assert refused.value.code is Code.NOT_FOUND
    await store.unsubscriptions.remove(account.id, NEWS, ADA)
    assert await stored_bytes(store) == before
    assert await store.unsubscriptions.add(account.id, NEWS, ADA)


async def test_tags_are_replaced(store: Store, account: Account) -> None:
    """The last list counts, for this account, and callers see it."""
    await store.unsubscriptions.replace_tags(account.id, ["news", "a tag; with: signs"])
    await store.unsubscriptions.replace_tags(account.id, ["offers", "a tag; with: signs"])
    assert await store.unsubscriptions.tags(account.id) == ["a tag; with: signs", "offers"]
    caller = await store.access.caller_by_account(account.id)
    assert caller is not None
    assert caller.unsubscribe_tags == {"a tag; with: signs", "offers"}
    await store.unsubscriptions.replace_tags(account.id, [])
    assert await store.unsubscriptions.tags(account.id) == []
    caller = await store.access.caller_by_account(account.id)
    assert caller is not None
    assert caller.unsubscribe_tags == set()


@pytest.mark.parametrize(
    ("mail_list", "tags", "template", "bounces"),
    [
        ("tag:news", ("news",), None, True),
        ("tag:news", ("receipts", "news"), None, True),
        ("tag:news", ("News",), None, False),
        ("tag:news", (), "news", False),
        ("tag:news", (), None, False),
        ("template:news", (), "news", True),
        ("template:news", ("news",), None, False),
        ("template:news", ("x",), "weekly", False),
    ],
)
async def test_only_messages_of_that_list_are_suppressed(
    store: Store,
    messages: Messages,
    account: Account,
    mail_list: str,
    tags: tuple[str, ...],
    template: str | None,
    bounces: bool,
) -> None:
    await store.unsubscriptions.add(account.id, mail_list, ADA)
    new = replace(messages.new("Ada@example.net", "eve@example.net"), tags=tags, template_alias=template)
    await store.messages.accept(new)
    message = await store.messages.read(account.id, new.id)
    assert message is not None
    ada, eve = message.recipients
    assert eve.status is RecipientStatus.QUEUED
    if bounces:
        expected = f"suppressed: this address has unsubscribed from messages with the {mail_list.replace(':', ' ')}"
        assert (ada.status, ada.last_smtp_response) == (RecipientStatus.BOUNCED, expected)
        assert (await store.accounts.named("demo")).credits == CREDITS - 1
    else:
        assert ada.status is RecipientStatus.QUEUED


async def test_another_accounts_unsubscriptions_do_not_count(
    store: Store, messages: Messages, account: Account
) -> None:
    other = await store.accounts.create("other", "other@example.org", HASH)
    await store.unsubscriptions.add(other.id, NEWS, ADA)
    await store.messages.accept(replace(messages.new(ADA), tags=("news",)))
    assert len(await store.queue.due(simulated=True, most=10)) == 1


async def test_a_suppressed_address_is_told_as_such(store: Store, messages: Messages, account: Account) -> None:
    await store.unsubscriptions.add(account.id, NEWS, ADA)
    await store.suppressions.add(account.id, ADA, "by hand")
    new = replace(messages.new(ADA), tags=("news",))
    await store.messages.accept(new)
    message = await store.messages.read(account.id, new.id)
    assert message is not None
    assert "suppression list" in (message.recipients[0].last_smtp_response or "")
