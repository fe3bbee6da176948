"""In charge of the suppression list in the store: the addresses an account no longer sends to."""

from dataclasses import dataclass

from appliance.errors import Code, Refused
from appliance.model import Suppression
from appliance.outside import Outside
from appliance.store.engine import Engine
from appliance.store.sql import rows

ADD_SUPPRESSION = """
INSERT INTO suppressions (account_id, address, reason, created_at) VALUES (:account_id, :address, :reason, :now)
ON CONFLICT (account_id, address) DO UPDATE SET reason = reason
RETURNING address, reason, created_at
"""
_LIST = """
SELECT address, reason, created_at FROM suppressions
WHERE account_id = :account_id AND address > :after ORDER BY address LIMIT :most
"""
_DELETE = "DELETE FROM suppressions WHERE account_id = :account_id AND address = :address RETURNING address"


@dataclass(frozen=True, slots=True)
class Suppressions:
    """The suppression lists of the accounts; addresses come and go in their key form."""

    engine: Engine
    outside: Outside

    async def add(self, account_id: str, address: str, reason: str) -> Suppression:
        """Suppress an address; one that is listed already keeps its first reason."""
        row = {"account_id": account_id, "address": address, "reason": reason, "now": self.outside.now()}
        (entry,) = await self.engine.write(lambda c: rows(c, ADD_SUPPRESSION, row))
        return Suppression(*entry)

    def page(self, account_id: str, after: str, most: int) -> list[Suppression]:
        """The suppressed addresses in order, from the one after `after`."""
        wanted = {"account_id": account_id, "after": after, "most": most}
        return self.engine.read(lambda c: [Suppression(*row) for row in rows(c, _LIST, wanted)])

    async def remove(self, account_id: str, address: str) -> None:
        """Let an address be sent to again."""
        row = {"account_id": account_id, "address": address}
        if not await self.engine.write(lambda c: rows(c, _DELETE, row)):
            raise Refused(Code.NOT_FOUND, "This address is not on the suppression list.")
