"""The audit log: who changed what, when and from where, for each account, kept for a year.

An account keeps AUDIT_LINES of them at most: retention deletes those beyond, the oldest first. A page is found by
reading AUDIT_SCANNED lines at most, whatever the filter; then it may be short, and says where to go on.

A change is written down in the transaction that makes it. `Audit.noting` opens a note for the current task; the first
write that an engine is given inside and that changes something takes the note's lines along, and if there was none they
are written at the end: so no change that was answered with success is missing. A write that changed nothing returns
False or an empty list. A note has no secrets.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import msgspec

from appliance.model.dashboard import Actor, AuditEntry
from appliance.outside import Outside, identifier_from
from appliance.store.engine import NEWEST, Many, Row, StorePart, T, Tx, Work, one, rows
from appliance.times import DAY, HOUR

AUDIT_KEPT = 365 * DAY
AUDIT_TEXT = 300  # characters of an object or a detail
AUDIT_LINES = 100_000  # kept of each account, and of the installation
AUDIT_SCANNED = 10_000  # lines read for one page
EVERY_LINE = 2**53  # to be read for a page
ID_SLACK = HOUR  # by which an id may tell another time than its line: the clock was set back between the two

_ADD = Many("""INSERT INTO audit_log
    (account_id, id, at, actor_kind, actor, actor_name, action, object, details, address)
    VALUES {(?, ?, ?i, ?, ?, ?, ?, ?, ?, ?)}""")
_COLUMNS = "id, at, actor_kind, actor, actor_name, action, object, details, address, account_id"
# Ids sort by time and hold it, so that lines outside of a period are not read. The rest is filtered among few.
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


@dataclass(slots=True)
class AuditNote:
    """A change that is about to be made, and whose logs tell of it."""

    outside: Outside
    actor: Actor
    action: str
    address: str
    accounts: list[str]
    target: str = ""
    details: dict[str, str] = field(default_factory=dict)
    target_of: Callable[[Any], str] | None = None  # of what the write returns
    is_taken: bool = False  # by a write

    def write(self, tx: Tx, result: object = None) -> None:
        about = self.target if self.target_of is None else self.target_of(result)
        details = {name: value[:AUDIT_TEXT] for name, value in self.details.items()}
        told = (self.actor.kind, self.actor.id, self.actor.name, self.action, about[:AUDIT_TEXT])
        line = (self.outside.identifier("aud"), self.outside.now(), *told)
        packed = msgspec.json.encode(details).decode()
        accounts = dict.fromkeys(self.accounts or [""])
        _ADD.run(tx, [(account_id, *line, packed, self.address) for account_id in accounts])


_details = msgspec.json.Decoder(dict[str, str])
_NOTE: ContextVar[AuditNote | None] = ContextVar("audit note", default=None)


async def write_noted(write: Callable[[Work[T]], Awaitable[T]], work: Work[T]) -> T:
    """Write the work, with the lines of the task's note if no write has taken them yet; one that fails takes none."""
    note = _NOTE.get()
    if note is None or note.is_taken:
        return await write(work)

    def noted(tx: Tx) -> T:
        result = work(tx)
        note.is_taken = result is not False and result != []
        if note.is_taken:
            note.write(tx, result)
        return result

    note.is_taken = True  # by this one, while it waits
    try:
        return await write(noted)
    except BaseException:
        note.is_taken = False
        raise


@contextmanager
def unnoted() -> Iterator[None]:
    """Let writes be made that are no part of the change which the task's note tells of."""
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
    """Tell the task's note, if there is one, what the change is about, before the write; `made` reads its result.

    With an action the change is another one than that of the operation.
    """
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
    """Tell a note that has no account yet whose log it belongs to."""
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
        """Write down what is changed inside; nothing if it fails, and without `always` nothing if it wrote nothing."""
        note = AuditNote(self.outside, actor, action, address, list(accounts), target)
        token = _NOTE.set(note)
        try:
            yield
            if always and not note.is_taken:
                note.is_taken = True
                note.target_of = None
                await self.engine.write(note.write)
        finally:
            _NOTE.reset(token)

    async def page(
        self,
        account_id: str | None,
        *,
        before: str | None = None,
        action: str = "",
        since: int = 0,
        until: int = 2**53,
        most: int = 100,
    ) -> list[AuditEntry]:
        """The newest lines of an account, or of all and the installation; `action` may be the word before its dot."""
        wanted = _wanted(account_id, before, action, since, until) | {"most": most, "scanned": EVERY_LINE}
        whose = "" if account_id is None else "account_id = :account_id AND"
        query = _PAGE.format(columns=_COLUMNS, whose=whose, order="at DESC, id" if account_id is None else "id")
        return await self.engine.scan(lambda tx: [_entry(row) for row in rows(tx, query, wanted)], account_id or "")

    async def search(
        self,
        account_id: str,
        *,
        before: str | None = None,
        action: str = "",
        since: int = 0,
        until: int = 2**53,
        most: int = 100,
        scanned: int = AUDIT_SCANNED,
    ) -> tuple[list[AuditEntry], str | None]:
        """Lines of an account among the next `scanned` ones, newest first, and before which id to go on, if at all."""
        wanted = _wanted(account_id, before, action, since, until)
        wanted |= {"most": most + 1, "scanned": scanned, "skipped": scanned - 1}
        query = _PAGE.format(columns=_COLUMNS, whose="account_id = :account_id AND", order="id")

        def read(tx: Tx) -> tuple[list[AuditEntry], str | None]:
            found = [_entry(row) for row in rows(tx, query, wanted)]
            if len(found) > most:
                return found[:most], found[most - 1].id
            return found, one(tx, str, _SCANNED_TO, wanted)

        return await self.engine.scan(read, account_id)


def _wanted(account_id: str | None, before: str | None, action: str, since: int, until: int) -> dict[str, object]:
    ids = identifier_from("aud", max(0, since - ID_SLACK)), identifier_from("aud", until + ID_SLACK)
    wanted: dict[str, object] = {"account_id": account_id, "before": before or NEWEST, "action": action}
    return wanted | {"since": since, "until": until, "first": ids[0], "last": ids[1]}


def _entry(row: Row) -> AuditEntry:
    return AuditEntry(*row[:7], _details.decode(row[7]), *row[8:])  # type: ignore[call-arg]
