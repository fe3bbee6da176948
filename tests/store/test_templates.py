"""Templates: each save is a version, and a delete leaves only their number."""

import pytest

from appliance.errors import Code, Refused
from appliance.model.accounts import Account
from appliance.store import Store
from appliance.store.engine import Row, Tx, run
from appliance.store.templates import DELETED_TEMPLATES, PAGE_CHARACTERS
from tests.store.samples import HASH, existing, refusal


async def versions(store: Store) -> list[Row]:
    query = "SELECT alias, version, subject FROM template_versions ORDER BY alias, version"
    return await store.engine.rows(query, {})


async def test_each_save_is_a_new_version(store: Store, account: Account) -> None:
    first = await store.templates.save(account.id, "welcome", "Hello", "text", None)
    second = await store.templates.save(account.id, "welcome", "Hello again", None, "<p>html</p>")
    assert (first.version, second.version) == (1, 2)
    assert second.created_at == first.created_at
    assert second.updated_at > first.updated_at
    assert await store.templates.current(account.id, "welcome") == second
    assert await versions(store) == [("welcome", 1, "Hello"), ("welcome", 2, "Hello again")]


async def test_a_deleted_template_is_gone(store: Store, account: Account) -> None:
    await store.templates.save(account.id, "welcome", "Hello", "text", None)
    await store.templates.delete(account.id, "welcome")
    assert await store.templates.current(account.id, "welcome") is None
    assert await store.templates.page(account.id, "", 10) == ([], False)
    with refusal(Code.NOT_FOUND):
        await store.templates.delete(account.id, "welcome")
    again = await store.templates.save(account.id, "welcome", "New", "text", None)
    assert again.version == 2
    assert again.created_at == again.updated_at
    assert await versions(store) == [("welcome", 2, "New")]


async def test_templates_are_listed_page_by_page(store: Store, account: Account) -> None:
    for alias in ("c", "a", "d", "b"):
        await store.templates.save(account.id, alias, "s", "t", None)
    found, more = await store.templates.page(account.id, "", 3)
    assert ([template.alias for template in found], more) == (["a", "b", "c"], True)
    found, more = await store.templates.page(account.id, "c", 3)
    assert ([template.alias for template in found], more) == (["d"], False)


async def test_a_page_of_large_templates_ends_early(store: Store, account: Account) -> None:
    """A page holds one template at least, and otherwise no more text than can be answered at once."""
    for alias, size in (("a", PAGE_CHARACTERS // 2), ("b", PAGE_CHARACTERS // 2), ("c", 1), ("d", 2 * PAGE_CHARACTERS)):
        await store.templates.save(account.id, alias, None, "x" * size, None)
        await store.templates.save(account.id, "versions", None, None, "x" * size)
    pages, after, more = [], "", True
    while more:
        found, more = await store.templates.page(account.id, after, 100)
        after = found[-1].alias
        pages.append([template.alias for template in found])
    assert pages == [["a", "b"], ["c"], ["d"], ["versions"]]
    newest, more = await store.templates.versions(account.id, "versions", 99, 100)
    assert ([each.version for each in newest], more) == ([4], True)


async def test_accounts_do_not_see_each_others_templates(store: Store, account: Account) -> None:
    other = await store.accounts.create("other", "other@example.org", HASH)
    await store.templates.save(account.id, "welcome", "mine", "t", None)
    theirs = await store.templates.save(other.id, "welcome", "theirs", "t", None)
    assert theirs.version == 1
    await store.templates.delete(other.id, "welcome")
    current = existing(await store.templates.current(account.id, "welcome"))
    assert current.subject == "mine"
    assert await store.templates.current(other.id, "welcome") is None


INSERT_DELETED = """INSERT INTO templates (account_id, alias, version, deleted, created_at, updated_at)
    VALUES (:account_id, :alias, 3, 1, 1, :at)"""


async def test_an_account_keeps_a_bounded_number_of_deleted_templates(store: Store, account: Account) -> None:
    def add(tx: Tx) -> None:
        for number in range(DELETED_TEMPLATES + 150):
            run(tx, INSERT_DELETED, {"account_id": account.id, "alias": f"old-{number:04}", "at": number})

    await store.engine.write(add)
    left = []
    for alias in ("a", "b", "c"):
        await store.templates.save(account.id, alias, "Hello", "text", None)
        await store.templates.delete(account.id, alias)
        left.append((await store.engine.rows("SELECT count(*) FROM templates", {}))[0][0])
    assert left == [DELETED_TEMPLATES + 51, DELETED_TEMPLATES, DELETED_TEMPLATES]
    assert (await store.templates.save(account.id, "old-1149", "Again", "text", None)).version == 4
    assert (await store.templates.save(account.id, "old-0000", "Again", "text", None)).version == 1


async def test_a_save_over_an_unseen_version_is_a_conflict(store: Store, account: Account) -> None:
    """Two tabs: the second save is refused, and nothing of it is stored."""
    first = await store.templates.save(account.id, "hello", "s", "one", None, replaces=0)
    await store.templates.save(account.id, "hello", "s", "two", None, replaces=first.version)
    for replaces in (0, first.version):
        with pytest.raises(Refused, match="Version 2 was saved meanwhile") as refused:
            await store.templates.save(account.id, "hello", "s", "mine", None, replaces=replaces)
        assert refused.value.code is Code.CONFLICT
    current = await store.templates.current(account.id, "hello")
    assert current is not None
    assert (current.version, current.text) == (2, "two")
