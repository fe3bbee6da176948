"""The bytes each account keeps: counted exactly, in the transaction that changes them, and capped."""

import random
import re
from pathlib import Path

import msgspec
import pytest

from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.model.accounts import Account
from appliance.model.mail import NewMessage
from appliance.store import Store, body_parts
from appliance.store.body_parts import MESSAGE, QUOTA_RETRY_AFTER, RECIPIENT, SUPPRESSION, TEMPLATE_VERSION, of_message
from appliance.store.engine import START, Tx
from appliance.store.messages import accept
from appliance.store.new_mail import Acceptance
from appliance.store.templates import VERSIONS
from tests.store.samples import DAY, HASH, Clock, Messages, existing, outcome, record, refusal
from tests.store.test_retention import BOUNCED, DEFERRED, DELIVERED, bodies, mail

OF_PARTS = """(SELECT coalesce(sum(length(p.content)), 0) FROM message_body_parts p
    WHERE p.message_id = b.message_id AND b.parts_size > 0)"""

COUNT = f"""
    (SELECT coalesce(sum({MESSAGE} + {RECIPIENT} * m.recipient_count
        + coalesce(octet_length(m.metadata), 0) * (1 + 2 * m.recipient_count)
        + coalesce((SELECT length(b.mime) + {OF_PARTS} + coalesce(length(b.receipt), 0) FROM message_bodies b
            WHERE b.message_id = m.id), 0)), 0)
    FROM messages m WHERE m.account_id = accounts.id)
    + (SELECT coalesce(sum({TEMPLATE_VERSION} + coalesce(octet_length(v.subject), 0)
        + coalesce(octet_length(v.text_body), 0) + coalesce(octet_length(v.html_body), 0)), 0)
    FROM template_versions v WHERE v.account_id = accounts.id)
    + (SELECT {SUPPRESSION} * count(*) FROM suppressions s WHERE s.account_id = accounts.id)
    + (SELECT {SUPPRESSION} * count(*) FROM unsubscriptions u WHERE u.account_id = accounts.id)
"""


async def recounted(store: Store) -> dict[str, int]:
    return {
        account_id: int(count) for account_id, count in await store.engine.rows(f"SELECT id, {COUNT} FROM accounts", {})
    }


async def counted(store: Store) -> dict[str, int]:
    return {account.id: account.stored_bytes for account in await store.accounts.all()}


def limited(new: NewMessage, may_store: int) -> NewMessage:
    return msgspec.structs.replace(new, may_store=may_store)


async def test_a_message_counts_its_bytes_and_its_rows(store: Store, messages: Messages, account: Account) -> None:
    new = messages.new("a@example.net", "b@example.net", size=5_000)
    await store.messages.accept(new)
    expected = 5_000 + len(new.receipt or b"") + MESSAGE + 2 * RECIPIENT
    assert of_message(new) == expected
    assert await counted(store) == await recounted(store) == {account.id: expected}


async def tidied(store: Store, clock: Clock, age: int) -> None:
    after, more = START, True
    while more:
        part = await store.ledger_folding.fold_old(after, clock.now - age, clock.now, 50)
        after, more = part.after, part.more


