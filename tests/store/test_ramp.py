"""The store of the ramp: the plan, the one route of a recipient, and the results of both routes by the hour."""

from msgspec.structs import replace

from appliance.config.settings import WarmupSettings
from appliance.feedback.return_path import ReturnPaths
from appliance.model.feedback import NewComplaint
from appliance.model.mail import DueRecipient, RecipientStatus
from appliance.model.ramp import OTHER_PROVIDERS, Action, RampLane, RampPlan, Via
from appliance.store import Store
from tests.store.samples import SECOND, Clock, Messages, outcome

OFF = WarmupSettings()
NAMES = [f"user{number}@a.test" for number in range(6)]


async def due(store: Store, messages: Messages, *buckets: int | None) -> list[DueRecipient]:
    """Due recipients of one message, one for each bucket."""
    new = messages.new(*NAMES[: len(buckets)], simulated=False)
    recipients = zip(new.recipients, buckets, strict=True)
    await store.messages.accept(replace(new, recipients=tuple(replace(to, bucket=b) for to, b in recipients)))
    return sorted(await store.queue.due(simulated=False, most=10), key=lambda to: to.address)


async def test_a_plan_is_kept_until_it_is_reset(store: Store) -> None:
    assert await store.ramp.stored() is None
    await store.ramp.change(lambda plan: plan.having("", 20, 1).having("google", 5, 2, "bad"))
    expected = RampPlan(20, {"google": 5}, changed_at={"": 1, "google": 2}, reason="bad")
    assert await store.ramp.stored() == expected
    assert await store.ramp.change(lambda _: None) is None
    assert await store.ramp.stored() is None


async def test_a_recipient_is_bound_once(store: Store, messages: Messages, clock: Clock) -> None:
    """To one route; not at all once it has a result."""
    first, second, third = await due(store, messages, 10, 20, 30)
    assert await store.ramp.bind([first, second], Via.DIRECT)
    assert not await store.ramp.bind([second, third], Via.RELAY)
    assert await store.ramp.bind([second], Via.DIRECT)
    rows = await store.engine.rows("SELECT address, route FROM recipients ORDER BY address", {})
    assert rows == [(NAMES[0], "direct"), (NAMES[1], "direct"), (NAMES[2], "relay")]
    await store.queue.record([outcome(first, RecipientStatus.DELIVERED, clock())])
    assert not await store.ramp.bind([first], Via.DIRECT)


async def test_an_attempt_without_a_server_binds_too(store: Store, messages: Messages, clock: Clock) -> None:
    ramped, plain = await due(store, messages, 10, None)
    for recipient in (ramped, plain):
        result = outcome(recipient, RecipientStatus.DEFERRED, clock())
        attempts = tuple(replace(attempt, route="direct") for attempt in result.attempts)
        await store.queue.record([replace(result, attempts=attempts)])
    rows = await store.engine.rows("SELECT address, route FROM recipients ORDER BY address", {})
    assert rows == [(ramped.address, "direct"), (plain.address, None)]


async def test_a_lane_has_the_mail_of_one_route(store: Store, messages: Messages) -> None:
    recipients = await due(store, messages, 10, 90, 10, 90, None)
    await store.ramp.bind([recipients[2]], Via.RELAY)
    await store.ramp.bind([recipients[3]], Via.DIRECT)

    async def lane(via: Via | None) -> list[str]:
        ramp = RampLane(via, 50)
        found = await store.lanes.due(0, recipients[0].account_id, "a.test", 10, ramp)
        return sorted(recipient.address for recipient in found)

    assert await lane(Via.DIRECT) == [NAMES[0], NAMES[3]]
    assert await lane(Via.RELAY) == [NAMES[1], NAMES[2]]
    assert await lane(None) == [NAMES[4]]


async def test_results_are_counted_by_provider_and_route(store: Store, messages: Messages, clock: Clock) -> None:
    statuses = [*RecipientStatus][-4:]  # deferred, delivered, bounced and failed
    recipients = await due(store, messages, 1, 2, 3, 4, 5, None)
    at = clock() + 30 * SECOND
    results = [
        outcome(recipient, status, at, provider="google" if status is not RecipientStatus.BOUNCED else OTHER_PROVIDERS)
        for recipient, status in zip(recipients, [*statuses, RecipientStatus.DELIVERED], strict=False)
    ]
    results = [
        replace(result, attempts=tuple(replace(attempt, route="direct") for attempt in result.attempts))
        for result in results
    ]
    results.append(outcome(recipients[5], RecipientStatus.DELIVERED, at))  # not under the ramp
    await store.queue.record(results)
    rows = {row.figures.provider: row.figures for row in await store.ramp.hours(0)}
    assert rows.keys() == {"google", OTHER_PROVIDERS}
    google = rows["google"]
    assert (google.delivered, google.deferred, google.bounced, google.failed) == (2, 1, 0, 1)
    assert (google.within_minute, google.seconds, google.busiest_hour) == (2, 60, 3)
    assert rows[OTHER_PROVIDERS].bounced == 1
    comparison = await store.ramp.comparison(RampPlan(20), OFF)
    assert [row.provider for row in comparison.figures] == ["google", OTHER_PROVIDERS]
    assert comparison.suggestions[0].action is Action.HOLD


async def test_a_complaint_counts_for_the_route(store: Store, messages: Messages, clock: Clock) -> None:
    """Of recipients under the ramp, for a provider that has results; others share one row."""
    known, unknown, plain = await due(store, messages, 1, 99, None)
    await store.pools.say([], {"a.test": "google"})
    await store.ramp.bind([known], Via.DIRECT)
    await store.ramp.bind([unknown], Via.RELAY)
    await store.access.add_domain(known.account_id, "example.com", usable=True)

    async def complain(recipient: DueRecipient) -> None:
        name = "bounces.example.com"
        token = ReturnPaths(bytes(32)).address(recipient.id, name)
        found = await store.feedback.recipient(recipient.id, recipient.id, name)
        assert found is not None
        await store.feedback.add([token], b"mail")
        mail = await store.feedback.next()
        assert mail is not None
        await store.feedback.finish(mail.id, [store.feedback.complaint(found, NewComplaint("abuse", "FBL/1.0"))])

    await complain(unknown)
    result = outcome(known, RecipientStatus.DELIVERED, clock(), provider="google")
    attempts = tuple(replace(attempt, route="direct") for attempt in result.attempts)
    await store.queue.record([replace(result, attempts=attempts)])
    for recipient in (known, plain):
        await complain(recipient)
    counts = {(row.figures.provider, row.figures.route): row.figures.complaints for row in await store.ramp.hours(0)}
    assert counts == {(OTHER_PROVIDERS, Via.RELAY): 1, ("google", Via.DIRECT): 1}
