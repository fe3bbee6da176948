"""Finds messages, newest first, for the dashboard's list, a message's page and the command line.

Without a filter a page is a look-up by index. Failed and test messages have partial indexes. Other searches use the
index of words (`search_index.py`), and read the messages that are not indexed yet block by block. The time is bounded:
a page may hold few messages or none, and says where to continue. Messages found by the index are read and checked.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from heapq import merge
from itertools import dropwhile, groupby, islice, pairwise, takewhile
from math import inf
from operator import itemgetter
from typing import Any

import idna
import msgspec

from appliance.environment import identifier_from, identifier_time
from appliance.message.search_words import TERM_LENGTH, plain_part, plain_words
from appliance.model.dashboard import (
    ExportedRecipient,
    FoundMail,
    ListedMessage,
    MailCount,
    MailFilter,
    MailPage,
    MailProblem,
    MessageFacts,
)
from appliance.model.mail import MessageStatus, RecipientOutcome, Source
from appliance.store.engine import NEWEST, StorePart, Tx, any_owner, first, gathered, rows
from appliance.store.message_records import (
    LAST_SOURCE,
    OUTCOME,
    RESULT,
    SHOWN_STATUS,
    metadata_term,
    outcome_term,
    read_exported,
    read_mime,
    read_texts,
    readable_tags,
    source_term,
    status_term,
)
from appliance.store.search_index import Block, blocks_before, changed_lately, look_up
from appliance.times import DAY

MESSAGES_SEARCHED = 2_000  # between two checks of the time: a few milliseconds
SEARCH_TIME = 0.05  # seconds of searching for one page
SHOWN_RECIPIENTS = 3  # of each message in a list
CHECKED_TOGETHER = 128  # messages read and checked together
CHANGED_TOGETHER = 2_000  # recently changed messages read together
FIRST_BLOCKS, BLOCKS_TOGETHER = 2, 32  # index blocks searched together, more each time
COUNTED_AT_ONCE = 20_000  # messages counted per request
PROBLEMS_SINCE = 30 * DAY
PROBLEMS_READ = 2_000  # recipients, to skip test mail
FEW_LISTED = 20_000  # recipients sorted to find messages by an index of recipients

# The matching messages among the newest before one. A block is bounded by the rows read, not by those that match.
_SEARCH = """SELECT id FROM (
        SELECT account_id, id, status, source, sender, tags, subject, request_id, template_alias,
                credential, metadata, stream FROM messages {among}
            AND account_id = :account_id AND id < :before AND id >= :from
        ORDER BY id DESC LIMIT :block
    ) m WHERE {condition} ORDER BY id DESC LIMIT :most"""
_BLOCK_END = """SELECT id FROM messages {among} AND account_id = :account_id AND id < :before AND id >= :from
    ORDER BY id DESC LIMIT 1 OFFSET :block"""
# A whole page in one statement: a statement per message takes three times as long, and a thread takes the interpreter
# lock at every row.
_LISTED = f"""SELECT json_group_array(json_object('id', m.id, 'status', m.status, 'source', m.source,
        'sender', m.sender, 'subject', m.subject, 'tags', m.tags, 'recipient_count', m.recipient_count,
        'created_at', m.created_at, 'scheduled_at', m.scheduled_at, 'stream', m.stream, 'recipients', json((
            SELECT json_group_array(json_object('email', r.address, 'status', {SHOWN_STATUS},
                'outcome', {OUTCOME})) FROM (
                SELECT account_id, id, address, status, failure, late_bounce, next_attempt_at FROM recipients
                WHERE message_id = m.id ORDER BY id LIMIT :recipients) r)),
        'outcomes', json((
            SELECT json_group_array(json_object('outcome', counted.outcome, 'recipients', counted.recipients)) FROM (
                SELECT outcome, count(*) AS recipients FROM (
                    SELECT {OUTCOME} AS outcome FROM recipients r WHERE r.message_id = m.id
                ) outcomes GROUP BY outcome) counted))))
    FROM json_each(:ids) wanted CROSS JOIN messages m ON m.account_id = :account_id AND m.id = wanted.value"""
_WAITING = f"""SELECT message_id FROM recipients
    WHERE simulated = :simulated AND low IN (0, 1) AND account_id = :account_id AND next_attempt_at IS NOT NULL
    AND {any_owner("recipients")} LIMIT :most"""
# Scheduled messages, and messages with later feedback, by the outcome of the recipient.
_RARE_OUTCOMES: dict[RecipientOutcome | None, str] = {
    RecipientOutcome.SCHEDULED: "SELECT message_id FROM scheduled_messages WHERE account_id = :account_id LIMIT :most",
    RecipientOutcome.COMPLAINED: "SELECT message_id FROM complaints WHERE account_id = :account_id LIMIT :most",
    RecipientOutcome.LATE_BOUNCED: """SELECT message_id FROM recipients INDEXED BY recipients_late_bounces
        WHERE account_id = :account_id AND late_bounce IS NOT NULL LIMIT :most""",
}
_FACTS = """SELECT m.envelope_from, m.tags, m.template_alias, m.template_version, m.size, m.request_id, m.metadata,
        m.stream,
        m.confidential = 0 AND EXISTS (SELECT 1 FROM message_bodies b WHERE b.message_id = m.id AND length(b.mime) > 0),
        EXISTS (SELECT 1 FROM recipients r WHERE r.message_id = m.id AND r.simulated = 1)
    FROM messages m WHERE m.account_id = :account_id AND m.id = :id"""

_IS_CONFIDENTIAL = "SELECT 1 FROM messages WHERE account_id = :account_id AND id = :id AND confidential = 1"

PROBLEM_OUTCOMES = (RecipientOutcome.BOUNCED, RecipientOutcome.FAILED, RecipientOutcome.DEFERRED)
_HAPPENED = "coalesce(r.bounced_at, r.failed_at)"
# Without test mail, like all statistics. Only the newest PROBLEMS_READ rows are read.
_PROBLEMS = f"""SELECT p.message_id, p.id, p.address, m.subject, m.source, p.outcome, p.last_smtp_code,
        p.last_smtp_response, p.bounce_class, p.happened, p.next_attempt_at, coalesce(d.pool, ''),
        m.envelope_from, m.template_alias, m.stream, {LAST_SOURCE.format(recipient="p.id")}
    FROM (
        SELECT r.account_id, r.message_id, r.id, r.address, r.domain, {RESULT} AS outcome, r.last_smtp_code,
            r.last_smtp_response, r.bounce_class, {_HAPPENED} AS happened, r.next_attempt_at
        FROM recipients r INDEXED BY recipients_problems
        WHERE r.account_id = :account_id AND {_HAPPENED} >= :since
            AND {RESULT} IN ({", ".join(f"'{item}'" for item in PROBLEM_OUTCOMES)})
        ORDER BY {_HAPPENED} DESC, r.id DESC LIMIT {PROBLEMS_READ}
    ) p CROSS JOIN messages m ON m.account_id = p.account_id AND m.id = p.message_id
    LEFT JOIN destinations d ON d.domain = p.domain
    WHERE m.source <> 'test' ORDER BY p.happened DESC, p.id DESC LIMIT :most"""

# Conditions. A stored sender ends with the address, bare or in angle brackets; the name before it may be anything.
_FROM_ADDRESS = """(lower(m.sender) = :sender
    OR substr(lower(m.sender), length(m.sender) - length(:sender) - 1) = '<' || :sender || '>')"""
_BARE_SENDER = "rtrim(lower(m.sender), '>')"
_ENDS_IN = f"substr({_BARE_SENDER}, length({_BARE_SENDER}) - length(:{{name}}) + 1) = :{{name}}"
_FROM_DOMAIN = _ENDS_IN.format(name="sender")
_FROM_EITHER = f"({_FROM_DOMAIN} OR {_ENDS_IN.format(name='spelled')})"  # A-labels, or as people write the domain
# A tag has no comma, so in JSON each tag stands between two commas.
_TAG_LIST = "',' || substr(m.tags, 2, length(m.tags) - 2) || ','"
_TAGGED = f"replace({_TAG_LIST}, ',' || :tag || ',', '') <> {_TAG_LIST}"
# An address is stored as spelled; only its domain also has a normalized form.
_TO_DOMAIN = "EXISTS (SELECT 1 FROM recipients r WHERE r.message_id = m.id AND r.domain = :recipient)"
_ADDRESS_HAS = """EXISTS (SELECT 1 FROM recipients r WHERE r.message_id = m.id
    AND instr(lower(r.address), :address_part) > 0)"""
_VIA_PROVIDER = """EXISTS (SELECT 1 FROM recipients r CROSS JOIN destinations d ON d.domain = r.domain
    WHERE r.message_id = m.id AND r.simulated = 0 AND d.pool = :provider)"""
# Quotes inside a JSON string would be escaped, so this matches a whole entry.
_WITH_METADATA = "instr(m.metadata, :metadata) > 0"
_IS_WAITING = "EXISTS (SELECT 1 FROM recipients r WHERE r.message_id = m.id AND r.next_attempt_at IS NOT NULL)"
_WITH_OUTCOME = f"EXISTS (SELECT 1 FROM recipients r WHERE r.message_id = m.id AND {OUTCOME} = :outcome)"
# Rows that may contain a word: with a part of it, or not ASCII.
_TEXT = "m.sender || ' ' || m.subject || ' ' || m.request_id || ' ' || m.tags || ' ' || coalesce(m.template_alias, '')"
_RECIPIENT_TEXT = """r.address || ' ' || r.domain || ' ' || coalesce(CAST(r.last_smtp_code AS TEXT), '') || ' '
    || coalesce(r.last_smtp_response, '') || ' ' || coalesce(r.late_bounce, '')"""
_MAY_HAVE = f"""(instr(lower({_TEXT}), :{{word}}) > 0 OR octet_length({_TEXT}) <> length({_TEXT})
    OR EXISTS (SELECT 1 FROM recipients r WHERE r.message_id = m.id AND (instr(lower({_RECIPIENT_TEXT}), :{{word}}) > 0
        OR octet_length({_RECIPIENT_TEXT}) <> length({_RECIPIENT_TEXT}))))"""
_TO_ADDRESS = f"{_TO_DOMAIN[:-1]} AND lower(substr(r.address, 1, length(:local) + 1)) = :local || '@')"

# The messages to search: all, or a partial index, which SQLite must be forced to use.
_ALL = "WHERE TRUE"
_TESTS = "INDEXED BY messages_test WHERE source = 'test'"
_RARE: dict[MessageStatus | None, str] = {
    MessageStatus.FAILED: "INDEXED BY messages_failed WHERE status = 'failed'",
    MessageStatus.PARTIAL: "INDEXED BY messages_partial WHERE status = 'partial'",
}

_ID_BEGINNING = re.compile("msg_[0-9a-f]{0,32}")


class MailLog(StorePart):
    clock: Callable[[], float] = time.monotonic
    block: int = MESSAGES_SEARCHED
    few_listed: int = FEW_LISTED
    uses_index: bool = True
    counted_together: int = COUNTED_AT_ONCE

    async def page(
        self, account_id: str, filters: MailFilter, before: str | None, most: int, *, off_loop: bool = False
    ) -> MailPage:
        """Up to `most` matching messages, newest first, before the cursor. Never searches on the event loop."""
        search = _Search(self, account_id, filters, before or NEWEST, most)
        if search.is_plain and not off_loop:
            return await self.engine.snapshot(lambda tx: search.run(tx, inf))
        return await self.engine.scan(lambda tx: search.run(tx, inf if search.is_plain else SEARCH_TIME), account_id)

    async def count(self, account_id: str, filters: MailFilter, before: str | None) -> MailCount:
        """Count messages that match, within the time of a search; the caller continues from `next`."""
        search = _Search(self, account_id, filters, before or NEWEST, self.counted_together)
        ids, following = await self.engine.scan(lambda tx: search.ids(tx, SEARCH_TIME), account_id)
        return MailCount(len(ids), following)

    async def export(
        self, account_id: str, filters: MailFilter, before: str | None, most: int
    ) -> tuple[list[ExportedRecipient], str | None]:
        search = _Search(self, account_id, filters, before or NEWEST, most)

        def work(tx: Tx) -> tuple[list[ExportedRecipient], str | None]:
            ids, following = search.ids(tx, SEARCH_TIME)
            return read_exported(tx, account_id, ids), following

        return await self.engine.scan(work, account_id)

    async def newest(self, account_ids: Iterable[str], filters: MailFilter, most: int, seconds: float) -> FoundMail:
        """Return the newest matching messages of these accounts, read page by page for about so many seconds."""
        end = self.clock() + seconds
        start = identifier_from("msg", self.env.now() + 1 if filters.until is None else filters.until)
        reached, results, reading = dict.fromkeys(account_ids, start), list[tuple[str, ListedMessage]](), False
        while reached:
            account_id = max(reached, key=reached.__getitem__)
            if len(results) == most and results[-1][1].id >= reached[account_id]:
                break
            if reading and self.clock() >= end:
                return FoundMail(tuple(results), identifier_time(reached[account_id]))
            reading = True
            page = await self.page(account_id, filters, reached.pop(account_id), most, off_loop=True)
            results += [(account_id, message) for message in page.messages]
            results = sorted(results, key=lambda item: item[1].id, reverse=True)[:most]
            if page.next is not None:
                reached[account_id] = page.next
        return FoundMail(tuple(results), None)

    async def problems(self, account_id: str, most: int, since: int | None = None) -> list[MailProblem]:
        bindings = {"account_id": account_id, "since": since or self.env.now() - PROBLEMS_SINCE, "most": most}
        return await self.engine.scan(
            lambda tx: [MailProblem(*row) for row in rows(tx, _PROBLEMS, bindings)], account_id
        )

    async def mime(self, account_id: str, message_id: str) -> bytes | None:
        """A message's bytes, up to 10 MiB, while they are stored; None for a confidential message."""

        def read(tx: Tx) -> bytes | None:
            is_confidential = first(tx, _IS_CONFIDENTIAL, {"account_id": account_id, "id": message_id}) is not None
            return None if is_confidential else read_mime(tx, message_id)

        return await self.engine.scan(read, account_id)

    async def facts(self, account_id: str, message_id: str) -> MessageFacts | None:
        row = await self.engine.read(lambda tx: first(tx, _FACTS, {"account_id": account_id, "id": message_id}))
        if row is None:
            return None
        envelope_from, tags, *others, is_kept, is_simulated = row
        return MessageFacts(*(envelope_from, readable_tags(tags), *others, bool(is_kept), bool(is_simulated)))


