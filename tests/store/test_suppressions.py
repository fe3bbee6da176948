"""The suppression list: an address is on it once, with its first reason, for one account."""

import pytest
from msgspec.structs import replace

from appliance.errors import Code, Refused
from appliance.model.accounts import Account, AccountRole
from appliance.model.dashboard import SuppressionFilter
from appliance.model.mail import RecipientStatus, SuppressionOrigin
from appliance.store import Store
from appliance.store.body_parts import SUPPRESSION
from tests.store.samples import CREDITS, HASH, Messages, existing, refusal


async def test_an_address_keeps_its_first_reason(store: Store, account: Account) -> None:
    first = await store.suppressions.add(account.id, "a@x.example", "hard bounce")
    again = await store.suppressions.add(account.id, "a@x.example", "manual")
    assert again == first
    assert await store.suppressions.page(account.id, "", 10) == [first]


@pytest.mark.parametrize("origin", SuppressionOrigin)
async def test_an_address_keeps_its_first_origin(store: Store, account: Account, origin: SuppressionOrigin) -> None:
    """What put it on the list is shown with it, whatever would list it later."""
    entry = await store.suppressions.add(account.id, "a@x.example", "why", origin=origin)
    assert entry.origin is origin
    await store.suppressions.add(account.id, "a@x.example", "by hand")
    assert [each.origin for each in await store.suppressions.page(account.id, "", 10)] == [origin]


async def test_the_list_is_read_page_by_page(store: Store, account: Account) -> None:
    for name in ("c", "a", "d", "b"):
        await store.suppressions.add(account.id, f"{name}@x.example", "manual")
    pages = (
        await store.suppressions.page(account.id, "", 3),
        await store.suppressions.page(account.id, "c@x.example", 3),
    )
    assert [[entry.address[0] for entry in page] for page in pages] == [["a", "b", "c"], ["d"]]


async def test_an_address_can_be_taken_off(store: Store, account: Account) -> None:
    await store.suppressions.add(account.id, "a@x.example", "manual")
    await store.suppressions.remove(account.id, "a@x.example")
    assert await store.suppressions.page(account.id, "", 10) == []
    with refusal(Code.NOT_FOUND):
        await store.suppressions.remove(account.id, "a@x.example")


async def test_each_account_has_its_own_list(store: Store, account: Account) -> None:
    other = await store.accounts.create("other", "other@example.org", HASH)
    await store.suppressions.add(account.id, "a@x.example", "manual")
    assert await store.suppressions.page(other.id, "", 10) == []
    with pytest.raises(Refused):
        await store.suppressions.remove(other.id, "a@x.example")
    assert len(await store.suppressions.page(account.id, "", 10)) == 1


async def test_who_has_unsubscribed_is_listed_too(store: Store, account: Account) -> None:
    for address in ("b@x.example", "a@x.example"):
        for mail_list in ("template:news", "tag:news", "tag:A"):
            await store.unsubscriptions.add(account.id, mail_list, address)
    await store.suppressions.add(account.id, "b@x.example", "manual")
    await store.suppressions.add(account.id, "c@x.example", "manual")
    lists = ["tag:A", "tag:news", "template:news"]
    wanted = [("a@x.example", each) for each in lists] + [("b@x.example", each) for each in ["", *lists]]
    wanted.append(("c@x.example", ""))
    for most in (1, 2, 3, 10):
        found, after = [], ("", "")
        while page := await store.suppressions.page(account.id, after[0], most, after[1]):
            assert len(page) <= most
            found += [(each.address, each.mail_list) for each in page]
            after = found[-1]
        assert found == wanted
    entry = (await store.suppressions.page(account.id, "a@x.example", 1, "tag:A"))[0]
    assert (entry.tag, entry.template, entry.origin) == ("news", None, SuppressionOrigin.UNSUBSCRIBE)
    assert entry.reason == "unsubscribed from the tag news"


async def test_all_that_is_listed_of_an_address_is_found(store: Store, account: Account) -> None:
    other = await store.accounts.create("other", "other@example.org", HASH)
    await store.suppressions.add(other.id, "a@x.example", "by hand")
    await store.suppressions.add(account.id, "b@x.example", "of another address")
    await store.unsubscriptions.add(account.id, "tag:news", "a@x.example")
    _, token = await store.people.invite(account.id, "ann@example.org", AccountRole.OWNER)
    assert await store.people.use_link(token, HASH) is not None  # a second user is no second entry
    found = await store.suppressions.of_address("a@x.example")
    assert [(name, each.reason) for name, each in found] == [
        ("demo", "unsubscribed from the tag news"),
        ("other", "by hand"),
    ]
    assert await store.suppressions.of_address("c@x.example") == []


