"""Reads due mail from the store as envelopes, fairly between accounts: one account's backlog delays no other's mail.

Usually one poll reads all due mail, in order of time. Behind a backlog the polls visit accounts in turn, each for its
share: a few recipients at a few domains, continuing where the last visit ended. Retries are read separately as
they become due: a greylisting server that would accept them now must not receive all older untried mail first.
Invariant: a recipient that was taken is not read again until it is released.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from appliance.concurrency.fair_share import TurnQueue
from appliance.environment import Environment
from appliance.errors import Refused
from appliance.message.addresses import parse
from appliance.model.mail import DueRecipient
from appliance.store import Store

RECIPIENTS_PER_POLL = 500  # in addition to those already taken
LEAST_PER_ACCOUNT = 5  # recipients per poll, however many accounts have a backlog
DOMAINS_PER_VISIT = 25  # of one account in one round
RECIPIENTS_PER_VISIT = 50  # of one domain in one round; also the limit of one transaction
OVERLAP = 5_000_000  # microseconds that polls for new mail overlap: mail is due from its arrival, before its commit

MayTake = Callable[[str, str], bool]


class Envelope(NamedTuple):
    """One message and its recipients at one domain, to be delivered in one SMTP transaction."""

    message_id: str
    account_id: str
    domain: str
    recipients: tuple[DueRecipient, ...]

    @property
    def is_retry(self) -> bool:
        return self.recipients[0].attempt_count > 0

    @property
    def sender_domain(self) -> str:
        """The domain of the From header, whose keys sign the message: DMARC checks From, not the envelope sender."""
        recipient = self.recipients[0]
        try:
            return parse(recipient.sender, "from").domain
        except (Refused, ValueError):  # stored by an older version; the mail still goes out
            return recipient.envelope_from.rpartition("@")[2]


@dataclass(slots=True)
class DueMail:
    """Reads envelopes. `may_take` decides whether to take more of an account's untried mail for a domain."""

    store: Store
    env: Environment
    new_messages: Container[str] = frozenset()  # handed over in memory, so not to be read here
    taken: set[str] = field(default_factory=set)  # pending recipients; for the store they are still due
    is_behind: bool = False  # the last poll read less than was due
    _taken_counts: dict[tuple[str, str], int] = field(default_factory=dict)  # by account and domain
    _released: set[str] | None = None  # recipients released during a poll, which may read them as still due
    _read_until: int = 0  # mail due by then has been read
    _retries_read_until: int = 0  # the same for retries, behind a backlog
    _last_account: str = ""  # visited last
    _last_domains: dict[str, str] = field(default_factory=dict)  # by account: the last domain of its last visit

    def take(self, envelope: Envelope) -> None:
        self.taken.update([recipient.id for recipient in envelope.recipients])
        lane = envelope.account_id, envelope.domain
        self._taken_counts[lane] = self._taken_counts.get(lane, 0) + len(envelope.recipients)

    def release(self, envelope: Envelope) -> None:
        recipients = [recipient.id for recipient in envelope.recipients]
        self.taken.difference_update(recipients)
        if self._released is not None:
            self._released.update(recipients)
        lane = envelope.account_id, envelope.domain
        remaining = self._taken_counts.pop(lane, 0) - len(envelope.recipients)
        if remaining > 0:
            self._taken_counts[lane] = remaining

    async def new(self, may_take: MayTake) -> list[Envelope]:
        """Mail that became due since the last poll; all due mail if the clock was set back."""
        since = self._read_until - OVERLAP
        with self._noting_released():
            return await self._poll(since if self._read_until <= self.env.now() else 0, may_take)

    async def all(self, may_take: MayTake) -> list[Envelope]:
        with self._noting_released():
            return await self._poll(0, may_take)

    async def left(self, may_take: MayTake) -> list[Envelope]:
        """One round of mail left in the store, for pools that have room again."""
        with self._noting_released():
            return envelopes(await self._round(may_take))

    @contextmanager
    def _noting_released(self) -> Iterator[None]:
        self._released = set()
        try:
            yield
        finally:
            self._released = None

    async def _poll(self, since: int, may_take: MayTake) -> list[Envelope]:
        if not self.is_behind:
            now, limit = self.env.now(), len(self.taken) + RECIPIENTS_PER_POLL
            due = await self.store.queue.due(simulated=False, most=limit, since=since)
            if len(due) < limit:
                self._read_until = now
                self._retries_read_until = now
                new = filter(self._is_new, due)
                return envelopes(row for row in new if row.attempt_count or may_take(row.account_id, row.domain))
        retries = await self._retries()
        backlog = await self._round(may_take)
        self.is_behind = len(backlog) >= RECIPIENTS_PER_VISIT  # else it may be over: the next poll is by time again
        known = {row.id for row in retries}
        return envelopes(retries + [row for row in backlog if row.id not in known])

    # ---- behind a backlog

    async def _retries(self) -> list[DueRecipient]:
        """Retries that became due since the last poll; the rounds read those that this query does not return."""
        now, limit = self.env.now(), len(self.taken) + RECIPIENTS_PER_POLL
        since, self._retries_read_until = self._retries_read_until or now, now
        due = await self.store.queue.due_retries(most=limit, since=since)
        return [row for row in due if self._is_new(row)]

    async def _round(self, may_take: MayTake) -> list[DueRecipient]:
        backlog: list[DueRecipient] = []
        accounts = await self.store.lanes.accounts()
        self._last_domains = {account: domain for account, domain in self._last_domains.items() if account in accounts}
        share = max(LEAST_PER_ACCOUNT, RECIPIENTS_PER_POLL // max(1, len(accounts)))
        later = [account for account in accounts if account > self._last_account]
        for account in later + accounts[: len(accounts) - len(later)]:
            if len(backlog) >= RECIPIENTS_PER_POLL:
                break
            backlog += await self._visit(account, share, may_take)
            self._last_account = account
        return backlog

    async def _visit(self, account: str, share: int, may_take: MayTake) -> list[DueRecipient]:
        domains = await self.store.lanes.domains(account, self._last_domains.get(account, ""), DOMAINS_PER_VISIT)
        self._last_domains[account] = ""  # start over, unless there are more
        recipients: list[DueRecipient] = []
        for number, domain in enumerate(domains, 1):
            if may_take(account, domain):
                limit = min(RECIPIENTS_PER_VISIT, share - len(recipients))
                # For the store, recipients already taken are still due, and come first.
                due = await self.store.lanes.due(account, domain, limit + self._taken_counts.get((account, domain), 0))
                recipients += [recipient for recipient in due if self._is_new(recipient)][:limit]
            if len(recipients) >= share or number == DOMAINS_PER_VISIT:
                self._last_domains[account] = domain
                break
        return recipients

    def _is_new(self, recipient: DueRecipient) -> bool:
        was_released = self._released is not None and recipient.id in self._released
        return not (recipient.id in self.taken or was_released or recipient.message_id in self.new_messages)


def envelopes(recipients: Iterable[DueRecipient]) -> list[Envelope]:
    """Group recipients by message and domain, up to the limit of one transaction; accounts take turns."""
    groups: dict[tuple[str, str], list[DueRecipient]] = {}
    for recipient in recipients:
        groups.setdefault((recipient.message_id, recipient.domain), []).append(recipient)
    ordered = [
        Envelope(message_id, group[0].account_id, domain, tuple(group[first : first + RECIPIENTS_PER_VISIT]))
        for (message_id, domain), group in groups.items()
        for first in range(0, len(group), RECIPIENTS_PER_VISIT)
    ]
    if len({envelope.account_id for envelope in ordered}) < 2:
        return ordered
    queue = TurnQueue[str, Envelope]()
    for envelope in ordered:
        queue.add(envelope.account_id, envelope)
    return queue.drain()