class _Search:
    def __init__(self, log: MailLog, account_id: str, filters: MailFilter, before: str, most: int) -> None:
        self._log, self._filters, self._account_id, self._most = log, filters, account_id, most
        self._until = inf  # end of the search time
        self._words: list[str] = []
        self._edge = NEWEST  # start of the searched blocks
        self._found: list[str] = []
        self._bindings: dict[str, Any] = {"account_id": account_id}
        self._set_range(before)
        self._condition = " AND ".join(self._conditions()) or "TRUE"
        self._may_match = " AND ".join([self._condition, *self._hints()])
        self._among = _TESTS if filters.source is Source.TEST else _RARE.get(filters.status, _ALL)
        self._index_words = self._looked_up() if log.uses_index else []
        self.is_plain = self._condition == "TRUE" and not self._words  # only a range of time

    def _set_range(self, before: str) -> None:
        """Set the range of ids to search. A word that starts an id narrows it."""
        since, until, first_id = self._filters.since, self._filters.until, ""
        if since is not None:
            first_id = identifier_from("msg", since)
        if until is not None:
            before = min(before, identifier_from("msg", until))
        for word in self._filters.words:
            if _ID_BEGINNING.fullmatch(word):
                first_id, before = max(first_id, word), min(before, word + NEWEST)
            else:
                self._words.append(word)
        self._from, self._before = first_id, before

    def _conditions(self) -> list[str]:
        bindings, conditions = self._filters, []
        sender = bindings.sender or ""
        of_domain = _FROM_EITHER if "xn--" in sender and "@" not in sender else _FROM_DOMAIN
        for name, value, sql in (
            ("status", bindings.status and bindings.status.value, "m.status = :status"),
            ("source", bindings.source and bindings.source.value, "m.source = :source"),
            ("sender", bindings.sender, _FROM_ADDRESS if "@" in sender[1:] else of_domain),
            ("tag", bindings.tag and _encoded(bindings.tag), _TAGGED),
            ("recipient", bindings.recipient, _TO_ADDRESS if "@" in (bindings.recipient or "")[1:] else _TO_DOMAIN),
            ("outcome", bindings.outcome and bindings.outcome.value, _WITH_OUTCOME),
            ("waiting", bindings.waiting or None, _IS_WAITING),
            ("address_part", bindings.address_part, _ADDRESS_HAS),
            ("provider", bindings.provider, _VIA_PROVIDER),
            ("credential", bindings.credential, "m.credential = :credential"),
            ("stream", bindings.stream, "m.stream = :stream"),
            ("metadata", bindings.metadata and _encoded(dict([bindings.metadata]))[1:-1], _WITH_METADATA),
        ):
            if value is not None:
                self._bindings[name] = value
                conditions.append(sql)
        if bindings.sender is not None and "@" not in bindings.sender:
            self._bindings["sender"] = f"@{bindings.sender}"
            if "xn--" in bindings.sender:
                self._bindings["spelled"] = self._bindings["sender"]  # as people write it; not each name is valid
                with suppress(idna.IDNAError):
                    self._bindings["spelled"] = f"@{idna.decode(bindings.sender)}"
        if bindings.recipient is not None:
            self._bindings["local"], _, self._bindings["recipient"] = bindings.recipient.rpartition("@")
        return conditions

    def _hints(self) -> list[str]:
        hints = []
        for number, word in enumerate(self._words):
            if part := plain_part(word):
                self._bindings[f"word{number}"] = part
                hints.append(_MAY_HAVE.format(word=f"word{number}"))
        return hints

    def _looked_up(self) -> list[str]:
        bindings = self._filters
        local, _, domain = (bindings.recipient or "").rpartition("@")
        named = [*plain_words(local)]
        if named and local[-1].isalnum() and len(named[-1]) < TERM_LENGTH:
            named[-1] += "@"  # the whole local part, not only its start
        others = (
            *named,
            *plain_words(domain),
            *plain_words("" if "xn--" in (bindings.sender or "") else bindings.sender or ""),
        )
        words = dict.fromkeys([*self._words, *others, *plain_words(bindings.tag or "")])
        results = sorted(words, key=len, reverse=True)  # the longest is the rarest
        if bindings.metadata is not None:
            results.insert(0, metadata_term(*bindings.metadata))
        if bindings.outcome is not None:
            results.append(outcome_term(bindings.outcome))
        if results and bindings.status is not None:
            results.append(status_term(bindings.status))
        if results and bindings.source is not None:
            results.append(source_term(bindings.source))
        return results

    def run(self, tx: Tx, seconds: float) -> MailPage:
        selected, following = self.ids(tx, seconds)
        bindings = {"ids": _encoded(selected), "recipients": SHOWN_RECIPIENTS}
        ((page,),) = rows(tx, _LISTED, {**self._bindings, **bindings})
        listed = sorted(msgspec.json.decode(page or "[]"), key=itemgetter("id"), reverse=True)
        for message in listed:
            message["tags"] = readable_tags(message["tags"])
            message["outcomes"] = {counted["outcome"]: counted["recipients"] for counted in message["outcomes"] or ()}
        return MailPage(msgspec.convert(listed, tuple[ListedMessage, ...]), following)

    def ids(self, tx: Tx, seconds: float) -> tuple[list[str], str | None]:
        """Search until `most` ids match, nothing is left, or the time is over; return them and the next cursor."""
        self._until = self._log.clock() + seconds
        listed = self._listed(tx)
        if listed is not None:
            if self._check(tx, iter(listed)):
                self._before = self._from
            return self._page()
        blocks_read = FIRST_BLOCKS
        while self._before > self._from:
            blocks = self._blocks(tx, blocks_read)
            end = max(self._from, _following(blocks[0].last_id)) if blocks else self._from
            if self._before > end or not blocks:
                is_done = self._scan(tx, end)
                blocks_read = FIRST_BLOCKS
            else:
                is_done = self._look_up(tx, blocks)
                blocks_read = min(blocks_read * 4, BLOCKS_TOGETHER)
            if not is_done or self._log.clock() >= self._until:
                break
        return self._page()

    def _page(self) -> tuple[list[str], str | None]:
        if len(self._found) > self._most:
            return self._found[: self._most], self._found[self._most - 1]
        return self._found, self._before if self._before > self._from else None

    def _scan(self, tx: Tx, from_id: str) -> bool:
        """Read row by row down to an id; return whether it was reached."""
        block = self._most + 1 if self.is_plain else self._log.block
        query = _SEARCH.format(among=self._among, condition=self._may_match)
        block_end = _BLOCK_END.format(among=self._among)
        while True:
            room = self._most + 1 - len(self._found)
            if self._words:
                room = max(room, CHECKED_TOGETHER)
            bindings = {**self._bindings, "before": self._before, "from": from_id, "block": block}
            ids = [message_id for (message_id,) in reversed(gathered(tx, query, "id", {**bindings, "most": room}))]
            self._found += self._matching(tx, ids) if self._words else ids
            if len(self._found) > self._most:
                return False
            end = (ids[-1],) if len(ids) == room else first(tx, block_end, {**bindings, "block": block - 1})
            self._before = from_id if end is None else end[0]
            if end is None or self._log.clock() >= self._until:
                return end is None

    def _blocks(self, tx: Tx, most: int) -> list[Block]:
        """The next blocks of the index, up to the first gap between them."""
        if not self._index_words:
            return []
        results = blocks_before(tx, self._account_id, min(self._before, self._edge), self._from, most)
        gaps = (at for at, (newer, older) in enumerate(pairwise(results), 1) if older.last_id != newer.after_id)
        return results[: next(gaps, len(results))]

    def _look_up(self, tx: Tx, blocks: list[Block]) -> bool:
        """Search these blocks; return whether their end was reached."""
        oldest = blocks[-1]
        from_id = max(self._from, _following(oldest.after_id)) if oldest.after_id else self._from
        changed = changed_lately(tx, self._account_id, self._before, from_id, CHANGED_TOGETHER)
        all_changed = len(changed) < CHANGED_TOGETHER
        if not all_changed:
            from_id = changed[-1]
        results = dropwhile(self._before.__le__, look_up(tx, blocks, self._index_words))
        ids = merge(takewhile(from_id.__le__, results), changed, reverse=True)
        if not self._check(tx, (item for item, _ in groupby(ids))):
            return False
        self._before = from_id
        if all_changed:
            self._edge = oldest.after_id
        return True

    def _listed(self, tx: Tx) -> list[str] | None:
        """The messages that small indexes have for the filter, newest first; None: no such index, or many rows."""
        filters, scheduled = self._filters, _RARE_OUTCOMES[RecipientOutcome.SCHEDULED]
        if filters.waiting or filters.outcome in (RecipientOutcome.QUEUED, RecipientOutcome.DEFERRED):
            queries: tuple[tuple[str, int], ...] = ((_WAITING, 0), (_WAITING, 1))
        elif filters.outcome in _RARE_OUTCOMES:
            queries = ((_RARE_OUTCOMES[filters.outcome], 0),)
        elif filters.status is MessageStatus.QUEUED:
            queries = ((_WAITING, 0), (_WAITING, 1), (scheduled, 0))
        else:
            return None
        ids = set[str]()
        for query, simulated in queries:
            selected = rows(tx, query, {**self._bindings, "simulated": simulated, "most": self._log.few_listed})
            if len(selected) == self._log.few_listed:
                return None
            ids.update(message_id for (message_id,) in selected)
        return sorted((item for item in ids if self._from <= item < self._before), reverse=True)

    def _check(self, tx: Tx, ids: Iterator[str]) -> bool:
        """Read these messages, newest first, and keep those that match; return whether their end was reached."""
        while some := list(islice(ids, min(CHECKED_TOGETHER, max(self._most + 1 - len(self._found), 16)))):
            self._found += self._matching(tx, some)
            self._before = some[-1]
            if len(self._found) > self._most or self._log.clock() >= self._until:
                return False
        return True

    def _matching(self, tx: Tx, ids: list[str]) -> list[str]:
        results = read_texts(tx, self._account_id, ids, self._condition, self._bindings)
        return sorted((item.id for item in results if item.has(self._words)), reverse=True)


def _encoded(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _following(message_id: str) -> str:
    return f"msg_{int(message_id.removeprefix('msg_'), 16) + 1:032x}"
