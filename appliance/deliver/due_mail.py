"""Reads due mail from the store as envelopes, fairly between accounts: one account's backlog delays no other's mail.

Usually all due mail fits into one poll, in the order of time. Behind a backlog, accounts are visited in turn, each for
its share of the round: some of its domains, some recipients of each, continuing where the last visit ended.
Retries are found apart from the rounds as they become due: the untried mail of their lane is older, and a greylist that
would take them now must not see all of it first.
Invariant: a recipient that was taken is not found again until it is released.

All of delivery shares by the same means: a queue in which accounts take turns (`AccountQueue`), and limited slots of
which none gets all (`Shares`).
"""

from collections import deque
from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from appliance.environment import Environment
from appliance.errors import Refused
from appliance.message.addresses import parse
from appliance.model.mail import DueRecipient
from appliance.store import Store

# ---- sharing between accounts

SHARE_OF_FREE = 4  # times the free slots that one holder may have
SPARE_SHARE = 2  # the same for uses that give precedence to others of the same holder

Item = TypeVar("Item")


class AccountQueue(Generic[Item]):
    """A queue in which accounts take turns, each with its own items in order."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Item]] = {}  # the account whose turn is next stands first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, account: str, item: Item, ahead_of: Callable[[Item], bool] | None = None) -> None:
        """Add an item behind the others of its account, or in front of the first that it goes `ahead_of`."""
        waiting = self._waiting.setdefault(account, deque())
        place = len(waiting)
        if ahead_of is not None:
            place = next((place for place, other in enumerate(waiting) if ahead_of(other)), place)
        waiting.insert(place, item)
        self._count += 1

    def put_back(self, account: str, item: Item) -> None:
        """Make it the next of its account, which has had its turn all the same."""
        self._waiting.setdefault(account, deque()).appendleft(item)
        self._count += 1

    def peek(self) -> Item:
        return next(iter(self._waiting.values()))[0]

    def heads(self) -> list[Item]:
        """The first item of every account, in the order of their turns."""
        return [waiting[0] for waiting in self._waiting.values()]

    def next_that(self, may_go: Callable[[Item], bool]) -> Item | None:
        """The first item that may go, by turns; an account whose first may not keeps its turn and blocks no other."""
        for account, waiting in self._waiting.items():
            if may_go(waiting[0]):
                return self._take(account)
        return None

    def drain(self) -> list[Item]:
        """Everything, by turns; the queue is empty afterwards."""
        return [self.next() for _ in range(self._count)]

    def next(self) -> Item:
        return self._take(next(iter(self._waiting)))

    def _take(self, account: str) -> Item:
        """The first item of an account, which then stands behind all others."""
        waiting = self._waiting.pop(account)
        item = waiting.popleft()
        if waiting:
            self._waiting[account] = waiting
        self._count -= 1
        return item


def may_take(held: int, free: int, share: int = SHARE_OF_FREE) -> bool:
    """Whether a holder of `held` slots may take one of the `free` ones: if it holds fewer than `share` times as many.

    So a single holder gets four fifths of all slots, two get four ninths each, and however many hold slots already,
    some stay free for the next one.
    """
    return held < share * free


class Shares:
    """A limited number of slots, and how many of them each holder has."""

    def __init__(self, slots: int) -> None:
        self.slots, self.used = slots, 0
        self._held: dict[Hashable, int] = {}  # none of 0

    def of(self, holder: Hashable) -> int:
        return self._held.get(holder, 0)

    def have_room(self, holder: Hashable, share: int = SHARE_OF_FREE) -> bool:
        return may_take(self._held.get(holder, 0), self.slots - self.used, share)

    def take(self, holder: Hashable) -> None:
        self.used += 1
        self._held[holder] = self._held.get(holder, 0) + 1

    def give_back(self, holder: Hashable) -> None:
        self.used -= 1
        if left := self._held.pop(holder) - 1:
            self._held[holder] = left


# ---- due mail

RECIPIENTS_PER_POLL = 500  # besides those already taken
LEAST_PER_ACCOUNT = 5  # of them for one account, however many accounts wait
DOMAINS_PER_VISIT = 25  # of one account in one round
RECIPIENTS_PER_VISIT = 50  # of one domain in one round: also the most of one transaction
OVERLAP = 5_000_000  # microseconds a poll for new mail reaches back: mail is due from its arrival, not from its commit

MayTake = Callable[[str, str], bool]


class Envelope(NamedTuple):
    """One message for its recipients at one domain: what one SMTP transaction delivers."""

    message_id: str
    account_id: str
    domain: str
    recipients: tuple[DueRecipient, ...]

    @property
    def is_retry(self) -> bool:
        return self.recipients[0].attempt_count > 0

    @property
    def sender_domain(self) -> str:
        """The domain of the message's From, whose keys sign it: DMARC looks there, not at the envelope's sender."""
        recipient = self.recipients[0]
        try:
            return parse(recipient.sender, "from").domain
        except Refused:  # an unreadable From must not keep the mail from going
            return recipient.envelope_from.rpartition("@")[2]


@dataclass(slots=True)
class DueMail:
    """Finds envelopes. `may_take` says whether more of an account's untried mail for a domain is wanted."""

    store: Store
    env: Environment
    coming: Container[str] = frozenset()  # messages that are handed over in memory, and are not to be found here too
    taken: set[str] = field(default_factory=set)  # recipients that are pending: still due, as far as the store knows
    _taken_of: dict[tuple[str, str], int] = field(default_factory=dict)  # how many, by account and domain
    _released: set[str] | None = None  # during a poll: what was released since it began, and may be read as still due
    _seen_until: int = 0  # all that was due by then has been read
    _retries_until: int = 0  # the same of retries, behind a backlog
    behind: bool = False  # the last poll found more than it could take
    _last: str = ""  # the account that was visited last
    _after: dict[str, str] = field(default_factory=dict)  # by account: the domain its last visit ended with

    def take(self, envelope: Envelope) -> None:
        self.taken.update([recipient.id for recipient in envelope.recipients])
        lane = envelope.account_id, envelope.domain
        self._taken_of[lane] = self._taken_of.get(lane, 0) + len(envelope.recipients)

    def release(self, envelope: Envelope) -> None:
        """Forget an envelope; what of it is still due will be found again."""
        recipients = [recipient.id for recipient in envelope.recipients]
        self.taken.difference_update(recipients)
        if self._released is not None:
            self._released.update(recipients)
        lane = envelope.account_id, envelope.domain
        left = self._taken_of.pop(lane, 0) - len(envelope.recipients)
        if left > 0:
            self._taken_of[lane] = left

    async def new(self, may_take: MayTake) -> list[Envelope]:
        """What has become due since the last poll; with a clock that was set back, everything due."""
        since = self._seen_until - OVERLAP
        with self._noting_released():
            return await self._poll(since if self._seen_until <= self.env.now() else 0, may_take)

    async def all(self, may_take: MayTake) -> list[Envelope]:
        """Everything due, also what was left before because its pool had no room."""
        with self._noting_released():
            return await self._poll(0, may_take)

    async def left(self, may_take: MayTake) -> list[Envelope]:
        """Some of what was left before, for pools that have room again."""
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
        if not self.behind:
            now, limit = self.env.now(), len(self.taken) + RECIPIENTS_PER_POLL
            due = await self.store.queue.due(simulated=False, most=limit, since=since)
            if len(due) < limit:
                self._seen_until = now
                self._retries_until = now
                new = filter(self._is_new, due)
                return envelopes(each for each in new if each.attempt_count or may_take(each.account_id, each.domain))
        retries = await self._retries()
        found = await self._round(may_take)
        self.behind = len(found) >= RECIPIENTS_PER_VISIT  # else it may be over: the next poll is by time again
        known = {each.id for each in retries}
        return envelopes(retries + [each for each in found if each.id not in known])

    # ---- behind a backlog

    async def _retries(self) -> list[DueRecipient]:
        """What was tried before, and has become due since the last poll; the rounds find what this one leaves."""
        now, limit = self.env.now(), len(self.taken) + RECIPIENTS_PER_POLL
        since, self._retries_until = self._retries_until or now, now
        due = await self.store.queue.due_retries(most=limit, since=since)
        return [each for each in due if self._is_new(each)]

    async def _round(self, may_take: MayTake) -> list[DueRecipient]:
        found: list[DueRecipient] = []
        accounts = await self.store.lanes.accounts()
        self._after = {account: after for account, after in self._after.items() if account in accounts}
        share = max(LEAST_PER_ACCOUNT, RECIPIENTS_PER_POLL // max(1, len(accounts)))
        later = [account for account in accounts if account > self._last]
        for account in later + accounts[: len(accounts) - len(later)]:
            if len(found) >= RECIPIENTS_PER_POLL:
                break
            found += await self._visit(account, share, may_take)
            self._last = account
        return found

    async def _visit(self, account: str, share: int, may_take: MayTake) -> list[DueRecipient]:
        domains = await self.store.lanes.domains(account, self._after.get(account, ""), DOMAINS_PER_VISIT)
        self._after[account] = ""  # from the beginning, unless there is more
        found: list[DueRecipient] = []
        for number, domain in enumerate(domains, 1):
            if may_take(account, domain):
                most = min(RECIPIENTS_PER_VISIT, share - len(found))
                # Those already taken are still due for the store, and come first.
                due = await self.store.lanes.due(account, domain, most + self._taken_of.get((account, domain), 0))
                found += [recipient for recipient in due if self._is_new(recipient)][:most]
            if len(found) >= share or number == DOMAINS_PER_VISIT:
                self._after[account] = domain
                break
        return found

    def _is_new(self, recipient: DueRecipient) -> bool:
        was_released = self._released is not None and recipient.id in self._released
        return not (recipient.id in self.taken or was_released or recipient.message_id in self.coming)


def envelopes(recipients: Iterable[DueRecipient]) -> list[Envelope]:
    """Recipients of one message at one domain go together, up to the most of one transaction.

    By turns: the first of every account, then the second of every account, and so on.
    """
    together: dict[tuple[str, str], list[DueRecipient]] = {}
    for recipient in recipients:
        together.setdefault((recipient.message_id, recipient.domain), []).append(recipient)
    found = [
        Envelope(message_id, group[0].account_id, domain, tuple(group[first : first + RECIPIENTS_PER_VISIT]))
        for (message_id, domain), group in together.items()
        for first in range(0, len(group), RECIPIENTS_PER_VISIT)
    ]
    if len({envelope.account_id for envelope in found}) < 2:
        return found
    queue: AccountQueue[Envelope] = AccountQueue()
    for envelope in found:
        queue.add(envelope.account_id, envelope)
    return queue.drain()
