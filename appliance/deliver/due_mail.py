"""In charge of which waiting mail is looked at next, fairly: nobody's backlog stands before somebody else's message.

Usually all due mail fits into one look, by time, and that is all. Behind a backlog, accounts are visited in turn, each
for its share of the round: a few of its destinations, of each a few recipients, going on where the last visit ended.
What has been found waits in `Turns`, where again the accounts take turns.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from appliance.deliver.attempt import Parcel
from appliance.model.mail import DueRecipient
from appliance.outside import Outside
from appliance.store import Store

LOOK = 500  # due recipients that one look takes in, besides those already taken
LEAST_SHARE = 5  # of them for one account, however many accounts wait
DOMAINS_PER_VISIT = 25  # destinations of one account in one round
RECIPIENTS_PER_VISIT = 50  # of one destination in one round: also the most of one transaction
OVERLAP = 5_000_000  # microseconds a look for news reaches back: mail is due from when it came in, not from its commit

MayTake = Callable[[str, str], bool]
Item = TypeVar("Item")


@dataclass(slots=True)
class Selection:
    """Finds parcels. `may_take` says whether more of an account's mail for a domain is wanted."""

    store: Store
    outside: Outside
    coming: Container[str] = frozenset()  # messages that come through the inbox, and are not to be met here as well
    taken: set[str] = field(default_factory=set)  # recipients in hand already: still due, as far as the store knows
    _in_lane: dict[tuple[str, str], int] = field(default_factory=dict)  # how many of them, by account and domain
    _seen_until: int = 0  # all that was due by then has been looked at
    behind: bool = False  # the last look found more than it could take
    _last: str = ""  # the account that was visited last
    _after: dict[str, str] = field(default_factory=dict)  # by account: the domain its last visit ended with

    def take(self, parcel: Parcel) -> None:
        """Find this parcel no more."""
        self.taken.update([recipient.id for recipient in parcel.recipients])
        lane = parcel.account_id, parcel.domain
        self._in_lane[lane] = self._in_lane.get(lane, 0) + len(parcel.recipients)

    def release(self, parcel: Parcel) -> None:
        """Forget a parcel; what of it is still due will be found again."""
        self.taken.difference_update([recipient.id for recipient in parcel.recipients])
        lane = parcel.account_id, parcel.domain
        left = self._in_lane.pop(lane, 0) - len(parcel.recipients)
        if left > 0:
            self._in_lane[lane] = left

    def news(self, may_take: MayTake) -> list[Parcel]:
        """What has become due since the last look; with a clock that was set back, whatever is due."""
        since = self._seen_until - OVERLAP
        return self._look(since if self._seen_until <= self.outside.now() else 0, may_take)

    def all(self, may_take: MayTake) -> list[Parcel]:
        """Whatever is due, also what was passed over before because its pool had no room."""
        return self._look(0, may_take)

    def waiting(self, may_take: MayTake) -> list[Parcel]:
        """Some of what was passed over before, for pools that have room again."""
        return in_turn(parcels(self._round(may_take)))

    def _look(self, since: int, may_take: MayTake) -> list[Parcel]:
        if not self.behind:
            now, limit = self.outside.now(), len(self.taken) + LOOK
            due = self.store.queue.due(simulated=False, most=limit, since=since)
            if len(due) < limit:
                self._seen_until = now
                new = (each for each in due if self._is_new(each) and may_take(each.account_id, each.domain))
                return in_turn(parcels(new))
        found = self._round(may_take)
        self.behind = len(found) >= RECIPIENTS_PER_VISIT  # else it may be over: the next look is by time again
        return in_turn(parcels(found))

    # ---- behind a backlog

    def _round(self, may_take: MayTake) -> list[DueRecipient]:
        found: list[DueRecipient] = []
        accounts = self.store.lanes.accounts()
        self._after = {account: after for account, after in self._after.items() if account in accounts}
        share = max(LEAST_SHARE, LOOK // max(1, len(accounts)))
        later = [account for account in accounts if account > self._last]
        for account in later + accounts[: len(accounts) - len(later)]:
            if len(found) >= LOOK:
                break
            found += self._visit(account, share, may_take)
            self._last = account
        return found

    def _visit(self, account: str, share: int, may_take: MayTake) -> list[DueRecipient]:
        domains = self.store.lanes.domains(account, self._after.get(account, ""), DOMAINS_PER_VISIT)
        self._after[account] = ""  # from the beginning, unless there is more
        found: list[DueRecipient] = []
        for number, domain in enumerate(domains, 1):
            if may_take(account, domain):
                found += self._lane(account, domain, min(RECIPIENTS_PER_VISIT, share - len(found)))
            if len(found) >= share or number == DOMAINS_PER_VISIT:
                self._after[account] = domain
                break
        return found

    def _lane(self, account: str, domain: str, most: int) -> list[DueRecipient]:
        # Those in hand are still due for the store, and stand at the head of the lane.
        due = self.store.lanes.due(account, domain, most + self._in_lane.get((account, domain), 0))
        return [recipient for recipient in due if self._is_new(recipient)][:most]

    def _is_new(self, recipient: DueRecipient) -> bool:
        return recipient.id not in self.taken and recipient.message_id not in self.coming


def parcels(recipients: Iterable[DueRecipient]) -> list[Parcel]:
    """Recipients of one message at one domain go together, up to the most of one transaction."""
    together: dict[tuple[str, str], list[DueRecipient]] = {}
    for recipient in recipients:
        together.setdefault((recipient.message_id, recipient.domain), []).append(recipient)
    return [
        Parcel(message_id, group[0].account_id, domain, tuple(group[first : first + RECIPIENTS_PER_VISIT]))
        for (message_id, domain), group in together.items()
        for first in range(0, len(group), RECIPIENTS_PER_VISIT)
    ]


def in_turn(found: list[Parcel]) -> list[Parcel]:
    """The first of every account, then the second of every account, and so on."""
    if len({parcel.account_id for parcel in found}) < 2:
        return found
    turns: Turns[Parcel] = Turns()
    for parcel in found:
        turns.add(parcel.account_id, parcel)
    return [turns.next() for _ in range(len(turns))]


class Turns(Generic[Item]):
    """A queue in which accounts take turns, each with its own in order."""

    __slots__ = ("_count", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Item]] = {}  # the account whose turn is next stands first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, account: str, item: Item) -> None:
        """Let it wait behind the others of its account."""
        self._waiting.setdefault(account, deque()).append(item)
        self._count += 1

    def put_back(self, account: str, item: Item) -> None:
        """Let it be the next of its account, whose turn is over all the same."""
        self._waiting.setdefault(account, deque()).appendleft(item)
        self._count += 1

    def peek(self) -> Item:
        """What `next` will give."""
        return next(iter(self._waiting.values()))[0]

    def heads(self) -> list[Item]:
        """The first of every account, in the order of their turns."""
        return [waiting[0] for waiting in self._waiting.values()]

    def next_that(self, may_go: Callable[[Item], bool]) -> Item | None:
        """The first that may go, by turns; an account whose first may not keeps its turn and stops nobody."""
        for account, waiting in self._waiting.items():
            if may_go(waiting[0]):
                return self._take(account)
        return None

    def drain(self) -> list[Item]:
        """Everything, in turns; nothing waits any more."""
        return [self.next() for _ in range(self._count)]

    def next(self) -> Item:
        """The first of the account whose turn it is."""
        return self._take(next(iter(self._waiting)))

    def _take(self, account: str) -> Item:
        """The first of an account, which then stands behind all others."""
        waiting = self._waiting.pop(account)
        item = waiting.popleft()
        if waiting:
            self._waiting[account] = waiting
        self._count -= 1
        return item
