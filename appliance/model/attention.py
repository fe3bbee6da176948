"""Problems that need a person, and when a problem counts as new. No I/O.

A problem has a kind and a subject, such as a domain. It opens when a check finds it, and ends when a check no longer
does. One that returns within ENDS_AFTER is the same problem, so a problem that comes and goes sends one mail.
"""

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from appliance.times import HOUR

ENDS_AFTER = HOUR  # a problem that was absent for this long is new when it returns
MACHINE = ""  # in place of an account: the problem concerns the machine, and administrators


class AttentionKind(StrEnum):
    """What is wrong."""

    DOMAIN_BROKEN = "domain_broken"
    BOUNCE_RATE = "bounce_rate"
    COMPLAINT_RATE = "complaint_rate"
    PROVIDER_BLOCKING = "provider_blocking"
    MAIL_PAUSED = "mail_paused"
    WEBHOOK_FAILING = "webhook_failing"
    KEY_EXPIRING = "key_expiring"
    CREDITS_LOW = "credits_low"
    CERTIFICATE_EXPIRING = "certificate_expiring"
    QUEUE_GROWING = "queue_growing"
    DISK_LOW = "disk_low"


class Severity(StrEnum):
    """`critical`: mail is refused, rejected or held now. `warning`: it will be."""

    CRITICAL = "critical"
    WARNING = "warning"


class Notify(StrEnum):
    """When a person gets mail about problems."""

    AT_ONCE = "at_once"
    DAILY = "daily"
    NEVER = "never"


class AttentionItem(Struct, frozen=True):
    kind: AttentionKind
    subject: str  # the domain, pool, key, URL or listener; empty if there is only one
    severity: Severity
    title: str
    detail: str  # the numbers, and what to do
    link: str  # a path of the dashboard
    since: int | None = None  # None: when a check first found it

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.subject


class StoredProblem(Struct, frozen=True):
    problem: AttentionItem
    opened_at: int
    ended_at: int | None = None
    node: str = ""  # whose machine has the problem; empty: all nodes


class NotifiedPerson(Struct, frozen=True):
    id: str
    email: str
    notify: Notify


def changes(
    stored: Iterable[StoredProblem], problems: Iterable[AttentionItem], now: int, node: str = ""
) -> list[StoredProblem]:
    """Return the rows to write after a check: new, returned, changed and ended problems."""
    known = {row.problem.key: row for row in stored}
    changed = []
    for problem in problems:
        row = known.pop(problem.key, None)
        if row is None or (row.ended_at is not None and not 0 <= now - row.ended_at < ENDS_AFTER):
            changed.append(StoredProblem(replace(problem, since=problem.since or now), now, node=node))
            continue
        since = row.problem.since if problem.since is None else problem.since
        kept = StoredProblem(replace(problem, since=since), row.opened_at, node=node)
        changed += [kept] if kept != row else []
    return changed + [replace(row, ended_at=now) for row in known.values() if row.ended_at is None]
