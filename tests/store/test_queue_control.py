"""What an operator sees and does of the queue, on a real database."""

from dataclasses import dataclass, field

import msgspec
import pytest
from msgspec.structs import replace

from appliance.environment import Environment
from appliance.errors import Code, Refused, StorageUnavailable
from appliance.model.accounts import LedgerKind
from appliance.model.mail import Billing, Message, MessageStatus, NewMessage, RecipientStatus
from appliance.model.queue import WaitingMail
from appliance.store import Store, queue_control
from appliance.store.queue import UnderDelivery
from appliance.store.queue_control import RETRY_REST, Depth
from appliance.times import SECOND
from tests import stored_mail
from tests.store.samples import Clock, Database, existing, refusal


@dataclass
class Backend:
    store: Store
    env: Environment
    account: str
    messages: list[NewMessage] = field(default_factory=list)

    async def accept(self, *addresses: str, account: str | None = None, simulated: bool = False) -> NewMessage:
        return await stored_mail.accept(self.store, self.env, account or self.account, *addresses, simulated=simulated)

    async def deferred(self, *addresses: str, account: str | None = None) -> NewMessage:
        message = await self.accept(*addresses, account=account)
        await stored_mail.defer(self.store, self.env, message)
        return message

    async def read(self, message: NewMessage) -> Message:
        return existing(await self.store.messages.read(message.account_id, message.id))

    async def due(self, message: NewMessage) -> list[str]:
        return [recipient.address for recipient in await stored_mail.due(self.store, message)]


@pytest.fixture
async def backend(store: Store, database: Database) -> Backend:
    return Backend(store, database.env, await stored_mail.account(store))


# ---- how much waits
async def test_the_summary_adds_up_pools_and_their_domains(backend: Backend) -> None:
    other = await stored_mail.account(backend.store, "other")
    await backend.store.pools.say([], {"one.example": "google", "two.example": "google", "net.example": "net.example"})
    first = await backend.accept("a@one.example", "b@one.example")
    await backend.accept("a@two.example")
    await backend.accept("c@one.example", account=other)
    await backend.accept("d@new.example")
    tried = await backend.deferred("e@two.example")
    await backend.accept("sandbox@one.example", simulated=True)
    found = await backend.store.queue_control.summary(10, 10)
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
    assert two.next_attempt_at == pytest.approx(tried.created_at + 300 * SECOND, abs=100)


async def test_the_summary_is_bounded(backend: Backend) -> None:
    await backend.store.pools.say([], {f"d{number}.example": f"pool{number % 3}" for number in range(9)})
    for number in range(9):
        await backend.accept(*(f"u{each}@d{number}.example" for each in range(number + 1)))
    found = await backend.store.queue_control.summary(2, 1)
    assert [(each.pool, each.domain, each.due) for each in found] == [
        ("pool2", None, 18),
        ("pool2", "d8.example", 9),
        ("pool1", None, 15),
        ("pool1", "d7.example", 8),
    ]
    assert await backend.store.queue_control.summary(2, 0) == [each for each in found if each.domain is None]


async def test_an_empty_queue_has_an_empty_summary(backend: Backend) -> None:
    assert await backend.store.queue_control.summary(10, 10) == []


# ---- try it now
async def test_a_retry_makes_due_and_uses_no_attempt(backend: Backend) -> None:
    message = await backend.deferred("a@one.example")
    assert await backend.due(message) == []
    assert await backend.store.queue_control.retry() == 1
    assert await backend.due(message) == ["a@one.example"]
    (recipient,) = (await backend.read(message)).recipients
    assert (recipient.status, recipient.attempt_count) == (RecipientStatus.DEFERRED, 1)
    assert await backend.store.queue_control.retry() == 0


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
async def test_a_retry_takes_what_it_names(backend: Backend, how: str, expected: set[str]) -> None:
    control = backend.store.queue_control
    await backend.store.pools.say([], {"one.example": "google", "two.example": "google", "three.example": "other"})
    first, second = await backend.deferred("a@one.example"), await backend.deferred("b@two.example", "c@three.example")
    retries = {
        "pool": lambda: control.retry(pool="google"),
        "domain": lambda: control.retry(domain="one.example"),
        "address": lambda: control.retry(domain="one.example", address="A@One.example"),
        "message": lambda: control.retry_message(second.id),
        "recipient": lambda: control.retry_recipient(second.recipients[1].id),
        "all": lambda: control.retry(),
    }
    assert await retries[how]() == len(expected)
    assert {*await backend.due(first), *await backend.due(second)} == expected


