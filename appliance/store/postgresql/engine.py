"""Runs transactions on PostgreSQL, and makes this process one of the nodes that share it.

Delivery outcomes have their own writer, and so do large writes. Items that share a function are written READ COMMITTED,
with locks on rows that several nodes can write. All other functions run SERIALIZABLE (`transactions.py`).
"""

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, suppress
from functools import partial

import psycopg
import trio
import trio.lowlevel
from psycopg import errors

from appliance.concurrency.fair_share import SERVER_WORK, FairQueue
from appliance.errors import Code, PublicError, Refused, StorageUnavailable
from appliance.model.database import (
    NO_OTHERS,
    CancelAnswer,
    CancelRequest,
    Feature,
    LoginFailure,
    NodeState,
    OtherNodes,
)
from appliance.store.audit import write_noted
from appliance.store.engine import ALONE, Engine, Item, JointWork, RecordAnswer, Row, T, Tx, Work, changed, rows
from appliance.store.postgresql import nodes
from appliance.store.postgresql.connection import LONG_STATEMENT_TIMEOUT, STATEMENT_TIMEOUT, connect, run
from appliance.store.postgresql.migrate import (
    MIGRATION_TIMEOUT,
    advance,
    fence_older_nodes,
    migrate,
    newest_known,
    plan,
    refusals,
)
from appliance.store.postgresql.nodes import BEAT, MOST_SKEW, WARN_SKEW, Membership, NodeIdentity
from appliance.store.postgresql.partitions import TimePartitions, make_first
from appliance.store.postgresql.transactions import DATABASE_THREADS, Link, Readers, Writer
from appliance.telemetry.log import get_logger

READER_CONNECTIONS = 2
CANCEL_TIMEOUT = 5.0  # seconds to wait for the node that delivers what is cancelled
ANSWER_POLL = 0.1  # seconds
REQUEST_POLL = 0.5  # seconds
UPGRADE_RETRY = 60  # seconds
SCHEMA_PAUSE = 60.0  # seconds after a failed change of the schema until the next try

_IS_READ_ONLY = "SELECT current_setting('transaction_read_only')"  # of a standby, too
_VERSION = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
# To cancel a message, a node asks the nodes that deliver it, by a row. They answer in the cancelling transaction.
_DELIVERING = """SELECT DISTINCT r.owner FROM recipients r JOIN nodes n ON n.owner = r.owner AND n.adopted_by IS NULL
    WHERE r.message_id = %s AND r.next_attempt_at IS NOT NULL AND r.owner <> current_setting('appliance.owner')
    ORDER BY 1"""
_ASK = """INSERT INTO cancellations (id, owner, message_id, account_id, reason, asked_at)
    VALUES (%s, %s, %s, %s, %s, %s)"""
_ASKED = """SELECT id, message_id, account_id, reason FROM cancellations
    WHERE owner = current_setting('appliance.owner') AND cancelled IS NULL ORDER BY asked_at LIMIT 100"""
_ANSWER = """UPDATE cancellations SET cancelled = :cancelled, refusal = :refusal
    WHERE id = :id AND cancelled IS NULL"""
_ANSWERED = "SELECT count(*) FROM cancellations WHERE id = ANY(%s) AND cancelled IS NOT NULL"
_WITHDRAW = "DELETE FROM cancellations WHERE id = ANY(%s) RETURNING cancelled, refusal"

log = get_logger("store")


def _answer(request_id: str, tx: Tx, reply: CancelAnswer) -> None:
    """Answer in the transaction that cancels; raise Refused if the request was withdrawn."""
    if not changed(tx, _ANSWER, {"cancelled": reply.cancelled, "refusal": reply.refusal, "id": request_id}):
        raise Refused(Code.NOT_FOUND, "the request to cancel was withdrawn")