async def test_the_list_is_searched(store: Store, account: Account) -> None:
    add = store.suppressions.add
    for number in range(5):
        await add(account.id, f"user{number}@x.example", "hard bounce", origin=SuppressionOrigin.BOUNCE)
    await add(account.id, "ada@other.example", "asked to STOP")
    await store.unsubscriptions.add(account.id, "tag:news", "user1@x.example")

    async def found(text: str = "", origin: SuppressionOrigin | None = None) -> list[str]:
        wanted, seen, after = SuppressionFilter(text, origin), [], ("", "")
        while True:
            page, end = await store.suppressions.search(account.id, wanted, after[0], 2, after[1])
            seen += [f"{each.address} {each.mail_list}".strip() for each in page]
            if end is None:
                return seen
            after = end.address, end.mail_list

    assert await found("stop") == ["ada@other.example"]
    assert await found("@other.example") == ["ada@other.example"]
    assert await found("user1") == ["user1@x.example", "user1@x.example tag:news"]
    assert await found("", SuppressionOrigin.UNSUBSCRIBE) == ["user1@x.example tag:news"]
    assert await found("", SuppressionOrigin.BOUNCE) == [f"user{number}@x.example" for number in range(5)]
    assert await found("user", SuppressionOrigin.MANUAL) == []


# ---- who has unsubscribed from what: kept once, counted, and obeyed when messages are accepted

ADA, NEWS = "ada@example.net", "tag:news"


async def stored_bytes(store: Store) -> int:
    return (await store.accounts.named("demo")).stored_bytes


async def test_an_address_unsubscribes_once(store: Store, account: Account) -> None:
    before = await stored_bytes(store)
    assert await store.unsubscriptions.add(account.id, NEWS, ADA)
    assert not await store.unsubscriptions.add(account.id, NEWS, ADA)
    assert await store.unsubscriptions.add(account.id, "template:news", ADA)
    assert await stored_bytes(store) == before + 2 * SUPPRESSION


async def test_an_address_is_unsubscribed_by_hand(store: Store, account: Account) -> None:
    """Twice is once; an account that may store no more gets no further entry."""
    first, again = [
        await store.unsubscriptions.add_by_hand(account.id, "stream:broadcast", ADA, may_store=10**6) for _ in range(2)
    ]
    assert first == again
    assert (first.address, first.stream, first.origin) == (ADA, "broadcast", SuppressionOrigin.UNSUBSCRIBE)
    assert await stored_bytes(store) == SUPPRESSION
    with refusal(Code.RATE_LIMITED):
        await store.unsubscriptions.add_by_hand(account.id, "stream:broadcast", "b@example.net", may_store=SUPPRESSION)


async def test_a_link_of_an_account_that_is_gone_writes_nothing(store: Store) -> None:
    assert not await store.unsubscriptions.add("acc_gone", NEWS, ADA)


async def test_an_unsubscription_is_removed(store: Store, account: Account) -> None:
    other = await store.accounts.create("other", "other@example.org", HASH)
    before = await stored_bytes(store)
    await store.unsubscriptions.add(account.id, NEWS, ADA)
    for wanted in ((other.id, NEWS, ADA), (account.id, "tag:new", ADA), (account.id, NEWS, "eve@example.net")):
        with refusal(Code.NOT_FOUND):
            await store.unsubscriptions.remove(*wanted)
    await store.unsubscriptions.remove(account.id, NEWS, ADA)
    assert await stored_bytes(store) == before
    assert await store.unsubscriptions.add(account.id, NEWS, ADA)


async def test_tags_are_replaced(store: Store, account: Account) -> None:
    """The last list counts, for this account, and callers see it."""
    await store.unsubscriptions.replace_tags(account.id, ["news", "a tag; with: signs"])
    await store.unsubscriptions.replace_tags(account.id, ["offers", "a tag; with: signs"])
    assert await store.unsubscriptions.tags(account.id) == ["a tag; with: signs", "offers"]
    caller = existing(await store.access.caller_by_account(account.id))
    assert caller.unsubscribe_tags == {"a tag; with: signs", "offers"}
    await store.unsubscriptions.replace_tags(account.id, [])
    assert await store.unsubscriptions.tags(account.id) == []
    caller = existing(await store.access.caller_by_account(account.id))
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
    message = existing(await store.messages.read(account.id, new.id))
    ada, eve = message.recipients
    assert eve.status is RecipientStatus.QUEUED
    if bounces:
        expected = f"suppressed: this address has unsubscribed from messages with the {mail_list.replace(':', ' ')}"
        assert (ada.status, ada.last_smtp_response) == (RecipientStatus.BOUNCED, expected)
        assert (await store.accounts.named("demo")).credits == CREDITS - 1
    else:
        assert ada.status is RecipientStatus.QUEUED


async def test_another_accounts_unsubscriptions_do_not_count(store: Store, messages: Messages) -> None:
    other = await store.accounts.create("other", "other@example.org", HASH)
    await store.unsubscriptions.add(other.id, NEWS, ADA)
    await store.messages.accept(replace(messages.new(ADA), tags=("news",)))
    assert len(await store.queue.due(simulated=True, most=10)) == 1


async def test_a_suppressed_address_is_told_as_such(store: Store, messages: Messages, account: Account) -> None:
    await store.unsubscriptions.add(account.id, NEWS, ADA)
    await store.suppressions.add(account.id, ADA, "by hand")
    new = replace(messages.new(ADA), tags=("news",))
    await store.messages.accept(new)
    message = existing(await store.messages.read(account.id, new.id))
    assert "suppression list" in (message.recipients[0].last_smtp_response or "")
