"""What an operator sees and does of the queue, on a real database."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from appliance.model.queue import WaitingMail

from appliance.errors import Code, Refused
from appliance.model.mail import Billing, LedgerKind, Message, MessageStatus, NewMessage, RecipientStatus
from appliance.outside import Outside
from appliance.store import Store, open_store, queue_control
from appliance.store import in_flight as on_the_way_module
from appliance.store.sql import rows
from tests import stored_mail


@dataclass
class Clock:
    """A time that tests set; each look takes a microsecond, so that ids differ."""

    now: int = 1_800_000_000_000_000

    def __call__(self) -> int:
        """The time."""
        self.now += 1
        return self.now


@dataclass
class House:
    """A store with one account of 100 credits."""

    store: Store
    outside: Outside
    clock: Clock
    account: str
    messages: list[NewMessage] = field(default_factory=list)

    async def accept(self, *addresses: str, account: str | None = None, simulated: bool = False) -> NewMessage:
        """A waiting message."""
        return await stored_mail.accept(
            self.store, self.outside, account or self.account, *addresses, simulated=simulated
        )

    async def deferred(self, *addresses: str, account: str | None = None) -> NewMessage:
        """A message that has been tried once."""
        message = await self.accept(*addresses, account=account)
        await stored_mail.defer(self.store, self.outside, message)
        return message

    def read(self, message: NewMessage) -> Message:
        """The message as its account sees it."""
        found = self.store.messages.read(message.account_id, message.id)
        assert found is not None
        return found

    def due(self, message: NewMessage) -> list[str]:
        """The addresses of a message that are due."""
        return [recipient.address for recipient in stored_mail.due(self.store, message)]


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """A store on a clock of its own."""
    clock = Clock()
    outside = Outside(now=clock)
    async with open_store(tmp_path, outside, inline=True) as store:
        yield House(store, outside, clock, await stored_mail.account(store))


# ---- how much waits


async def test_the_summary_adds_up_pools_and_their_domains(house: House) -> None:
    """Mail is counted by pool and domain over all accounts: what is due, what is deferred, the oldest, the next try."""
    other = await stored_mail.account(house.store, "other")
    await house.store.pools.say([], {"one.example": "google", "two.example": "google", "net.example": "net.example"})
    first = await house.accept("a@one.example", "b@one.example")
    await house.accept("a@two.example")
    await house.accept("c@one.example", account=other)
    await house.accept("d@new.example")
    tried = await house.deferred("e@two.example")
    await house.accept("sandbox@one.example", simulated=True)
    found = house.store.queue_control.summary(10, 10)
    assert [(each.pool, each.domain, each.due, each.deferred) for each in found] == [
        ("google", None, 4, 1),
        ("google", "one.example", 3, 0),
        ("google", "two.example", 1, 1),
        (None, None, 1, 0),
        (None, "new.example", 1, 0),
    ]
    google, one, two = found[:3]
    assert google.oldest_at == one.oldest_at == pytest.approx(first.created_at, abs=10)
    assert one.next_attempt_at is None
    assert google.next_attempt_at == two.next_attempt_at
    assert two.next_attempt_at == pytest.approx(tried.created_at + 300 * stored_mail.SECOND, abs=100)


async def test_the_summary_is_bounded(house: House) -> None:
    """However many pools and domains there are, only as many as asked for come back, the largest first."""
    await house.store.pools.say([], {f"d{number}.example": f"pool{number % 3}" for number in range(9)})
    for number in range(9):
        await house.accept(*(f"u{each}@d{number}.example" for each in range(number + 1)))
    found = house.store.queue_control.summary(2, 1)
    assert [(each.pool, each.domain, each.due) for each in found] == [
        ("pool2", None, 18),
        ("pool2", "d8.example", 9),
        ("pool1", None, 15),
        ("pool1", "d7.example", 8),
    ]
    assert house.store.queue_control.summary(2, 0) == [each for each in found if each.domain is None]


async def test_an_empty_queue_has_an_empty_summary(house: House) -> None:
    """Nothing waits: nothing is shown."""
    assert house.store.queue_control.summary(10, 10) == []


async def test_the_summary_reads_only_the_index(house: House) -> None:
    """With a million recipients no row may be touched: the index of lanes holds all that is summed up."""
    wanted = {"now": 0, "pools": 1, "domains": 1}
    plan = house.store.engine.read(lambda c: rows(c, f"EXPLAIN QUERY PLAN {queue_control._SUMMARY}", wanted))
    assert [row[3] for row in plan if " recipients " in row[3]] == [
        "SEARCH recipients USING COVERING INDEX recipients_lanes (simulated=?)"
    ]


# ---- try it now


async def test_a_retry_makes_due_and_uses_no_attempt(house: House) -> None:
    """Deferred recipients are due at once, with as many attempts left as before; those that were due stay first."""
    message = await house.deferred("a@one.example")
    assert house.due(message) == []
    assert await house.store.queue_control.retry_all() == 1
    assert house.due(message) == ["a@one.example"]
    (recipient,) = house.read(message).recipients
    assert (recipient.status, recipient.attempt_count) == (RecipientStatus.DEFERRED, 1)
    assert await house.store.queue_control.retry_all() == 0


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("pool", {"a@one.example", "b@two.example"}),
        ("domain", {"a@one.example"}),
        ("address", {"a@one.example"}),
        ("message", {"b@two.example", "c@three.example"}),
        ("recipient", {"c@three.example"}),
        ("all", {"a@one.example", "b@two.example", "c@three.example"}),
    ],
)
async def test_a_retry_takes_what_it_names(house: House, how: str, expected: set[str]) -> None:
    """By pool, domain, address, message or recipient: only that becomes due."""
    control = house.store.queue_control
    await house.store.pools.say([], {"one.example": "google", "two.example": "google", "three.example": "other"})
    first, second = await house.deferred("a@one.example"), await house.deferred("b@two.example", "c@three.example")
    retries = {
        "pool": lambda: control.retry_pool("google"),
        "domain": lambda: control.retry_domain("one.example"),
        "address": lambda: control.retry_domain("one.example", "A@One.example"),
        "message": lambda: control.retry_message(second.id),
        "recipient": lambda: control.retry_recipient(second.recipients[1].id),
        "all": control.retry_all,
    }
    assert await retries[how]() == len(expected)
    assert {*house.due(first), *house.due(second)} == expected


async def test_a_retry_of_an_address_leaves_its_neighbours(house: House) -> None:
    """Another address of the same domain stays where it is."""
    message = await house.deferred("a@one.example", "b@one.example")
    assert await house.store.queue_control.retry_domain("one.example", "b@one.example") == 1
    assert house.due(message) == ["b@one.example"]


async def test_a_large_retry_goes_in_slices(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many recipients in many lanes are all found, whatever the size of a slice and of a page of lanes."""
    monkeypatch.setattr(queue_control, "SLICE", 3)
    monkeypatch.setattr(queue_control, "LANES", 2)
    other = await stored_mail.account(house.store, "other")
    for number in range(5):
        await house.deferred(*(f"u{each}@d{number}.example" for each in range(7)))
        await house.deferred(f"x@d{number}.example", account=other)
    assert await house.store.queue_control.retry_all() == 40
    assert len(house.store.queue.due(simulated=False, most=100)) == 40


