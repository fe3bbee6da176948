"""The suppression lists: the addresses an account no longer sends to, in their key form.

A list is shown together with those who have unsubscribed (see `unsubscriptions.py`), who still get other messages.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from appliance.errors import Code, Refused
from appliance.model.dashboard import SuppressionFilter
from appliance.model.mail import Suppression, SuppressionOrigin
from appliance.store.body_parts import SUPPRESSION, add, check_room
from appliance.store.engine import Bindings, Bulk, Row, StorePart, Tx, first, rows

SEARCHED = 1_000  # entries between two checks of the time: some milliseconds
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
_AMONG = Bulk("SELECT account_id, address FROM suppressions WHERE (account_id, address) IN (VALUES {(?, ?)})")


def suppressed(tx: Tx, addresses: Sequence[Row]) -> set[Row]:
    return set(_AMONG.run(tx, addresses))


def suppress(tx: Tx, entry: Bindings, may_store: int | None = None) -> Row:
    """List an address, as a step of a transaction; one that is listed already keeps its first reason and origin."""
    if (results := first(tx, _FIND, entry)) is not None:
        return results
    check_room(tx, entry["account_id"], SUPPRESSION, may_store)
    if (added := first(tx, _ADD, entry)) is not None:
        add(tx, entry["account_id"], SUPPRESSION)
        return added
    return rows(tx, _FIND, entry)[0]  # another has listed it just now


def _entry(address: str, reason: str, created_at: int, origin: str, mail_list: str = "") -> Suppression:
    result = f"{reason} from the {mail_list.replace(':', ' ', 1)}" if mail_list else reason
    return Suppression(address, result, created_at, SuppressionOrigin(origin), mail_list)


@dataclass(frozen=True, slots=True)
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
        """Suppress an address, as `suppress` does; `may_store` are the bytes the account may keep with it."""
        row = {"account_id": account_id, "address": address, "reason": reason, "now": self.env.now()}
        row["origin"] = origin.value
        return _entry(*await self.engine.write(lambda tx: suppress(tx, row, may_store)))

    async def add_all(
        self,
        account_id: str,
        entries: Sequence[tuple[str, str]],
        origin: SuppressionOrigin,
        *,
        may_store: int | None = None,
    ) -> int:
        """Suppress addresses, each with its reason, in one transaction; how many of them were not listed already."""
        shared = {"account_id": account_id, "now": self.env.now(), "origin": origin.value}

        def work(tx: Tx) -> int:
            known = suppressed(tx, [(account_id, address) for address, _ in entries])
            for address, reason in entries:
                suppress(tx, {**shared, "address": address, "reason": reason}, may_store)
            return len(entries) - len(known)

        return await self.engine.write(work)

    async def page(self, account_id: str, after: str, most: int, after_list: str = "") -> list[Suppression]:
        """By address, and for each the list itself before what it has unsubscribed from; after this one of both."""
        bindings = {"account_id": account_id, "after": after, "after_list": after_list, "most": most}
        return await self.engine.all(_entry, _LIST, bindings)

    async def search(
        self, account_id: str, filters: SuppressionFilter, after: str, most: int, after_list: str = ""
    ) -> tuple[list[Suppression], Suppression | None]:
        """Return matching entries and where to continue (None at the end), read for a bounded time: maybe none yet."""

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

    async def of_address(self, address: str) -> list[tuple[str, Suppression]]:
        results = await self.engine.scan(lambda tx: rows(tx, _OF_ADDRESS, {"address": address}))
        return [(name, _entry(*entry)) for name, *entry in results]

    async def remove(self, account_id: str, address: str) -> None:
        def work(tx: Tx) -> bool:
            deleted = rows(tx, _DELETE, {"account_id": account_id, "address": address})
            add(tx, account_id, -SUPPRESSION * len(deleted))
            return bool(deleted)

        if not await self.engine.write(work):
            raise Refused(Code.NOT_FOUND, "This address is not suppressed.")
