"""Stored problems, and the mail about them: each problem once per person, on both engines."""

from collections.abc import Sequence

import pytest

from appliance.message.addresses import parse
from appliance.model.accounts import Account, Role
from appliance.model.attention import (
    ENDS_AFTER,
    MACHINE,
    AttentionItem,
    AttentionKind,
    NotifiedPerson,
    Notify,
    Severity,
)
from appliance.store import Store
from appliance.store.attention import DIGEST_EVERY, ENDED_KEPT, ENDED_MOST, RecentMail
from appliance.times import DAY, HOUR, SECOND
from tests.store.samples import HASH, Clock

SENDER = parse("Alerts <alerts@example.com>", "from")


def problem(subject: str, kind: AttentionKind = AttentionKind.DOMAIN_BROKEN) -> AttentionItem:
    return AttentionItem(kind, subject, Severity.WARNING, f"{subject} is broken", "Repair it.", "/dashboard")


def compose(person: NotifiedPerson, problems: Sequence[AttentionItem]) -> tuple[str, str]:
    return ", ".join(problem.subject for problem in problems), f"For {person.email}\n"


@pytest.fixture
async def sending(store: Store, account: Account) -> Account:
    await store.access.add_domain(account.id, "example.com", usable=True)
    return account


async def mail(store: Store) -> list[tuple[str, str]]:
    """Notify all people who are due; return the new messages."""
    before = await messages(store)
    for person in await store.attention.people_to_notify():
        assert await store.attention.notify(person.id, SENDER, compose, simulated=True)
    assert await store.attention.people_to_notify() == []
    return (await messages(store))[len(before) :]


async def messages(store: Store) -> list[tuple[str, str]]:
    query = """SELECT m.subject, r.address FROM messages m JOIN recipients r ON r.message_id = m.id
        WHERE m.envelope_from = '' AND m.credits_reserved = 0 ORDER BY m.id"""
    return [(subject, address) for subject, address in await store.engine.rows(query, {})]


async def test_a_problem_is_mailed_once(store: Store, sending: Account, clock: Clock) -> None:
    await store.attention.observe(sending.id, [problem("a.example")])
    assert await mail(store) == [("a.example", "demo@example.org")]
    clock.now += ENDS_AFTER
    await store.attention.observe(sending.id, [problem("a.example"), problem("b.example")])
    assert await mail(store) == [("b.example", "demo@example.org")]


async def test_a_problem_that_comes_and_goes_is_one_problem(store: Store, sending: Account, clock: Clock) -> None:
    await store.attention.observe(sending.id, [problem("a.example")])
    assert len(await mail(store)) == 1
    await store.attention.observe(sending.id, [])
    await store.attention.observe(sending.id, [problem("a.example")])
    assert await mail(store) == []
    await store.attention.observe(sending.id, [])
    clock.now += ENDS_AFTER
    await store.attention.observe(sending.id, [problem("a.example")])
    assert len(await mail(store)) == 1


async def test_only_the_recipient_reads_a_mail_about_problems(store: Store, sending: Account) -> None:
    """The account that sends it also mails administrators and other customers about theirs."""
    await store.attention.observe(sending.id, [problem("a.example")])
    assert len(await mail(store)) == 1
    ((message_id,),) = await store.engine.rows("SELECT message_id FROM message_bodies", {})
    assert await store.mail_log.mime(sending.id, message_id) is None


async def test_people_choose(store: Store, sending: Account, clock: Clock) -> None:
    user = await store.accounts.user_by_email("demo@example.org")
    assert user is not None
    assert await store.attention.notify_setting(user.id) is Notify.AT_ONCE
    await store.attention.set_notify(user.id, Notify.DAILY)
    assert await store.attention.notify_setting(user.id) is Notify.DAILY
    await store.attention.observe(sending.id, [problem("a.example")])
    assert await mail(store) == [("a.example", "demo@example.org")]
    await store.attention.observe(sending.id, [problem("a.example"), problem("b.example")])
    assert await mail(store) == []
    clock.now += DIGEST_EVERY
    await store.attention.observe(sending.id, [problem("a.example"), problem("b.example"), problem("c.example")])
    assert await mail(store) == [("b.example, c.example", "demo@example.org")]
    await store.attention.set_notify(user.id, Notify.NEVER)
    clock.now += DIGEST_EVERY
    await store.attention.observe(sending.id, [problem("d.example")])
    assert await mail(store) == []


