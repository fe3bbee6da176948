"""Reports to senders that asked for them: written with the result they tell of, to the sender only, free and silent."""

import email
import json
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from appliance.model.accounts import Account
from appliance.model.mail import (
    BounceClass,
    DsnCondition,
    DsnRequest,
    DueRecipient,
    LateBounce,
    NewMessage,
    RecipientStatus,
    Source,
)
from appliance.model.webhooks import EventType
from appliance.store import Store
from appliance.store.delivery_reports import RETURNED_BYTES
from appliance.store.engine import run
from appliance.times import HOUR
from tests.store.hooks import save
from tests.store.samples import CREDITS, Clock, Messages, existing, outcome
from tests.store.test_queue import events

SUCCESS, FAILURE, DELAY = DsnCondition
_, QUEUED, DEFERRED, DELIVERED, BOUNCED, FAILED = RecipientStatus  # the first is never stored
HEADER = b"From: a@example.com\r\nSubject: A subject\r\n"


@dataclass
class Sending:
    store: Store
    account: Account
    messages: Messages
    clock: Clock

    async def send(self, *notify: DsnCondition, to: tuple[str, ...] = ("b@example.net",), **fields: Any) -> NewMessage:
        full, mime = fields.pop("full", False), fields.pop("mime", HEADER + b"\r\nHello.\r\n")
        request = DsnRequest(notify, f"rfc822;{to[0]}", full, "id-1", "mail.example.com") if notify else None
        new = self.messages.new(*to, simulated=False)
        recipients = tuple(replace(each, dsn=request) for each in new.recipients)
        new = replace(new, recipients=recipients, mime=mime, source=Source.SMTP, **fields)
        await self.store.messages.accept(new)
        return new

    async def due(self) -> list[DueRecipient]:
        return sorted(await self.store.queue.due(simulated=False, most=100), key=lambda each: each.id)

    async def record(self, *statuses: RecipientStatus) -> None:
        pairs = zip(await self.due(), statuses, strict=True)
        await self.store.queue.record([outcome(each, status, self.clock()) for each, status in pairs])

    async def reports(self) -> list[tuple[DueRecipient, Any]]:
        found = [each for each in await self.due() if not each.envelope_from]
        return [(each, email.message_from_bytes(await self.store.messages.content(each.message_id))) for each in found]

    async def actions(self) -> list[str]:
        groups = [group for _, report in await self.reports() for group in report.get_payload()[1].get_payload()[1:]]
        return [str(group["Action"]) for group in groups]


@pytest.fixture
async def sending(store: Store, account: Account, messages: Messages, clock: Clock) -> Sending:
    await store.access.add_domain(account.id, "example.com", usable=True)
    return Sending(store, account, messages, clock)


@pytest.mark.parametrize("notify", [(), (SUCCESS,), (FAILURE,), (DELAY,), tuple(DsnCondition)])
@pytest.mark.parametrize(
    ("status", "condition", "action"),
    [(DELIVERED, SUCCESS, "relayed"), (BOUNCED, FAILURE, "failed"), (FAILED, FAILURE, "failed")],
)
async def test_what_was_asked_for_is_told(
    sending: Sending, status: RecipientStatus, condition: DsnCondition, action: str, notify: tuple[DsnCondition, ...]
) -> None:
    await sending.send(*notify)
    await sending.record(status)
    assert await sending.actions() == ([action] if condition in notify else [])


@pytest.mark.parametrize(
    "poison", ["UPDATE recipients SET dsn = 'no request'", "UPDATE messages SET envelope_from = 'no address'"]
)
async def test_an_unreadable_request_stops_no_result(sending: Sending, poison: str) -> None:
    """The result is recorded without the report; otherwise the message would be delivered again after every restart."""
    new = await sending.send(SUCCESS)
    await sending.store.engine.write(lambda tx: run(tx, poison, {}))
    await sending.record(DELIVERED)
    shown = existing(await sending.store.messages.read(sending.account.id, new.id))
    assert (shown.status, await sending.reports()) == ("delivered", [])