def _advance(link: Link) -> bool:
    """Change the schema; False if that failed for a lasting reason."""
    try:
        if advance(link.open(), time.time_ns() // 1_000):
            log.info("the schema was changed", schema=newest_known())
    except psycopg.Error as error:
        log.warning("the schema cannot be changed", schema=newest_known(), reason=" ".join(str(error).split()))
        return False
    finally:
        link.close()
    return True


async def prepare(
    url: str,
    now: int,
    check_key: Callable[[str | None], None] | None = None,
    identify: Callable[[], NodeIdentity] | None = None,
    home: str = "",
    *,
    may_upgrade: bool = True,
) -> Membership | None:
    """Bring the database to this version's schema and join as a node. Raises before anything is written."""

    def prepared() -> Membership | None:
        with closing(connect(url, statement_timeout=MIGRATION_TIMEOUT)) as connection:
            migrate(connection, now, check_key, home=home, may_upgrade=may_upgrade)
            if identify is None:
                return None
            make_first(connection, now)
            member = Membership(identify())
            member.join(connection)
            member.beat(connection, in_flight=0)  # measures the clock skew before the node accepts mail
            return member

    with refusals(url):
        return await trio.to_thread.run_sync(prepared, limiter=DATABASE_THREADS)


class PostgresEngine(Engine):
    """Three writers, several readers, and one for longer reads."""

    is_shared = True

    def __init__(
        self, url: str, membership: Membership | None = None, *, statement_timeout: int = STATEMENT_TIMEOUT
    ) -> None:
        owner = "" if membership is None else membership.identity.owner
        self._url = url
        self._membership = membership  # None: a command, which delivers nothing
        self.node = "" if membership is None else membership.identity.name
        quick = [Link(url, owner, statement_timeout) for _ in range(4 + READER_CONNECTIONS)]
        large, for_scans = [Link(url, owner, LONG_STATEMENT_TIMEOUT) for _ in range(2)]
        urgent, ordinary, beats, asking, *for_reading = quick
        self._links = [*quick, large, for_scans]
        for link in self._links:
            link.others = self._links
        self._urgent = Writer(urgent, "store-urgent")
        self._ordinary = Writer(ordinary, "store-writer")
        self._large = Writer(large, "store-large")
        self._readers = Readers(for_reading)
        self._scanner = Readers([for_scans])
        self._beats = Readers([beats])
        self._asking = Readers([asking])
        self._failures = nodes.SharedFailures()
        self._fenced: set[Feature] = set()  # that all nodes know
        self._turns = FairQueue(1, patience=float("inf"), rest=0)
        self.partitions = TimePartitions(self._run_on_thread)

    async def connect(self) -> None:
        """Open all connections now: later there may be no free descriptor, and opening takes time."""

        async def open_link(link: Link) -> None:
            with suppress(StorageUnavailable):
                await trio.to_thread.run_sync(link.open, limiter=DATABASE_THREADS)

        async with trio.open_nursery() as nursery:
            for link in self._links:
                nursery.start_soon(open_link, link)

    async def write(
        self, work: Work[T], *, urgent: bool = False, large: bool = False, bulk: bool = False, locks: bool = False
    ) -> T:
        self.ordinary_writes += not bulk
        writer = self._writer(urgent, large or bulk)
        return await write_noted(partial(writer.write, item=ALONE, large=large or bulk, locks=locks), work)

    async def write_item(self, work: JointWork[Item, T], item: Item, *, urgent: bool = False, large: bool = False) -> T:
        self.ordinary_writes += 1
        result: T = await self._writer(urgent, large).write(work, item, large=large, locks=True)
        return result

    def _writer(self, urgent: bool, large: bool) -> Writer:
        return self._urgent if urgent else self._large if large else self._ordinary

    async def check_writable(self) -> None:
        def refuse_read_only(tx: Tx) -> None:
            if rows(tx, _IS_READ_ONLY, {}) != [("off",)]:
                raise errors.ReadOnlySqlTransaction("the database takes no writes")

        await self.write(refuse_read_only)

    async def read(self, work: Work[T]) -> T:
        return await self._readers.read(work, snapshot=False)

    async def snapshot(self, work: Work[T]) -> T:
        return await self._readers.read(work, snapshot=True)

    async def scan(self, work: Work[T], owner: str = SERVER_WORK) -> T:
        async with self._turns.take(owner):
            return await self._scanner.read(work, snapshot=True)

    async def _run_on_thread(self, work: Callable[[psycopg.Connection[Row]], T]) -> T:
        async with self._turns.take(SERVER_WORK):
            return await self._scanner.run(work)

    async def version(self) -> int:
        ((version,),) = await self.read(lambda tx: rows(tx, _VERSION, {}))
        return int(version)

    # ---- one of several nodes

    def holds_lease(self) -> bool:
        return self._membership is None or self._membership.holds()

    def has_right_clock(self) -> bool:
        return self._membership is None or self._membership.has_right_clock()

    def live_nodes(self) -> int:
        return 1 if self._membership is None else self._membership.live

    def others(self) -> OtherNodes:
        return NO_OTHERS if self._membership is None else self._membership.others

    def slowest_clock(self, now: int) -> int:
        return now if self._membership is None else now - self._membership.skew - MOST_SKEW

    def shared_clock(self, now: int) -> int:
        return now if self._membership is None else now - self._membership.skew

    async def has_chore(self, name: str) -> bool:
        member = self._membership
        return member is None or await self._beats.run(lambda connection: member.has_chore(connection, name))

    async def keep_lease(
        self, in_flight: Callable[[], int], drain: Callable[[], None], addresses: Callable[[], Sequence[str]] = tuple
    ) -> None:
        """Renew the lease, and take over what no node owns. Raises Fenced."""
        member = self._membership
        if member is None:
            return
        warned = False
        while True:
            began = trio.current_time()
            with suppress(StorageUnavailable):  # the database is away, and without it nothing is delivered
                await self._beats.run(partial(member.beat, in_flight=in_flight(), addresses=addresses()))
                while taken := await self._beats.run(member.adopt):
                    log.info("adopted the rows of a node that ended", rows=taken)
                    await trio.lowlevel.checkpoint()
                    if trio.current_time() > began + BEAT / 2:
                        break
            if (abs(member.skew) >= WARN_SKEW) is not warned:
                warned = not warned
                if warned:
                    log.warning("this clock differs from the database's", seconds=round(member.skew / 1_000_000, 1))
            if member.draining:
                drain()
            await trio.sleep(max(0.0, began + BEAT - trio.current_time()))

    async def finish_upgrade(self) -> None:
        if self._membership is None:
            return
        link, result = Link(self._url, self._membership.identity.owner, MIGRATION_TIMEOUT), list[str]()
        link.others = [*self._links, link]
        try:
            while True:
                went_well = True
                with suppress(StorageUnavailable):
                    planned = await self._beats.run(plan)
                    if not planned.due and not planned.waiting:
                        return
                    if planned.older != result and (result := planned.older):
                        log.info("a change of the schema waits for older nodes", schema=newest_known(), nodes=result)
                    if planned.due and await self.has_chore("schema"):
                        went_well = await trio.to_thread.run_sync(
                            _advance, link, abandon_on_cancel=True, limiter=DATABASE_THREADS
                        )
                await trio.sleep(BEAT if went_well else SCHEMA_PAUSE)
        finally:
            link.give_up()

    async def fence_older_nodes(self, feature: Feature) -> None:
        if feature in self._fenced:
            return
        if older := await self._asking.run(lambda connection: fence_older_nodes(connection, feature)):
            text = f"This cluster takes no {feature} yet: upgrade the nodes {', '.join(older)} first, then retry."
            raise Refused(Code.TEMPORARY_FAILURE, text, retry_after=UPGRADE_RETRY)
        self._fenced.add(feature)

    async def nodes(self) -> list[NodeState]:
        return await self._asking.run(nodes.states)

    async def hosts(self) -> tuple[str, ...]:
        return tuple(address for (address,) in await self.rows(nodes.HOSTS, {"kept": nodes.KEPT}))

    async def drain(self, name: str) -> bool:
        return await self._asking.run(lambda connection: nodes.drain(connection, name))

    async def share_failures(self, failures: Sequence[LoginFailure]) -> list[LoginFailure]:
        now = time.time_ns() // 1_000
        return await self._asking.run(lambda connection: self._failures.exchange(connection, failures, now))

    async def cancel_elsewhere(self, message_id: str, account_id: str | None, reason: str) -> list[CancelAnswer]:
        """Ask, and wait CANCEL_TIMEOUT for the answers. Raises Refused if one is missing."""
        others = await self._ask(_DELIVERING, message_id)
        if not others:
            return []
        ids, now = [secrets.token_hex(16) for _ in others], time.time_ns() // 1_000
        answers: list[CancelAnswer] = []
        try:
            for request_id, (owner,) in zip(ids, others, strict=True):
                await self._ask(_ASK, request_id, owner, message_id, account_id, reason, now)
            with trio.move_on_after(CANCEL_TIMEOUT):
                while await self._ask(_ANSWERED, ids) != [(len(ids),)]:  # noqa: ASYNC110 - by another process
                    await trio.sleep(ANSWER_POLL)
        finally:
            with trio.CancelScope(shield=True), suppress(StorageUnavailable):
                withdrawn = await self._ask(_WITHDRAW, ids)
                answers = [CancelAnswer(*row) for row in withdrawn if row[0] is not None]
        if len(answers) == len(ids):
            return answers
        text = "The node that delivers this message does not answer. Retry in some seconds."
        raise Refused(Code.TEMPORARY_FAILURE, text, retry_after=5)

    async def answer_cancellations(self, cancel: Callable[[CancelRequest, RecordAnswer], Awaitable[None]]) -> None:
        if self._membership is None:
            return
        while True:
            requests: list[CancelRequest] = []
            with suppress(StorageUnavailable):
                requests = [CancelRequest(*row) for row in await self._ask(_ASKED)]
            for request in requests:
                with suppress(PublicError):  # withdrawn; or the database is away, and it is asked for again
                    await cancel(request, partial(_answer, request.id))
            await trio.sleep(REQUEST_POLL)

    async def _ask(self, sql: str, *values: object) -> list[Row]:
        return await self._asking.run(lambda connection: run(connection, sql, values))

    async def leave(self) -> None:
        if (member := self._membership) is not None:
            with suppress(StorageUnavailable):
                await self._beats.run(member.leave)

    async def close(self) -> None:
        async with trio.open_nursery() as nursery:
            for writer in (self._ordinary, self._large, self._urgent):
                nursery.start_soon(writer.close)
        await self.leave()  # last: what was delivered is on record
        self._beats.close()
        self._asking.close()
        self._readers.close()
        self._scanner.close()
