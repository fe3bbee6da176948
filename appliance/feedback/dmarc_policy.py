"""The next step of a domain's DMARC policy, from p=none over p=quarantine to p=reject, by what reports say. Pure.

The rules, from the top; the first that fits decides:

1. No report in PROPOSAL_DAYS: ask for reports.
2. The policy is p=reject for all mail: nothing is left to do.
3. Reports of less than DAYS_NEEDED days under the policy of today: wait.
4. Of the domain's own mail less than OWN_SHARE passes: mend that first, since a stricter policy would lose it.
5. Propose the next policy; where the policy is for a part of the mail only (`pct`), the same one for all of it.

The domain's own mail is that of sources of which any mail passed: they have its keys, or its permission by SPF. Sources
of which none passed are strangers, or services of the owner that are not set up; only the owner can tell, so they are
named.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import floor
from typing import Final

from appliance.model.reports import OTHER_SOURCES, DmarcStanding, SeenSource

PROPOSAL_DAYS: Final = 30  # that are looked at
DAYS_NEEDED: Final = 14  # with reports: two weeks, so that what is sent once a week or at their end is in it
OWN_SHARE: Final = 0.99
STRANGERS_NAMED: Final = 5

_STRICTER: Final = {"none": "quarantine", "quarantine": "reject"}


class DmarcState(StrEnum):
    """What to do about a domain's policy."""

    NO_REPORTS = "no_reports"
    COLLECT = "collect"  # more reports
    MEND = "mend"  # own mail that fails
    STEP = "step"  # to a stricter policy
    DONE = "done"


@dataclass(frozen=True, slots=True)
class DmarcStep:
    """What to do next, the numbers that justify it, and all of it in words."""

    state: DmarcState
    text: str
    policy: str | None = None  # of today
    percentage: int = 100
    proposed: str | None = None
    days: int = 0  # with reports under this policy
    own_messages: int = 0
    own_passed: int = 0
    failing: tuple[SeenSource, ...] = ()  # own sources for MEND, else strangers; the worst first


def next_step(standing: DmarcStanding, return_path: str, published: tuple[str, int] | None = None) -> DmarcStep:
    """The next step for a domain, from what reports say of the last PROPOSAL_DAYS.

    `published` are the policy and its percentage in DNS; where they are not known, those that receivers saw last count.
    """
    if not standing.days:
        text = (
            f"No DMARC report came in {PROPOSAL_DAYS} days. Put rua=mailto:dmarc@{return_path} into the DMARC record:"
        )
        return DmarcStep(DmarcState.NO_REPORTS, f"{text} large receivers then send a report once a day.")
    policy, percentage = published or (standing.days[-1].policy, standing.days[-1].percentage)
    days = sum((each.policy, each.percentage) == (policy, percentage) for each in standing.days)
    own, passed = standing.own_messages, standing.own_passed
    failing = [each for each in standing.sources if each.counts.failed and each.counts.address != OTHER_SOURCES]
    strangers = tuple(each for each in failing if not each.counts.passed)[:STRANGERS_NAMED]
    seen = f"{_share(passed, own)} of {own:,} own messages passed, in reports of {_days(days)} under p={policy}"
    seen += "." if percentage == 100 else f" for {percentage} % of the mail."

    def step(state: DmarcState, text: str, named: tuple[SeenSource, ...], proposed: str | None = None) -> DmarcStep:
        return DmarcStep(state, f"{seen} {text}", policy, percentage, proposed, days, own, passed, named)

    if policy == "reject" and percentage == 100:
        return step(DmarcState.DONE, "There is no stricter policy.", strangers)
    if days < DAYS_NEEDED:
        return step(DmarcState.COLLECT, f"The next step needs {DAYS_NEEDED} days.", strangers)
    if own == 0 or passed / own < OWN_SHARE:
        named = tuple(each for each in failing if each.counts.passed)[:STRANGERS_NAMED] or strangers
        text = f"Before a stricter policy {_share(OWN_SHARE, 1)} should pass: set up DKIM or SPF at {_names(named)}."
        return step(DmarcState.MEND, text, named)
    proposed = policy if percentage < 100 else _STRICTER[policy]
    text = f"Change the record to p={proposed}" + (", without pct" if percentage < 100 else "")
    if strangers:
        text += f", unless one of these sources, of which nothing passed, is yours: {_names(strangers)}"
    return step(DmarcState.STEP, f"{text}.", strangers, proposed)


def _days(count: int) -> str:
    return "1 day" if count == 1 else f"{count} days"


def _share(part: float, whole: int) -> str:
    """To a tenth of a percent, never more than it is."""
    return f"{floor(1000 * part / whole) / 10:g} %" if whole else "None"


def _names(sources: tuple[SeenSource, ...]) -> str:
    return ", ".join(f"{each.counts.address} ({each.counts.failed:,} failed)" for each in sources) or "its senders"
