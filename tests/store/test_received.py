"""Receiving addresses and received messages on both engines: queued, claimed, stored, listed, searched, deleted."""

import pytest
import trio

from appliance.errors import Code
from appliance.inbound.authentication import unchecked
from appliance.model.accounts import Account
from appliance.model.received import NewReceived, QueuedReceived, ReceivedEnvelope, ReceivedFacts
from appliance.store import Store
from appliance.store.body_parts import INLINE
from appliance.store.received import RECORD, CheckedMessage, MailboxFull, shares_of
from tests.store import hooks
from tests.store.samples import DAY, HASH, Clock, Messages, refusal


def mail(store: Store, account: Account, mime: bytes, *recipients: str) -> NewReceived:
    envelope = ReceivedEnvelope("ada@example.net", recipients, "192.0.2.1", "mx.example.net", False)
    shares = frozenset(shares_of("192.0.2.1", account.id, recipients))
    return NewReceived(store.received.env.identifier("inb"), account.id, "192.0.2.1", envelope, shares, mime)


def checked_as(store: Store, subject: str) -> CheckedMessage:
    return CheckedMessage(
        sender="Ada <ada@example.net>", subject=subject, auto_submitted=False, attachments=0,
        facts=ReceivedFacts(unchecked("test")), event_id=store.received.env.identifier("evt"),
        event=b'{"type":"email.received"}',
    )  # fmt: skip


async def stored(store: Store, account: Account, mime: bytes, subject: str = "Hello") -> str:
    new = mail(store, account, mime, "a@in.example.com")
    await store.received.add([new], None)
    turn = f"{account.id} 192.0.2.1"
    assert await store.received.next_turn("", 5) == [QueuedReceived(turn, new.id, len(mime), 0)]
    assert await store.received.next_turn(turn, 5) == []
    (waiting,) = await store.received.claim([new.id, "inb_gone"], large=False)
    assert (waiting.mime, waiting.tries, waiting.envelope) == (mime, 1, new.envelope)
    checked = checked_as(store, subject)
    assert await store.received.finish([(waiting, checked)]) == [True]
    assert await store.received.finish([(waiting, checked)]) == [False]
    return new.id


async def test_from_the_queue_to_its_end(store: Store, account: Account, clock: Clock) -> None:
    await hooks.save(store, account.id)
    large = b"x" * (INLINE + 300_000)
    first = await stored(store, account, b"Subject: a\r\n\r\n", "Grüße from Ada")
    second = await stored(store, account, large)
    page = await store.received.page(account.id, None, 10)
    assert [item.id for item in page] == [second, first]
    assert await store.received.mime(account.id, second) == large
    found, following = await store.received.search(account.id, ["grüße", "ada@"], None, 10)
    assert ([item.id for item in found], following) == ([first], None)
    assert await store.received.find("acc_other", first) is None
    (post,) = await store.webhook_history.page(account.id, first, None, 10)
    assert (post.message_id, post.recipient_id) == (first, None)
    clock.now += 2 * DAY
    assert (await store.received.forget(clock.now - DAY, 1_000)).deleted == 0  # still posted
    await store.engine.change("UPDATE webhook_deliveries SET next_attempt_at = NULL, status = 'failed'", {})
    assert (await store.received.forget(clock.now - DAY, 1_000)).deleted == 2
    assert await store.received.page(account.id, None, 10) == []
    assert (await store.accounts.find(account.id)).stored_bytes == 0
    clock.now += DAY
    while (await store.body_parts.clear(1_000)).more:
        pass
    assert await store.engine.rows("SELECT count(*) FROM message_body_parts", {}) == [(0,)]