async def test_a_report(sending: Sending) -> None:
    """It goes to the envelope sender, in the account's name, from postmaster of its domain, with an empty sender."""
    original = await sending.send(FAILURE)
    await sending.record(BOUNCED)
    ((due, report),) = await sending.reports()
    assert (due.address, due.domain, due.account_id) == ("a@example.com", "example.com", sending.account.id)
    assert (due.envelope_from, due.charged) == ("", 0)
    assert due.sender == "Mail Delivery System <postmaster@example.com>"
    fields, group = report.get_payload()[1].get_payload()
    assert (fields["Original-Envelope-Id"], fields["Reporting-MTA"]) == ("id-1", "dns; mail.example.com")
    assert (group["Final-Recipient"], group["Status"]) == ("rfc822; b@example.net", "5.1.1")
    assert report.get_payload()[2].get_payload() == HEADER.decode()
    shown = existing(await sending.store.messages.read(sending.account.id, due.message_id))
    assert (shown.source, shown.credits_reserved, shown.id > original.id) == (Source.SMTP, 0, True)


async def test_it_costs_nothing_and_is_silent(sending: Sending) -> None:
    await save(sending.store, sending.account.id, EventType.DELIVERED, EventType.BOUNCED, EventType.DELAYED)
    await sending.send(SUCCESS)
    await sending.record(DELIVERED)
    (report,) = [due for due, _ in await sending.reports()]
    sending.clock.now += 2 * HOUR
    await sending.record(DEFERRED)
    sending.clock.now += 2 * HOUR
    await sending.record(BOUNCED)
    assert await sending.due() == []
    assert [each["type"] for each in await events(sending.store)] == ["email.delivered"]
    posts = await sending.store.engine.rows("SELECT request_body FROM webhook_deliveries", {})
    assert [json.loads(body)["type"] for (body,) in posts] == ["email.delivered"]
    assert (await sending.store.accounts.named("demo")).credits == CREDITS - 1
    statistics = await sending.store.statistics.of(sending.account.id, 0)
    assert sum(count for (_, kind), count in statistics.by_hour.items() if kind == "sent") == 1
    sending.clock.now += 60 * HOUR
    while await sending.store.statistics.count():
        pass
    statistics = await sending.store.statistics.of(sending.account.id, 0)
    assert sum(count for (_, kind), count in statistics.by_hour.items() if kind == "sent") == 1
    assert report.message_id not in [message_id for (message_id,) in await messages_with_events(sending.store)]


async def messages_with_events(store: Store) -> list[tuple[Any, ...]]:
    return await store.engine.rows("SELECT message_id FROM events", {})


async def test_the_bytes_of_reports_are_counted(sending: Sending) -> None:
    """As those of any message, so that deleting them gives back as much."""
    await sending.send(FAILURE)
    before = await stored(sending)
    await sending.record(BOUNCED)
    ((size,),) = await sending.store.engine.rows("SELECT size FROM messages WHERE envelope_from = ''", {})
    assert await stored(sending) == before + size + 1_024 + 2_048


async def stored(sending: Sending) -> int:
    return (await sending.store.accounts.named("demo")).stored_bytes


async def test_a_delay_is_told_once(sending: Sending) -> None:
    await sending.send(DELAY, FAILURE)
    for hours, told in ((0.5, 0), (1.5, 1), (3, 0)):
        sending.clock.now += int(hours * HOUR)
        await sending.record(DEFERRED)
        assert await sending.actions() == ["delayed"] * told
        if told:
            ((due, report),) = await sending.reports()
            assert report["Subject"] == "Delayed mail (still being retried)"
            await sending.store.queue.record([outcome(due, DELIVERED, sending.clock())])
    sending.clock.now += HOUR
    await sending.record(FAILED)
    assert await sending.actions() == ["failed"]


async def test_recipients_of_one_message_share_a_report(sending: Sending) -> None:
    await sending.send(SUCCESS, FAILURE, to=("b@example.net", "c@example.net", "d@example.net", "e@example.net"))
    await sending.record(BOUNCED, DELIVERED, FAILED, DELIVERED)
    assert sorted(await sending.actions()) == ["failed", "failed", "relayed", "relayed"]
    assert len(await sending.reports()) == 2