async def test_the_machine_concerns_administrators(store: Store, sending: Account) -> None:
    await store.accounts.create("ops", "admin@example.org", HASH, Role.ADMIN)
    await store.attention.observe(MACHINE, [problem("", AttentionKind.DISK_LOW)])
    await store.attention.observe(sending.id, [problem("a.example")])
    assert sorted(await mail(store)) == [("", "admin@example.org"), ("a.example", "demo@example.org")]


async def test_without_a_sending_domain_no_person_is_notified(store: Store, account: Account) -> None:
    await store.attention.observe(account.id, [problem("a.example")])
    (person,) = await store.attention.people_to_notify()
    assert not await store.attention.notify(person.id, SENDER, compose, simulated=True)
    assert await store.attention.people_to_notify() == [person]


async def test_a_suppressed_address_gets_no_mail(store: Store, sending: Account) -> None:
    await store.suppressions.add(sending.id, "demo@example.org", "bounced")
    await store.attention.observe(sending.id, [problem("a.example")])
    assert await mail(store) == []


async def test_only_the_recipient_reads_a_mail_with_a_link(store: Store, sending: Account) -> None:
    for email, is_sent in (("ann@example.org", True), ("owner@localhost", False)):
        sent = await store.attention.send_secret(SENDER, email, "Password", "https://a/#token=x\n", simulated=True)
        assert sent is is_sent
    ((message_id, mime),) = await store.engine.rows("SELECT message_id, mime FROM message_bodies", {})
    assert b"token=x" in bytes(mime)
    assert await store.mail_log.mime(sending.id, message_id) is None
    facts = await store.mail_log.facts(sending.id, message_id)
    assert facts is not None
    assert not facts.body_kept


async def test_each_node_ends_its_own_problems(store: Store) -> None:
    disk = problem("", AttentionKind.DISK_LOW)
    for node in ("one", "two"):
        await store.attention.observe(MACHINE, [disk], node)
    await store.attention.observe(MACHINE, [], "one")
    open_rows = [(row.node, row.ended_at is None) for row in await store.attention.of(MACHINE)]
    assert open_rows == [("one", False), ("two", True)]
    await store.attention.end_of_nodes(["one"])
    assert all(row.ended_at is not None for row in await store.attention.of(MACHINE))


async def test_ended_problems_and_those_of_deleted_accounts_go(store: Store, account: Account, clock: Clock) -> None:
    gone = await store.accounts.create("gone", "gone@example.org", HASH)
    for account_id in (account.id, gone.id):
        await store.attention.observe(account_id, [problem("a.example")])
    await store.attention.observe(account.id, [])
    await store.accounts.delete(gone.id)
    await store.attention.forget()
    assert (len(await store.attention.of(account.id)), await store.attention.of(gone.id)) == (1, [])
    clock.now += ENDED_KEPT + 1
    await store.attention.forget()
    assert await store.attention.of(account.id) == []


async def test_an_account_cannot_store_problems_without_end(store: Store, account: Account, clock: Clock) -> None:
    for number in range(10):  # keys that expire soon, created and revoked
        keys = [problem(f"key_{number}_{key}", AttentionKind.KEY_EXPIRING) for key in range(100)]
        await store.attention.observe(account.id, [problem("a.example"), *keys])
        clock.now += SECOND
    stored = await store.attention.of(account.id)
    assert len(stored) <= 101 + ENDED_MOST + 100
    assert sum(row.ended_at is None for row in stored) == 101


async def test_recent_mail_is_what_statistics_counted(store: Store, account: Account, clock: Clock) -> None:
    hour = clock.now // HOUR
    counts = [("sent", hour, 0, 7), ("sent", hour - 30, 0, 100), ("delivered", hour, 9, 5), ("delivered", hour, 3, 1)]
    counts += [("bounced", hour, 9, 50), ("bounced", hour, 1, 2), ("failed", hour, 0, 1), ("sent", hour - 200, 0, 9)]
    insert = """INSERT INTO hourly_counts (account_id, hour, kind, bucket, recipients)
        VALUES (:account_id, :hour, :kind, :bucket, :count) RETURNING kind"""
    for kind, at, bucket, count in counts:
        row = {"account_id": account.id, "kind": kind, "hour": at, "bucket": bucket, "count": count}
        await store.engine.change(insert, row)
    recent = await store.attention.recent_mail(account.id, clock.now - 7 * DAY)
    assert recent == RecentMail(delivered=6, bounced=2, failed=1, complained=0, used=7)
