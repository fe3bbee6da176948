"""What is recorded of an attempt: the outcome, the decision in words, the dialogue, within bounds."""

import json
from random import Random

import pytest

from appliance.config.settings import DeliverySettings
from appliance.deliver.outcome import (
    DELIVERED,
    RECORDED_RESPONSE,
    TEMPORARY,
    Contact,
    Disposition,
    FaultSide,
    Judgement,
    Retries,
    outcome,
)
from appliance.deliver.smtp.protocol import TranscriptLine
from appliance.model.mail import BounceClass, DueRecipient, Outcome, RecipientStatus

NOW = 1_750_000_000_000_000
RETRIES = Retries((300.0, 600.0), lambda: 0.0)
CONTACT = Contact(
    NOW - 5, "pool", "mx.example.net", "192.0.2.1", "TLSv1.3, verified", (TranscriptLine(0, "S", "220 hello"),)
)


def recipient(attempts: int = 0, address: str = "Ada@Example.net") -> DueRecipient:
    """A due recipient, tried so often before."""
    return DueRecipient("rcp_1", "msg_1", "acc_1", address, "example.net", attempts, None, None, "a@b.c", "s", 1, 1)


def made(
    judgement: Judgement,
    attempts: int = 0,
    text: str = "550 5.1.1 unknown",
    code: int | None = 550,
    status: str | None = None,
) -> Outcome:
    """The outcome of one attempt."""
    return outcome(
        recipient(attempts),
        judgement,
        code=code,
        status=status,
        text=text,
        contact=CONTACT,
        now=NOW,
        retries=RETRIES,
        signature=b"signature",
    )


def test_a_delivery() -> None:
    """Final, with all that is known of the contact; no signature need be kept."""
    done = made(DELIVERED, text="250 2.0.0 ok", code=250)
    (attempt,) = done.attempts
    assert done.status is RecipientStatus.DELIVERED
    assert (done.next_attempt_at, done.suppress, done.signature) == (None, None, None)
    assert (attempt.started_at, attempt.finished_at) == (NOW - 5, NOW)
    assert (attempt.smtp_code, attempt.smtp_response) == (250, "250 2.0.0 ok")
    assert (attempt.pool, attempt.mx_host, attempt.mx_address) == ("pool", "mx.example.net", "192.0.2.1")
    assert attempt.tls == "TLSv1.3, verified"
    assert json.loads(attempt.dialogue or "") == [[0, "S", "220 hello"]]
    assert attempt.decision == "delivered: the server took the message"


def test_a_deferral_says_when_and_keeps_the_signature() -> None:
    """Tried again after the delay of its turn; the decision names the number and the time."""
    first, second = made(TEMPORARY), made(TEMPORARY, attempts=1)
    assert first.status is second.status is RecipientStatus.DEFERRED
    assert (first.next_attempt_at, second.next_attempt_at) == (NOW + 300_000_000, NOW + 600_000_000)
    assert first.signature == b"signature"
    assert first.attempts[0].decision == "deferred: attempt 2 of 3 at 2025-06-15T15:11:40.000Z"


def test_a_throttled_deferral_says_so() -> None:
    """The pool's slowing down is part of the decision."""
    slowed = made(Judgement(Disposition.DEFERRED, throttle=True))
    assert (slowed.attempts[0].decision or "").endswith("Z; mail to this pool slows down")


def test_after_the_last_delay_it_has_failed() -> None:
    """Three attempts with two delays, and then nothing is suppressed and nothing kept."""
    failed = made(TEMPORARY, attempts=2)
    assert failed.status is RecipientStatus.FAILED
    assert (failed.next_attempt_at, failed.suppress, failed.signature) == (None, None, None)
    assert failed.attempts[0].decision == "failed: 3 attempts are used up"


@pytest.mark.parametrize(
    ("fault", "suppressed", "words"),
    [
        (FaultSide.RECIPIENT, True, "bounced: the address does not exist, and is suppressed from now on"),
        (FaultSide.SENDER, False, "bounced: the server does not want mail from us; the address is not to blame"),
        (FaultSide.DOMAIN, False, "bounced: DNS leads to no mail server that can be asked, so none was"),
        (FaultSide.MESSAGE, False, "bounced: the server does not offer what this message needs"),
        (FaultSide.OTHER, False, "bounced: the server refuses this message for good"),
        (None, False, "bounced: the server refuses this message for good"),
    ],
)
def test_a_bounce(fault: FaultSide | None, suppressed: bool, words: str) -> None:
    """Only a recipient's fault suppresses, in the form in which addresses are compared."""
    bounced = made(Judgement(Disposition.BOUNCED, fault))
    assert bounced.status is RecipientStatus.BOUNCED
    assert bounced.attempts[0].decision == words
    assert (bounced.suppress is not None) is suppressed
    if bounced.suppress is not None:
        assert bounced.suppress.address == "ada@example.net"
        assert bounced.suppress.reason == "bounced: 550 5.1.1 unknown"


def test_a_long_reply_is_cut() -> None:
    """The record keeps a bounded part of what a server said, also as the reason of a suppression."""
    bounced = made(Judgement(Disposition.BOUNCED, FaultSide.RECIPIENT), text="550 " + "x" * 100_000)
    assert len(bounced.attempts[0].smtp_response or "") == RECORDED_RESPONSE
    assert bounced.suppress is not None
    assert len(bounced.suppress.reason) < 250


