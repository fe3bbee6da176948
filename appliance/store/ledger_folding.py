"""Folds each account's old ledger lines, and deletes its old statistics and what deleted templates have left.

Invariant: a ledger always adds up. So its lines are not deleted but folded: all that messages did to the balance within
a day becomes one line, with the sum of them and the balance after the last. Grants stay as they are.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from appliance.environment import identifier_from
from appliance.model.accounts import LedgerKind
from appliance.store.body_parts import add, of_template
from appliance.store.engine import Row, Slice, StorePart, Tx, changed, first, gathered, rows, run, timed
from appliance.times import DAY, HOUR

STATISTICS_KEPT = 181 * DAY  # microseconds; those of 90 days can be asked for, and are compared with the 90 before
ACCOUNTS_READ = 100  # in one go
LINES_READ = 1_000  # of a ledger, likewise
_FIRST, _END, _LAST = "!", "~", "~~"  # before and after every line of an account, and after the last account

_NEXT_ACCOUNT = "SELECT min(id) FROM accounts WHERE id > :after"
FIND_LINES = """SELECT l.id, l.kind, l.amount, l.balance, l.created_at, l.message_id,
    EXISTS (SELECT 1 FROM messages m WHERE m.account_id = l.account_id AND m.id = l.message_id) AS kept
FROM credit_ledger l WHERE l.account_id = :account_id AND l.id > :after AND l.id < :limit ORDER BY l.id LIMIT :most"""
_LINE = "id, kind, amount, balance, created_at, message_id, kept"
_DROP_LINES = "DELETE FROM credit_ledger WHERE account_id = :account_id AND id BETWEEN :first AND :last"
_FOLDED = """INSERT INTO credit_ledger (account_id, id, kind, amount, balance, created_at)
    VALUES (:account_id, :last, :kind, :amount, :balance, :created_at)"""
ANY_OLD = """SELECT EXISTS (SELECT 1 FROM daily_volume WHERE account_id = :account_id AND day < :day)
        OR EXISTS (SELECT 1 FROM hourly_counts WHERE account_id = :account_id AND hour < :hour)
        OR EXISTS (SELECT 1 FROM templates WHERE account_id = :account_id AND deleted = 1 AND updated_at < :before)"""
_OLD_DAYS = """DELETE FROM daily_volume WHERE account_id = :account_id AND day IN
        (SELECT day FROM daily_volume WHERE account_id = :account_id AND day < :day ORDER BY day LIMIT :most)"""
_OLD_HOURS = """DELETE FROM hourly_counts WHERE account_id = :account_id AND (hour, kind, bucket) IN
        (SELECT hour, kind, bucket FROM hourly_counts WHERE account_id = :account_id AND hour < :hour
        ORDER BY hour LIMIT :most)"""
# A template's row goes last; by then no message is left that names a version of it. Versions are deleted with their
# template: these were deleted by a release that kept them.
_OLD_VERSIONS = """DELETE FROM template_versions WHERE account_id = :account_id AND (alias, version) IN
        (SELECT v.alias, v.version FROM templates t CROSS JOIN template_versions v USING (account_id, alias)
        WHERE t.account_id = :account_id AND t.deleted = 1 AND t.updated_at < :before LIMIT :most)
    RETURNING subject, text_body, html_body"""
_OLD_TEMPLATES = """DELETE FROM templates
    WHERE account_id = :account_id AND deleted = 1 AND updated_at < :before AND NOT EXISTS
        (SELECT 1 FROM template_versions v WHERE v.account_id = :account_id AND v.alias = templates.alias)"""
_STEPS = (_OLD_DAYS, _OLD_HOURS, _OLD_TEMPLATES)


@dataclass(frozen=True, slots=True)
class Fold:
    """Lines of a ledger, from one id to another, that one line takes the place of."""

    first: str
    last: str
    lines: int
    amount: int
    balance: int
    created_at: int
    kind: LedgerKind  # what to call the sum of what was reserved and of what came back


class LedgerFolding(StorePart):
    async def fold_old(self, after: str, before: int, now: int, budget: int) -> Slice:
        """Fold and delete some lines from before a time. The position is an account and a ledger line."""
        limits = {"before": before, "day": before // DAY, "hour": (now - STATISTICS_KEPT) // HOUR}
        most = max(2, min(LINES_READ, budget))
        folds, after = await self.engine.scan(lambda tx: _find(tx, after, limits, most))
        if folds is None:
            return Slice(0, 0.0, not after.endswith(f" {_LAST}"), after)
        bindings = {"account_id": after.partition(" ")[0], "most": budget, **limits}
        deleted, seconds = await self.engine.write(timed(lambda tx: _fold(tx, folds, bindings)), large=True)
        return Slice(deleted, seconds, True, after)


def _find(tx: Tx, after: str, limits: dict[str, int], most: int) -> tuple[list[Fold] | None, str]:
    """Return the next folds ([]: delete other rows, None: nothing left), and the position to continue at."""
    account_id, _, line = after.partition(" ")
    for _ in range(ACCOUNTS_READ):
        if line in ("", _END, _LAST):
            ((following,),) = rows(tx, _NEXT_ACCOUNT, {"after": account_id})
            if following is None:
                return None, f"{account_id} {_LAST}"
            account_id, line = following, _FIRST
        bindings: dict[str, Any] = {"account_id": account_id, **limits}
        if first(tx, ANY_OLD, bindings) == (1,):
            return [], f"{account_id} {line}"
        bindings |= {"after": line, "limit": identifier_from("led", limits["before"]), "most": most}
        looked = gathered(tx, FIND_LINES, _LINE, bindings)
        folds, line = fold(looked), looked[-1][0] if len(looked) == most else _END
        if folds:
            # What follows may belong to the last of these.
            again = next((row[0] for row in reversed(looked) if row[0] < folds[-1].first), bindings["after"])
            return folds, f"{account_id} {line if line == _END else again}"
    return None, f"{account_id} {line}"


def fold(lines: Sequence[Row]) -> list[Fold]:
    """The folds of these lines of one ledger: each run of one day, without grants, is one line. No I/O."""
    folds = []
    for (foldable, _), group in groupby(lines, _run_of):
        run_of_lines = list(group)
        if foldable and (len(run_of_lines) > 1 or run_of_lines[0][5] is not None):
            last_id, _, _, balance, created_at, *_ = run_of_lines[-1]
            amount = sum(line[2] for line in run_of_lines)
            kind = LedgerKind.RESERVE if amount <= 0 else LedgerKind.RELEASE
            folds.append(Fold(run_of_lines[0][0], last_id, len(run_of_lines), amount, balance, created_at, kind))
    return folds


def _run_of(line: Row) -> tuple[bool, int]:
    _, kind, _, _, created_at, _, message_is_kept = line
    return kind != LedgerKind.GRANT.value and not message_is_kept, created_at // DAY


def _fold(tx: Tx, folds: Sequence[Fold], bindings: dict[str, Any]) -> int:
    if not folds:
        versions = rows(tx, _OLD_VERSIONS, bindings)
        if versions:
            add(tx, bindings["account_id"], -sum(of_template(*parts) for parts in versions))
        return len(versions) + sum(changed(tx, step, bindings) for step in _STEPS)
    for item in folds:
        row = {"account_id": bindings["account_id"], **asdict(item), "kind": item.kind.value}
        run(tx, _DROP_LINES, row)
        run(tx, _FOLDED, row)
    return sum(item.lines for item in folds)
