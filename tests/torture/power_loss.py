"""Power loss: the embedded database on a disk that keeps, of what was not synced, whatever it likes.

A VFS remembers for each file what was synced, and the writes since. At a cut it makes the files that a disk may have
then: each sector of an unsynced write is there or not, in any order, a sector of 512 bytes maybe only in part. These
files are opened like after a restart, and everything that was acknowledged before the cut has to be there.
"""

import random
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import trio

from appliance.environment import Environment
from appliance.model.mail import RecipientStatus
from appliance.store import FILE_NAME, Store, open_store
from tests.store.postgresql.stepping import check_books
from tests.store.samples import Messages, outcome

SECTOR = 512
SENDERS = 6
MESSAGES = 40  # of each sender in one run
CREDITS = 1_000_000
# Of the calls of a run, about as many; the first of them make the schema.
CALLS_BETWEEN_CUTS = 60


@dataclass
class _Content:
    """One file: what is certain to be on the disk, and what is on its way there."""

    synced: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)  # None: cut off there

    def settle(self) -> None:
        for at, data in self.pending:
            _put(self.synced, at, data)
        self.pending.clear()

    def after_a_cut(self, chance: random.Random) -> bytes:
        content, kept = bytearray(self.synced), chance.random()
        for at, data in self.pending:
            if data is None:
                if chance.random() < kept:
                    del content[at:]
                continue
            for begin in range(0, len(data), SECTOR):
                sector = data[begin : begin + SECTOR]
                if chance.random() < 0.02:
                    sector = sector[: chance.randrange(len(sector))]
                if chance.random() < kept:
                    _put(content, at + begin, sector)
        return bytes(content)


def _put(content: bytearray, at: int, data: bytes | None) -> None:
    if data is None:
        del content[at:]
        return
    if len(content) < at:
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


@dataclass(frozen=True)
class Cut:
    """What a disk may have had at one moment, and what had been acknowledged before."""

    files: dict[str, bytes]
    accepted: dict[str, str]  # id of a message by its key
    recorded: frozenset[str]  # recipients with a result


class Acknowledged:
    def __init__(self) -> None:
        self.accepted: dict[str, str] = {}
        self.recorded: set[str] = set()


class CutDisk(apsw.VFS):
    """SQLite's own file system, which remembers what is synced, and is cut now and then."""

    NAME, BASE = "cut", "unix"

    def __init__(self, chance: random.Random, told: Acknowledged) -> None:
        self.contents: dict[str, _Content] = {}
        self.cuts: list[Cut] = []
        self._chance, self._told, self._lock = chance, told, threading.RLock()
        self._until_next = chance.randrange(1, CALLS_BETWEEN_CUTS)
        super().__init__(self.NAME, self.BASE, makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return _CutFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        with self._lock:
            self.contents.pop(Path(filename).name, None)
        super().xDelete(filename, syncdir)

    @contextmanager
    def changing(self, name: str) -> Iterator[_Content]:
        """Around each change of a file; some of them are followed by a cut."""
        with self._lock:
            told = Cut({}, dict(self._told.accepted), frozenset(self._told.recorded))
            yield self.contents.setdefault(name, _Content())
            self._until_next -= 1
            if self._until_next <= 0:
                self._until_next = self._chance.randrange(1, 2 * CALLS_BETWEEN_CUTS)
                told.files.update((each, content.after_a_cut(self._chance)) for each, content in self.contents.items())
                self.cuts.append(told)


class _CutFile(apsw.VFSFile):
    def __init__(self, disk: CutDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        kept = flags[0] & (apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_WAL)
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._name = Path(path).name if kept and path else ""
        super().__init__(CutDisk.BASE, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        if self._name:
            with self._disk.changing(self._name) as content:
                content.pending.append((offset, bytes(data)))

    def xTruncate(self, size: int) -> None:
        super().xTruncate(size)
        if self._name:
            with self._disk.changing(self._name) as content:
                content.pending.append((size, None))

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        if self._name:
            with self._disk.changing(self._name) as content:
                content.settle()


async def _use(store: Store, account_id: str, told: Acknowledged, env: Environment) -> None:
    """Accept and record messages as a server does, each with a key, and note what was acknowledged."""
    messages = Messages(env, account_id)

    async def send(sender: int) -> None:
        for number in range(MESSAGES):
            key = f"{sender}.{number}"
            message = messages.new("a@example.net", "b@example.net", key=key, size=3_000)
            await store.messages.accept(message)
            told.accepted[key] = message.id
            if sender == 0 and number % 4 == 3:
                due = await store.queue.due(simulated=True, most=3)
                statuses = (RecipientStatus.DELIVERED, RecipientStatus.BOUNCED, RecipientStatus.DEFERRED)
                results = [outcome(each, status, env.now()) for each, status in zip(due, statuses, strict=False)]
                await store.queue.record(results)
                told.recorded.update(each.recipient.id for each in results)

    async with trio.open_nursery() as nursery:
        for sender in range(SENDERS):
            nursery.start_soon(send, sender)


def run(seed: int) -> list[Cut]:
    """One life of a database under load, with the cuts that were made meanwhile."""
    told, env = Acknowledged(), Environment()
    disk = CutDisk(random.Random(seed), told)

    async def live(data_dir: Path) -> None:
        async with open_store(data_dir, env) as store:
            account = await store.accounts.create("demo", "demo@example.org", "hash", credit=CREDITS)
            await _use(store, account.id, told, env)

    try:
        with tempfile.TemporaryDirectory() as directory:
            trio.run(live, Path(directory))
    finally:
        disk.unregister()
    return disk.cuts


def check(cut: Cut) -> str:
    with tempfile.TemporaryDirectory() as directory:
        for name, content in cut.files.items():
            (Path(directory) / name).write_bytes(content)
        try:
            return trio.run(_check, Path(directory), cut)
        except (apsw.Error, AssertionError) as error:
            return f"{type(error).__name__}: {error}"


async def _check(data_dir: Path, cut: Cut) -> str:
    async with open_store(data_dir, Environment(), inline=True) as store:
        await check_books(store)
    with apsw.Connection(str(data_dir / FILE_NAME)) as connection:
        if (found := connection.execute("PRAGMA integrity_check").fetchall()) != [("ok",)]:
            return f"integrity: {found[:3]}"
        kept = connection.execute("SELECT key, message_id FROM idempotency_keys")
        stored = {str(key): str(message) for key, message in kept}
        lost = [key for key, message in cut.accepted.items() if stored.get(key) != message]
        there = {message for (message,) in connection.execute("SELECT id FROM messages")}
        lost += [key for key, message in cut.accepted.items() if message not in there]
        if lost:
            return f"acknowledged and lost: {lost[:3]} of {len(lost)}"
        tried = {recipient for (recipient,) in connection.execute("SELECT recipient_id FROM attempts")}
        if not cut.recorded <= tried:
            return f"results told and lost: {len(cut.recorded - tried)}"
    return ""