async def test_a_retry_of_an_address_leaves_its_neighbours(backend: Backend) -> None:
    message = await backend.deferred("a@one.example", "b@one.example")
    assert await backend.store.queue_control.retry(domain="one.example", address="b@one.example") == 1
    assert await backend.due(message) == ["b@one.example"]


async def test_a_large_retry_goes_in_slices(backend: Backend) -> None:
    control = replace(backend.store.queue_control, made_due_together=3, lanes_read=2)
    other = await stored_mail.account(backend.store, "other")
    for number in range(5):
        await backend.deferred(*(f"u{each}@d{number}.example" for each in range(7)))
        await backend.deferred(f"x@d{number}.example", account=other)
    assert await control.retry() == 40
    assert len(await backend.store.queue.due(simulated=False, most=100)) == 40


async def test_an_account_retries_its_own_message_a_minute_after_an_attempt(backend: Backend, clock: Clock) -> None:
    control, account_id = backend.store.queue_control, backend.account
    message = await backend.deferred("a@one.example")
    with refusal(Code.NOT_FOUND):
        await control.retry_own_message(message.id, "acc_other")
    assert await control.retry_own_message(message.id, account_id) == 0  # just tried
    clock.now += RETRY_REST
    assert await control.retry_own_message(message.id, account_id) == 1
    assert await backend.due(message) == ["a@one.example"]
    await control.cancel(message.id, "no longer needed")
    with refusal(Code.CONFLICT):
        await control.retry_own_message(message.id, account_id)


@pytest.mark.parametrize("recipient", ["rcp_0", "rcp_xyz", "nonsense", "rcp_" + "f" * 32])
async def test_an_unknown_recipient_is_refused(backend: Backend, recipient: str) -> None:
    with refusal(Code.NOT_FOUND):
        await backend.store.queue_control.retry_recipient(recipient)


async def test_an_unknown_message_is_refused(backend: Backend) -> None:
    for verb in (backend.store.queue_control.retry_message, lambda each: backend.store.queue_control.cancel(each, "")):
        with refusal(Code.NOT_FOUND):
            await verb("msg_0")


# ---- give it up
async def test_a_cancelled_message_fails_and_its_credits_return(backend: Backend) -> None:
    message = await backend.deferred("a@one.example", "b@one.example")
    assert await backend.store.queue_control.cancel(message.id, "given up by the operator") == 2
    found = await backend.read(message)
    assert (found.status, found.billing_status) == (MessageStatus.FAILED, Billing.RELEASED)
    for recipient in found.recipients:
        assert (recipient.status, recipient.billing_status) == (RecipientStatus.FAILED, Billing.RELEASED)
        assert recipient.last_smtp_code is None
        assert recipient.last_smtp_response == "cancelled: given up by the operator"
        assert recipient.attempt_count == 1
    assert (await backend.store.accounts.named("acme")).credits == 100
    assert [entry.kind for entry in await backend.store.accounts.ledger(backend.account)][:2] == [
        LedgerKind.RELEASE
    ] * 2
    events = await backend.store.engine.rows("SELECT type, body FROM events", {})
    assert [kind for kind, _ in events] == ["email.failed"] * 2
    assert msgspec.json.decode(events[0][1])["data"]["smtp_response"] == "cancelled: given up by the operator"


async def test_what_is_final_stays_when_the_rest_is_cancelled(backend: Backend) -> None:
    message = await backend.accept("a@one.example", "b@one.example")
    await stored_mail.finish(
        backend.store, backend.env, (await stored_mail.due(backend.store, message))[0], RecipientStatus.DELIVERED, 250
    )
    assert await backend.store.queue_control.cancel(message.id, "enough") == 1
    found = await backend.read(message)
    assert (found.status, found.billing_status) == (MessageStatus.PARTIAL, Billing.SETTLED)
    assert (await backend.store.accounts.named("acme")).credits == 99


async def test_bounced_and_cancelled_together_are_released(backend: Backend) -> None:
    message = await backend.accept("a@one.example", "b@one.example")
    await stored_mail.finish(
        backend.store, backend.env, (await stored_mail.due(backend.store, message))[0], RecipientStatus.BOUNCED, 550
    )
    await backend.store.queue_control.cancel(message.id, "enough")
    found = await backend.read(message)
    assert (found.status, found.billing_status) == (MessageStatus.FAILED, Billing.RELEASED)


