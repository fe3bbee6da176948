"""When to ask: a third before the end, never in a loop, and after failures ever more rarely."""

import pytest

from appliance.acme import schedule
from appliance.acme.records import AcmeState, HeldCertificate
from appliance.config.settings import AcmeSettings

DAY = 86400.0


@pytest.mark.parametrize(
    ("life", "wanted", "spread", "renewed_at"),
    [
        (90 * DAY, None, 0.0, 60 * DAY),
        (90 * DAY, None, 1.0, 57 * DAY),
        (6 * DAY, None, 0.0, 4 * DAY),
        (90 * DAY, 10 * DAY, 0.0, 80 * DAY),
        (90 * DAY, 10 * DAY, 1.0, 79 * DAY),
        (90 * DAY, 89 * DAY, 0.0, 45 * DAY),
        (6 * DAY, 30 * DAY, 0.0, 3 * DAY),
    ],
)
def test_when_a_certificate_is_renewed(life: float, wanted: float | None, spread: float, renewed_at: float) -> None:
    assert schedule.renewal(0.0, life, wanted, spread) == pytest.approx(renewed_at)
    assert renewed_at < schedule.overdue(0.0, life, wanted) < life


def test_a_certificate_is_never_renewed_at_once() -> None:
    for life in (10.0, 3600.0, 90 * DAY):
        assert schedule.renewal(0.0, life, 365 * DAY, 1.0) > schedule.gap(life)


def test_failures_are_tried_again_ever_more_rarely() -> None:
    assert [schedule.retry(n, 0.5) for n in range(1, 8)] == [60, 300, 1800, 3600, 21600, 21600, 21600]
    assert (schedule.retry(1, 0.0), schedule.retry(1, 1.0)) == pytest.approx((54, 66))


def test_the_first_hour_has_fewer_failures_than_authorities_allow() -> None:
    """Let's Encrypt allows five failed proofs of a name in an hour."""
    times = [0.0]
    while times[-1] < 3600:
        times.append(times[-1] + schedule.retry(len(times), 0.0))
    assert len([time for time in times if time < 3600]) <= 4


@pytest.mark.parametrize(
    ("issued_for", "exactly", "at_least"),
    [
        ("https://ca.test a b", True, True),
        ("https://ca.test a b c", False, True),
        ("https://ca.test b a", False, True),
        ("https://ca.test a", False, False),
        ("https://other.test a b", False, False),
        ("", False, False),
    ],
)
def test_which_certificate_will_do(issued_for: str, exactly: bool, at_least: bool) -> None:
    settings = AcmeSettings(enabled=True, names=("a", "b"), directory="https://ca.test")
    state = AcmeState(issued_for=issued_for, issued_at=1000)
    held = HeldCertificate(frozenset("ab"), 1000, 1000 + 90 * DAY, self_signed=False)
    for kind, expected in ((False, exactly), (True, at_least)):
        due = schedule.due_at(settings, state, held, 2000.0, 0.0, at_least=kind)
        assert due == (1000 + 60 * DAY if expected else 0)
