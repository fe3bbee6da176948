"""One database, and every number of it through each that shows it: the API, the command line and the metrics."""

from collections import Counter

from msgspec import structs

from appliance.cli.status import _stored
from appliance.model.accounts import Account
from appliance.model.dashboard import Dimension, MailFilter, Pairing
from appliance.model.feedback import NewComplaint
from appliance.model.mail import BounceClass, FailureReason, LateBounce, Outcome, RecipientOutcome, RecipientStatus
from appliance.model.numbers import COUNTED, NUMBERS, rates
from appliance.store import Store
from appliance.telemetry import metrics
from appliance.times import DAY, HOUR
from appliance.web.api.feedback import by_day, by_provider
from appliance.web.api.stats import StatsAnswer, stats
from tests.store.samples import SECOND, Clock, Messages, existing, outcome, record

DELIVERED, BOUNCED, FAILED = RecipientStatus.DELIVERED, RecipientStatus.BOUNCED, RecipientStatus.FAILED
EXPECTED = dict(zip(NUMBERS, (9, 4, 1, 1, 1, 1, 1, 1), strict=True))


async def seed(store: Store, account: Account, messages: Messages, clock: Clock, stream: str = "transactional") -> None:
    """Nine recipients: one of each result, four delivered of which two came back, one waiting; and test mail."""
    await store.access.add_domain(account.id, "example.com", usable=True)
    await store.engine.change("INSERT INTO destinations VALUES ('gmail.test', 'google', 1)", {})
    new = messages.new(*(f"r{number}@gmail.test" for number in range(9)), simulated=False)
    new = structs.replace(new, stream=stream)
    await store.messages.accept(new)
    await store.messages.accept(messages.new("a@gmail.test", "b@gmail.test", test=True))
    await record(store, clock, [BOUNCED, DELIVERED])
    due = sorted(await store.queue.due(simulated=False, most=99), key=lambda recipient: recipient.id)
    at = clock()
    await store.queue.record(
        [
            *(
                outcome(recipient, DELIVERED, at, tries=tries)
                for recipient, tries in zip(due, (1, 2, 1, 1), strict=False)
            ),
            outcome(due[4], BOUNCED, at, bounce_class=BounceClass.INVALID_RECIPIENT),
            outcome(due[5], FAILED, at, bounce_class=BounceClass.TEMPORARY),
            Outcome(due[6], BOUNCED, (), at=at, failure=FailureReason.SUPPRESSED),
            Outcome(due[7], FAILED, (), at=at, failure=FailureReason.CANCELLED),
        ]
    )
    late = LateBounce(at, 550, "550 5.2.2 full", BounceClass.MAILBOX_FULL)
    first, second = [
        existing(await store.feedback.recipient(one.id, one.id, "bounces.example.com")) for one in new.recipients[:2]
    ]
    steps = [
        store.feedback.late_bounce(first, late, suppresses=False),
        store.feedback.complaint(second, NewComplaint("abuse", "FBL")),
    ]
    mail_id = await store.feedback.add(["fbl@bounces.example.com"], b"mail")
    assert await store.feedback.finish(mail_id, steps) == ["late_bounced", "complained"]


def shown(of: object, names: tuple[str, ...] = NUMBERS) -> dict[str, int]:
    return {name: getattr(of, name) for name in names}


async def answer(store: Store, account: Account, clock: Clock, by: Dimension | None = None) -> StatsAnswer:
    now = clock.now // HOUR
    first = now - now % 24
    numbers = await store.statistics.of(account.id, first * HOUR, first * HOUR, (first - 24) * HOUR)
    parts = None if by is None else await store.breakdown.of(account.id, by, first * HOUR)
    return stats(numbers, first, now, 1, "req_1", parts)


