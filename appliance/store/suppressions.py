"""The suppression lists: the addresses an account no longer sends to, in their key form.

Lists include the addresses that unsubscribed from a tag or template. Such an address gets no messages with that tag or
template until the entry is removed.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from appliance.errors import Code, Refused
from appliance.model.dashboard import SuppressionFilter
from appliance.model.mail import NewMessage, NewRecipient, Suppression, SuppressionOrigin, lists_of
from appliance.store.body_parts import SUPPRESSION, add, check_room
from appliance.store.engine import Bindings, Bulk, Row, StorePart, Tx, changed, first, rows, run, transaction

SEARCHED = 1_000  # entries between two checks of the time: a few milliseconds
_SEARCH_TIME = 0.05  # seconds of searching for one page

_FIND = """SELECT address, reason, created_at, origin FROM suppressions
    WHERE account_id = :account_id AND address = :address"""
_ADD = """INSERT INTO suppressions (account_id, address, reason, created_at, origin)
    VALUES (:account_id, :address, :reason, :now, :origin) ON CONFLICT DO NOTHING
    RETURNING address, reason, created_at, origin"""
# Each half reads one page of its index.
_LIST = """SELECT address, reason, created_at, origin, list FROM (
        SELECT address, reason, created_at, origin, '' AS list FROM suppressions
        WHERE account_id = :account_id AND address > :after ORDER BY address LIMIT :most) AS addresses
    UNION ALL SELECT address, reason, created_at, origin, list FROM (
        SELECT address, 'unsubscribed' AS reason, created_at, 'unsubscribe' AS origin, list FROM unsubscriptions
        WHERE account_id = :account_id AND (address, list) > (:after, :after_list)
        ORDER BY address, list LIMIT :most) AS of_lists
    ORDER BY address, list LIMIT :most"""
# CROSS JOIN goes from each account to its entry: no index is by address alone. A deleted account has no user.
_OF_ADDRESS = """SELECT a.name, s.address, s.reason, s.created_at, s.origin, '' AS list
    FROM accounts a CROSS JOIN suppressions s ON s.account_id = a.id AND s.address = :address
    WHERE EXISTS (SELECT 1 FROM users u WHERE u.account_id = a.id)
    UNION ALL SELECT a.name, s.address, 'unsubscribed' AS reason, s.created_at, 'unsubscribe' AS origin, s.list
    FROM accounts a CROSS JOIN unsubscriptions s ON s.account_id = a.id AND s.address = :address
    WHERE EXISTS (SELECT 1 FROM users u WHERE u.account_id = a.id)
    ORDER BY 1, 6"""
_DELETE = "DELETE FROM suppressions WHERE account_id = :account_id AND address = :address RETURNING address"
_ORIGINS = Bulk("SELECT address, origin FROM suppressions WHERE (account_id, address) IN (VALUES {(?, ?)})")
_AMONG = Bulk("SELECT account_id, address FROM suppressions WHERE (account_id, address) IN (VALUES {(?, ?)})")


def suppressed(tx: Tx, addresses: Sequence[Row]) -> set[Row]:
    return set(_AMONG.run(tx, addresses))


def suppress(tx: Tx, entry: Bindings, may_store: int | None = None) -> Row:
    """Suppress an address as a step of a transaction; a listed address keeps its first reason and origin."""
    if (results := first(tx, _FIND, entry)) is not None:
        return results
    check_room(tx, entry["account_id"], SUPPRESSION, may_store)
    if (added := first(tx, _ADD, entry)) is not None:
        add(tx, entry["account_id"], SUPPRESSION)
        return added
    return rows(tx, _FIND, entry)[0]  # another transaction was first


def _entry(address: str, reason: str, created_at: int, origin: str, mail_list: str = "") -> Suppression:
    result = f"{reason} from the {mail_list.replace(':', ' ', 1)}" if mail_list else reason
    return Suppression(address, result, created_at, SuppressionOrigin(origin), mail_list)


class Suppressions(StorePart):
    clock: Callable[[], float] = time.monotonic

    async def add(
        self,
        account_id: str,
        address: str,
        reason: str,
        *,
        origin: SuppressionOrigin = SuppressionOrigin.MANUAL,
        may_store: int | None = None,
    ) -> Suppression:
        """Suppress an address; `may_store`: bytes that the account may store afterwards."""
        row = {"account_id": account_id, "address": address, "reason": reason, "now": self.env.now()}
        row["origin"] = origin.value
        return _entry(*await self.engine.write(lambda tx: suppress(tx, row, may_store)))

    @transaction
    def add_all(
        self,
        tx: Tx,
        account_id: str,
        entries: Sequence[tuple[str, str]],
        origin: SuppressionOrigin,
        *,
        may_store: int | None = None,
    ) -> int:
        """Suppress addresses, given with reasons, in one transaction; return how many are new."""
        shared = {"account_id": account_id, "now": self.env.now(), "origin": origin.value}
        known = suppressed(tx, [(account_id, address) for address, _ in entries])
        for address, reason in entries:
            suppress(tx, {**shared, "address": address, "reason": reason}, may_store)
        return len(entries) - len(known)

    async def page(self, account_id: str, after: str, most: int, after_list: str = "") -> list[Suppression]:
        """Entries by address, the suppression before the unsubscriptions, after this address and list."""
        bindings = {"account_id": account_id, "after": after, "after_list": after_list, "most": most}
        return await self.engine.all(_entry, _LIST, bindings)

    async def search(
        self, account_id: str, filters: SuppressionFilter, after: str, most: int, after_list: str = ""
    ) -> tuple[list[Suppression], Suppression | None]:
        """Return matching entries and where to continue (None at the end); time is bounded, so maybe none yet."""

        def work(tx: Tx) -> tuple[list[Suppression], Suppression | None]:
            results: list[Suppression] = []
            at, end = (after, after_list), self.clock() + _SEARCH_TIME
            while True:
                bindings = {"account_id": account_id, "after": at[0], "after_list": at[1], "most": SEARCHED}
                block = [_entry(*row) for row in rows(tx, _LIST, bindings)]
                for entry in block:
                    if filters.matches(entry):
                        results.append(entry)
                        if len(results) == most:
                            return results, entry
                if len(block) < SEARCHED:
                    return results, None
                if self.clock() >= end:
                    return results, block[-1]
                at = block[-1].address, block[-1].mail_list

        return await self.engine.scan(work, account_id)

    async def origins(
        self, account_id: str, addresses: Sequence[str], lists: Sequence[str]
    ) -> dict[str, SuppressionOrigin]:
        """Why these addresses get no mail of the account or of these lists now; others are omitted."""
        places = [(account_id, address) for address in addresses]

        def work(tx: Tx) -> dict[str, SuppressionOrigin]:
            selected = _LISTS.run(tx, places) if lists else []
            left = {address: SuppressionOrigin.UNSUBSCRIBE for _, address, name in selected if name in lists}
            return left | {address: SuppressionOrigin(origin) for address, origin in _ORIGINS.run(tx, places)}

        return await self.engine.read(work) if places else {}

    async def of_address(self, address: str) -> list[tuple[str, Suppression]]:
        results = await self.engine.scan(lambda tx: rows(tx, _OF_ADDRESS, {"address": address}))
        return [(name, _entry(*entry)) for name, *entry in results]

    @transaction
    def remove(self, tx: Tx, account_id: str, address: str) -> None:
        if not rows(tx, _DELETE, {"account_id": account_id, "address": address}):
            raise Refused(Code.NOT_FOUND, "This address is not suppressed.")
        add(tx, account_id, -SUPPRESSION)


# ---- unsubscriptions of an address from a tag or template, and the tags whose messages get a link

_LISTS = Bulk("SELECT account_id, address, list FROM unsubscriptions WHERE (account_id, address) IN (VALUES {(?, ?)})")
_OF_LIST = """SELECT created_at FROM unsubscriptions
    WHERE account_id = :account_id AND address = :address AND list = :list"""
_ACCOUNT = "SELECT 1 FROM accounts WHERE id = :account_id"
_UNSUBSCRIBE = """INSERT INTO unsubscriptions (account_id, address, list, created_at)
    VALUES (:account_id, :address, :list, :now) ON CONFLICT DO NOTHING"""
_RESUBSCRIBE = "DELETE FROM unsubscriptions WHERE account_id = :account_id AND address = :address AND list = :list"
_TAGS = "SELECT tag FROM unsubscribe_tags WHERE account_id = :account_id ORDER BY tag"
_DELETE_TAGS = "DELETE FROM unsubscribe_tags WHERE account_id = :account_id"
_ADD_TAGS = Bulk("INSERT INTO unsubscribe_tags (account_id, tag) VALUES {(?, ?)} ON CONFLICT DO NOTHING")


class Addressed(NamedTuple):
    """The parts of a stored message that decide about suppression."""

    account_id: str
    recipients: Sequence[NewRecipient]
    tags: Sequence[str]
    template_alias: str | None
    stream: str


SUPPRESSED_NOTE = "suppressed: this address is on the account's suppression list"
UNSUBSCRIBED_NOTE = "suppressed: this address has unsubscribed from messages with the {}"


def suppression_notes(
    tx: Tx, of_suppressing: Sequence[NewMessage | Addressed], of_unsubscribed: Sequence[NewMessage | Addressed]
) -> dict[str, str]:
    """Why recipients are suppressed, by id, in accounts with suppressions and accounts with unsubscriptions."""
    keys = [(new.account_id, to.key) for new in of_suppressing for to in new.recipients]
    listed = suppressed(tx, keys) if keys else set()
    left = unsubscribed(tx, of_unsubscribed) if of_unsubscribed else {}
    notes = {name: UNSUBSCRIBED_NOTE.format(mail_list.replace(":", " ", 1)) for name, mail_list in left.items()}
    for new in of_suppressing if listed else ():
        notes |= {to.id: SUPPRESSED_NOTE for to in new.recipients if (new.account_id, to.key) in listed}
    return notes


def unsubscribed(tx: Tx, news: Sequence[NewMessage | Addressed]) -> dict[str, str]:
    """The lists that recipients of these messages have unsubscribed from, by recipient id."""
    selected = set(_LISTS.run(tx, [(new.account_id, recipient.key) for new in news for recipient in new.recipients]))
    if not selected:
        return {}
    return {
        recipient.id: mail_list
        for new in news
        for mail_list in lists_of(new.tags, new.template_alias, new.stream)
        for recipient in new.recipients
        if (new.account_id, recipient.key, mail_list) in selected
    }


def unsubscribe(tx: Tx, account_id: str, mail_list: str, address: str, now: int) -> bool:
    row = {"account_id": account_id, "list": mail_list, "address": address, "now": now}
    if first(tx, _ACCOUNT, row) is None or not changed(tx, _UNSUBSCRIBE, row):
        return False
    add(tx, account_id, SUPPRESSION)
    return True


class Unsubscriptions(StorePart):
    async def add(self, account_id: str, mail_list: str, address: str) -> bool:
        """Unsubscribe an address; False if it already is, or if the account does not exist."""
        row = {"account_id": account_id, "list": mail_list, "address": address}
        if await self.engine.rows(_OF_LIST, row):  # repeated posts to a link write once
            return False
        return await self.engine.write(lambda tx: unsubscribe(tx, account_id, mail_list, address, self.env.now()))

    @transaction
    def add_by_hand(
        self, tx: Tx, account_id: str, mail_list: str, address: str, *, may_store: int | None
    ) -> Suppression:
        row = {"account_id": account_id, "list": mail_list, "address": address}
        if not rows(tx, _OF_LIST, row):
            check_room(tx, account_id, SUPPRESSION, may_store)
            unsubscribe(tx, account_id, mail_list, address, self.env.now())
        ((created_at,),) = rows(tx, _OF_LIST, row)
        return _entry(address, "unsubscribed", created_at, SuppressionOrigin.UNSUBSCRIBE, mail_list)

    @transaction
    def remove(self, tx: Tx, account_id: str, mail_list: str, address: str) -> None:
        row = {"account_id": account_id, "list": mail_list, "address": address}
        if not changed(tx, _RESUBSCRIBE, row):
            raise Refused(Code.NOT_FOUND, "This address has not unsubscribed from that.")
        add(tx, account_id, -SUPPRESSION)

    async def tags(self, account_id: str) -> list[str]:
        return await self.engine.all(str, _TAGS, {"account_id": account_id})

    @transaction
    def replace_tags(self, tx: Tx, account_id: str, tags: Sequence[str]) -> None:
        run(tx, _DELETE_TAGS, {"account_id": account_id})
        _ADD_TAGS.run(tx, [(account_id, tag) for tag in tags])
