"""In charge of simulated delivery: the local part decides, and nothing is left to chance."""

import pytest

from appliance.deliver.sandbox_replies import DEFERRAL, simulate
from appliance.model.mail import DueRecipient, RecipientStatus

NOW = 1_700_000_000_000_000
ATTEMPTS = 12


def due(address: str, attempts: int = 0) -> DueRecipient:
    """A recipient that has been tried so many times."""
    return DueRecipient(
        id="rcp_1",
        message_id="msg_1",
        account_id="acc_1",
        address=address,
        domain="example.net",
        attempt_count=attempts,
        last_smtp_code=None,
        last_smtp_response=None,
        envelope_from="a@example.com",
        subject="s",
        recipient_count=1,
        charged=1,
    )


@pytest.mark.parametrize(
    ("address", "status", "code", "tries"),
    [
        ("somebody@example.net", RecipientStatus.DELIVERED, 250, 1),
        ("bounce@example.net", RecipientStatus.BOUNCED, 550, 1),
        ("BOUNCE+tag@example.net", RecipientStatus.BOUNCED, 550, 1),
        ("bounced@bounce.example", RecipientStatus.BOUNCED, 550, 1),
        ("somebody@bounce.example", RecipientStatus.DELIVERED, 250, 1),
        ("fail-over@example.net", RecipientStatus.FAILED, 451, ATTEMPTS),
        ("defer@example.net", RecipientStatus.DEFERRED, 451, 1),
        ("not-bounce@example.net", RecipientStatus.DELIVERED, 250, 1),
    ],
)
def test_the_local_part_decides(address: str, status: RecipientStatus, code: int, tries: int) -> None:
    """`bounce…`, `fail…` and `defer…` in any case do what they say, everybody else is delivered to."""
    result = simulate(due(address), NOW, ATTEMPTS)
    assert (result.status, result.at, len(result.attempts)) == (status, NOW, tries)
    assert {attempt.smtp_code for attempt in result.attempts} == {code}
    for attempt in result.attempts:
        assert attempt.smtp_response is not None
        assert attempt.smtp_response.startswith(f"{code} ")


def test_a_deferral_is_delivered_the_second_time() -> None:
    """Two seconds later, and then for good."""
    first = simulate(due("defer@example.net"), NOW, ATTEMPTS)
    assert first.next_attempt_at == NOW + DEFERRAL == NOW + 2_000_000
    second = simulate(due("defer@example.net", attempts=1), NOW + DEFERRAL, ATTEMPTS)
    assert (second.status, second.next_attempt_at) == (RecipientStatus.DELIVERED, None)


def test_a_failure_uses_up_what_attempts_are_left() -> None:
    """The record of a failed recipient looks as if every attempt had been made."""
    assert len(simulate(due("fail@example.net", attempts=5), NOW, ATTEMPTS).attempts) == ATTEMPTS - 5


@pytest.mark.parametrize("local", ["bounce", "fail", "defer", "somebody"])
def test_nobody_is_suppressed(local: str) -> None:
    """Trying out an address does not stop real mail to it later."""
    assert simulate(due(f"{local}@example.net"), NOW, ATTEMPTS).suppress is None