async def check(store: Store, account: Account, clock: Clock) -> None:
    totals = (await answer(store, account, clock)).totals
    assert shown(totals) == EXPECTED
    expected_rates = rates(EXPECTED)
    assert expected_rates["bounce_rate"] == 0.16667
    assert expected_rates["complaint_rate"] == 0.25
    assert {name: getattr(totals, name) for name in expected_rates} == expected_rates
    (day,) = (await answer(store, account, clock)).days
    assert shown(day, COUNTED) == {name: EXPECTED[name] for name in COUNTED}
    for by in (Dimension.DOMAIN, Dimension.TAG, Dimension.PROVIDER):
        for part in (await answer(store, account, clock, by)).breakdown or ():
            assert shown(part) == EXPECTED, by
            assert {name: getattr(part, name) for name in expected_rates} == expected_rates
    last_hour = (await _stored(store))[0]["last_hour"]
    assert last_hour == {name: EXPECTED[name] for name in COUNTED}
    today = clock.now // DAY
    counts = await store.statistics.feedback(account.id, today * DAY)
    (provider,), (feedback,) = by_provider(counts), by_day(counts, [today])
    names = ("delivered", "bounced", "failed", "late_bounced", "complained")
    for of in (provider, feedback):
        assert shown(of, names) == {name: EXPECTED[name] for name in names}
    assert {name: getattr(provider, name) for name in expected_rates} == expected_rates
    classes = provider.classes
    assert (classes.invalid_recipient, classes.temporary, classes.mailbox_full) == (1, 1, 1)
    pairs = ((None, None), (None, (Pairing.DOMAIN, "example.com")), ("google", (Pairing.DOMAIN, "example.com")))
    for name, pair in pairs:
        found = await store.breakdown.by_provider(account.id, today * DAY, name, pair)
        for counted in (found.by_provider["google"], found.by_day[today]):
            assert {number: counted.get(number, 0) for number in NUMBERS} == EXPECTED
            assert (counted["deferred"], counted["within_1"]) == (1, 4)
    elsewhere = await store.breakdown.by_provider(account.id, today * DAY, "yahoo", (Pairing.DOMAIN, "example.org"))
    assert elsewhere == ({}, {}, None, ())
    for number in NUMBERS[1:]:
        page = await store.mail_log.page(account.id, MailFilter(outcome=RecipientOutcome(number)), None, 9)
        (message,) = [each for each in page.messages if each.source != "test"]
        delivered = EXPECTED["delivered"] - EXPECTED["late_bounced"] - EXPECTED["complained"]
        assert message.outcomes[RecipientOutcome(number)] == (delivered if number == "delivered" else EXPECTED[number])
        assert sum(message.outcomes.values()) == EXPECTED["sent"]


async def test_every_number_is_the_same_everywhere(
    store: Store, account: Account, messages: Messages, clock: Clock
) -> None:
    """Before and after the background has counted it; suppressed recipients are no bounces, test mail is nowhere."""
    before = Counter(metrics.RECIPIENT_NUMBERS.values)
    await seed(store, account, messages, clock)
    await check(store, account, clock)
    clock.now += 61 * SECOND
    while await store.statistics.count() or await store.breakdown.count():
        pass
    await check(store, account, clock)
    measured = Counter(metrics.RECIPIENT_NUMBERS.values)
    measured.subtract(before)
    assert {number: measured[number] for number in NUMBERS} == EXPECTED


async def check_streams(store: Store, account: Account, clock: Clock) -> None:
    """The numbers of `seed` are those of the stream digest; transactional has one delivery, of an hour ago."""
    digest, transactional = EXPECTED, {"sent": 1, "delivered": 1}
    today = clock.now // DAY
    by_stream = await store.statistics.by_stream(account.id, today * DAY)
    assert {name: +Counter(counts) for name, counts in by_stream.items()} == {
        "transactional": transactional,
        "digest": digest,
    }
    assert list(by_stream) == ["transactional", "digest"]
    for name, expected in (("transactional", transactional), ("digest", digest), ("other", {})):
        now = clock.now // HOUR
        first = now - now % 24
        numbers = await store.statistics.of(account.id, first * HOUR, first * HOUR, (first - 24) * HOUR, name)
        totals = stats(numbers, first, now, 1, "req_1").totals
        assert {kind: count for kind, count in shown(totals).items() if count} == expected, name
        assert any(map(any, numbers.by_class.values())) == (name == "digest")
        assert sum(numbers.by_bucket.values()) == expected.get("delivered", 0)
        assert (numbers.waiting, numbers.simulated) == ((), 0)
        found = await store.breakdown.by_provider(account.id, today * DAY, None, (Pairing.STREAM, name))
        (by_provider,) = found.by_provider.values() if expected else ({},)
        of_day = found.by_day.get(today, {})
        assert {number: count for number, count in by_provider.items() if number in NUMBERS and count} == expected
        assert {number: count for number, count in of_day.items() if number in NUMBERS and count} == expected
        assert by_provider.get("within_1", 0) == expected.get("delivered", 0)


async def test_every_number_is_split_by_stream(
    store: Store, account: Account, messages: Messages, clock: Clock
) -> None:
    """Before and after the background has counted it; the default stream has all that no other stream has."""
    await seed(store, account, messages, clock, "digest")
    await store.messages.accept(messages.new("one@gmail.test", simulated=False))
    (due,) = [each for each in await store.queue.due(simulated=False, most=99) if each.attempt_count == 0][-1:]
    await store.queue.record([outcome(due, DELIVERED, clock())])
    await check_streams(store, account, clock)
    clock.now += 61 * SECOND
    while await store.statistics.count() or await store.breakdown.count():
        pass
    await check_streams(store, account, clock)
