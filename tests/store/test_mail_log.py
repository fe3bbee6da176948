"""Searching messages: everything once, newest first, in blocks, and within a bounded time."""

from collections.abc import Iterator
from itertools import count

import pytest
from msgspec import structs
from msgspec.structs import replace

from appliance.environment import identifier_time
from appliance.model.accounts import Account
from appliance.model.dashboard import MailFilter
from appliance.model.mail import (
    DueRecipient,
    FailureReason,
    MessageStatus,
    Outcome,
    RecipientOutcome,
    RecipientStatus,
)
from appliance.store import Store
from tests.store.samples import DAY, HASH, SECOND, Clock, Messages, existing, record


def small_blocks(store: Store) -> Store:
    store.mail_log = replace(store.mail_log, block=3)
    return store


async def accept(store: Store, messages: Messages, count: int, to: str = "b@example.net") -> list[str]:
    made = [messages.new(to) for _ in range(count)]
    for each in made:
        await store.messages.accept(each)
    return [each.id for each in made[::-1]]


async def search(store: Store, account: Account, wanted: MailFilter, most: int) -> tuple[list[str], int]:
    found: list[str] = []
    pages, before = 0, None
    while True:
        page = await store.mail_log.page(account.id, wanted, before, most)
        assert len(page.messages) <= most
        found += [each.id for each in page.messages]
        pages, before = pages + 1, page.next
        if before is None:
            return found, pages


async def test_messages_above_one(store: Store, messages: Messages, account: Account) -> None:
    ids = (await accept(store, messages, 5))[::-1]
    assert await store.records.ids_above(account.id, ids[1], 2) == ids[2:4]
    assert await store.records.ids_above(account.id, ids[4], 2) == []
    assert await store.records.ids_above("acc_other", ids[0], 2) == []


