"""The suppression lists: the addresses an account no longer sends to, in their key form."""

from collections.abc import Sequence

import apsw

from appliance.errors import Code, Refused
from appliance.model.mail import Suppression
from appliance.store.body_parts import SUPPRESSION, add, check_room
from appliance.store.engine import StorePart
from appliance.store.sql import Bindings, Many, Row, first, rows

_FIND = "SELECT address, reason, created_at FROM suppressions WHERE account_id = :account_id AND address = :address"
_ADD = """INSERT INTO suppressions (account_id, address, reason, created_at)
    VALUES (:account_id, :address, :reason, :now) RETURNING address, reason, created_at"""
_LIST = """SELECT address, reason, created_at FROM suppressions
    WHERE account_id = :account_id AND address > :after ORDER BY address LIMIT :most"""
_DELETE = "DELETE FROM suppressions WHERE account_id = :account_id AND address = :address RETURNING address"
_AMONG = Many("SELECT account_id, address FROM suppressions WHERE (account_id, address) IN (VALUES {(?, ?)})")


def suppressed(c: apsw.Connection, addresses: Sequence[Row]) -> set[Row]:
    """Those of these accounts and addresses that are listed."""
    return set(_AMONG.run(c, addresses))


def suppress(c: apsw.Connection, entry: Bindings, may_store: int | None = None) -> Row:
    """List an address, as a step of a transaction; one that is listed already keeps its first reason."""
    found = first(c, _FIND, entry)
    if found is None:
        check_room(c, entry["account_id"], SUPPRESSION, may_store)
        add(c, entry["account_id"], SUPPRESSION)
        (found,) = rows(c, _ADD, entry)
    return found


class Suppressions(StorePart):
    async def add(self, account_id: str, address: str, reason: str, *, may_store: int | None = None) -> Suppression:
        """Suppress an address, as `suppress` does; `may_store` are the bytes the account may keep with it."""
        row = {"account_id": account_id, "address": address, "reason": reason, "now": self.outside.now()}
        return Suppression(*await self.engine.write(lambda c: suppress(c, row, may_store)))

    def page(self, account_id: str, after: str, most: int) -> list[Suppression]:
        return self.engine.all(Suppression, _LIST, {"account_id": account_id, "after": after, "most": most})

    async def remove(self, account_id: str, address: str) -> None:
        def work(c: apsw.Connection) -> bool:
            deleted = rows(c, _DELETE, {"account_id": account_id, "address": address})
            add(c, account_id, -SUPPRESSION * len(deleted))
            return bool(deleted)

        if not await self.engine.write(work):
            raise Refused(Code.NOT_FOUND, "This address is not on the suppression list.")
