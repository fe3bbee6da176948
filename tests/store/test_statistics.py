"""Statistics: everything is counted once, whether it was added up already or not."""

from msgspec.structs import replace

from appliance.model.accounts import Account
from appliance.model.dashboard import AccountStatistics
from appliance.model.mail import BounceClass, DueRecipient, FailureReason, Outcome, RecipientStatus
from appliance.store import Store
from appliance.store.statistics import CLASS_BUCKETS, UNTRIED_BUCKET, bucket_milliseconds
from appliance.times import DAY, HOUR
from tests.store.samples import SECOND, Clock, Messages, expire, outcome, record, written_statements

DELIVERED, BOUNCED, FAILED, DEFERRED = (
    RecipientStatus.DELIVERED,
    RecipientStatus.BOUNCED,
    RecipientStatus.FAILED,
    RecipientStatus.DEFERRED,
)


def totals(numbers: AccountStatistics) -> dict[str, int]:
    found: dict[str, int] = {}
    for (_, kind), count in numbers.by_hour.items():
        found[kind] = found.get(kind, 0) + count
    return found


async def send(store: Store, messages: Messages, clock: Clock, *results: RecipientStatus, test: bool = False) -> None:
    await store.messages.accept(messages.new(*[f"r{n}@example.net" for n in range(len(results))], test=test))
    await record(store, clock, results)


