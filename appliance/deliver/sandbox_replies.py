"""In charge of simulated delivery: the recipient's local part decides what a server would have said. PURE."""

from appliance.model.mail import Attempt, DueRecipient, Outcome, RecipientStatus

DEFERRAL = 2_000_000  # microseconds until a simulated deferral is tried again

ACCEPTED = (250, "250 2.0.0 OK: accepted by the sandbox")
UNKNOWN_USER = (550, "550 5.1.1 User unknown (simulated by the sandbox)")
TRY_LATER = (451, "451 4.3.0 Try again later (simulated by the sandbox)")


def simulate(recipient: DueRecipient, now: int, attempts_allowed: int) -> Outcome:
    """What becomes of one simulated recipient now.

    A simulated bounce suppresses nobody: trying out `bounce@…` must not stop real mail to that address later.
    """
    local = recipient.address.lower()
    if local.startswith("bounce"):
        return _final(recipient, RecipientStatus.BOUNCED, now, (_attempt(now, UNKNOWN_USER),))
    if local.startswith("fail"):
        tries = attempts_allowed - recipient.attempt_count
        return _final(recipient, RecipientStatus.FAILED, now, (_attempt(now, TRY_LATER),) * tries)
    if local.startswith("defer") and recipient.attempt_count == 0:
        deferred = (_attempt(now, TRY_LATER),)
        return Outcome(recipient, RecipientStatus.DEFERRED, deferred, at=now, next_attempt_at=now + DEFERRAL)
    return _final(recipient, RecipientStatus.DELIVERED, now, (_attempt(now, ACCEPTED),))


def _attempt(now: int, reply: tuple[int, str]) -> Attempt:
    return Attempt(now, now, *reply)


def _final(recipient: DueRecipient, status: RecipientStatus, now: int, attempts: tuple[Attempt, ...]) -> Outcome:
    return Outcome(recipient, status, attempts, at=now)