async def test_many_are_claimed_and_stored_in_one_transaction_each(store: Store, account: Account) -> None:
    """Of two accounts, one without a webhook, and one message that another node has stored meanwhile."""
    await hooks.save(store, account.id)
    other = await store.accounts.create("other", "other@example.org", HASH, credit=1)
    new = [
        mail(store, owner, b"x", f"{n}@in.example.com") for n, owner in enumerate([account, other, account, account])
    ]
    for item in new:
        await store.received.add([item], None)
    waiting = await store.received.claim([item.id for item in new], large=True)
    assert {item.id for item in waiting} == {item.id for item in new}
    finished = [(item, checked_as(store, "Hello")) for item in sorted(waiting, key=lambda item: item.id)]
    assert await store.received.finish([finished.pop()]) == [True]
    gone = finished[0][0]
    assert await store.received.finish([finished[0]]) == [True]
    assert await store.received.finish(finished) == [False, True, True]
    assert (await store.received.page(account.id, None, 10))[-1].id == gone.id
    assert len(await store.received.page(other.id, None, 10)) == 1
    for table, count in (("feedback_mail", 0), ("feedback_counts", 0), ("webhook_deliveries", 3)):
        assert await store.engine.rows(f"SELECT count(*) FROM {table}", {}) == [(count,)]
    for owner, messages in ((account, 3), (other, 1)):
        kept = messages * (RECORD + 1 + len(finished[0][1].event))
        assert (await store.accounts.find(owner.id)).stored_bytes == kept


async def test_a_full_mailbox_stores_nothing(store: Store, account: Account) -> None:
    for mime in (b"x", b"x" * (2 * INLINE)):
        with pytest.raises(MailboxFull):
            await store.received.add([mail(store, account, mime, "a@in.example.com")], 1)
    for table in ("feedback_mail", "feedback_counts", "message_body_parts"):
        assert await store.engine.rows(f"SELECT count(*) FROM {table}", {}) == [(0,)]
    assert (await store.accounts.find(account.id)).stored_bytes == 0


async def test_one_that_is_refused_does_not_take_the_others_along(store: Store, account: Account) -> None:
    """Messages are queued together, as long as none is refused."""
    other = await store.accounts.create("other", "other@example.org", HASH, credit=1)
    new = [mail(store, owner, b"x", f"{n}@in.example.com") for n, owner in enumerate([account, other, account])]
    refused = list[NewReceived]()

    async def add(item: NewReceived) -> None:
        try:
            await store.received.add([item], 1 if item.account_id == other.id else None)
        except MailboxFull:
            refused.append(item)

    async with trio.open_nursery() as nursery:
        for item in new:
            nursery.start_soon(add, item)
    assert refused == [new[1]]
    assert {item.id for item in await store.received.queued(10)} == {new[0].id, new[2].id}
    assert len(await store.received.queued(1)) == 1
    assert (await store.accounts.find(account.id)).stored_bytes == 2 * (RECORD + 1)
    assert (await store.accounts.find(other.id)).stored_bytes == 0
    counts = await store.engine.rows("SELECT mails FROM feedback_counts WHERE scope = 'all'", {})
    assert counts == [(2,)]


async def test_the_answered_message(store: Store, account: Account, messages: Messages) -> None:
    new = messages.new("ada@example.net")
    await store.messages.accept(new)
    domain = new.envelope_from.rpartition("@")[2]
    header_id = f"{new.id.removeprefix('msg_')}@{domain}"
    answered = await store.received.answered(account.id, ["unknown@example.net", header_id])
    assert answered is not None
    assert answered.id == new.id
    assert await store.received.answered("acc_other", [header_id]) is None
    assert await store.received.answered(account.id, [header_id.replace(domain, "example.org")]) is None


async def test_addresses(store: Store, account: Account) -> None:
    await store.access.add_domain(account.id, "example.com", usable=True)
    await store.receiving.add(account.id, "a@in.example.com")
    with refusal(Code.CONFLICT):
        await store.receiving.add(account.id, "a@in.example.com")
    known = await store.receiving.find("a+x@in.example.com")
    unknown = await store.receiving.find("b@in.example.com")
    assert known is not None
    assert unknown is not None
    assert (known.account_id, known.is_known, unknown.is_known) == (account.id, True, False)
    assert await store.receiving.find("a@example.com") is None
    await store.domains.remove(account.id, "example.com")
    assert await store.receiving.find("a@in.example.com") is None
