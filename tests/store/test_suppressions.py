"""The suppression list: an address is on it once, with its first reason, for one account."""

import pytest

from appliance.errors import Code, Refused
from appliance.model.accounts import Account, AccountRole
from appliance.model.dashboard import SuppressionFilter
from appliance.model.mail import SuppressionOrigin
from appliance.store import Store
from tests.store.samples import HASH


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
    with pytest.raises(Refused) as refused:
        await store.suppressions.remove(account.id, "a@x.example")
    assert refused.value.code is Code.NOT_FOUND


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
