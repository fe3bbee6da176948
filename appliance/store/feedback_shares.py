"""Counts the mail in the feedback queue: in all, and by client network, account, feedback address and token.

The transaction that stores a mail adds it to the counts, and the one that deletes it subtracts it. So the counts are
right on every node and after a restart, and no check reads the queue itself. Each count has a limit, its share of the
whole queue, so that one sender or one recipient cannot fill the queue for the others.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from appliance.errors import Code, Refused
from appliance.model.feedback import QueueShare, ShareScope
from appliance.store.engine import Bulk, Tx, run

QUEUED_MAILS = 10_000
QUEUED_BYTES = 512 * 1024 * 1024
# One part in so many of either. The smallest has room for two mails of the largest size that is kept.
SHARE_PARTS = {
    ShareScope.ALL: 1,
    ShareScope.WITHOUT_TOKEN: 4,  # anyone can send such mail
    ShareScope.NETWORK: 8,
    ShareScope.ACCOUNT: 8,
    ShareScope.ACCOUNT_WITHOUT_TOKEN: 16,
    ShareScope.ADDRESS: 32,
    ShareScope.TOKEN: 64,
}
RETRY_AFTER = 600  # seconds

_COUNT = Bulk("""INSERT INTO feedback_counts (scope, name, mails, bytes) VALUES {(?, ?, ?i, ?i)}
    ON CONFLICT (scope, name) DO UPDATE SET mails = feedback_counts.mails + excluded.mails,
        bytes = feedback_counts.bytes + excluded.bytes RETURNING scope, mails, bytes""")
_READ = Bulk("SELECT scope, mails, bytes FROM feedback_counts WHERE (scope, name) IN (VALUES {(?, ?)})")
_DELETE_EMPTY = "DELETE FROM feedback_counts WHERE mails <= 0"
ANY_COUNT = "SELECT 1 FROM feedback_counts LIMIT 1"
# A node of an older version deletes mail and leaves its counts: an empty queue corrects them.
DELETE_STALE = "DELETE FROM feedback_counts WHERE NOT EXISTS (SELECT 1 FROM feedback_mail)"

_stored = msgspec.json.Decoder(list[QueueShare])


@dataclass(frozen=True, slots=True)
class QueueLimits:
    mails: int = QUEUED_MAILS
    bytes: int = QUEUED_BYTES

    def check(self, scope: str, mails: int, size: int) -> None:
        part = SHARE_PARTS[ShareScope(scope)]
        if mails > max(1, self.mails // part) or size > self.bytes // part:
            text = "Too much mail is waiting to be read. Try again later."
            # Not TEMPORARY_FAILURE, after which PostgreSQL's writer runs the transaction again.
            raise Refused(Code.SERVICE_UNAVAILABLE, text, retry_after=RETRY_AFTER)


def all_shares(shares: Iterable[QueueShare]) -> list[QueueShare]:
    """Return these shares and those of the whole queue, whose row every transaction locks first: no deadlock."""
    distinct = {QueueShare(ShareScope.ALL, ""), *shares}
    if not has_token(distinct):
        distinct.add(QueueShare(ShareScope.WITHOUT_TOKEN, ""))
    return sorted(distinct, key=lambda share: (share.scope is not ShareScope.ALL, share))


def has_token(shares: Iterable[QueueShare]) -> bool:
    return any(share.scope is ShareScope.TOKEN for share in shares)


def count_in(tx: Tx, shares: Sequence[QueueShare], size: int, limits: QueueLimits) -> None:
    for scope, mails, total in _COUNT.run(tx, [(scope.value, name, 1, size) for scope, name in shares]):
        limits.check(scope, mails, int(total))


def count_out(tx: Tx, stored: str, size: int) -> None:
    if shares := _stored.decode(stored):
        _COUNT.run(tx, [(scope.value, name, -1, -size) for scope, name in shares])
        run(tx, _DELETE_EMPTY, {})


def check_room(tx: Tx, shares: Sequence[QueueShare], limits: QueueLimits) -> None:
    for scope, mails, total in _READ.run(tx, [(scope.value, name) for scope, name in shares]):
        limits.check(scope, mails + 1, int(total) + 1)


def encoded(shares: Sequence[QueueShare]) -> str:
    return msgspec.json.encode(shares).decode()
