"""The dispatcher: which receivers are posted to, when and how often, and what the history says of it."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from stripe import WebhookSignature
from trio.testing import MockClock

from appliance.errors import StorageUnavailable
from appliance.model.mail import RecipientStatus
from appliance.model.webhooks import EventType, Lane, PostResult, PostStatus, SealedSecret, Trigger
from appliance.net.dial import Shortage
from appliance.store.pools import EVERY
from appliance.store.webhooks import WebhookPosts
from appliance.webhook.dispatcher import DISABLED, PAUSE_POLL_EVERY
from appliance.webhook.post import BROKEN_SEAL, OWN_FAULT, Posted
from tests.late_reads import late
from tests.webhook.simulated_dispatcher import BROKEN, DELAYS, OK, REFUSED, START, Seen, Simulation, simulation, url_of

HOOK = url_of("demo")
STANDARD_HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature")


async def slowly(seen: Seen) -> Posted:
    await trio.sleep(4.9)
    return Posted(200, b"", None, 4_900)


async def never(seen: Seen) -> Posted:
    await trio.sleep(5)
    return Posted(None, b"", "the receiver took longer than 5 s to answer", 5_000)


def ids(seen: Sequence[Seen]) -> list[str]:
    return [json.loads(each.body)["id"] for each in seen]


# ---- one post


async def test_an_event_is_posted_at_once(sim: Simulation, demo: None, clock: MockClock) -> None:
    async with sim.running():
        await trio.sleep(1)
        message_id = await sim.result("demo", subject="Your order")
        await sim.done("demo")
        (seen,) = sim.receivers.seen
        assert seen.at == pytest.approx(1.0)
    (delivery,) = await sim.deliveries("demo")
    body = json.loads(seen.body)
    assert body["type"] == delivery.type == "email.delivered"
    assert body["data"]["email_id"] == delivery.message_id == message_id
    assert (body["id"], seen.body) == (delivery.event_id, delivery.request_body)
    assert (delivery.status, delivery.attempt, delivery.trigger) == (PostStatus.SUCCESS, 1, Trigger.EVENT)
    assert (delivery.response_status, delivery.response_body, delivery.duration_ms) == (200, "thanks", 3)
    assert (delivery.url, delivery.error, delivery.next_attempt_at) == (HOOK, None, None)


async def test_the_headers_are_those_of_the_interface(sim: Simulation, demo: None, clock: MockClock) -> None:
    """Content type, agent and signatures; they are of this second, and the stripe library accepts the first."""
    async with sim.running():
        await trio.sleep(90)
        await sim.result("demo")
        await sim.done("demo")
    (seen,) = sim.receivers.seen
    assert set(seen.headers) == {"Content-Type", "User-Agent", "Service-Signature", *STANDARD_HEADERS}
    assert seen.headers["Content-Type"] == "application/json"
    assert seen.headers["User-Agent"] == "Service-Webhook/1.0"
    signature = seen.headers["Service-Signature"]
    assert signature.startswith(f"t={START // 1_000_000 + 90},v1=")
    assert WebhookSignature.verify_header(seen.body.decode(), signature, sim.shown["demo"])


async def test_a_failing_receiver_is_tried_seven_times(sim: Simulation, demo: None, clock: MockClock) -> None:
    """The attempts come at 0 s, 5 s, 5 min, 30 min, 2 h, 5 h and 10 h after the one before; then it is given up."""
    sim.receivers.answers[HOOK] = BROKEN
    async with sim.running():
        await trio.sleep(1)
        await sim.result("demo")
        began = trio.current_time()
        await sim.done("demo")
        await trio.sleep(86_400)
    (delivery,) = await sim.deliveries("demo")
    at = sim.receivers.at(HOOK)
    waits = [after - before for before, after in zip([began, *at], at, strict=False)]
    assert waits == pytest.approx([0, *DELAYS], abs=0.001)
    assert (delivery.status, delivery.attempt, delivery.next_attempt_at) == (PostStatus.FAILED, 7, None)
    assert (delivery.response_status, delivery.response_body) == (500, "oh no")


async def test_every_attempt_has_the_same_body_and_a_signature_of_its_own(
    sim: Simulation, demo: None, clock: MockClock
) -> None:
    """Retries reuse event id and bytes; `t` is the time of the attempt, so a receiver's clock check holds."""
    sim.receivers.answers[HOOK] = REFUSED
    async with sim.running():
        await sim.result("demo")
        await sim.done("demo")
    seen = sim.receivers.seen
    assert len({each.body for each in seen}) == 1
    times = [int(each.headers["Service-Signature"][2:].partition(",")[0]) for each in seen]
    assert times == [START // 1_000_000 + round(each.at) for each in seen]


async def test_a_receiver_that_recovers_gets_it_once(sim: Simulation, demo: None, clock: MockClock) -> None:
    """After the first 2xx there is nothing more, and between attempts the history says when the next one is."""

    async def recovering(seen: Seen) -> Posted:
        return OK if len(sim.receivers.seen) == 3 else REFUSED

    sim.receivers.answers[HOOK] = recovering
    async with sim.running():
        await sim.result("demo")
        await trio.sleep(100)
        (waiting,) = await sim.deliveries("demo")
        assert (waiting.status, waiting.attempt, waiting.error) == (PostStatus.PENDING, 2, REFUSED.error)
        assert (waiting.response_status, waiting.response_body) == (None, None)
        assert waiting.next_attempt_at == pytest.approx(START + 305 * 1_000_000, abs=1_000)
        await trio.sleep(2 * 86_400)
    (delivery,) = await sim.deliveries("demo")
    webhook = await sim.store.webhooks.existing(sim.accounts["demo"])
    assert (delivery.status, delivery.attempt, delivery.error) == (PostStatus.SUCCESS, 3, None)
    assert len(sim.receivers.seen) == 3
    assert webhook.last_success_at == delivery.attempted_at == pytest.approx(START + 305 * 1_000_000, abs=1_000)
    assert webhook.last_failure_at == pytest.approx(START + 5 * 1_000_000, abs=1_000)


# ---- what is posted


async def test_each_recipient_has_a_post_of_its_own(sim: Simulation, demo: None, clock: MockClock) -> None:
    async with sim.running():
        message_id = await sim.result("demo", "ada@example.net", "bob@example.net", "eve@example.net")
        await sim.done("demo")
    data = [json.loads(seen.body)["data"] for seen in sim.receivers.seen]
    assert {each["email_id"] for each in data} == {message_id}
    assert sorted(each["to"] for each in data) == ["ada@example.net", "bob@example.net", "eve@example.net"]
    assert len({each["recipient_id"] for each in data}) == len(set(ids(sim.receivers.seen))) == 3


async def test_a_deferral_posts_nothing(sim: Simulation, demo: None, clock: MockClock) -> None:
    async with sim.running():
        await sim.result("demo", status=RecipientStatus.DEFERRED)
        await trio.sleep(600)
    assert sim.receivers.seen == []


async def test_only_what_is_subscribed_is_posted(sim: Simulation, clock: MockClock) -> None:
    """A webhook that wants bounces gets bounces; an account without one, or with a disabled one, gets nothing."""
    await sim.account("demo", [EventType.BOUNCED])
    await sim.account("disabled", enabled=False)
    await sim.account("none", hook=False)
    async with sim.running():
        for status in (RecipientStatus.DELIVERED, RecipientStatus.BOUNCED, RecipientStatus.FAILED):
            for name in sim.accounts:
                await sim.result(name, status=status)
        await trio.sleep(600)
    assert await sim.deliveries("disabled") == []
    assert [json.loads(seen.body)["type"] for seen in sim.receivers.seen] == ["email.bounced"]


async def test_what_was_written_before_the_start_is_posted(sim: Simulation, demo: None, clock: MockClock) -> None:
    sim.receivers.answers[HOOK] = BROKEN
    await sim.result("demo")
    for _ in range(50):
        async with sim.running():
            await trio.sleep(40)
    assert sim.receivers.at(HOOK) == pytest.approx([0, 5, 305], abs=0.5)
    async with sim.running():
        await sim.done("demo")
    at = sim.receivers.at(HOOK)
    assert [after - before for before, after in pairwise(at)] == pytest.approx(DELAYS, abs=0.5)


# ---- changes on the way


async def test_a_deleted_webhook_gets_nothing_more(sim: Simulation, demo: None, clock: MockClock) -> None:
    sim.receivers.answers[HOOK] = BROKEN
    async with sim.running():
        await sim.result("demo")
        await trio.sleep(1)
        await sim.store.webhooks.delete(sim.accounts["demo"])
        await trio.sleep(1)
        await sim.hook("demo")
        await trio.sleep(86_400)
    assert await sim.deliveries("demo") == []
    assert len(sim.receivers.seen) == 1


async def test_a_disabled_webhook_gets_nothing_more(sim: Simulation, demo: None, clock: MockClock) -> None:
    sim.receivers.answers[HOOK] = BROKEN
    async with sim.running():
        await sim.result("demo")
        await trio.sleep(1)
        await sim.hook("demo", enabled=False)
        await sim.done("demo")
        sim.receivers.answers[HOOK] = OK
        await sim.hook("demo")
        await trio.sleep(86_400)
    (delivery,) = await sim.deliveries("demo")
    assert len(sim.receivers.seen) == 1
    assert (delivery.status, delivery.attempt, delivery.error) == (PostStatus.FAILED, 1, DISABLED)


async def test_a_webhook_that_is_enabled_again_in_time_goes_on(sim: Simulation, demo: None, clock: MockClock) -> None:
    sim.receivers.answers[HOOK] = BROKEN
    async with sim.running():
        await sim.result("demo")
        await trio.sleep(10)
        await sim.hook("demo", enabled=False)
        await trio.sleep(100)
        await sim.hook("demo")
        await trio.sleep(300)
    assert sim.receivers.at(HOOK) == pytest.approx([0, 5, 305], abs=0.001)


async def test_a_new_url_gets_what_waits(sim: Simulation, demo: None, clock: MockClock) -> None:
    sim.receivers.answers[HOOK] = BROKEN
    async with sim.running():
        await sim.result("demo")
        await trio.sleep(1)
        await sim.hook("demo", url="https://elsewhere.example.net/")
        await sim.done("demo")
    (delivery,) = await sim.deliveries("demo")
    assert [seen.url for seen in sim.receivers.seen] == [HOOK, "https://elsewhere.example.net/"]
    assert delivery.url == "https://elsewhere.example.net/"


async def test_a_new_secret_signs_from_then_on(sim: Simulation, demo: None, clock: MockClock) -> None:
    """An attempt before the rotation has the old signature, the retry after it the new one, and only that."""
    sim.receivers.answers[HOOK] = BROKEN
    async with sim.running():
        await sim.result("demo")
        await trio.sleep(1)
        webhook = await sim.store.webhooks.existing(sim.accounts["demo"])
        secret, sealed = sim.secrets.fresh(webhook.id)
        await sim.store.webhooks.replace_secret(webhook, sealed)
        await trio.sleep(10)
    first, second = sim.receivers.seen
    for seen, key in ((first, sim.shown["demo"]), (second, secret)):
        header = seen.headers["Service-Signature"]
        assert header.count("v1=") == 1
        assert WebhookSignature.verify_header(seen.body.decode(), header, key)


# ---- which receiver is next


async def test_a_slow_receiver_delays_no_other(sim: Simulation, clock: MockClock) -> None:
    """While one account's backlog waits for a receiver of five seconds, another's events go out at once."""
    await sim.account("slow")
    await sim.account("quick")
    sim.receivers.answers[url_of("slow")] = slowly
    async with sim.running(slots=20):
        await sim.result("slow", *[f"a{number}@example.net" for number in range(50)])
        for _ in range(20):
            await trio.sleep(1)
            now = trio.current_time()
            await sim.result("quick")
            await trio.sleep(0.01)
            assert sim.receivers.at(url_of("quick"))[-1] == pytest.approx(now, abs=0.001)


@pytest.mark.parametrize(("hanging", "known"), [(500, False), (200, True)], ids=["new", "hung before"])
async def test_hanging_receivers_leave_slots_for_those_that_answer(
    sim: Simulation, clock: MockClock, hanging: int, known: bool
) -> None:
    """Beside more hanging receivers than there are slots, events for one that has answered before go at once."""
    for number in range(hanging):
        await sim.account(name := f"hanging{number}")
        sim.receivers.answers[url_of(name)] = never
        await sim.result(name)
    await sim.account("good")
    await sim.prove("good")
    async with sim.running():
        await trio.sleep(6 if known else 0.1)
        for _ in range(8 if known else 40):
            for number in range(hanging if known else 0):
                await sim.result(f"hanging{number}")
            before, began = len(sim.receivers.at(url_of("good"))), trio.current_time()
            await sim.result("good")
            await trio.sleep(0.1)
            (at,) = sim.receivers.at(url_of("good"))[before:]
            assert at - began < 0.05


async def test_a_new_receiver_does_not_wait_behind_those_that_hung(sim: Simulation, clock: MockClock) -> None:
    """Receivers that are known to hang have slots of their own, so that one never seen before is posted to at once."""
    for number in range(300):
        await sim.account(name := f"hanging{number}")
        sim.receivers.answers[url_of(name)] = never
        await sim.result(name)
    await sim.account("new")
    async with sim.running():
        await trio.sleep(30)
        for number in range(300):
            await sim.result(f"hanging{number}")
        began = trio.current_time()
        await sim.result("new")
        await trio.sleep(0.1)
        (at,) = sim.receivers.at(url_of("new"))
        assert at - began < 0.05


async def test_a_lack_of_this_machine_is_no_attempt(
    sim: Simulation, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Without descriptors events wait, one line tells of it, and then each goes with its first attempt."""
    for number in range(20):
        await sim.account(name := f"a{number}")
        sim.receivers.answers[url_of(name)] = Shortage("Too many open files")
        await sim.result(name)
    async with sim.running():
        await trio.sleep(100)
        sim.receivers.answers.clear()
        for number in range(20):
            await sim.done(f"a{number}", within=2)
    for number in range(20):
        (delivery,) = await sim.deliveries(f"a{number}")
        assert (delivery.status, delivery.attempt) == (PostStatus.SUCCESS, 1)
    assert [record.message for record in caplog.records] == ["webhook posts paused: out of local resources"]


async def test_accounts_take_turns(sim: Simulation, clock: MockClock) -> None:
    async def steadily(seen: Seen) -> Posted:
        await trio.sleep(0.5)
        return OK

    for name in ("many", "few"):
        await sim.account(name)
        sim.receivers.answers[url_of(name)] = steadily
    await sim.result("many", *[f"a{number}@example.net" for number in range(50)])
    async with sim.running(slots=2):
        await trio.sleep(3.1)
        await sim.result("few")
        await trio.sleep(1.1)
        assert len(sim.receivers.at(url_of("few"))) == 1


async def test_one_receiver_gets_a_few_at_once_in_order(sim: Simulation, demo: None, clock: MockClock) -> None:
    async def steadily(seen: Seen) -> Posted:
        await trio.sleep(0.5)
        return OK

    await sim.prove("demo")
    sim.receivers.answers[HOOK] = steadily
    for number in range(200):
        await sim.result("demo", f"a{number}@example.net")
        await trio.sleep(0.001)
    began = trio.current_time()
    async with sim.running():
        await sim.done("demo")
    # Those that are begun in the same moment reach their receiver in any order.
    order = [int(json.loads(seen.body)["data"]["to"][1:].partition("@")[0]) for seen in sim.receivers.seen]
    assert all(abs(number - place) < 8 for place, number in enumerate(order))
    assert sorted(order) == list(range(200))
    assert sim.receivers.most_at_once[HOOK] == 8
    assert sim.receivers.seen[-1].at - began == pytest.approx(200 / 8 * 0.5 - 0.5, abs=0.2)


async def test_a_dead_receiver_is_tried_little_at_a_time(sim: Simulation, demo: None, clock: MockClock) -> None:
    """Whatever waits for it, there are ten attempts in a second at most, one at a time; a few are all tried in time."""
    sim.receivers.answers[HOOK] = REFUSED
    await sim.result("demo", *[f"a{number}@example.net" for number in range(500)])
    async with sim.running():
        await trio.sleep(21)
        assert 100 <= len(sim.receivers.seen) <= 240
        in_second = sum(1 for at in sim.receivers.at(HOOK) if 10 <= at < 11)
        assert in_second <= 11
        sim.receivers.answers[HOOK] = OK
        await trio.sleep(1)
        assert len(set(ids(sim.receivers.seen))) == 500


async def test_many_dead_receivers_cost_no_more_than_two(sim: Simulation, clock: MockClock) -> None:
    """Ten dead receivers with a backlog are together tried twenty times in a second, each of them as often."""
    for number in range(10):
        await sim.account(f"dead{number}")
        sim.receivers.answers[url_of(f"dead{number}")] = REFUSED
        await sim.result(f"dead{number}", *[f"{each}@example.net" for each in range(100)])
    async with sim.running(poll_every=5.0):
        await trio.sleep(30)
    for number in range(10):
        tried = [at for at in sim.receivers.at(url_of(f"dead{number}")) if 10 <= at < 20]
        assert 15 <= len(tried) <= 22


async def test_what_is_in_memory_is_bounded(sim: Simulation, clock: MockClock) -> None:
    for number in range(20):
        await sim.account(f"a{number}")
        await sim.result(f"a{number}", *[f"{each}@example.net" for each in range(10)])
    posting = sim.dispatcher(slots=5, posts_in_memory=60)
    most = 0

    async def counting(seen: Seen) -> Posted:
        nonlocal most
        most = max(most, sum(len(queue.loaded) for queue in posting.queues.values()))
        await trio.sleep(0.1)
        return OK

    sim.receivers.answers.update({url_of(f"a{number}"): counting for number in range(20)})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(posting.run)
        for number in range(20):
            await sim.done(f"a{number}")
        nursery.cancel_scope.cancel()
    assert len(set(ids(sim.receivers.seen))) == 200
    assert most <= 60


async def test_a_ping_does_not_wait_behind_a_backlog(sim: Simulation, demo: None, clock: MockClock) -> None:
    sim.receivers.answers[HOOK] = never
    await sim.result("demo", *[f"a{number}@example.net" for number in range(100)])
    async with sim.running():
        await trio.sleep(100)
        now = trio.current_time()
        ping = await sim.store.webhook_history.ping(sim.accounts["demo"])
        replay = await sim.store.webhook_history.replay(sim.accounts["demo"], (await sim.deliveries("demo"))[-1].id)
        await trio.sleep(0.01)
        posted = {
            id_ for id_, seen in zip(ids(sim.receivers.seen), sim.receivers.seen, strict=True) if seen.at >= now - 0.001
        }
        assert {ping.event_id, replay.event_id} <= posted


# ---- what goes wrong


async def test_a_fault_of_our_own_ends_one_attempt(sim: Simulation, demo: None, clock: MockClock) -> None:
    await sim.account("other")
    sim.receivers.answers[HOOK] = RuntimeError("a bug")
    async with sim.running():
        await sim.result("demo")
        await sim.result("other")
        await trio.sleep(1)
        sim.receivers.answers[HOOK] = OK
        (delivery,) = await sim.deliveries("demo")
        assert (delivery.attempt, delivery.error) == (1, OWN_FAULT)
        await sim.done("demo")
        await sim.done("other")
    assert [each.status for name in sim.accounts for each in await sim.deliveries(name)] == [PostStatus.SUCCESS] * 2


async def test_a_secret_that_cannot_be_read_fails_in_words(sim: Simulation, demo: None, clock: MockClock) -> None:
    """With another key file nothing is posted unsigned; the history says what to do, and a new secret helps."""
    webhook = await sim.store.webhooks.existing(sim.accounts["demo"])
    await sim.store.webhooks.replace_secret(webhook, SealedSecret(b"\x01" + bytes(60), "abcd"))
    async with sim.running():
        await sim.result("demo")
        await trio.sleep(1)
        (delivery,) = await sim.deliveries("demo")
        assert (delivery.status, delivery.error) == (PostStatus.PENDING, BROKEN_SEAL)
        assert sim.receivers.seen == []
        _, sealed = sim.secrets.fresh(webhook.id)
        await sim.store.webhooks.replace_secret(webhook, sealed)
        await sim.done("demo")
    assert len(sim.receivers.seen) == 1


async def test_a_storage_that_refuses_for_a_while_repeats_nothing(
    sim: Simulation, demo: None, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that cannot be written yet is kept and written later; the event is not posted again meanwhile."""
    refusals = iter(range(5))
    posts = type(sim.store.webhook_posts)
    really = posts.record

    async def refusing(self: object, results: Sequence[PostResult]) -> None:
        if next(refusals, None) is not None:
            raise StorageUnavailable("the storage is busy")
        await really(sim.store.webhook_posts, results)

    monkeypatch.setattr(posts, "record", refusing)
    async with sim.running():
        await sim.result("demo")
        await sim.done("demo")
    assert len(sim.receivers.seen) == 1
    assert trio.current_time() >= 5


async def test_a_stop_finishes_the_posts_in_flight(sim: Simulation, demo: None, clock: MockClock) -> None:
    await sim.prove("demo")
    sim.receivers.answers[HOOK] = slowly
    await sim.result("demo", *[f"a{number}@example.net" for number in range(20)])
    async with sim.running():
        await trio.sleep(1)
    assert trio.current_time() == pytest.approx(4.9, abs=0.1)
    counts = [each.status for each in await sim.deliveries("demo")]
    assert len(sim.receivers.seen) == 8
    assert (counts.count(PostStatus.SUCCESS), counts.count(PostStatus.PENDING)) == (8, 12)


async def test_a_clock_that_was_ahead_leaves_nothing_stuck_on_a_busy_webhook(
    sim: Simulation, demo: None, clock: MockClock
) -> None:
    """However many posts of the same webhook are due at any time, all that was put off too far is brought back."""
    sim.receivers.answers[HOOK] = BROKEN
    await sim.result("demo", *[f"a{number}@example.net" for number in range(700)])
    async with sim.running():
        await trio.sleep(4)
    await ahead(sim, days=2)
    await sim.result("demo", "busy@example.net")
    put_off = [each for each in await sim.deliveries("demo") if each.attempt]
    assert put_off
    async with sim.running(poll_every=5.0):
        for _ in range(20):
            await trio.sleep(1)
            await sim.result("demo", "busy@example.net")
        tried_again = {each.id for each in await sim.deliveries("demo") if each.attempt > 1}
    assert tried_again >= {each.id for each in put_off}


async def ahead(sim: Simulation, days: int) -> None:
    """Put off whatever waits, as a clock that is wrong by this much does."""
    statement = f"UPDATE webhook_deliveries SET next_attempt_at = next_attempt_at + {days * 86_400_000_000}"
    await sim.store.engine.change(statement, {})


# ---- reads that take a while


async def test_what_is_recorded_during_a_look_is_not_posted_again(
    sim: Simulation, demo: None, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A post that was due when the store was read, and whose result is on disk when the answer comes, is not due."""

    async def first_is_recorded() -> None:
        await trio.sleep(5)
        assert sorted(each.status for each in await sim.deliveries("demo")) == [PostStatus.PENDING, PostStatus.SUCCESS]

    async def soon(seen: Seen) -> Posted:
        await trio.sleep(1)
        return OK

    await sim.prove("demo")
    sim.receivers.answers[HOOK] = soon
    async with sim.running():
        await sim.result("demo", "first@example.net")
        await trio.sleep(0.5)
        late(monkeypatch, WebhookPosts, "due", first_is_recorded)
        await sim.result("demo", "second@example.net")
        await sim.done("demo", within=60)
        await trio.sleep(60)
    assert len(ids(sim.receivers.seen)) == len(set(ids(sim.receivers.seen))) == 2


async def test_a_queue_that_was_forgotten_during_a_look_starts_nothing(
    sim: Simulation, demo: None, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan forgets idle queues. The one that takes its place reads the same posts, so they are left to that."""
    await sim.result("demo")
    dispatcher = sim.dispatcher()
    lane = Lane((await sim.store.webhooks.existing(sim.accounts["demo"])).id, Trigger.EVENT)

    async def forget() -> None:
        dispatcher.queues.clear()
        dispatcher._queue(lane)

    dispatcher._queue(lane)
    forgotten = dispatcher.queues[lane]
    late(monkeypatch, WebhookPosts, "due", forget)
    assert await dispatcher._start(forgotten) is None
    assert await dispatcher._start(dispatcher.queues[lane]) is not None


async def test_a_slot_that_was_taken_during_a_look_is_not_taken_twice(
    sim: Simulation, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two queues that both saw the last free slot get one between them; the other one waits for the next."""
    dispatcher = sim.dispatcher(slots=1)
    queues = []
    for name in ("one", "two"):
        await sim.account(name)
        await sim.result(name)
        dispatcher._queue(Lane((await sim.store.webhooks.existing(sim.accounts[name])).id, Trigger.EVENT))
        queues.append(dispatcher._slots.next())
    first, second = queues
    assert first is not None
    assert second is not None

    async def overtake() -> None:
        assert await dispatcher._start(second) is not None

    late(monkeypatch, WebhookPosts, "due", overtake)
    assert await dispatcher._start(first) is None
    assert first.queued_as is not None


# ---- a database on another machine


def slow_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each reading of what is due take a while, in which other tasks go on."""
    read = WebhookPosts.due

    async def reading(*given: Any) -> Any:
        await trio.sleep(0.05)
        return await read(*given)

    monkeypatch.setattr(WebhookPosts, "due", reading)


async def test_what_is_new_waits_for_no_long_row_of_others(
    sim: Simulation, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queues of forty receivers are read for two seconds; an event that comes meanwhile is posted at once."""
    slow_reads(monkeypatch)
    for number in range(40):
        await sim.account(f"other{number}")
        await sim.result(f"other{number}")
    await sim.account("demo")
    await sim.prove("demo")
    async with sim.running():
        await trio.sleep(0.5)
        assert 0 < len(sim.receivers.seen) < 30
        came_at = trio.current_time()
        await sim.result("demo")
        await sim.done("demo", within=5)
        assert len(sim.receivers.seen) < 30
    (posted_at,) = sim.receivers.at(HOOK)
    assert posted_at - came_at < 0.3


async def test_a_row_that_does_not_end_is_left_for_a_pause_and_a_scan(
    sim: Simulation, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is always another queue to read: retries come in time all the same, and a pause of all mail holds."""
    slow_reads(monkeypatch)
    for number in range(40):
        await sim.account(f"other{number}")
        await sim.prove(f"other{number}")
    await sim.account("demo")
    sim.receivers.answers[HOOK] = BROKEN

    async def load() -> None:
        while True:
            for number in range(40):
                await sim.result(f"other{number}")
                await trio.sleep(0.04)

    async with trio.open_nursery() as nursery, sim.running(poll_every=2.0):
        nursery.start_soon(load)
        await sim.result("demo")
        await trio.sleep(12)
        assert len(sim.receivers.at(HOOK)) == 2
        await sim.store.pools.hold(EVERY, "by hand")
        await trio.sleep(2 * PAUSE_POLL_EVERY)
        count = len(sim.receivers.seen)
        await trio.sleep(10)
        assert len(sim.receivers.seen) == count
        nursery.cancel_scope.cancel()


async def test_what_is_new_while_the_storage_is_away_is_posted(
    sim: Simulation, demo: None, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, failures = WebhookPosts.lanes_of, [StorageUnavailable("The storage is away.")]

    async def reading(*given: Any) -> Any:
        if failures:
            raise failures.pop()
        return await read(*given)

    monkeypatch.setattr(WebhookPosts, "lanes_of", reading)
    async with sim.running():
        await trio.sleep(1)
        await sim.result("demo")
        await sim.done("demo", within=5)
    assert failures == []
    assert len(sim.receivers.seen) == 1


async def test_unreadable_settings_of_one_webhook_stop_no_other(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A row that this version cannot parse is skipped with one line per minute, and posted once it is readable."""
    async with simulation(tmp_path) as played, played.running(poll_every=5.0):
        bad, _ = await played.account("bad"), await played.account("good")
        change = "UPDATE webhooks SET events = :events WHERE account_id = :id"
        await played.store.engine.change(change, {"events": "email.delivered email.unheard_of", "id": bad})
        for name in ("bad", "good"):
            await played.result(name)
        await played.done("good", within=10)
        await trio.sleep(30)
        assert [record.message for record in caplog.records] == ["webhook skipped: unreadable settings"]
        await played.store.engine.change(change, {"events": "email.delivered", "id": bad})
        await played.done("bad", within=60)
        assert [delivery.status for delivery in await played.deliveries("bad")] == [PostStatus.SUCCESS]


async def test_a_restored_server_posts_nothing_before_it_is_resumed(
    sim: Simulation, demo: None, clock: MockClock
) -> None:
    """Neither what was due when it starts nor what comes due later; after the pause each goes once, within seconds."""
    await sim.result("demo")
    await sim.store.pools.hold(EVERY, "restored")
    async with sim.running():
        await trio.sleep(10)
        await sim.result("demo")
        await trio.sleep(3_600)
        assert sim.receivers.seen == []
        assert {each.status for each in await sim.deliveries("demo")} == {PostStatus.PENDING}
        await sim.store.pools.release(EVERY)
        await sim.done("demo", within=2 * PAUSE_POLL_EVERY)
        await trio.sleep(60)
    assert len(sim.receivers.seen) == 2


async def test_a_pause_holds_the_rest_of_a_queue(sim: Simulation, demo: None, clock: MockClock) -> None:
    """What is in flight is finished; the rest of a long queue waits, though its receiver answers fast."""

    async def quickly(_: Seen) -> Posted:
        await trio.sleep(0.1)
        return Posted(200, b"", None, 100)

    sim.receivers.answers[url_of("demo")] = quickly
    await sim.result("demo", *(f"a{number}@example.net" for number in range(500)))
    async with sim.running(slots=1):
        await trio.sleep(5)
        await sim.store.pools.hold(EVERY, "by hand")
        await trio.sleep(2 * PAUSE_POLL_EVERY)
        count = len(sim.receivers.seen)
        assert 40 <= count <= 70
        await trio.sleep(100)
        assert len(sim.receivers.seen) == count
        await sim.store.pools.release(EVERY)
        await sim.done("demo")
    assert len(sim.receivers.seen) == 500


async def test_a_hold_of_one_pool_holds_no_event(sim: Simulation, demo: None, clock: MockClock) -> None:
    await sim.store.pools.hold("google", "they refuse us")
    async with sim.running():
        await sim.result("demo")
        await sim.done("demo", within=5)
    assert len(sim.receivers.seen) == 1


async def test_a_retry_that_came_due_goes_after_the_pause(sim: Simulation, demo: None, clock: MockClock) -> None:
    sim.receivers.answers[url_of("demo")] = REFUSED
    async with sim.running():
        await sim.result("demo")
        await trio.sleep(1)
        await sim.store.pools.hold(EVERY, "by hand")
        await trio.sleep(3_600)
        assert len(sim.receivers.seen) == 1
        await sim.store.pools.release(EVERY)
        await trio.sleep(60)
        assert len(sim.receivers.seen) == 2
        (delivery,) = await sim.deliveries("demo")
    assert (delivery.status, delivery.attempt) == (PostStatus.PENDING, 2)
