"""All that is known of a message comes back as it was written."""

from pathlib import Path

from appliance.model.mail import RecipientStatus
from appliance.outside import Outside
from appliance.store import open_store
from tests import stored_mail


async def test_a_record_holds_recipients_and_attempts(tmp_path: Path) -> None:
    """Each recipient has its domain, its next time and every attempt with what was said."""
    outside = Outside()
    async with open_store(tmp_path, outside, inline=True) as store:
        account = await stored_mail.account(store)
        message = await stored_mail.accept(store, outside, account, "a@one.example", "b@two.example")
        await stored_mail.defer(store, outside, message)
        await store.queue_control.retry_message(message.id)
        for recipient in stored_mail.due(store, message)[:1]:
            await stored_mail.finish(store, outside, recipient, RecipientStatus.DELIVERED, 250)
        record = store.records.of(message.id)
        assert record is not None
        assert (record.account_name, record.message.id) == ("acme", message.id)
        by_status = {tried.recipient.status: tried for tried in record.recipients}
        delivered, deferred = by_status[RecipientStatus.DELIVERED], by_status[RecipientStatus.DEFERRED]
        assert {delivered.domain, deferred.domain} == {"one.example", "two.example"}
        assert [attempt.smtp_code for attempt in delivered.attempts] == [451, 250]
        assert (delivered.next_attempt_at, deferred.simulated) == (None, False)
        assert deferred.next_attempt_at is not None
        (attempt,) = deferred.attempts
        assert (attempt.pool, attempt.mx_host, attempt.mx_address) == ("example.net", "mx.example.net", "192.0.2.1")
        assert attempt.finished_at - attempt.started_at == 412_000
        assert attempt.decision == "deferred: attempt 2 of 12"
        assert attempt.dialogue is not None


async def test_a_message_that_is_not_there_has_no_record(tmp_path: Path) -> None:
    """None, and nothing else."""
    async with open_store(tmp_path, Outside(), inline=True) as store:
        assert store.records.of("msg_0") is None