def test_all_that_writes_what_is_counted_counts_it() -> None:
    changes = re.compile(
        r"(INSERT INTO|DELETE FROM) (messages|message_bodies|template_versions|suppressions|unsubscriptions)\b"
        r"|message_bodies SET mime"
    )
    here = Path(body_parts.__file__)
    # A moved message gets a Date of the same length.
    others = set(here.parent.glob("*.py")) - {here, here.with_name("scheduled.py")}
    modules = [each for each in others if changes.search(each.read_text())]
    assert len(modules) >= 3
    assert [each.name for each in modules if "from appliance.store.body_parts import" not in each.read_text()] == []


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
async def test_the_count_is_exact_whatever_happens(store: Store, clock: Clock, messages: Messages, seed: int) -> None:
    choose = random.Random(seed)
    other = await store.accounts.create("other", "other@example.org", HASH, credit=None)
    makers = [messages, Messages(Environment(now=clock), other.id)]
    for _ in range(50):
        maker = choose.choice(makers)
        addresses = [f"{number}@example.net" for number in range(choose.randint(1, 4))]
        new = maker.new(*addresses, test=choose.random() < 0.3, size=choose.choice((0, 1, 100, 5_000, 70_000, 700_000)))
        new = msgspec.structs.replace(new, metadata=choose.choice((None, '{"k":"ä"}')))
        try:
            await store.messages.accept(new)
        except Refused as refused:
            assert refused.code is Code.INSUFFICIENT_CREDITS  # noqa: PT017 - anything else fails the test just so
        due = await store.queue.due(simulated=True, most=100)
        results = [outcome(each, choose.choice((DELIVERED, BOUNCED, DEFERRED)), clock()) for each in due]
        await store.queue.record(results)
        text = "ä" * choose.randint(0, 300)
        alias = choose.choice("ab")
        await store.templates.save(maker.account_id, alias, text or None, "text", None)
        if choose.random() < 0.5:
            await store.templates.delete(maker.account_id, alias)
        await store.suppressions.add(maker.account_id, f"{choose.randint(0, 9)}@example.org", "manual")
        await store.unsubscriptions.add(
            maker.account_id, choose.choice(("tag:a", "tag:b")), f"{choose.randint(0, 9)}@x.y"
        )
        if choose.random() < 0.5:
            entry = choose.choice(await store.suppressions.page(maker.account_id, "", 100))
            if entry.mail_list:
                await store.unsubscriptions.remove(maker.account_id, entry.mail_list, entry.address)
            else:
                await store.suppressions.remove(maker.account_id, entry.address)
        clock.now += choose.choice((DAY // 2, DAY, 2 * DAY))
        await bodies(store, clock)
        if choose.random() < 0.3:
            await mail(store, clock, age=5 * DAY)
            await tidied(store, clock, age=5 * DAY)
        if choose.random() < 0.3:
            while (await store.body_parts.clear(50)).more:
                pass
        assert await counted(store) == await recounted(store)
    assert min((await counted(store)).values()) > 0


async def test_nothing_is_left_counted_when_all_mail_is_gone(store: Store, clock: Clock, messages: Messages) -> None:
    new = messages.new("a@example.net", "b@example.net", size=5_000)
    await store.messages.accept(new)
    await record(store, clock, [DELIVERED, BOUNCED])
    clock.now += DAY - 1_000_000
    await bodies(store, clock, age=DAY // 2)
    assert (await counted(store))[messages.account_id] == of_message(new) - 5_000
    clock.now += DAY
    await bodies(store, clock)
    assert (await counted(store))[messages.account_id] == MESSAGE + 2 * RECIPIENT
    clock.now += 31 * DAY
    assert await mail(store, clock) == 1
    assert await counted(store) == await recounted(store) == {messages.account_id: 0}


async def test_a_full_account_is_refused_and_others_are_not(store: Store, clock: Clock, messages: Messages) -> None:
    new = messages.new(size=5_000)
    size = of_message(new)
    await store.messages.accept(limited(new, size))
    for test in (False, True):
        figures = f"keeps {size:,} bytes of messages and templates and may keep {size:,} bytes"
        with pytest.raises(Refused, match=figures) as refused:
            await store.messages.accept(limited(messages.new(size=0, test=test), size))
        assert (refused.value.code, refused.value.retry_after) == (Code.RATE_LIMITED, QUOTA_RETRY_AFTER)
    assert await counted(store) == {messages.account_id: size}
    assert (await store.accounts.named("demo")).credits == 99
    other = await store.accounts.create("other", "other@example.org", HASH, credit=None)
    await store.messages.accept(limited(Messages(Environment(now=clock), other.id).new(size=5_000), size))


async def test_a_full_account_makes_room_by_deleting_a_template(store: Store, account: Account) -> None:
    await store.templates.save(account.id, "kept", "s", "text", None)
    kept = (await counted(store))[account.id]
    for _ in range(3):
        await store.templates.save(account.id, "large", "\u00e4", "x" * 1_000, "<p>\u00e4</p>")
    full = (await counted(store))[account.id]
    with pytest.raises(Refused, match="may keep"):
        await store.templates.save(account.id, "new", None, "x" * 1_000, None, may_store=full)
    await store.templates.delete(account.id, "large")
    assert await counted(store) == await recounted(store) == {account.id: kept}
    await store.templates.save(account.id, "new", None, "x" * 1_000, None, may_store=full)


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 bytes"), (12_345, "12,345 bytes"), (10 * 2**20 - 1, "10,485,759 bytes"), (10 * 2**20, "10.0 MiB")],
)
def test_small_figures_are_exact(count: int, shown: str) -> None:
    assert body_parts.readable(count) == shown


async def test_messages_of_one_transaction_see_what_those_before_them_took(
    store: Store, clock: Clock, messages: Messages, account: Account
) -> None:
    news = [messages.new(size=5_000) for _ in range(10)]
    room = 3 * of_message(news[0])

    def work(tx: Tx) -> list[Acceptance | Exception]:
        return accept(tx, Environment(now=clock), [limited(new, room) for new in news])

    results = await store.engine.write(work)
    assert [isinstance(result, Refused) for result in results] == [False] * 3 + [True] * 7
    assert await counted(store) == await recounted(store) == {account.id: room}


async def test_room_is_there_again_when_bodies_are_deleted(store: Store, clock: Clock, messages: Messages) -> None:
    first = messages.new(size=50_000)
    room = of_message(first) + 10_000
    await store.messages.accept(limited(first, room))
    with pytest.raises(Refused):
        await store.messages.accept(limited(messages.new(size=50_000), room))
    await record(store, clock, [DELIVERED])
    clock.now += 2 * DAY
    await bodies(store, clock)
    await store.messages.accept(limited(messages.new(size=50_000), room))
    assert await counted(store) == await recounted(store)


async def test_templates_count_and_are_capped(store: Store, account: Account) -> None:
    for number in range(VERSIONS + 5):
        await store.templates.save(account.id, "welcome", "ä" * (number % 7), "text", None)
    assert await counted(store) == await recounted(store)
    assert (await counted(store))[account.id] < VERSIONS * (TEMPLATE_VERSION + 4 + 14)
    with refusal(Code.RATE_LIMITED):
        await store.templates.save(account.id, "welcome", None, "x", None, may_store=(await counted(store))[account.id])
    current = existing(await store.templates.current(account.id, "welcome"))
    assert current.version == VERSIONS + 5
    assert await counted(store) == await recounted(store)


async def test_suppressions_count_and_are_capped(store: Store, account: Account) -> None:
    for _ in range(3):
        await store.suppressions.add(account.id, "a@example.net", "manual", may_store=SUPPRESSION)
    assert await counted(store) == await recounted(store) == {account.id: SUPPRESSION}
    with refusal(Code.RATE_LIMITED):
        await store.suppressions.add(account.id, "b@example.net", "manual", may_store=SUPPRESSION)
    await store.suppressions.remove(account.id, "a@example.net")
    assert await counted(store) == await recounted(store) == {account.id: 0}