def test_no_contact_leaves_the_record_empty() -> None:
    """Where no server was asked nothing is said about one."""
    text, contact = "4.4.3 no answer", Contact(NOW)
    made_up = outcome(
        recipient(), TEMPORARY, code=None, status=None, text=text, contact=contact, now=NOW, retries=RETRIES
    )
    (attempt,) = made_up.attempts
    assert (attempt.pool, attempt.mx_host, attempt.mx_address, attempt.tls, attempt.dialogue) == (None,) * 5


UNWANTED = Judgement(Disposition.DEFERRED, FaultSide.SENDER, throttle=True)


@pytest.mark.parametrize(
    ("judgement", "code", "status", "text", "expected"),
    [
        (DELIVERED, 250, "2.0.0", "250 2.0.0 ok", None),
        (TEMPORARY, 451, "4.7.1", "451 4.7.1 greylisted", BounceClass.TEMPORARY),
        (TEMPORARY, 452, "4.2.2", "452 4.2.2 over quota", BounceClass.MAILBOX_FULL),
        (TEMPORARY, None, None, "the mailbox is full of mail that was blocked", BounceClass.TEMPORARY),
        (TEMPORARY, None, "4.4.3", "4.4.3 no answer", BounceClass.TEMPORARY),
        (TEMPORARY, 552, None, "552 too many recipients", BounceClass.TEMPORARY),
        (TEMPORARY, 250, None, "unexpected reply: 250 ok", BounceClass.TEMPORARY),
        (UNWANTED, 554, None, "554 blocked, see the blocklist", BounceClass.REPUTATION),
        (
            Judgement(Disposition.BOUNCED, FaultSide.RECIPIENT),
            550,
            "5.1.1",
            "550 5.1.1 no",
            BounceClass.INVALID_RECIPIENT,
        ),
        (Judgement(Disposition.BOUNCED, FaultSide.OTHER), 550, "5.1.1", "550 5.1.1 no such user", BounceClass.OTHER),
        (Judgement(Disposition.BOUNCED, FaultSide.OTHER), 552, "5.2.2", "552 5.2.2 full", BounceClass.MAILBOX_FULL),
        (Judgement(Disposition.BOUNCED, FaultSide.SENDER), 550, "5.7.26", "550 5.7.26 no", BounceClass.AUTHENTICATION),
        (
            Judgement(Disposition.BOUNCED, FaultSide.DOMAIN),
            None,
            "5.1.2",
            "5.1.2 no such domain",
            BounceClass.INVALID_RECIPIENT,
        ),
        (Judgement(Disposition.BOUNCED, FaultSide.DOMAIN), None, "5.4.6", "5.4.6 mail would loop", BounceClass.OTHER),
        (
            Judgement(Disposition.BOUNCED, FaultSide.MESSAGE),
            None,
            None,
            "local: no SMTPUTF8, and the sender",
            BounceClass.CONTENT,
        ),
    ],
)
def test_what_is_no_success_has_a_class(
    judgement: Judgement, code: int | None, status: str | None, text: str, expected: BounceClass | None
) -> None:
    """A deferral is temporary unless the mailbox is full or we are not wanted; the last one fails with its class."""
    assert made(judgement, code=code, status=status, text=text).bounce_class is expected
    assert made(judgement, attempts=2, code=code, status=status, text=text).bounce_class is expected


# ---- When a recipient is tried again: twelve attempts in two days, none at the same moment as its neighbo


DELAYS = DeliverySettings().retry_delays
HOUR = 3_600_000_000  # microseconds


def attempts(random: float) -> list[int]:
    """The times of all attempts, from 0, with randomness that always says the same."""
    times = [0]
    while (at := Retries(DELAYS, lambda: random).next_attempt(times[-1], len(times))) is not None:
        times.append(at)
    return times


def test_twelve_attempts_in_48_hours() -> None:
    """The default schedule has 12 attempts and ends 48 hours after the first, when chance adds nothing."""
    times = attempts(0.0)
    assert len(times) == 12
    assert times[-1] == 48 * HOUR
    assert times[1] == 5 * 60_000_000


@pytest.mark.parametrize(("random", "hours"), [(0.5, 52.8), (1.0, 57.6)])
def test_jitter_is_a_fifth_at_most(random: float, hours: float) -> None:
    """Each delay is at most a fifth longer."""
    assert attempts(random)[-1] == pytest.approx(hours * HOUR)


def test_jitter_spreads() -> None:
    """A thousand deferrals of the same moment come back spread over the whole of the jitter."""
    random = Random(1).random
    times = sorted(Retries([100], random).next_attempt(0, 1) or 0 for _ in range(1000))
    assert times[0] >= 100_000_000  # a greylist that asks for the delay itself must not see us sooner
    assert times[-1] <= 120_000_000
    assert times[-1] - times[0] > 19_000_000


@pytest.mark.parametrize("made", [3, 4, 100])
def test_used_up(made: int) -> None:
    """After the last attempt there is no next one."""
    assert Retries([1, 1], lambda: 0.5).next_attempt(0, made) is None


def test_no_delay() -> None:
    """A delay of nothing means at once."""
    assert Retries([0], lambda: 1.0).next_attempt(7, 1) == 7