async def test_a_failed_recipient_is_settled_unless_cancelled(backend: Backend) -> None:
    message = await backend.accept("a@one.example")
    await stored_mail.finish(
        backend.store, backend.env, (await stored_mail.due(backend.store, message))[0], RecipientStatus.FAILED, 451
    )
    assert (await backend.read(message)).billing_status is Billing.SETTLED
    with refusal(Code.CONFLICT):
        await backend.store.queue_control.cancel(message.id, "too late")
    assert (await backend.store.accounts.named("acme")).credits == 99


async def test_what_is_on_its_way_is_not_cancelled(backend: Backend) -> None:
    message = await backend.deferred("a@one.example", "b@one.example")
    going, waiting = message.recipients
    control = backend.store.queue_control
    backend.store.under_delivery.begin([going.id])
    assert await control.cancel(message.id, "enough") == 1
    assert await control.waiting(message.id) == {going.id}
    with pytest.raises(Refused) as refused:
        await control.cancel(message.id, "enough")
    assert refused.value.code is Code.CONFLICT
    assert "being handed to a server" in refused.value.text
    assert (await backend.store.accounts.named("acme")).credits == 99
    backend.store.under_delivery.end([going.id, waiting.id])
    assert await control.cancel(message.id, "enough") == 1


def test_no_attempt_begins_while_its_cancel_is_being_written() -> None:
    under_delivery = UnderDelivery()
    assert not under_delivery.was_cancelled("one")
    with under_delivery.cancelling("one"):
        with pytest.raises(StorageUnavailable), under_delivery.cancelling("one"):
            raise StorageUnavailable("the storage is busy")
        assert under_delivery.is_being_cancelled("one")
    assert not under_delivery.is_being_cancelled("one")
    assert under_delivery.was_cancelled("one")


async def test_delivery_is_told_of_a_cancel(backend: Backend) -> None:
    message = await backend.accept("a@one.example")
    under_delivery = backend.store.under_delivery
    assert not under_delivery.was_cancelled(message.id)
    await backend.store.queue_control.cancel(message.id, "enough")
    assert under_delivery.was_cancelled(message.id)
    assert not under_delivery.is_being_cancelled(message.id)


def test_only_so_many_cancels_are_remembered() -> None:
    under_delivery = UnderDelivery(kept=2)
    for message_id in ("one", "two", "three"):
        with under_delivery.cancelling(message_id):
            pass
    assert [under_delivery.was_cancelled(message_id) for message_id in ("one", "two", "three")] == [False, True, True]


async def test_an_answer_after_the_cancel_changes_nothing(backend: Backend) -> None:
    message = await backend.accept("a@one.example")
    (recipient,) = await stored_mail.due(backend.store, message)
    await backend.store.queue_control.cancel(message.id, "enough")
    await stored_mail.finish(backend.store, backend.env, recipient, RecipientStatus.BOUNCED, 550)
    assert (await backend.read(message)).recipients[0].status is RecipientStatus.FAILED
    assert (await backend.store.accounts.named("acme")).credits == 100


# ---- for the running server
async def test_the_waiting_of_a_message_are_told(backend: Backend) -> None:
    message = await backend.deferred("a@one.example", "b@one.example")
    assert await backend.store.queue_control.waiting(message.id) == {each.id for each in message.recipients}
    await backend.store.queue_control.cancel(message.id, "enough")
    assert await backend.store.queue_control.waiting(message.id) == frozenset()


async def test_the_version_tells_of_other_processes(backend: Backend, database: Database) -> None:
    version = await backend.store.queue_control.version()
    assert await backend.store.queue_control.version() == version
    async with database.open(inline=True) as other:
        assert await backend.store.queue_control.version() == version
        await other.pools.hold("google", "because")
    assert await backend.store.queue_control.version() != version


def test_a_summary_row_is_either_a_pool_or_a_domain() -> None:
    row = queue_control._waiting_mail("", "new.example", 3, 1, "msg_" + "0" * 32, None)
    assert row == WaitingMail(None, "new.example", 2, 1, 0, None)


# ---- how deep it is
async def test_an_empty_queue_has_no_depth(backend: Backend) -> None:
    assert await backend.store.queue_control.depth() == Depth(0, 0, 0, ())


async def test_what_waits_is_counted_simulated_or_not(backend: Backend, clock: Clock) -> None:
    store, env = backend.store, backend.env
    await backend.deferred("a@example.net")
    await stored_mail.accept(store, env, backend.account, "b@example.net", "c@example.net")
    await stored_mail.accept(store, env, backend.account, "d@example.net", simulated=True)
    await store.pools.hold("google", "refused")
    clock.now += 60_000_000
    found = await store.queue_control.depth()
    assert (found.due, found.deferred, found.held) == (3, 1, ("google",))
    assert found.overdue == pytest.approx(60, abs=1)
