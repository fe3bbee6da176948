"""What is counted of deliveries: few labels whatever the world is called, and the right times."""

import pytest
from msgspec.structs import replace

from appliance.deliver.outcome import NAMED_POOLS, observe
from appliance.environment import identifier_from
from appliance.model.mail import Attempt, BounceClass, DueRecipient, Outcome, RecipientStatus
from appliance.telemetry.log import MESSAGE_LOG
from appliance.telemetry.metrics import ATTEMPT_SECONDS, BOUNCES, DELIVERY_ATTEMPTS, DELIVERY_SECONDS

SECOND = 1_000_000
NOW = 1_794_664_800 * SECOND


def outcome(status: RecipientStatus, pool: str | None, code: int | None, decision: str | None = "so") -> Outcome:
    """A result of one attempt that took two seconds, for a message that was accepted ten seconds ago."""
    message = identifier_from("msg", NOW - 10 * SECOND)
    due = DueRecipient("rcp_1", message, "acc_1", "a@b.test", "b.test", 0, None, None, "s@example.com", "s", 1, 1, "s")
    attempt = Attempt(NOW - 2 * SECOND, NOW, code, "text", pool, decision=decision)
    return Outcome(due, status, (attempt,), NOW)


def counted(*outcomes: Outcome) -> dict[object, int]:
    """What is counted for these, beyond what was before."""
    before = dict(DELIVERY_ATTEMPTS.values)
    observe(outcomes)
    return {
        key: value - before.get(key, 0) for key, value in DELIVERY_ATTEMPTS.values.items() if value != before.get(key)
    }


def test_pools_without_a_name_are_counted_together() -> None:
    """A thousand organisations are one label; a provider's and the operator's own pools have their own."""
    NAMED_POOLS.update(["partner"])
    results = [outcome(RecipientStatus.DELIVERED, f"org{number}.test", 250) for number in range(1_000)]
    results += [outcome(RecipientStatus.BOUNCED, "google", 550), outcome(RecipientStatus.DEFERRED, "partner", 451)]
    assert counted(*results) == {
        ("other", "delivered", "2xx"): 1_000,
        ("google", "bounced", "5xx"): 1,
        ("partner", "deferred", "4xx"): 1,
    }
    NAMED_POOLS.discard("partner")


def test_what_reached_no_server_is_told_apart_from_the_sandbox() -> None:
    """No route and no reply, simulated mail, and a code that is none."""
    found = counted(
        outcome(RecipientStatus.BOUNCED, None, None),
        outcome(RecipientStatus.DELIVERED, None, 250, decision=None),
        outcome(RecipientStatus.DEFERRED, "google", 999),
    )
    assert found == {
        ("none", "bounced", "none"): 1,
        ("sandbox", "delivered", "2xx"): 1,
        ("google", "deferred", "none"): 1,
    }


def test_bounces_are_counted_and_logged_by_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are final; a deferral has its class in the log only."""
    noted: list[object] = []
    monkeypatch.setattr(MESSAGE_LOG, "keep", True)
    monkeypatch.setattr(MESSAGE_LOG, "note", lambda event, **fields: noted.append((event, fields.get("bounce_class"))))
    before = dict(BOUNCES.values)
    full = replace(outcome(RecipientStatus.BOUNCED, "google", 552), bounce_class=BounceClass.MAILBOX_FULL)
    late = replace(outcome(RecipientStatus.FAILED, "google", 451), bounce_class=BounceClass.TEMPORARY)
    again = replace(outcome(RecipientStatus.DEFERRED, "google", 451), bounce_class=BounceClass.TEMPORARY)
    observe([full, full, late, again, outcome(RecipientStatus.DELIVERED, "google", 250)])
    found = {key: value - before.get(key, 0) for key, value in BOUNCES.values.items() if value != before.get(key)}
    assert found == {("bounced", "mailbox_full"): 2, ("failed", "temporary"): 1}
    classes = [("bounced", "mailbox_full")] * 2 + [("failed", "temporary"), ("deferred", "temporary")]
    assert noted == [*classes, ("delivered", None)]


def test_times_are_in_seconds() -> None:
    """An attempt by itself, and a delivery from its acceptance; what was not delivered has no such time."""
    attempts, deliveries = ATTEMPT_SECONDS.total, DELIVERY_SECONDS.total
    observe([outcome(RecipientStatus.DELIVERED, "google", 250), outcome(RecipientStatus.BOUNCED, "google", 550)])
    assert round(ATTEMPT_SECONDS.total - attempts, 6) == 4
    assert round(DELIVERY_SECONDS.total - deliveries, 6) == 10
