"""Finds messages, newest first, for the dashboard's list, a message's page and the command line.

Without a filter a page is a look-up by index. Failed and test messages have an index of their own. Everything else is
searched block by block, for a bounded time: a page then may hold few messages or none, and says where to go on. An
index by recipient would make that faster, and every message dearer: its rows would land anywhere in a large table.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from operator import attrgetter
from typing import Any

import msgspec

from appliance.model.dashboard import FoundMail, ListedMessage, MailFilter, MailPage, MessageFacts
from appliance.model.mail import MessageStatus, Source
from appliance.outside import identifier_from, identifier_time
from appliance.store.engine import NEWEST, StorePart, Tx, first, gathered, rows
from appliance.store.messages import read_mime

MESSAGES_SEARCHED = 2_000  # between two checks of the time: some milliseconds
SEARCH_TIME = 0.05  # seconds of searching for one page
SHOWN_RECIPIENTS = 3  # of each message in a list
FEW_WAITING = 20_000  # recipients that may be sorted to find which messages still wait

# The newest messages before one, and among them those that match. SQLite cannot merge the two steps, so a block is
# bounded by what is read, not by what is found.
_SEARCH = """SELECT id FROM (
        SELECT account_id, id, status, source, sender, tags FROM messages {among}
            AND account_id = :account_id AND id < :before
        ORDER BY id DESC LIMIT :block
    ) m WHERE {condition} ORDER BY id DESC LIMIT :most"""
_BLOCK_END = """SELECT id FROM messages {among} AND account_id = :account_id AND id < :before
    ORDER BY id DESC LIMIT 1 OFFSET :block"""
# All of a page in one step: a hundred messages with their recipients by a statement each take three times as long, and
# a thread takes the interpreter lock at every row.
_LISTED = """SELECT json_group_array(json_object('id', m.id, 'status', m.status, 'source', m.source, 'sender', m.sender,
        'subject', m.subject, 'tags', json(m.tags), 'recipient_count', m.recipient_count, 'created_at', m.created_at,
        'recipients', json((
            SELECT json_group_array(json_object('email', address, 'status', status)) FROM (
                SELECT address, status FROM recipients WHERE message_id = m.id ORDER BY id LIMIT :recipients) shown))))
    FROM json_each(:ids) wanted CROSS JOIN messages m ON m.account_id = :account_id AND m.id = wanted.value"""
_WAITING = """SELECT message_id FROM recipients
    WHERE simulated = :simulated AND account_id = :account_id AND next_attempt_at IS NOT NULL LIMIT :most"""
_MESSAGE = "SELECT id FROM messages m WHERE account_id = :account_id AND id = :id AND {condition}"
_FACTS = """SELECT m.envelope_from, m.tags, m.template_alias, m.template_version, m.size, m.request_id,
        EXISTS (SELECT 1 FROM message_bodies b WHERE b.message_id = m.id AND length(b.mime) > 0)
    FROM messages m WHERE m.account_id = :account_id AND m.id = :id"""

# Conditions. Addresses stand bare or in angle brackets at the end of what a sender wrote; a name before them may be
# anything, also another address.
_OF_STATUS = "m.status = :status"
_OF_SOURCE = "m.source = :source"
_FROM_ADDRESS = """(lower(m.sender) = :sender
    OR substr(lower(m.sender), length(m.sender) - length(:sender) - 1) = '<' || :sender || '>')"""
_BARE_SENDER = "rtrim(lower(m.sender), '>')"
_FROM_DOMAIN = f"substr({_BARE_SENDER}, length({_BARE_SENDER}) - length(:sender) + 1) = :sender"
# A tag has no comma in it, so between two of them stands a whole tag, as JSON writes it.
_TAG_LIST = "',' || substr(m.tags, 2, length(m.tags) - 2) || ','"
_TAGGED = f"replace({_TAG_LIST}, ',' || :tag || ',', '') <> {_TAG_LIST}"
# An address is kept as it was spelled; only its domain stands beside it in the one form that can be compared.
_TO_DOMAIN = "EXISTS (SELECT 1 FROM recipients r WHERE r.message_id = m.id AND r.domain = :recipient)"
_TO_ADDRESS = f"{_TO_DOMAIN[:-1]} AND lower(substr(r.address, 1, length(:local) + 1)) = :local || '@')"

# Among which messages to search: all, or those of an index of rare ones, which SQLite has to be told to use.
_ALL = "WHERE TRUE"
_TESTS = "INDEXED BY messages_test WHERE source = 'test'"
_RARE: dict[MessageStatus | None, str] = {
    MessageStatus.FAILED: "INDEXED BY messages_failed WHERE status = 'failed'",
    MessageStatus.PARTIAL: "INDEXED BY messages_partial WHERE status = 'partial'",
}

_tags = msgspec.json.Decoder(tuple[str, ...])
_messages = msgspec.json.Decoder(list[ListedMessage])


@dataclass(frozen=True, slots=True)
class MailLog(StorePart):
    clock: Callable[[], float] = time.monotonic
    block: int = MESSAGES_SEARCHED
    few_waiting: int = FEW_WAITING

    async def page(
        self, account_id: str, wanted: MailFilter, before: str | None, most: int, *, off_loop: bool = False
    ) -> MailPage:
        """Up to `most` messages that match, from the newest before `before` on. A search is never made on the loop."""
        search = _Search(account_id, wanted, before or NEWEST, most, block=self.block, few_waiting=self.few_waiting)
        if wanted == MailFilter() and not off_loop:
            return await self.engine.snapshot(lambda tx: search.run(tx, inf, self.clock))
        seconds = inf if wanted == MailFilter() else SEARCH_TIME
        return await self.engine.scan(lambda tx: search.run(tx, self.clock() + seconds, self.clock), account_id)

    async def newest(
        self,
        account_ids: Iterable[str],
        wanted: MailFilter,
        most: int,
        seconds: float,
        *,
        since: int = 0,
        until: int | None = None,
    ) -> FoundMail:
        """The newest messages of these accounts that match, accepted from `since` on and before `until`.

        Reads page after page of the account that is least far back, until no newer message can be missing, or about so
        many seconds are over.
        """
        end, first_id = self.clock() + seconds, identifier_from("msg", since)
        start = identifier_from("msg", self.outside.now() + 1 if until is None else until)
        reached, found, reading = dict.fromkeys(account_ids, start), list[tuple[str, ListedMessage]](), False
        while reached:
            account_id = max(reached, key=reached.__getitem__)
            if len(found) == most and found[-1][1].id >= reached[account_id]:
                break
            if reading and self.clock() >= end:
                return FoundMail(tuple(found), identifier_time(reached[account_id]))
            reading = True
            page = await self.page(account_id, wanted, reached.pop(account_id), most, off_loop=True)
            found += [(account_id, each) for each in page.messages if each.id >= first_id]
            found = sorted(found, key=lambda each: each[1].id, reverse=True)[:most]
            if page.next is not None and page.next > first_id:
                reached[account_id] = page.next
        return FoundMail(tuple(found), None)

    async def mime(self, account_id: str, message_id: str) -> bytes | None:
        """A message's bytes, while they are kept; read off the event loop, for there may be 10 MiB of them."""
        return await self.engine.scan(lambda tx: read_mime(tx, message_id), account_id)

    async def facts(self, account_id: str, message_id: str) -> MessageFacts | None:
        row = await self.engine.read(lambda tx: first(tx, _FACTS, {"account_id": account_id, "id": message_id}))
        if row is None:
            return None
        envelope_from, tags, alias, version, size, request_id, kept = row
        return MessageFacts(envelope_from, _tags.decode(tags), alias, version, size, request_id, bool(kept))


