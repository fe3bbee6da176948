"""The next step of a DMARC policy: proposed only on enough reports and passing mail, with the numbers and sources."""

import pytest

from appliance.feedback.dmarc_policy import DAYS_NEEDED, STRANGERS_NAMED, DmarcState, DmarcStep, next_step
from appliance.model.reports import OTHER_SOURCES, DmarcDay, DmarcSource, DmarcStanding, SeenSource

NAME = "bounces.example.com"
OWN = SeenSource(DmarcSource("192.0.2.1", 1000, 995, 995, 0, 0, 0), 14, 14)
STRANGER = SeenSource(DmarcSource("198.51.100.7", 40, 0, 0, 0, 0, 0), 3, 14)


def standing(
    days: int = DAYS_NEEDED,
    *sources: SeenSource,
    policy: str = "none",
    percentage: int = 100,
    before: tuple[DmarcDay, ...] = (),
    own: tuple[int, int] = (1000, 995),
) -> DmarcStanding:
    """Reports of so many days under a policy."""
    here = tuple(DmarcDay(100 + each, 80, 70, policy, percentage) for each in range(days))
    return DmarcStanding(days, before + here, sources, *own)


@pytest.mark.parametrize(
    ("policy", "percentage", "proposed"),
    [
        ("none", 100, "quarantine"),
        ("quarantine", 100, "reject"),
        ("quarantine", 25, "quarantine"),
        ("reject", 10, "reject"),
    ],
)
def test_each_policy_has_its_next_step(policy: str, percentage: int, proposed: str) -> None:
    """One at a time; a policy for a part of the mail is first extended to all of it."""
    found = next_step(standing(policy=policy, percentage=percentage), NAME)
    assert (found.state, found.policy, found.proposed) == (DmarcState.STEP, policy, proposed)
    assert f"Change the record to p={proposed}" in found.text
    assert ("without pct" in found.text) == (percentage < 100)


def test_the_numbers_justify_the_step() -> None:
    """They are in the text and beside it, and sources that never passed are named for the owner to recognise."""
    found = next_step(standing(14, STRANGER, OWN), NAME)
    text = (
        "99.5 % of 1,000 own messages passed, in reports of 14 days under p=none. Change the record to p=quarantine, "
        "unless one of these sources, of which nothing passed, is yours: 198.51.100.7 (40 failed)."
    )
    assert found == DmarcStep(DmarcState.STEP, text, "none", 100, "quarantine", 14, 1000, 995, (STRANGER,))


def test_without_a_report_the_address_is_told() -> None:
    """What to publish, and nothing about a policy that is not known."""
    found = next_step(DmarcStanding(), NAME)
    assert (found.state, found.policy, found.proposed) == (DmarcState.NO_REPORTS, None, None)
    assert "rua=mailto:dmarc@bounces.example.com" in found.text


@pytest.mark.parametrize("days", [1, DAYS_NEEDED - 1])
def test_few_days_are_not_enough(days: int) -> None:
    """However well all mail passes."""
    found = next_step(standing(days, own=(100, 100)), NAME)
    assert (found.state, found.proposed, found.days) == (DmarcState.COLLECT, None, days)
    assert f"100 % of 100 own messages passed, in reports of {'1 day' if days == 1 else '13 days'} under" in found.text


def test_days_under_an_earlier_policy_do_not_count() -> None:
    """After a step its effect is watched first."""
    before = tuple(DmarcDay(each, 80, 80, "none", 100) for each in range(20))
    found = next_step(standing(3, policy="quarantine", before=before), NAME)
    assert (found.state, found.days, found.policy) == (DmarcState.COLLECT, 3, "quarantine")


@pytest.mark.parametrize(
    ("own", "share"), [((1000, 989), "98.9 %"), ((100_000, 98_999), "98.9 %"), ((3, 2), "66.6 %"), ((0, 0), "None")]
)
def test_own_mail_that_fails_is_mended_first(own: tuple[int, int], share: str) -> None:
    """A stricter policy would lose it; a share is never rounded up to what is needed."""
    failing = SeenSource(DmarcSource("192.0.2.9", 200, 189, 189, 0, 0, 0), 14, 14)
    found = next_step(standing(14, STRANGER, failing, own=own), NAME)
    assert (found.state, found.proposed, found.failing) == (DmarcState.MEND, None, (failing,))
    assert found.text.startswith(f"{share} of {own[0]:,} own messages passed")
    assert found.text.endswith("99 % should pass: set up DKIM or SPF at 192.0.2.9 (11 failed).")


def test_ninety_nine_percent_is_enough() -> None:
    """Forwarding always breaks some."""
    assert next_step(standing(own=(1000, 990)), NAME).state is DmarcState.STEP


def test_nothing_passes_at_all() -> None:
    """Then all sources are strangers, and they are what there is to mend."""
    found = next_step(standing(14, STRANGER, own=(0, 0)), NAME)
    assert (found.state, found.failing) == (DmarcState.MEND, (STRANGER,))


def test_after_reject_nothing_is_left() -> None:
    """Whatever strangers send."""
    found = next_step(standing(2, STRANGER, policy="reject"), NAME)
    assert (found.state, found.proposed) == (DmarcState.DONE, None)


def test_few_strangers_are_named() -> None:
    """The worst, and never the sum of sources without an address."""
    others = SeenSource(DmarcSource(OTHER_SOURCES, 900, 0, 0, 0, 0, 0), 14, 14)
    strangers = [SeenSource(DmarcSource(f"198.51.100.{n}", 50 - n, 0, 0, 0, 0, 0), 1, 14) for n in range(20)]
    found = next_step(standing(14, others, *strangers), NAME)
    assert found.failing == tuple(strangers[:STRANGERS_NAMED])


def test_the_policy_in_dns_counts_before_what_receivers_saw() -> None:
    """After a change the same step is not proposed again, before reports tell of it."""
    found = next_step(standing(20), NAME, ("quarantine", 100))
    assert (found.state, found.policy, found.days) == (DmarcState.COLLECT, "quarantine", 0)
    assert next_step(standing(20), NAME, ("none", 100)).state is DmarcState.STEP