async def test_everything_is_counted_once(store: Store, messages: Messages, clock: Clock) -> None:
    counting = replace(store.statistics, rows_counted=2)
    sent = 0
    for _ in range(6):
        await send(store, messages, clock, DELIVERED, DELIVERED, BOUNCED, FAILED)
        sent += 4
        wanted = {"sent": sent, "delivered": sent // 2, "bounced": sent // 4, "failed": sent // 4}
        assert totals(await store.statistics.of(messages.account_id, 0)) == wanted
        clock.now += 25 * SECOND
        await counting.count()
        assert totals(await store.statistics.of(messages.account_id, 0)) == wanted
    clock.now += HOUR
    while await counting.count():
        pass
    numbers = await store.statistics.of(messages.account_id, 0)
    assert totals(numbers) == {"sent": 24, "delivered": 12, "bounced": 6, "failed": 6}
    assert sum(numbers.by_bucket.values()) == 12


async def test_the_writer_reads_no_rows_that_are_counted(store: Store, messages: Messages, clock: Clock) -> None:
    for _ in range(3):
        await send(store, messages, clock, DELIVERED, BOUNCED)
    clock.now += HOUR
    with written_statements(store) as statements:
        await store.statistics.count()
    assert [each for each in statements if "hourly_counts" in each]
    assert not [each for each in statements if "events" in each or "recipients r" in each]


async def test_refusals_are_counted_by_class(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    refused = [(BOUNCED, each) for each in BounceClass] + [(FAILED, BounceClass.TEMPORARY), (FAILED, None)]
    for _ in range(2):
        await store.messages.accept(messages.new(*[f"{number}@example.net" for number in range(len(refused) + 1)]))
        due = await store.queue.due(simulated=True, most=100)
        results = [
            outcome(each, status, clock(), bounce_class=bounce_class)
            for each, (status, bounce_class) in zip(due, refused, strict=False)
        ]
        await store.queue.record([*results, outcome(due[-1], DELIVERED, clock())])
        clock.now += 61 * SECOND
        await store.statistics.count()
    await store.messages.accept(messages.new("a@example.net"))
    (due_now,) = await store.queue.due(simulated=True, most=1)
    await store.queue.record([outcome(due_now, BOUNCED, clock(), bounce_class=BounceClass.OTHER)])
    wanted = dict.fromkeys(BounceClass, (2, 0)) | {BounceClass.TEMPORARY: (2, 2), BounceClass.OTHER: (3, 0)}
    for _ in range(2):
        numbers = await store.statistics.of(account.id, 0)
        assert numbers.by_class == wanted
        assert totals(numbers) == {"sent": 23, "delivered": 2, "bounced": 17, "failed": 4}
        assert sum(numbers.by_bucket.values()) == 2
        clock.now += 61 * SECOND
        await store.statistics.count()


async def test_untried_mail_is_told_apart(store: Store, messages: Messages, clock: Clock) -> None:
    reasons = [(BOUNCED, FailureReason.SUPPRESSED), (FAILED, FailureReason.CANCELLED), (FAILED, None)]
    for _ in range(2):
        await store.messages.accept(messages.new(*[f"{number}@example.net" for number in range(len(reasons))]))
        due = await store.queue.due(simulated=True, most=100)
        results = [
            Outcome(each, status, (), at=clock(), failure=reason)
            for each, (status, reason) in zip(due, reasons, strict=True)
        ]
        await store.queue.record(results)
        clock.now += 61 * SECOND
    for _ in range(2):
        told = totals(await store.statistics.of(messages.account_id, 0))
        assert told == {"sent": 6, "suppressed": 2, "cancelled": 2, "failed": 2}
        await store.statistics.count()


def test_every_class_has_a_number_of_its_own() -> None:
    assert list(CLASS_BUCKETS) == list(BounceClass)
    assert [*CLASS_BUCKETS.values(), UNTRIED_BUCKET] == [1, 2, 3, 4, 5, 6, 7, 8, 9]


async def test_what_may_still_be_written_is_not_counted_yet(store: Store, messages: Messages, clock: Clock) -> None:
    """A row whose id is older than the last one counted must not be passed over: the youngest are left for later."""
    await send(store, messages, clock, DELIVERED)
    assert not await store.statistics.count()
    rows = await store.engine.rows("SELECT kind FROM hourly_counts", {})
    assert rows == []
    clock.now += 61 * SECOND
    await store.statistics.count()
    rows = await store.engine.rows("SELECT kind FROM hourly_counts ORDER BY kind", {})
    assert rows == [("delivered",), ("sent",)]


async def test_tests_and_deferrals_are_not_counted(store: Store, messages: Messages, clock: Clock) -> None:
    await send(store, messages, clock, DELIVERED, BOUNCED, test=True)
    await send(store, messages, clock, DEFERRED)
    for _ in range(2):
        assert totals(await store.statistics.of(messages.account_id, 0)) == {"sent": 1}
        clock.now += 61 * SECOND
        await store.statistics.count()


async def test_hours_are_told_apart(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    first = clock.now // HOUR
    await store.messages.accept(messages.new("a@example.net"))
    clock.now += HOUR
    await record(store, clock, [DELIVERED])
    expected = {(first, "sent"): 1, (first + 1, "delivered"): 1}
    for _ in range(2):
        assert (await store.statistics.of(account.id, 0)).by_hour == expected
        assert (await store.statistics.of(account.id, (first + 1) * HOUR)).by_hour == {(first + 1, "delivered"): 1}
        clock.now += 61 * SECOND
        await store.statistics.count()


COUNTED = """INSERT INTO hourly_counts (account_id, hour, kind, bucket, recipients)
    VALUES (:account_id, :hour, 'sent', 0, :recipients)"""


async def sent_at(store: Store, account: Account, counts: dict[int, int]) -> None:
    for hour, recipients in counts.items():
        await store.engine.change(COUNTED, {"account_id": account.id, "hour": hour, "recipients": recipients})


async def test_old_hours_are_added_up_by_day(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    midnight = clock.now // DAY * 24
    await store.messages.accept(messages.new("a@example.net"))
    await sent_at(
        store, account, {midnight - 26: 1, midnight - 25: 2, midnight - 23: 4, midnight + 1: 8, midnight + 2: 16}
    )
    by_day = {(midnight - 48, "sent"): 3, (midnight - 24, "sent"): 4}
    since, hourly = (midnight - 48) * HOUR, midnight * HOUR
    found = (await store.statistics.of(account.id, since, hourly)).by_hour
    assert found == by_day | {(midnight + 1, "sent"): 8, (midnight + 2, "sent"): 16, (midnight + 9, "sent"): 1}
    found = (await store.statistics.of(account.id, since, hourly + DAY)).by_hour
    assert found == by_day | {(midnight, "sent"): 25}


async def test_the_period_before_is_as_long(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    midnight = clock.now // DAY * 24
    await store.messages.accept(messages.new("a@example.net"))
    clock.now += DAY
    counts = {midnight - 1: 16, midnight: 1, midnight + 9: 2, midnight + 10: 4, midnight + 33: 8}
    await sent_at(store, account, counts)
    for _ in range(2):
        found = await store.statistics.of(account.id, (midnight + 24) * HOUR, compared=midnight * HOUR)
        assert found.by_hour == {(midnight + 33, "sent"): 8}
        assert found.previous == {"sent": 4}
        await store.statistics.count()


async def test_a_period_of_which_not_all_is_kept_is_not_compared(
    store: Store, messages: Messages, account: Account, clock: Clock
) -> None:
    began = clock.now

    async def known(days: int) -> bool:
        found = await store.statistics.of(account.id, clock.now, compared=clock.now - days * DAY)
        return found.previous is not None

    assert (await known(89), await known(91)) == (True, False)
    await send(store, messages, clock, DELIVERED)
    clock.now += DAY
    await store.statistics.count()
    clock.now = began + 60 * DAY
    assert (await known(148), await known(151)) == (True, False)


async def test_a_delivery_is_timed_to_a_tenth(store: Store, messages: Messages, account: Account, clock: Clock) -> None:
    await store.messages.accept(messages.new("a@example.net"))
    clock.now += 90 * SECOND
    await record(store, clock, [DELIVERED])
    for _ in range(2):
        ((bucket, count),) = (await store.statistics.of(account.id, 0)).by_bucket.items()
        assert count == 1
        assert 0.9 * 90_000 < bucket_milliseconds(bucket) < 1.1 * 90_000
        clock.now += 61 * SECOND
        await store.statistics.count()


async def test_accounts_are_counted_apart(store: Store, messages: Messages, clock: Clock, account: Account) -> None:
    other = await store.accounts.create("other", "other@example.org", "hash", credit=None)
    await send(store, Messages(messages.env, other.id), clock, DELIVERED)
    for _ in range(2):
        assert totals(await store.statistics.of(account.id, 0)) == {}
        assert totals(await store.statistics.of(other.id, 0)) == {"sent": 1, "delivered": 1}
        clock.now += 61 * SECOND
        await store.statistics.count()


async def test_a_clock_that_went_back_counts_nothing_twice(store: Store, messages: Messages, clock: Clock) -> None:
    await send(store, messages, clock, DELIVERED)
    clock.now += 61 * SECOND
    await store.statistics.count()
    clock.now -= 50 * SECOND
    assert not await store.statistics.count()
    assert totals(await store.statistics.of(messages.account_id, 0)) == {"sent": 1, "delivered": 1}


async def test_a_server_at_rest_writes_nothing(store: Store, messages: Messages, clock: Clock) -> None:
    await send(store, messages, clock, DELIVERED)
    clock.now += 61 * SECOND
    await store.statistics.count()
    before = await store.queue_control.version()
    for _ in range(3):
        clock.now += 10 * SECOND
        assert not await store.statistics.count()
    assert await store.queue_control.version() == before


# ---- what came back, by day

DESTINATION = "INSERT INTO destinations (domain, pool, updated_at) VALUES (:domain, :pool, 0)"
EVENT = """INSERT INTO events (id, account_id, message_id, recipient_id, type, body, created_at)
    VALUES (:id, :account_id, :message_id, :recipient_id, :type, :body, :now)"""
LATE = "UPDATE recipients SET late_bounce = :text WHERE id = :id"


async def later(store: Store, clock: Clock, recipient: DueRecipient, kind: str, late: str | None = None) -> None:
    now = clock()
    row = {
        "id": store.statistics.env.identifier("evt"),
        "account_id": recipient.account_id,
        "message_id": recipient.message_id,
        "recipient_id": recipient.id,
        "type": f"email.{kind}",
        "body": b"{}",
        "now": now,
    }
    await store.engine.change(EVENT, row)
    if late is not None:
        text = f'{{"at": {now}, "code": 550, "response": "a \\"class\\": \\"no\\"", "class": "{late}"}}'
        await store.engine.change(LATE, {"text": text, "id": recipient.id})


async def test_feedback_is_counted_by_class_and_provider(store: Store, messages: Messages, clock: Clock) -> None:
    for domain, pool in (("gmail.test", "google"), ("own.test", "mx.own.test"), ("six.test", "2001:db8::1")):
        await store.engine.change(DESTINATION, {"domain": domain, "pool": pool})
    today = clock.now // DAY
    addresses = ("a@gmail.test", "b@gmail.test", "c@own.test", "d@six.test", "e@new.test", "f@gmail.test")
    for test in (False, True):
        await store.messages.accept(messages.new(*addresses, test=test))
        due = {each.address: each for each in await store.queue.due(simulated=True, most=100)}
        statuses = dict(zip(addresses, (DELIVERED, BOUNCED, BOUNCED, FAILED, DELIVERED, DELIVERED), strict=True))
        classes = {
            "b@gmail.test": BounceClass.INVALID_RECIPIENT,
            "c@own.test": BounceClass.POLICY,
            "d@six.test": BounceClass.TEMPORARY,
        }
        results = [
            outcome(due[each], status, clock(), bounce_class=classes.get(each)) for each, status in statuses.items()
        ]
        await store.queue.record(results)
        await later(store, clock, due["a@gmail.test"], "complained")
        await later(store, clock, due["f@gmail.test"], "late_bounced", "mailbox_full")
    expected = {
        (today, "delivered", "", "google"): 2,
        (today, "delivered", "", ""): 1,
        (today, "bounced", "invalid_recipient", "google"): 1,
        (today, "bounced", "policy", ""): 1,
        (today, "failed", "temporary", ""): 1,
        (today, "late_bounced", "mailbox_full", "google"): 1,
        (today, "complained", "", "google"): 1,
    }
    for _ in range(2):
        assert await store.statistics.feedback(messages.account_id, 0) == expected
        assert await store.statistics.feedback(messages.account_id, (today + 1) * DAY) == {}
        assert await store.statistics.feedback("acc_other", 0) == {}
        clock.now += 61 * SECOND
        await store.statistics.count()
    rows = await store.engine.rows("SELECT count(*) FROM daily_feedback", {})
    assert rows == [(len(expected),)]


async def test_counts_of_feedback_are_kept_for_ninety_days(store: Store, messages: Messages, clock: Clock) -> None:
    await send(store, messages, clock, DELIVERED, BOUNCED)
    clock.now += 61 * SECOND
    await store.statistics.count()
    before = await store.statistics.feedback(messages.account_id, 0)
    assert sum(before.values()) == 2
    clock.now += 90 * DAY
    await expire(store)
    assert await store.statistics.feedback(messages.account_id, 0) == before
    clock.now += DAY
    await expire(store)
    assert await store.statistics.feedback(messages.account_id, 0) == {}
