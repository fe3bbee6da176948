"""The feedback inbox on both engines: whose mail is whose, how much is kept, and what is forwarded with it."""

import pytest
from msgspec.structs import replace

from appliance.errors import Refused
from appliance.model.accounts import Account
from appliance.model.feedback import NO_SINGLE_OWNER, FeedbackResult, KeptMail
from appliance.store import Store
from appliance.store.feedback_inbox import INBOX_MAILS
from tests.store.samples import DAY, Clock, existing

NAME = "bounces.example.com"


async def keep(store: Store, kind: str = "fbl", name: str = NAME, forward_to: str = "") -> str:
    mail_id = await store.feedback.add([f"{kind}@{name}"], b"Subject: x\r\n\r\nmail \xff\r\n")
    mail = KeptMail(mail_id, kind, f"{kind}@{name}", "Ann <a@b.example>", "x \u2028", 1, b"mail \xff\r\n")
    await store.feedback.finish(mail_id, [store.feedback_inbox.keep(mail, FeedbackResult.KEPT, forward_to)])
    return mail_id


@pytest.fixture
async def example(store: Store, account: Account) -> Account:
    await store.access.add_domain(account.id, "example.com", usable=True)
    return account


async def test_an_account_sees_its_own_mail(store: Store, example: Account) -> None:
    mine = [await keep(store, kind) for kind in ("fbl", "abuse", "postmaster")]
    unowned = await keep(store, name="bounces.example.org")
    assert [mail.id for mail in await store.feedback_inbox.newest(example.id, 10)] == mine[::-1]
    assert [mail.id for mail in await store.feedback_inbox.newest(example.id, 2)] == [mine[2], mine[1]]
    assert [mail.id for mail in await store.feedback_inbox.newest(example.id, 10, before=mine[1])] == [mine[0]]
    with_shared = await store.feedback_inbox.newest(example.id, 10, shared=True)
    assert [(mail.id, mail.account_id) for mail in with_shared[:2]] == [
        (unowned, NO_SINGLE_OWNER),
        (mine[2], example.id),
    ]
    assert [mail.id for mail in await store.feedback_inbox.newest(None, 10)] == [unowned, *mine[::-1]]
    assert await store.feedback_inbox.find(example.id, unowned) is None
    assert await store.feedback_inbox.find(example.id, unowned, shared=True) is not None
    found = existing(await store.feedback_inbox.find(None, mine[0]))
    assert (found[0].sender, found[1]) == ("Ann <a@b.example>", b"mail \xff\r\n")


async def test_the_newest_mails_of_each_kind_stay(store: Store, example: Account) -> None:
    first = await keep(store)
    ids = [await keep(store, "abuse") for _ in range(INBOX_MAILS + 2)]
    assert [mail.id for mail in await store.feedback_inbox.newest(example.id, 1_000)] == [*ids[:1:-1], first]


async def test_old_mail_is_deleted_in_slices(store: Store, example: Account, clock: Clock) -> None:
    for _ in range(3):
        await keep(store)
        clock.now += DAY
    assert (await store.feedback_inbox.forget(clock.now - 5 * DAY, 10)).deleted == 0
    assert (await store.feedback_inbox.forget(clock.now - 3 * DAY // 2, 1)).deleted == 1
    assert (await store.feedback_inbox.forget(clock.now - 3 * DAY // 2, 10)).deleted == 1
    assert len(await store.feedback_inbox.newest(None, 10)) == 1


async def test_a_copy_is_queued_with_the_mail_or_not_at_all(store: Store, example: Account) -> None:
    before = await store.accounts.find(example.id)
    await keep(store, "abuse", forward_to="operator@example.net")
    (due,) = await store.queue.due(simulated=False, most=10)
    assert (due.address, due.envelope_from) == ("operator@example.net", "")
    after = await store.accounts.find(example.id)
    assert after.credits == before.credits
    assert after.stored_bytes > before.stored_bytes
    assert [mail.result for mail in await store.feedback_inbox.newest(None, 10)] == ["forwarded"]
    with pytest.raises(Refused):
        await keep(store, "abuse", forward_to="no address")
    assert len(await store.feedback_inbox.newest(None, 10)) == 1
    assert len(await store.queue.due(simulated=False, most=10)) <= 1
    assert replace(after, stored_bytes=0) == replace(before, stored_bytes=0)
