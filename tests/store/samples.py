"""What the tests of the store are made of: a clock of their own, messages, results, and a disk that can fail."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import apsw
import psycopg
import pytest
import trio

from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.model.mail import (
    Attempt,
    DueRecipient,
    IdempotencyClaim,
    NewMessage,
    NewRecipient,
    Outcome,
    RecipientStatus,
    Source,
)
from appliance.store import Store, open_store
from appliance.store.engine import Bindings, Bulk, Cursor, OnFault, Row, Tx

T = TypeVar("T")

SECOND = 1_000_000  # microseconds
DAY = 86_400 * SECOND
MORNING = 20_000 * DAY + 9 * 3600 * SECOND  # nine o'clock of a day in 2024
CREDITS = 100  # of the account that tests use
HASH = "$argon2id$not-a-real-one"
REPLIES = {
    RecipientStatus.DELIVERED: (250, "250 2.0.0 OK"),
    RecipientStatus.BOUNCED: (550, "550 5.1.1 User unknown"),
    RecipientStatus.DEFERRED: (451, "451 4.3.0 Try again later"),
    RecipientStatus.FAILED: (451, "451 4.3.0 Try again later"),
}


@dataclass
class Clock:
    now: int = MORNING

    def __call__(self) -> int:
        self.now += 1
        return self.now


@dataclass(frozen=True)
class Database:
    """The database of one test, which may open it several times: the one place that says which engine has it."""

    data_dir: Path
    env: Environment
    url: str = ""  # of a PostgreSQL

    def open(self, *, inline: bool = False, on_failure: OnFault | None = None) -> AbstractAsyncContextManager[Store]:
        return open_store(self.data_dir, self.env, url=self.url, inline=inline, on_failure=on_failure)

    @property
    def broken_rule(self) -> type[Exception]:
        return psycopg.IntegrityError if self.url else apsw.ConstraintError


class _Noting:
    """A transaction that notes its statements."""

    def __init__(self, tx: Tx, statements: list[str]) -> None:
        self._tx, self._statements = tx, statements

    def execute(self, sql: str, bindings: Bindings, /) -> Cursor:
        self._statements.append(sql)
        return self._tx.execute(sql, bindings)

    def many(self, statement: Bulk, values: Sequence[Row], /) -> list[Row]:
        self._statements += [statement.before] if values else []
        return self._tx.many(statement, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)


@contextmanager
def written_statements(store: Store) -> Iterator[list[str]]:
    """Collect the statements of transactions that write: on SQLite all other writers wait for them."""
    statements, write = list[str](), store.engine.write

    async def noting(work: Callable[[Tx], Any], **options: bool) -> Any:
        return await write(lambda tx: work(cast("Tx", _Noting(tx, statements))), **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.engine, "write", noting)
        yield statements


@dataclass
class Messages:
    env: Environment
    account_id: str

    def new(
        self, *addresses: str, key: str | None = None, test: bool = False, simulated: bool = True, size: int = 100
    ) -> NewMessage:
        now = self.env.now()
        recipients = tuple(
            NewRecipient(self.env.identifier("rcp"), address, address.lower(), address.partition("@")[2])
            for address in addresses or ("b@example.net",)
        )
        claim = None if key is None else IdempotencyClaim("key:1", key, b"print of " + key.encode(), now + DAY)
        return NewMessage(
            id=self.env.identifier("msg"),
            account_id=self.account_id,
            request_id=self.env.identifier("req"),
            source=Source.TEST if test else Source.API,
            simulated=simulated,
            sender="A <a@example.com>",
            envelope_from="a@example.com",
            subject="A subject",
            tags=("one", "two"),
            template_alias=None,
            template_version=None,
            mime=b"m" * size,
            receipt=b'{"status":"queued"}',
            recipients=recipients,
            credits=0 if test else len(recipients),
            created_at=now,
            idempotency=claim,
        )


def outcome(recipient: DueRecipient, status: RecipientStatus, at: int, *, tries: int = 1, **fields: Any) -> Outcome:
    attempt = Attempt(at - SECOND, at, *REPLIES[status])
    if status is RecipientStatus.DEFERRED:
        fields.setdefault("next_attempt_at", at + 300 * SECOND)
    return Outcome(recipient, status, (attempt,) * tries, at=at, **fields)


async def record(store: Store, clock: Clock, statuses: Iterable[RecipientStatus]) -> list[DueRecipient]:
    due = sorted(await store.queue.due(simulated=True, most=100), key=lambda recipient: recipient.id)
    results = [outcome(recipient, status, clock()) for recipient, status in zip(due, statuses, strict=False)]
    await store.queue.record(results)
    return due


def refusal(code: Code) -> "pytest.RaisesExc[Refused]":
    return pytest.RaisesExc(Refused, check=lambda error: error.code is code)


def existing(value: T | None) -> T:
    assert value is not None
    return value


async def at_once(function: Callable[..., Awaitable[object]], arguments: Iterable[tuple[Any, ...]]) -> None:
    async with trio.open_nursery() as nursery:
        for item in arguments:
            nursery.start_soon(function, *item)


# ---- a disk that can fail
@dataclass
class Faults:
    """What the disk does to the write-ahead log from now on, and how often it has been asked to be durable."""

    on_sync: type[apsw.Error] | None = None
    on_write: type[apsw.Error] | None = None
    on_read: type[apsw.Error] | None = None
    syncs: int = 0

    @contextmanager
    def raising(self, **faults: type[apsw.Error]) -> Iterator[None]:
        for name, fault in faults.items():
            setattr(self, name, fault)
        try:
            yield
        finally:
            self.on_sync = self.on_write = self.on_read = None


class FailingDisk(apsw.VFS):
    NAME = "failing"
    BASE = "unix"

    def __init__(self) -> None:
        self.faults = Faults()
        super().__init__(self.NAME, self.BASE, makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return _File(self.faults, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, faults: Faults, name: Any, flags: list[int]) -> None:
        self._faults = faults if flags[0] & apsw.SQLITE_OPEN_WAL else Faults()
        super().__init__(FailingDisk.BASE, name, flags)

    def xSync(self, flags: int) -> None:
        self._faults.syncs += 1
        _raise(self._faults.on_sync)
        super().xSync(flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        _raise(self._faults.on_write)
        super().xWrite(data, offset)

    def xRead(self, amount: int, offset: int) -> bytes:
        _raise(self._faults.on_read)
        return super().xRead(amount, offset)


def _raise(fault: type[apsw.Error] | None) -> None:
    if fault is not None:
        raise fault("simulated")


WEBHOOK_LOG = 7 * DAY


async def expire(store: Store, most: int = 500) -> int:
    return (await store.deletion.expired(WEBHOOK_LOG, most)).deleted