class _Search:
    """The search for one page, and how far it has come."""

    def __init__(
        self, account_id: str, wanted: MailFilter, before: str, most: int, *, block: int, few_waiting: int
    ) -> None:
        self._block_size, self._few_waiting = block, few_waiting
        self._wanted = wanted
        self._most = most
        self._bindings: dict[str, Any] = {"account_id": account_id, "before": before}
        self._condition = " AND ".join(self._conditions()) or "TRUE"
        self._among = _TESTS if wanted.source is Source.TEST else _RARE.get(wanted.status, _ALL)

    def _conditions(self) -> list[str]:
        wanted, conditions = self._wanted, []
        for name, value, sql in (
            ("status", wanted.status and wanted.status.value, _OF_STATUS),
            ("source", wanted.source and wanted.source.value, _OF_SOURCE),
            ("sender", wanted.sender, _FROM_ADDRESS if "@" in (wanted.sender or "")[1:] else _FROM_DOMAIN),
            ("tag", wanted.tag and msgspec.json.encode(wanted.tag).decode(), _TAGGED),
            ("recipient", wanted.recipient, _TO_ADDRESS if "@" in (wanted.recipient or "")[1:] else _TO_DOMAIN),
        ):
            if value is not None:
                self._bindings[name] = value
                conditions.append(sql)
        if wanted.sender is not None and "@" not in wanted.sender:
            self._bindings["sender"] = f"@{wanted.sender}"
        if wanted.recipient is not None:
            self._bindings["local"], _, self._bindings["recipient"] = wanted.recipient.rpartition("@")
        return conditions

    def run(self, tx: Tx, until: float, clock: Callable[[], float]) -> MailPage:
        """Search until there is a page full, nothing left, or no time."""
        if self._wanted.status is MessageStatus.QUEUED and (waiting := self._waiting(tx)) is not None:
            return self._of_these(tx, waiting)
        found: list[str] = []
        block = self._most + 1 if self._wanted == MailFilter() else self._block_size
        while True:
            wanted = {**self._bindings, "block": block, "most": self._most + 1 - len(found)}
            ids = gathered(tx, _SEARCH.format(among=self._among, condition=self._condition), "id", wanted)
            found += [message_id for (message_id,) in reversed(ids)]
            if len(found) > self._most:
                return self._shown(tx, found[: self._most], found[self._most - 1])
            end = first(tx, _BLOCK_END.format(among=self._among), {**self._bindings, "block": block - 1})
            if end is None:
                return self._shown(tx, found, None)
            self._bindings["before"] = end[0]
            if clock() >= until:
                return self._shown(tx, found, end[0])

    def _waiting(self, tx: Tx) -> list[str] | None:
        """The messages that still wait, newest first, by the index of lanes; None when they are too many for that."""
        ids: set[str] = set()
        for simulated in (0, 1):
            found = rows(tx, _WAITING, {**self._bindings, "simulated": simulated, "most": self._few_waiting})
            if len(found) == self._few_waiting:
                return None
            ids.update(message_id for (message_id,) in found)
        return sorted((each for each in ids if each < self._bindings["before"]), reverse=True)

    def _of_these(self, tx: Tx, waiting: list[str]) -> MailPage:
        found: list[str] = []
        query = _MESSAGE.format(condition=self._condition)
        for message_id in waiting:
            found += [each for (each,) in rows(tx, query, {**self._bindings, "id": message_id})]
            if len(found) > self._most:
                return self._shown(tx, found[: self._most], found[self._most - 1])
        return self._shown(tx, found, None)

    def _shown(self, tx: Tx, found: list[str], following: str | None) -> MailPage:
        wanted = {"ids": msgspec.json.encode(found).decode(), "recipients": SHOWN_RECIPIENTS}
        ((page,),) = rows(tx, _LISTED, {**self._bindings, **wanted})
        newest_first = sorted(_messages.decode(page or "[]"), key=attrgetter("id"), reverse=True)
        return MailPage(tuple(newest_first), following)
