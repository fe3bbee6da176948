"""The audit log: who changed what, when and from where, for each account, kept for a year.

An account keeps at most AUDIT_LINES, and all lines of the last week up to AUDIT_MOST; retention deletes older lines. A
page reads at most AUDIT_SCANNED lines and says where to continue. The transaction that makes a change writes its line:
`Audit.noting` opens a note for the current task, and the first write inside that changes a row writes its lines.
Without one the lines are written at the end, once within EQUAL_WITHIN.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec
from msgspec import Struct, field

from appliance.concurrency.fair_share import SERVER_WORK
from appliance.environment import Environment, identifier_from
from appliance.model.dashboard import Actor, AuditEntry
from appliance.store.engine import NEWEST, Bulk, Row, StorePart, T, Tx, Work, one, rows
from appliance.times import DAY, HOUR, MINUTE

AUDIT_KEPT = 365 * DAY
AUDIT_TEXT = 300  # characters of an object or a detail
AUDIT_LINES = 100_000  # kept per account, and of the installation
AUDIT_SURE = 7 * DAY  # of which no line is deleted, up to AUDIT_MOST: a burst does not push out what came before it
AUDIT_MOST = 1_000_000  # however new: they do not count as stored bytes
EQUAL_WITHIN, EQUAL_AMONG = MINUTE, 1_000  # the newest lines of an account, searched for an equal one
AUDIT_SCANNED = 10_000  # lines read per page
EVERY_LINE = 2**53  # no limit
ID_SLACK = HOUR  # difference between the times of an id and its line, after the clock was set back

_ADD = Bulk("""INSERT INTO audit_log
    (account_id, id, at, actor_kind, actor, actor_name, action, object, details, address)
    VALUES {(?, ?, ?i, ?, ?, ?, ?, ?, ?, ?)}""")
_HAS_EQUAL = """SELECT EXISTS (SELECT 1 FROM (
        SELECT actor_kind, actor, action, object, details, address FROM audit_log
        WHERE account_id = :account_id AND id >= :since ORDER BY id DESC LIMIT :among
    ) looked_at WHERE actor_kind = :actor_kind AND actor = :actor AND action = :action AND object = :object
        AND details = :details AND address = :address)"""
_COLUMNS = "id, at, actor_kind, actor, actor_name, action, object, details, address, account_id"
# Ids contain the time and sort by it, so lines outside of a period are not read.
_PAGE = """SELECT {columns} FROM (
        SELECT {columns} FROM audit_log WHERE {whose} id < :before AND id >= :first AND id < :last
        ORDER BY {order} DESC LIMIT :scanned
    ) looked_at
    WHERE at >= :since AND at < :until
        AND (:action = '' OR action = :action OR substr(action, 1, length(:action) + 1) = :action || '.')
    ORDER BY {order} DESC LIMIT :most"""
_SCANNED_TO = """SELECT id FROM audit_log
    WHERE account_id = :account_id AND id < :before AND id >= :first AND id < :last
    ORDER BY id DESC LIMIT 1 OFFSET :skipped"""


class AuditNote(Struct):
    """A pending change, and the accounts whose audit logs record it."""

    env: Environment
    actor: Actor
    action: str
    address: str
    accounts: list[str]
    target: str = ""
    details: dict[str, str] = field(default_factory=dict)
    target_of: Callable[[Any], str] | None = None  # of what the write returns
    is_taken: bool = False  # by a write

    def write(self, tx: Tx, result: object = None, *, once: bool = False) -> None:
        """Add the lines of a change; `result` is of its write. `once`: no change; skip it if an equal line exists."""
        target = self.target if once or self.target_of is None else self.target_of(result)
        details = msgspec.json.encode({name: value[:AUDIT_TEXT] for name, value in self.details.items()}).decode()
        target, at = target[:AUDIT_TEXT], self.env.now()
        actor, rest = self.actor, (self.action, target, details, self.address)
        bindings = dict(zip(("action", "object", "details", "address"), rest, strict=True))
        bindings |= {"actor_kind": actor.kind, "actor": actor.id, "since": identifier_from("aud", at - EQUAL_WITHIN)}

        def is_told(account_id: str) -> bool:
            row = {**bindings, "account_id": account_id, "among": EQUAL_AMONG}
            return once and bool(one(tx, int, _HAS_EQUAL, row))

        line = self.env.identifier("aud"), at, *actor, *rest
        accounts = dict.fromkeys(self.accounts or [""])
        _ADD.run(tx, [(account_id, *line) for account_id in accounts if not is_told(account_id)])


_details = msgspec.json.Decoder(dict[str, str])
_NOTE: ContextVar[AuditNote | None] = ContextVar("audit note", default=None)


async def write_noted(write: Callable[[Work[T]], Awaitable[T]], work: Work[T]) -> T:
    """Run the write and, unless an earlier one took the task's note, add its lines. A failed write takes none."""
    note = _NOTE.get()
    if note is None or note.is_taken:
        return await write(work)

    def noted(tx: Tx) -> T:
        before = tx.total_changes()
        result = work(tx)
        note.is_taken = tx.total_changes() != before
        if note.is_taken:
            note.write(tx, result)
        return result

    note.is_taken = True  # by this write, while it waits
    try:
        return await write(noted)
    except BaseException:
        note.is_taken = False
        raise