@pytest.mark.parametrize("recipient", ["rcp_0", "rcp_xyz", "nonsense", "rcp_" + "f" * 32])
async def test_an_unknown_recipient_is_refused(house: House, recipient: str) -> None:
    """An id that nobody has is said to be nobody's."""
    with pytest.raises(Refused) as refused:
        await house.store.queue_control.retry_recipient(recipient)
    assert refused.value.code is Code.NOT_FOUND


async def test_an_unknown_message_is_refused(house: House) -> None:
    """A message that is not there can be neither retried nor cancelled."""
    for verb in (house.store.queue_control.retry_message, lambda each: house.store.queue_control.cancel(each, "")):
        with pytest.raises(Refused) as refused:
            await verb("msg_0")
        assert refused.value.code is Code.NOT_FOUND


# ---- give it up


async def test_a_cancelled_message_fails_and_its_credits_return(house: House) -> None:
    """What waits fails with the reason, its credit released with a line in the ledger, and an event says so."""
    message = await house.deferred("a@one.example", "b@one.example")
    assert await house.store.queue_control.cancel(message.id, "given up by the operator") == 2
    found = house.read(message)
    assert (found.status, found.billing_status) == (MessageStatus.FAILED, Billing.RELEASED)
    for recipient in found.recipients:
        assert (recipient.status, recipient.billing_status) == (RecipientStatus.FAILED, Billing.RELEASED)
        assert recipient.last_smtp_code is None
        assert recipient.last_smtp_response == "cancelled: given up by the operator"
        assert recipient.attempt_count == 1
    assert house.store.accounts.named("acme").credits == 100
    assert [entry.kind for entry in house.store.accounts.ledger(house.account)][:2] == [LedgerKind.RELEASE] * 2
    events = house.store.engine.read(lambda c: rows(c, "SELECT type, body FROM events", {}))
    assert [kind for kind, _ in events] == ["email.failed"] * 2
    assert msgspec.json.decode(events[0][1])["data"]["smtp_response"] == "cancelled: given up by the operator"


async def test_what_is_final_stays_when_the_rest_is_cancelled(house: House) -> None:
    """A delivered recipient stays delivered, so the message is partial and settled."""
    message = await house.accept("a@one.example", "b@one.example")
    await stored_mail.finish(
        house.store, house.outside, stored_mail.due(house.store, message)[0], RecipientStatus.DELIVERED, 250
    )
    assert await house.store.queue_control.cancel(message.id, "enough") == 1
    found = house.read(message)
    assert (found.status, found.billing_status) == (MessageStatus.PARTIAL, Billing.SETTLED)
    assert house.store.accounts.named("acme").credits == 99


