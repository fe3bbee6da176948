"""The fakes for users' own tests."""

import inspect
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from mail_appliance import (
    AsyncClient,
    Attachment,
    Client,
    ConfigurationError,
    Conflict,
    ConnectionFailed,
    Email,
    IdempotencyConflict,
    InsufficientCredits,
    Message,
    NotFound,
    RateLimited,
)
from mail_appliance.testing import AsyncFakeClient, FakeAppliance, FakeClient

MESSAGE: dict[str, Any] = {"from_": "Shop <orders@example.com>", "subject": "Hello", "text": "Hello"}


def test_what_was_sent_is_kept() -> None:
    """By the names of the interface, with its key and its files."""
    with FakeClient() as mail:
        result = mail.send(
            **MESSAGE,
            to="Ada <ada@example.net>",
            bcc=["ADA@example.net", "bob@example.net"],
            attachments=[Attachment("a.txt", b"abc", content_id="a")],
        )
    (sent,) = mail.sent
    assert sent.fields["from"] == "Shop <orders@example.com>"
    assert (sent.id, sent.idempotency_key) == (result.id, result.idempotency_key)
    assert (result.recipient_count, result.to, result.cc) == (2, ("Ada <ada@example.net>",), ())
    assert result.attachments is not None
    assert (result.attachments[0].size, result.attachments[0].content_id) == (3, "a")
    assert sent.attachment("a.txt") == b"abc"
    with pytest.raises(KeyError):
        sent.attachment("b.txt")


@pytest.mark.parametrize(
    ("to", "status", "recipients"),
    [
        (["ada@example.net"], "delivered", ["delivered"]),
        (["ada@example.net", "bounce+1@example.net"], "partial", ["delivered", "bounced"]),
        (["fail@example.net", "bounce@example.net"], "failed", ["failed", "bounced"]),
    ],
)
def test_results_come_from_the_address_as_in_the_sandbox(to: list[str], status: str, recipients: list[str]) -> None:
    """So that tests can have every result."""
    mail = FakeClient()
    message: Message = mail.wait(mail.send(**MESSAGE, to=to).id)
    assert (message.status, [recipient.status for recipient in message.recipients]) == (status, recipients)


def test_keys_work_as_in_the_appliance() -> None:
    """The same message again is replayed, another one conflicts."""
    mail = FakeClient()
    first = mail.send(**MESSAGE, to="a@example.net", idempotency_key="k")
    again = mail.send(**MESSAGE, to="a@example.net", idempotency_key="k")
    assert (again.id, again.replayed, first.replayed, len(mail.sent)) == (first.id, True, False, 1)
    with pytest.raises(IdempotencyConflict):
        mail.send(**MESSAGE, to="b@example.net", idempotency_key="k")


def test_failures_are_those_of_the_real_client() -> None:
    """They are retried or raised by the same rules, without any real pause."""
    mail = FakeClient()
    mail.appliance.fail_next(402, "insufficient_credits")
    with pytest.raises(InsufficientCredits):
        mail.send(**MESSAGE, to="a@example.net")
    mail.appliance.lose_next()
    mail.appliance.fail_next(429, "rate_limited", retry_after=30)
    assert mail.send(**MESSAGE, to="a@example.net").id == "msg_1"
    assert len(mail.appliance.pauses) == 2
    assert 30 <= mail.appliance.pauses[1] <= 33
    mail.appliance.fail_next(429, "rate_limited", retry_after=3600)
    with pytest.raises(RateLimited):
        mail.send(**MESSAGE, to="a@example.net")
    for _ in range(4):
        mail.appliance.lose_next()
    with pytest.raises(ConnectionFailed):
        mail.send(**MESSAGE, to="a@example.net")
    with pytest.raises(NotFound):
        mail.get("msg_9")
    with pytest.raises(ConfigurationError):
        mail.send(**MESSAGE, to="a@example.net", idempotency_key=" ")


def test_batches_and_schedules_work_as_in_the_appliance() -> None:
    """A batch is replayed whole; a scheduled message waits until it is moved or cancelled."""
    mail = FakeClient()
    emails = [Email(**MESSAGE, to=to, scheduled_at="2030-01-02T03:04:05Z") for to in ("a@example.net", "b@example.net")]
    first = mail.send_batch(emails, idempotency_key="k")
    again = mail.send_batch(emails, idempotency_key="k")
    assert ([item.id for item in first.results], first.accepted, first.refused) == (["msg_1", "msg_2"], 2, 0)
    assert (again.results, again.replayed, first.replayed, len(mail.sent)) == (first.results, True, False, 2)
    with pytest.raises(IdempotencyConflict):
        mail.send_batch(emails[:1], idempotency_key="k")
    moved = mail.reschedule("msg_1", datetime(2031, 1, 1, tzinfo=UTC))
    assert (moved.scheduled_at, moved.recipients[0].status) == (datetime(2031, 1, 1, tzinfo=UTC), "scheduled")
    assert (mail.cancel("msg_1").status, mail.get("msg_2").status) == ("failed", "queued")
    with pytest.raises(Conflict):
        mail.cancel("msg_1")
    with pytest.raises(Conflict):
        mail.reschedule("msg_1", "2031-01-01T00:00:00Z")
    with pytest.raises(NotFound):
        mail.cancel("msg_9")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_fake_for_event_loops(backend: str) -> None:
    """It can share recorded messages with one for threads."""
    appliance = FakeAppliance()

    async def main() -> None:
        async with AsyncFakeClient(appliance) as mail:
            appliance.fail_next(503, "temporary_failure")
            result = await mail.send(**MESSAGE, to="a@example.net")
            assert (await mail.wait(result.id)).status == "delivered"
            assert mail.sent == appliance.sent

    anyio.run(main, backend=backend)
    assert FakeClient(appliance).get("msg_1").id == "msg_1"
    assert len(appliance.pauses) == 1


@pytest.mark.parametrize("name", ["send", "send_batch", "cancel", "reschedule", "get", "wait"])
def test_both_clients_have_the_same_surface(name: str) -> None:
    """Arguments, defaults and types are the same; only `await` differs."""
    assert inspect.signature(getattr(Client, name)) == inspect.signature(getattr(AsyncClient, name))
