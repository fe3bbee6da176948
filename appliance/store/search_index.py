"""The index of messages by words, built in the background in small commits.

A block indexes the words of some thousand consecutive messages of an account (`message/search_words.py`). A search
reads blocks from the newest to the oldest. It reads messages without a block row by row (`mail_log.py`), so it misses
none. Messages enter a block when they are INDEXED_AFTER old.

- A change CHANGES_NOTED_AFTER the acceptance or later is noted in its transaction (`search_changes`); every search and
  the indexer read such messages again. Words are never removed: a message found by the index is read, and checked.
- A block is unused (`size` 0) while it is built, after a crash, and once one of its messages has been deleted.
- One node builds blocks at a time. If another node has taken over, the first finds its block deleted and starts again.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import groupby
from operator import itemgetter
from struct import unpack
from time import perf_counter
from typing import Final

import msgspec
import trio
from msgspec import Struct, field

from appliance.environment import Environment, identifier_from, identifier_time
from appliance.store.engine import START, Bulk, Row, StorePart, Tx, changed, one, rows, run
from appliance.store.message_records import read_texts
from appliance.telemetry.log import get_logger
from appliance.times import SECOND

INDEXED_AFTER: Final = 90 * SECOND  # a minute until a message is on disk, as in statistics.py, plus CHANGES_NOTED_AFTER
CHANGES_NOTED_AFTER: Final = 30 * SECOND  # a transaction that saw a younger message has ended before it is indexed
BLOCK_MESSAGES: Final = 2_048  # fewer than 65,536
BLOCK_TERMS: Final = 60_000  # after which a block ends, too
INDEXED_TOGETHER: Final = 128  # messages read and split together: a few milliseconds
TERMS_TOGETHER: Final = 4_000  # after which a step ends, too
WRITTEN_TOGETHER: Final = 1_000  # rows in one commit
COUNTED_TOGETHER: Final = 5_000  # recipients counted together, to find accounts with enough messages for a block
TERMS_ADDED_TOGETHER: Final = 500  # to existing blocks per commit
SORTED_TOGETHER: Final = 2_000  # a single call, which no other thread interrupts
BLOCKS_CHECKED: Final = 4  # at a time, whether all of their messages are there
INDEXING_SHARE: Final = 0.025  # of one processor, while the indexer has work
CHORE_RENEWED_EVERY: Final = 10.0  # seconds; after 30 another node may index

_SORTING = trio.CapacityLimiter(1)

log = get_logger("store")

ID = 32  # characters of a message's id behind `msg_`
POSTING = 4

# ---- what changes later

_NOTE_CHANGES = Bulk("""INSERT INTO search_changes (account_id, message_id, changed_at) VALUES {(?, ?, ?i)}
    ON CONFLICT (account_id, message_id) DO UPDATE SET changed_at = excluded.changed_at""")


def note_changes(tx: Tx, env: Environment, messages: Iterable[tuple[str, str]]) -> None:
    """Note that these messages, given with their accounts, have changed, in the transaction that changes them."""
    now = env.now()
    late = {message for message in messages if now - identifier_time(message[1]) >= CHANGES_NOTED_AFTER}
    if late:
        _NOTE_CHANGES.run(tx, [(*item, now) for item in sorted(late)])


_FORGET_BLOCKS = """UPDATE search_blocks SET size = 0, ids = ''
    WHERE account_id = :account_id AND after_id < :last AND last_id >= :first AND size > 0"""

_FORGET_CHANGES = Bulk("DELETE FROM search_changes WHERE (account_id, message_id) IN (VALUES {(?, ?)})")


def forget_blocks(tx: Tx, deleted: Sequence[tuple[str, str]]) -> None:
    """Stop using the blocks of messages that are being deleted, given with their accounts."""
    _FORGET_CHANGES.run(tx, deleted)
    by_account: dict[str, list[str]] = {}
    for account_id, message_id in deleted:
        by_account.setdefault(account_id, []).append(message_id)
    for account_id, ids in by_account.items():
        run(tx, _FORGET_BLOCKS, {"account_id": account_id, "first": min(ids), "last": max(ids)})


# ---- looking words up

_BLOCKS = """SELECT number, after_id, last_id FROM search_blocks
    WHERE account_id = :account_id AND after_id < :before AND last_id >= :from AND size > 0
    ORDER BY after_id DESC LIMIT :most"""
_POSTINGS = """SELECT CAST(wanted.value AS BIGINT) AS block, group_concat(t.postings, '') AS postings
    FROM json_each(:blocks) wanted CROSS JOIN search_terms t ON t.block = CAST(wanted.value AS BIGINT)
        AND t.term >= :word AND t.term < :end
    GROUP BY CAST(wanted.value AS BIGINT)"""
_WEIGHT = """SELECT coalesce(sum(octet_length(t.postings)), 0) FROM json_each(:blocks) wanted
    CROSS JOIN search_terms t ON t.block = CAST(wanted.value AS BIGINT) AND t.term >= :word AND t.term < :end"""
_IDS = "SELECT ids FROM search_blocks WHERE number = :number"
_CHANGED = """SELECT message_id FROM search_changes
    WHERE account_id = :account_id AND message_id >= :from AND message_id < :before
    ORDER BY message_id DESC LIMIT :most"""
_AFTER_ALL = "\U0010ffff"


class Block(Struct, frozen=True):
    number: int
    after_id: str
    last_id: str


def blocks_before(tx: Tx, account_id: str, before: str, from_id: str, most: int) -> list[Block]:
    bindings = {"account_id": account_id, "before": before, "from": from_id, "most": most}
    return [Block(*row) for row in rows(tx, _BLOCKS, bindings)]


def look_up(tx: Tx, blocks: Sequence[Block], words: Sequence[str]) -> Iterator[str]:
    """Yield ids of messages that may have all words, newest first, read on demand."""
    everywhere, weights = _among([block.number for block in blocks]), dict[str, int]()
    for word in words if words[1:] else ():
        weights[word] = one(tx, int, _WEIGHT, {**everywhere, **_range(word)}) or 0
        if not weights[word]:
            return
    left: dict[int, set[int]] = {}
    for number, word in enumerate(sorted(words, key=lambda item: weights.get(item, 0))):  # the rarest first
        bindings = (_among(list(left)) if number else everywhere) | _range(word)
        results = {block: _numbers(postings) for block, postings in tx.gather(_POSTINGS, "block, postings", bindings)}
        left = {block: left[block] & hits for block, hits in results.items()} if number else results
        left = {block: hits for block, hits in left.items() if hits}
        if not left:
            return
    for block in blocks:
        if hits := left.get(block.number):
            ids = one(tx, str, _IDS, {"number": block.number}) or ""
            for at in sorted(hits, reverse=True):
                if at * ID < len(ids):
                    yield f"msg_{ids[at * ID : at * ID + ID]}"


def _among(blocks: list[int]) -> dict[str, str]:
    return {"blocks": msgspec.json.encode(blocks).decode()}


def _range(word: str) -> dict[str, str]:
    return {"word": word, "end": word + _AFTER_ALL}


def changed_lately(tx: Tx, account_id: str, before: str, from_id: str, most: int) -> list[str]:
    bindings = {"account_id": account_id, "before": before, "from": from_id, "most": most}
    return [message_id for (message_id,) in rows(tx, _CHANGED, bindings)]


def _numbers(postings: str) -> set[int]:
    return set(unpack(f">{len(postings) // POSTING}H", bytes.fromhex(postings)))


# ---- the indexer

_ACCOUNTS = "SELECT id FROM accounts"
_POSITION = "SELECT message_id FROM search_positions WHERE account_id = :account_id"
_ENOUGH = """SELECT count(*) FROM (SELECT id FROM messages
    WHERE account_id = :account_id AND id > :after AND id < :limit ORDER BY id LIMIT :most) waiting"""
_ARRIVED = """SELECT account_id, count(DISTINCT message_id), max(message_id), count(*) FROM (
        SELECT account_id, message_id FROM recipients WHERE message_id > :after AND message_id < :limit
        ORDER BY message_id LIMIT :most
    ) newest GROUP BY account_id"""
_NEXT_IDS = """SELECT id FROM messages WHERE account_id = :account_id AND id > :after AND id < :limit
    ORDER BY id LIMIT :most"""

_NEW_BLOCK = """INSERT INTO search_blocks (number, account_id, after_id, last_id, size, ids)
    SELECT coalesce(max(number), 0) + 1, :account_id, :after_id, :last_id, 0, :maker FROM search_blocks
    RETURNING number"""
_DELETE_ALL_TERMS = "DELETE FROM search_terms WHERE block = :block"
# An update, so that a concurrent deletion of the block either sees the terms, or none are written.
_IS_OWN = "UPDATE search_blocks SET size = 0 WHERE number = :number AND size = 0 AND ids = :maker"
_INSERT_TERMS = Bulk("INSERT INTO search_terms (block, term, postings) VALUES {(?i, ?, ?)}")
_USE_BLOCK = """UPDATE search_blocks SET size = :size, ids = :ids
    WHERE number = :number AND size = 0 AND ids = :maker"""
_SET_POSITION = """INSERT INTO search_positions (account_id, message_id) VALUES (:account_id, :message_id)
    ON CONFLICT (account_id) DO UPDATE SET message_id = excluded.message_id"""

# With the last block that begins before the message, which may end before it, too. CROSS, so that SQLite skips the
# changes of messages that are not indexed yet: a backlog has one for each of its messages.
_CHANGES = """SELECT c.account_id, c.message_id, c.changed_at, (SELECT b.number FROM search_blocks b
        WHERE b.account_id = c.account_id AND b.after_id < c.message_id AND b.size > 0
        ORDER BY b.after_id DESC LIMIT 1) AS block
    FROM search_positions p CROSS JOIN search_changes c ON c.account_id = p.account_id AND c.message_id <= p.message_id
    ORDER BY p.account_id, c.message_id LIMIT :most"""
_USED = Bulk("SELECT number FROM search_blocks WHERE size > 0 AND number IN ({?i})")
_ADD_TERMS = Bulk("""INSERT INTO search_terms (block, term, postings) VALUES {(?i, ?, ?)}
    ON CONFLICT (block, term) DO UPDATE SET postings = search_terms.postings || excluded.postings""")
_HAS_POSTING = """SELECT t.term, t.postings FROM json_each(:terms) wanted
    CROSS JOIN search_terms t ON t.block = :block AND t.term = wanted.value"""
_CHANGES_DONE = Bulk("""DELETE FROM search_changes
    WHERE (account_id, message_id, changed_at) IN (VALUES {(?, ?, ?i)})""")

_UNUSED = "SELECT number FROM search_blocks WHERE size = 0 ORDER BY number LIMIT 1"
_DELETE_TERMS = """DELETE FROM search_terms WHERE block = :block AND term IN
        (SELECT term FROM search_terms WHERE block = :block ORDER BY term LIMIT :most)"""
_DELETE_BLOCK = "DELETE FROM search_blocks WHERE number = :block"
_CHECKED = """SELECT b.number, b.account_id, b.last_id, b.size, (SELECT count(*) FROM messages m
        WHERE m.account_id = b.account_id AND m.id > b.after_id AND m.id <= b.last_id)
    FROM search_blocks b WHERE b.number > :after AND b.size > 0 ORDER BY b.number LIMIT :most"""


class _Progress(Struct):
    """Indexing state beyond the database; a restart rebuilds it."""

    is_known: bool = False  # whether the fields below are valid; if not, any account may have enough for a block
    unchecked: deque[str] = field(default_factory=deque)  # accounts that may have enough
    counted_to: str = START  # newer messages than this are not counted
    waiting: Counter[str] = field(default_factory=Counter)  # messages, by account
    block_checked: int = 0
    chore_until: float = 0.0  # when to renew the chore


class _Overtaken(Exception):
    """Another node indexes."""


class SearchIndex(StorePart):
    block_messages: int = BLOCK_MESSAGES
    read_together: int = INDEXED_TOGETHER
    written_together: int = WRITTEN_TOGETHER
    share: float = INDEXING_SHARE  # 1: no rest
    progress: _Progress = field(default_factory=_Progress)

    async def index_some(self) -> bool:
        """Index one block or less, unless another node does; return whether more can be done at once."""
        try:
            await self._ask_for_chore()
            return await self._add_changes() or await self._add_block() or await self._clean()
        except _Overtaken:
            self.progress.is_known = False
            return False

    async def _ask_for_chore(self) -> None:
        self.progress.chore_until = trio.current_time() + CHORE_RENEWED_EVERY
        if not await self.engine.has_chore("search"):
            raise _Overtaken

    async def _rest(self, began: float) -> None:
        """Sleep after each step, and renew the chore: a block takes longer than its lease."""
        until = trio.current_time() + (perf_counter() - began) * (1 / self.share - 1)
        while True:
            await trio.sleep_until(min(until, self.progress.chore_until))
            if trio.current_time() >= self.progress.chore_until:
                await self._ask_for_chore()
            if trio.current_time() >= until:
                return

    async def _add_block(self) -> bool:
        limit = identifier_from("msg", max(0, self.env.now() - INDEXED_AFTER))
        account_id = await self._next_account(limit)
        if account_id is None:
            return False
        began = perf_counter()
        after, enough = await self.engine.scan(lambda tx: self._standing(tx, account_id, limit))
        if enough < self.block_messages:
            self.progress.waiting[account_id] = enough
            self.progress.unchecked.popleft()
            await self._rest(began)
            return True
        await self._make_block(account_id, after, limit)
        self.progress.unchecked.rotate(-1)  # it may have more, after the others' turns
        return True

    async def _next_account(self, limit: str) -> str | None:
        progress = self.progress
        if not progress.is_known:
            progress.is_known, progress.unchecked = True, deque(await self.engine.all(str, _ACCOUNTS, {}))
            progress.counted_to = limit
            progress.waiting.clear()
        if not progress.unchecked and progress.counted_to < limit:
            bindings = {"after": progress.counted_to, "limit": limit, "most": COUNTED_TOGETHER}
            results = await self.engine.scan(lambda tx: rows(tx, _ARRIVED, bindings))
            full = sum(row[3] for row in results) == COUNTED_TOGETHER
            progress.counted_to = max(row[2] for row in results) if full else limit
            for account_id, count, _, _ in results:
                progress.waiting[account_id] += count
                if progress.waiting[account_id] >= self.block_messages:
                    progress.unchecked.append(account_id)
        return progress.unchecked[0] if progress.unchecked else None

    def _standing(self, tx: Tx, account_id: str, limit: str) -> tuple[str, int]:
        """Up to where an account is indexed, and how many messages are not, at most one block."""
        after = one(tx, str, _POSITION, {"account_id": account_id}) or START
        bindings = {"account_id": account_id, "after": after, "limit": limit, "most": self.block_messages}
        return after, one(tx, int, _ENOUGH, bindings) or 0

    async def _make_block(self, account_id: str, after: str, limit: str) -> None:
        ids, postings = list[str](), dict[str, str]()

        def add(places_by_term: dict[str, str]) -> None:
            for term, places in places_by_term.items():
                postings[term] = postings.get(term, "") + places

        while len(ids) < self.block_messages and len(postings) < BLOCK_TERMS:
            began = perf_counter()
            most = min(self.read_together, self.block_messages - len(ids))
            bindings = {"account_id": account_id, "after": ids[-1] if ids else after, "limit": limit, "most": most}
            read, results = await self.engine.scan(partial(_read, bindings=bindings, number=len(ids)))
            if not read:
                break
            ids += read
            await trio.to_thread.run_sync(add, results, limiter=_SORTING)
            await self._rest(began)
        if not ids:
            return  # deleted meanwhile
        maker = self.env.identifier("maker")  # a placeholder for `ids`, since numbers are reused
        block = {"account_id": account_id, "after_id": after, "last_id": ids[-1], "maker": maker}

        def begin(tx: Tx) -> int:
            ((number,),) = rows(tx, _NEW_BLOCK, block)
            run(tx, _DELETE_ALL_TERMS, {"block": number})  # earlier versions left some without a block
            return int(number)

        own = {"number": await self.engine.write(begin, bulk=True), "maker": maker}
        in_order = await trio.to_thread.run_sync(_in_order, postings, limiter=_SORTING)
        for at in range(0, len(in_order), self.written_together):
            began = perf_counter()
            several = [(own["number"], *item) for item in in_order[at : at + self.written_together]]
            if not await self.engine.write(partial(_add_terms, own=own, values=several), bulk=True, locks=True):
                raise _Overtaken
            await self._rest(began)
        end = {"account_id": account_id, "message_id": ids[-1]}
        used = own | {"size": len(ids), "ids": "".join(item.removeprefix("msg_") for item in ids)}

        def use(tx: Tx) -> bool:
            if (one(tx, str, _POSITION, end) or START) != after or not changed(tx, _USE_BLOCK, used):
                return False
            run(tx, _SET_POSITION, end)
            return True

        if not await self.engine.write(use, bulk=True):
            raise _Overtaken

    async def _add_changes(self) -> bool:
        """Add new terms of messages that are indexed already; return whether there were any.

        A backlog that is delivered changes every message, so the writer, which new mail needs, reads none of them.
        """
        began, most = perf_counter(), TERMS_ADDED_TOGETHER
        changes, added = await self.engine.scan(partial(_read_changes, most=self.read_together))
        for at in range(0, max(1, len(added)) if changes else 0, most):
            done = changes if at + most >= len(added) else []
            work = partial(_add_changes, values=added[at : at + most], done=done)
            await self.engine.write(work, bulk=True, locks=True)
            await self._rest(began)
            began = perf_counter()
        return bool(changes)

    # ---- what is no longer used

    async def _clean(self) -> bool:
        selected = await self.engine.rows(_UNUSED, {})
        if selected:
            block, began = {"block": selected[0][0], "most": self.written_together}, perf_counter()

            def delete_some(tx: Tx) -> None:
                if not changed(tx, _DELETE_TERMS, block):
                    run(tx, _DELETE_BLOCK, {"block": block["block"]})

            await self.engine.write(delete_some, bulk=True)
            await self._rest(began)
            return True
        bindings = {"after": self.progress.block_checked, "most": BLOCKS_CHECKED}
        checked = await self.engine.scan(lambda tx: rows(tx, _CHECKED, bindings))
        self.progress.block_checked = checked[-1][0] if len(checked) == BLOCKS_CHECKED else 0
        for _, account_id, last_id, size, count in checked:
            if size != count:
                lacking = {"account_id": account_id, "first": last_id, "last": last_id}
                await self.engine.write(partial(run, sql=_FORGET_BLOCKS, bindings=lacking))
                return True
        return False


def _read(tx: Tx, bindings: dict[str, object], number: int) -> tuple[list[str], dict[str, str]]:
    """Read the next messages; return their ids and, by word, the places of messages that have it."""
    ids = [message_id for (message_id,) in rows(tx, _NEXT_IDS, bindings)]
    results: dict[str, str] = {}
    texts = {read_text.id: read_text for read_text in read_texts(tx, str(bindings["account_id"]), ids)}
    for at, message_id in enumerate(ids):
        if len(results) >= TERMS_TOGETHER:
            return ids[:at], results
        if message_id in texts:
            place = f"{number + at:0{POSTING}x}"
            for term in texts[message_id].terms():
                results[term] = results.get(term, "") + place
    return ids, results


def _in_order(postings: dict[str, str]) -> list[tuple[str, str]]:
    """Sort by term in steps, so that other threads can run."""
    pairs = list(postings.items())
    return list(merge(*(sorted(pairs[at : at + SORTED_TOGETHER]) for at in range(0, len(pairs), SORTED_TOGETHER))))


def _add_terms(tx: Tx, own: dict[str, object], values: Sequence[Row]) -> bool:
    """Write terms of a block in the making; False if another node took it for an abandoned one."""
    if not changed(tx, _IS_OWN, own):
        return False
    _INSERT_TERMS.run(tx, values)
    return True


def _read_changes(tx: Tx, most: int) -> tuple[list[Row], list[Row]]:
    """Read some changes; return them and the postings to add: block, term, places."""
    done, added = list[Row](), list[Row]()
    for (account_id, number), several in groupby(rows(tx, _CHANGES, {"most": most}), itemgetter(0, 3)):
        changes, postings = [change[:3] for change in several], dict[str, str]()
        ids = "" if number is None else one(tx, str, _IDS, {"number": number}) or ""
        texts = {text.id: text for text in read_texts(tx, account_id, [change[1] for change in changes])}
        for change in changes:
            if len(added) + len(postings) >= TERMS_TOGETHER:
                return done, added + _lacking(tx, number, postings)
            done.append(change)
            at = ids.find(change[1].removeprefix("msg_"))
            if at >= 0 and change[1] in texts:  # else a search reads it row by row
                place = f"{at // ID:0{POSTING}x}"
                for term in texts[change[1]].terms():
                    postings[term] = postings.get(term, "") + place
        added += _lacking(tx, number, postings)
    return done, added


def _lacking(tx: Tx, number: int, postings: dict[str, str]) -> list[Row]:
    """The postings that a block does not have yet."""
    terms = msgspec.json.encode(list(postings)).decode()
    for term, known in rows(tx, _HAS_POSTING, {"block": number, "terms": terms}):
        new = sorted(_numbers(postings[term]) - _numbers(known))
        postings[term] = "".join(f"{place:0{POSTING}x}" for place in new)
    return [(number, *item) for item in sorted(postings.items()) if item[1]]


def _add_changes(tx: Tx, values: Sequence[Row], done: Sequence[Row]) -> None:
    """Add postings to the blocks that are still in use, and forget the changes that did not repeat meanwhile."""
    used = {block for (block,) in _USED.run(tx, sorted({value[:1] for value in values}))}
    _ADD_TERMS.run(tx, [value for value in values if value[0] in used])
    _CHANGES_DONE.run(tx, done)