async def test_bounced_and_cancelled_together_are_released(house: House) -> None:
    """A message whose recipients all gave their credit back is released, for whatever reason each did."""
    message = await house.accept("a@one.example", "b@one.example")
    await stored_mail.finish(
        house.store, house.outside, stored_mail.due(house.store, message)[0], RecipientStatus.BOUNCED, 550
    )
    await house.store.queue_control.cancel(message.id, "enough")
    found = house.read(message)
    assert (found.status, found.billing_status) == (MessageStatus.FAILED, Billing.RELEASED)


async def test_a_failed_recipient_is_settled_unless_cancelled(house: House) -> None:
    """Attempts used up cost their credit, as ever."""
    message = await house.accept("a@one.example")
    await stored_mail.finish(
        house.store, house.outside, stored_mail.due(house.store, message)[0], RecipientStatus.FAILED, 451
    )
    assert house.read(message).billing_status is Billing.SETTLED
    with pytest.raises(Refused) as refused:
        await house.store.queue_control.cancel(message.id, "too late")
    assert refused.value.code is Code.CONFLICT
    assert house.store.accounts.named("acme").credits == 99


async def test_what_is_on_its_way_is_not_cancelled(house: House) -> None:
    """A recipient whose server is being asked keeps its credit reserved until the answer is on disk."""
    message = await house.deferred("a@one.example", "b@one.example")
    going, waiting = message.recipients
    control = house.store.queue_control
    control.on_the_way.set_out([going.id])
    assert await control.cancel(message.id, "enough") == 1
    assert control.waiting(message.id) == {going.id}
    with pytest.raises(Refused) as refused:
        await control.cancel(message.id, "enough")
    assert refused.value.code is Code.CONFLICT
    assert "being handed to a server" in refused.value.text
    assert house.store.accounts.named("acme").credits == 99
    control.on_the_way.arrived([going.id, waiting.id])
    assert await control.cancel(message.id, "enough") == 1


async def test_nothing_sets_out_while_its_cancel_is_being_written(house: House) -> None:
    """Delivery is told in time, also when the cancel comes to nothing, and asks the store afterwards."""
    message = await house.accept("a@one.example")
    on_the_way = house.store.queue_control.on_the_way
    assert not on_the_way.was_recalled(message.id)
    with on_the_way.cancelling(message.id):
        with pytest.raises(Refused), on_the_way.cancelling(message.id):
            raise Refused(Code.TEMPORARY_FAILURE, "the storage is busy")
        assert on_the_way.is_being_cancelled(message.id)
    assert not on_the_way.is_being_cancelled(message.id)
    assert on_the_way.was_recalled(message.id)


async def test_only_so_many_cancels_are_remembered(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten: nothing that was in hand then is in hand unasked by now."""
    monkeypatch.setattr(on_the_way_module, "RECALLED", 2)
    on_the_way = house.store.queue_control.on_the_way
    for message_id in ("one", "two", "three"):
        with on_the_way.cancelling(message_id):
            pass
    assert [on_the_way.was_recalled(message_id) for message_id in ("one", "two", "three")] == [False, True, True]


async def test_an_answer_after_the_cancel_changes_nothing(house: House) -> None:
    """A delivery that was under way is recorded no more: one event a recipient, and the credit returned once."""
    message = await house.accept("a@one.example")
    (recipient,) = stored_mail.due(house.store, message)
    await house.store.queue_control.cancel(message.id, "enough")
    await stored_mail.finish(house.store, house.outside, recipient, RecipientStatus.BOUNCED, 550)
    assert house.read(message).recipients[0].status is RecipientStatus.FAILED
    assert house.store.accounts.named("acme").credits == 100


# ---- for the running server


async def test_the_waiting_of_a_message_are_told(house: House) -> None:
    """The recipients that are not final, and nobody once the message is."""
    message = await house.deferred("a@one.example", "b@one.example")
    assert house.store.queue_control.waiting(message.id) == {each.id for each in message.recipients}
    await house.store.queue_control.cancel(message.id, "enough")
    assert house.store.queue_control.waiting(message.id) == frozenset()


async def test_the_version_tells_of_other_processes(house: House, tmp_path: Path) -> None:
    """It stays while nobody writes, and changes when another opener of the file does."""
    version = house.store.queue_control.version()
    assert house.store.queue_control.version() == version
    async with open_store(tmp_path, house.outside, inline=True) as other:
        assert house.store.queue_control.version() == version
        await other.pools.hold("google", "because")
    assert house.store.queue_control.version() != version


def test_a_summary_row_is_either_a_pool_or_a_domain() -> None:
    """The model says so by its empty fields."""
    row = queue_control._waiting_mail(("", "new.example", 3, 1, "msg_" + "0" * 32, None))
    assert row == WaitingMail(None, "new.example", 2, 1, 0, None)