async def test_a_suppressed_recipient_counts_as_failed(sending: Sending) -> None:
    await sending.store.suppressions.add(sending.account.id, "b@example.net", "by hand")
    await sending.send(FAILURE)
    ((_, report),) = await sending.reports()
    group = report.get_payload()[1].get_payload()[1]
    assert (group["Action"], group["Remote-MTA"]) == ("failed", None)
    assert str(group["Diagnostic-Code"]).startswith("x-appliance; suppressed: ")


async def test_a_cancelled_recipient_counts_as_failed(sending: Sending) -> None:
    new = await sending.send(FAILURE)
    await sending.store.queue_control.cancel(new.id, "by its sender")
    assert await sending.actions() == ["failed"]


@pytest.mark.parametrize("why", ["no domain", "not usable", "removed", "suspended", "suppressed", "foreign"])
async def test_a_report_reaches_no_stranger(sending: Sending, why: str) -> None:
    store, account = sending.store, sending.account
    address = {"no domain": "a@other.example", "not usable": "a@new.example", "foreign": "a@theirs.example"}
    if why == "foreign":
        other = await store.accounts.create("other", "other@example.org", "x", credit=1)
        await store.access.add_domain(other.id, "theirs.example", usable=True)
    if why == "not usable":
        await store.access.add_domain(account.id, "new.example", usable=False)
    await sending.send(FAILURE, envelope_from=address.get(why, "a@example.com"))
    if why == "removed":
        await store.domains.remove(account.id, "example.com")
    if why == "suspended":
        await store.accounts.set_suspended(account.id, True)
    if why == "suppressed":
        await store.suppressions.add(account.id, "a@example.com", "by hand")
    await sending.record(BOUNCED)
    assert await sending.due() == []


@pytest.mark.parametrize(
    ("size", "full", "kind"),
    [
        (RETURNED_BYTES, True, "message/rfc822"),
        (RETURNED_BYTES + 1, True, "text/rfc822-headers"),
        (2_000_000, True, "text/rfc822-headers"),
        (RETURNED_BYTES, False, "text/rfc822-headers"),
    ],
)
async def test_what_is_returned_is_bounded(sending: Sending, size: int, full: bool, kind: str) -> None:
    mime = HEADER + b"\r\n" + b"x" * (size - len(HEADER) - 2)
    await sending.send(FAILURE, full=full, mime=mime)
    await sending.record(BOUNCED)
    ((due, report),) = await sending.reports()
    assert report.get_payload()[2].get_content_type() == kind
    assert len(await sending.store.messages.content(due.message_id)) < RETURNED_BYTES + 4_096


async def test_a_simulated_message_has_a_simulated_report(sending: Sending) -> None:
    await sending.send(FAILURE, simulated=True)
    (due,) = await sending.store.queue.due(simulated=True, most=10)
    await sending.store.queue.record([outcome(due, BOUNCED, sending.clock())])
    assert await sending.due() == []
    (report,) = await sending.store.queue.due(simulated=True, most=10)
    assert report.address == "a@example.com"


async def test_a_late_bounce_is_told(sending: Sending) -> None:
    """It came to our return path, so its sender would not learn of it; the second one is not told."""
    new = await sending.send(FAILURE)
    await sending.record(DELIVERED)
    (recipient,) = await sending.store.feedback.recipients_of(new.id, "bounces.example.com")
    bounce = LateBounce(sending.clock(), 550, "550 5.1.1 User unknown", BounceClass.INVALID_RECIPIENT)
    for _ in range(2):
        await sending.store.feedback.add(["b+x@bounces.example.com"], b"mail")
        mail = existing(await sending.store.feedback.next())
        step = sending.store.feedback.late_bounce(recipient, bounce, suppresses=True)
        await sending.store.feedback.finish(mail.id, [step])
    assert await sending.actions() == ["failed"]