@contextmanager
def unnoted() -> Iterator[None]:
    """Exclude writes from the task's note: they are not part of its change."""
    token = _NOTE.set(None)
    try:
        yield
    finally:
        _NOTE.reset(token)


def about(
    target: str | None = None,
    details: Mapping[str, object] | None = None,
    *,
    made: Callable[[Any], str] | None = None,
    action: str | None = None,
) -> None:
    """Describe the change in the task's note before the write; `made` reads its result, `action` renames it."""
    if (note := _NOTE.get()) is not None:
        note.action = action or note.action
        note.target = note.target if target is None else target
        note.target_of = made or note.target_of
        note.details |= {name: str(value) for name, value in (details or {}).items() if value not in (None, "")}


def concerns(account_id: str) -> None:
    """Tell the task's note, if there is one, that the change is this account's, too."""
    if (note := _NOTE.get()) is not None:
        note.accounts.append(account_id)


def of_account(account_id: str) -> None:
    if (note := _NOTE.get()) is not None and not note.accounts:
        note.accounts.append(account_id)


class Audit(StorePart):
    @asynccontextmanager
    async def noting(
        self,
        actor: Actor,
        action: str,
        address: str,
        accounts: Sequence[str] = (),
        target: str = "",
        *,
        always: bool = True,
    ) -> AsyncIterator[None]:
        """Record the changes made inside; nothing if it fails. Without `always`, nothing if no write changed a row."""
        note = AuditNote(self.env, actor, action, address, list(accounts), target)
        token = _NOTE.set(note)
        try:
            yield
            if always and not note.is_taken:
                note.is_taken = True
                await self.engine.write(lambda tx: note.write(tx, once=True))
        finally:
            _NOTE.reset(token)

    async def page(self, account_id: str | None, **filters: Any) -> list[AuditEntry]:
        return (await self.search(account_id, scanned=EVERY_LINE, **filters))[0]

    async def search(
        self,
        account_id: str | None,
        *,
        before: str | None = None,
        action: str = "",
        since: int = 0,
        until: int = 2**53,
        most: int = 100,
        scanned: int = AUDIT_SCANNED,
    ) -> tuple[list[AuditEntry], str | None]:
        """Return lines of an account among the next `scanned`, newest first, and the id to continue before, if any.

        Without an account: lines of all accounts and the installation. `action` may be the word before its dot.
        """
        bindings = {"account_id": account_id, "before": before or NEWEST, "action": action, "since": since}
        bindings |= {"until": until, "most": most + 1, "scanned": scanned, "skipped": scanned - 1}
        bindings["first"] = identifier_from("aud", max(0, since - ID_SLACK))
        bindings["last"] = identifier_from("aud", until + ID_SLACK)
        whose, order = ("", "at DESC, id") if account_id is None else ("account_id = :account_id AND", "id")
        query = _PAGE.format(columns=_COLUMNS, whose=whose, order=order)

        def read(tx: Tx) -> tuple[list[AuditEntry], str | None]:
            results = [_entry(row) for row in rows(tx, query, bindings)]
            if len(results) > most:
                return results[:most], results[most - 1].id
            return results, one(tx, str, _SCANNED_TO, bindings)

        return await self.engine.scan(read, account_id or SERVER_WORK)


def _entry(row: Row) -> AuditEntry:
    *what, details, address, account_id = row
    return AuditEntry(*(*what, _details.decode(details), address, account_id))