@pytest.mark.parametrize("count", [0, 1, 3, 7])
@pytest.mark.parametrize("most", [1, 2, 3, 100])
@pytest.mark.parametrize("wanted", [MailFilter(), MailFilter(sender="a@example.com")])
async def test_every_message_is_on_one_page(
    store: Store, messages: Messages, account: Account, count: int, most: int, wanted: MailFilter
) -> None:
    store = small_blocks(store)
    store.mail_log = replace(store.mail_log, clock=lambda: 0.0)  # time enough, however slow the machine is
    ids = await accept(store, messages, count)
    found, pages = await search(store, account, wanted, most)
    assert found == ids
    assert pages == max(1, -(-count // most))


@pytest.mark.parametrize("domain", ["xn--bcher-kva.example", "bücher.example"])
async def test_an_internationalised_domain_finds_its_mail(
    store: Store, messages: Messages, account: Account, domain: str
) -> None:
    """The domain in A-labels, as a key is limited to it, finds both spellings; a spelling finds itself."""
    made = [
        structs.replace(messages.new("b@example.net"), sender=sender)
        for sender in ("Ada <ada@bücher.example>", "ada@xn--bcher-kva.example", "ada@example.com")
    ]
    for message in made:
        await store.messages.accept(message)
    found, _ = await search(store, account, MailFilter(sender=domain), 5)
    assert found == ([made[1].id, made[0].id] if domain.startswith("xn--") else [made[0].id])


async def test_a_search_without_time_goes_on_later(store: Store, messages: Messages, account: Account) -> None:
    store = small_blocks(store)
    needle = await accept(store, messages, 1, "needle@example.net")
    await accept(store, messages, 10)

    def always_late() -> Iterator[float]:
        at = 0.0
        while True:
            at += 1_000
            yield at

    slow = replace(store.mail_log, clock=always_late().__next__)
    wanted, before, found, pages = MailFilter(recipient="needle@example.net"), None, [], 0
    while True:
        page = await slow.page(account.id, wanted, before, 5)
        found += [each.id for each in page.messages]
        pages, before = pages + 1, page.next
        if before is None:
            break
    assert found == needle
    assert pages == 4


@pytest.mark.parametrize("few", [1, 20_000])
async def test_what_waits_is_found_either_way(
    store: Store, messages: Messages, account: Account, clock: Clock, few: int
) -> None:
    store.mail_log = replace(store.mail_log, few_listed=few)
    await accept(store, messages, 2)
    await record(store, clock, [RecipientStatus.DELIVERED, RecipientStatus.BOUNCED])
    waiting = await accept(store, messages, 3)
    scheduled = structs.replace(messages.new(), scheduled_at=clock.now + DAY)
    await store.messages.accept(scheduled)
    assert (await search(store, account, MailFilter(waiting=True), 2))[0] == waiting
    assert (await search(store, account, MailFilter(outcome=RecipientOutcome.SCHEDULED), 2))[0] == [scheduled.id]
    assert (await search(store, account, MailFilter(status=MessageStatus.QUEUED), 2))[0] == [scheduled.id, *waiting]
    to_none = MailFilter(status=MessageStatus.QUEUED, recipient="none@example.net")
    assert (await search(store, account, to_none, 2))[0] == []


async def test_facts_are_of_the_account_alone(store: Store, messages: Messages, account: Account) -> None:
    (message_id,) = await accept(store, messages, 1)
    facts = existing(await store.mail_log.facts(account.id, message_id))
    assert (facts.tags, facts.size, facts.body_kept) == (("one", "two"), 100, True)
    assert await store.mail_log.facts("acc_other", message_id) is None


@pytest.mark.parametrize("tags", ['{"one": 1}', "not JSON"])
async def test_unreadable_tags_of_one_message_fail_no_page(store: Store, messages: Messages, tags: str) -> None:
    ids = await accept(store, messages, 3)
    await store.engine.change("UPDATE messages SET tags = :tags WHERE id = :id", {"tags": tags, "id": ids[1]})
    for filters in (MailFilter(), MailFilter(words=("subject",))):
        page = await store.mail_log.page(messages.account_id, filters, None, 10)
        assert [(message.id, message.tags) for message in page.messages] == [
            (ids[0], ("one", "two")),
            (ids[1], ()),
            (ids[2], ("one", "two")),
        ]
    facts = existing(await store.mail_log.facts(messages.account_id, ids[1]))
    assert facts.tags == ()


async def test_the_newest_of_several_accounts_in_order(store: Store, messages: Messages, account: Account) -> None:
    store = small_blocks(store)
    store.mail_log = replace(store.mail_log, clock=lambda: 0.0)
    other = await store.accounts.create("other", "other@example.org", HASH)
    ids: list[str] = []
    for number in range(12):
        new = structs.replace(messages.new("b@example.net"), account_id=(account, other)[number % 3 == 0].id)
        await store.messages.accept(new)
        ids.insert(0, new.id)
    both, newest = (account.id, other.id), store.mail_log.newest
    for most in (1, 2, 5, 12, 20):
        found = await newest(both, MailFilter(recipient="b@example.net"), most, 1.0)
        assert ([each.id for _, each in found.messages], found.searched_to) == (ids[:most], None)
    assert {(await newest([each], MailFilter(), 20, 1.0)).messages[0][0] for each in both} == set(both)
    since, until = identifier_time(ids[8]), identifier_time(ids[2])
    found = await newest(both, MailFilter(since=since, until=until), 20, 1.0)
    assert [each.id for _, each in found.messages] == ids[3:9]


async def test_a_search_for_the_newest_ends_with_its_time(store: Store, messages: Messages, clock: Clock) -> None:
    store = small_blocks(store)
    times = count()
    store.mail_log = replace(store.mail_log, clock=lambda: float(next(times)))
    needle = await accept(store, messages, 1, "needle@example.net")
    clock.now += 1000
    others = await accept(store, messages, 5)
    wanted, until = MailFilter(recipient="needle@example.net"), None
    for _ in range(20):
        found = await store.mail_log.newest([messages.account_id], replace(wanted, until=until), 10, 0.0)
        if found.messages:
            break
        assert found.searched_to is not None
        assert found.searched_to <= identifier_time(others[0]) or until is None
        until = found.searched_to
    assert [each.id for _, each in found.messages] == needle


# ---- problems

BOUNCED, FAILED, DEFERRED, DELIVERED = (
    RecipientStatus.BOUNCED,
    RecipientStatus.FAILED,
    RecipientStatus.DEFERRED,
    RecipientStatus.DELIVERED,
)


async def test_the_newest_problems_are_told_with_their_reason(store: Store, messages: Messages, clock: Clock) -> None:
    made = []
    for status in (BOUNCED, DELIVERED, DEFERRED, FAILED):
        made.append(messages.new(f"{status.value}@example.net", "fine@example.net"))
        await store.messages.accept(made[-1])
        await record(store, clock, [status, DELIVERED])
        clock.now += SECOND
    found = await store.mail_log.problems(messages.account_id, 9)
    assert [(each.outcome, each.email, each.message_id) for each in found] == [
        ("failed", "failed@example.net", made[3].id),
        ("deferred", "deferred@example.net", made[2].id),
        ("bounced", "bounced@example.net", made[0].id),
    ]
    bounced = found[-1]
    assert (bounced.last_smtp_code, bounced.last_smtp_response) == (550, "550 5.1.1 User unknown")
    assert (bounced.subject, bounced.source, bounced.next_attempt_at) == ("A subject", "api", None)
    assert bounced.recipient_id == made[0].recipients[0].id
    assert found[1].next_attempt_at is not None
    times = [each.happened_at for each in found]
    assert times == sorted(times, reverse=True)
    assert made[0].created_at < times[-1] < times[0] < clock.now
    assert await store.mail_log.problems(messages.account_id, 1) == found[:1]
    assert await store.mail_log.problems("acc_other", 9) == []


async def test_a_problem_counts_from_when_it_happened(store: Store, messages: Messages, clock: Clock) -> None:
    old, retried = messages.new("old@example.net"), messages.new("retried@example.net")
    for each in (old, retried):
        await store.messages.accept(each)
    waiting = {each.message_id: each for each in await store.queue.due(simulated=True, most=9)}
    await store.queue.record([deferral(waiting[each.id], clock) for each in (old, retried)])
    clock.now += 2 * DAY
    newer = [messages.new(f"new{number}@example.net") for number in range(9)]
    for each in newer:
        await store.messages.accept(each)
    due = {each.message_id: each for each in await store.queue.due(simulated=True, most=99)}
    for each in newer:
        clock.now += SECOND
        await store.queue.record([Outcome(due[each.id], BOUNCED, (), at=clock(), note="550 no")])
    clock.now += SECOND
    await store.queue.record([deferral(due[retried.id], clock)])
    clock.now += SECOND
    await store.queue.record([Outcome(due[old.id], BOUNCED, (), at=clock(), note="550 no")])
    found = [each.message_id for each in await store.mail_log.problems(messages.account_id, 4)]
    assert found == [old.id, retried.id, newer[-1].id, newer[-2].id]


def deferral(recipient: DueRecipient, clock: Clock) -> Outcome:
    return Outcome(recipient, DEFERRED, (), at=clock(), next_attempt_at=clock(), note="451 later")


async def test_test_mail_is_no_problem(store: Store, messages: Messages, clock: Clock) -> None:
    """No number counts it; the problems of real mail before it are still found."""
    await store.messages.accept(messages.new("real@example.net"))
    await record(store, clock, [BOUNCED])
    for number in range(3):
        await store.messages.accept(messages.new(f"test{number}@example.net", test=True))
        await record(store, clock, [BOUNCED])
    assert [each.email for each in await store.mail_log.problems(messages.account_id, 2)] == ["real@example.net"]


async def test_what_was_not_tried_or_is_old_is_no_problem(store: Store, messages: Messages, clock: Clock) -> None:
    await store.messages.accept(messages.new("gone@example.net", "given-up@example.net"))
    due = sorted(await store.queue.due(simulated=True, most=9), key=lambda each: each.id)
    reasons = ((BOUNCED, FailureReason.SUPPRESSED), (FAILED, FailureReason.CANCELLED))
    await store.queue.record(
        [
            Outcome(each, status, (), at=clock(), failure=reason)
            for each, (status, reason) in zip(due, reasons, strict=True)
        ]
    )
    assert await store.mail_log.problems(messages.account_id, 9) == []
    await store.messages.accept(messages.new("b@example.net"))
    await record(store, clock, [BOUNCED])
    assert len(await store.mail_log.problems(messages.account_id, 9)) == 1
    clock.now += 31 * DAY
    assert await store.mail_log.problems(messages.account_id, 9) == []


# ---- the filters of the message explorer, counts and exports
@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (MailFilter(address_part="ovelace@ex"), [0]),
        (MailFilter(address_part="example"), [2, 1, 0]),
        (MailFilter(address_part="none"), []),
        (MailFilter(provider="google"), [1]),
        (MailFilter(credential="key_1"), [2, 0]),
        (MailFilter(credential="key_1", address_part="lovelace"), [0]),
    ],
)
async def test_messages_are_filtered_by_address_part_provider_and_key(
    store: Store, messages: Messages, account: Account, filters: MailFilter, expected: list[int]
) -> None:
    await store.pools.say([], {"example.org": "google"})
    made = [
        structs.replace(messages.new("Ada.Lovelace@Example.net"), credential="key_1"),
        structs.replace(messages.new("bob@example.org", simulated=False), credential="smtp_1"),
        structs.replace(
            messages.new("c@example.net", "d@example.org"), credential="key_1"
        ),  # test mail has no provider
    ]
    for message in made:
        await store.messages.accept(message)
    assert (await search(store, account, filters, 10))[0] == [made[at].id for at in expected]
    assert (await store.mail_log.count(account.id, filters, None)).count == len(expected)


async def test_a_count_goes_on_where_it_ended(store: Store, messages: Messages, account: Account) -> None:
    """Its parts add up to all messages, with and without a filter."""
    store.mail_log = replace(store.mail_log, counted_together=3)
    await accept(store, messages, 7)
    for filters in (MailFilter(), MailFilter(address_part="b@")):
        counts, before = list[int](), None
        while True:
            part = await store.mail_log.count(account.id, filters, before)
            counts, before = [*counts, part.count], part.next
            if before is None:
                break
        assert counts == [3, 3, 1]


async def test_an_export_has_every_recipient_once(store: Store, messages: Messages, account: Account) -> None:
    made = [messages.new("a@example.net", "b@example.net"), messages.new("c@example.net")]
    for message in made:
        await store.messages.accept(message)
    lines, following = await store.mail_log.export(account.id, MailFilter(), None, 1)
    assert [(line.message_id, line.email, line.outcome) for line in lines] == [(made[1].id, "c@example.net", "queued")]
    more, end = await store.mail_log.export(account.id, MailFilter(), following, 1)
    assert [line.email for line in more] == ["a@example.net", "b@example.net"]
    assert end is None
