"""In charge of how many SMTP credentials and API keys an account may have, and how many revoked ones are kept."""

from dataclasses import dataclass

import apsw

from appliance.errors import Code, Refused
from appliance.store.sql import rows, run

MOST = 100  # of either kind that work at once, for one account
REVOKED = 1_000  # kept to be shown; a program that makes and revokes all day must not fill lists without end

_WORKING = "SELECT count(*) FROM {table} WHERE account_id = :account_id AND revoked_at IS NULL"
_FORGET = """
DELETE FROM {table} WHERE account_id = :account_id AND revoked_at IS NOT NULL AND {name} NOT IN
    (SELECT {name} FROM {table} WHERE account_id = :account_id AND revoked_at IS NOT NULL
    ORDER BY revoked_at DESC, {name} DESC LIMIT :revoked)
"""


@dataclass(frozen=True, slots=True)
class Room:
    """The room for one kind of secret: its table, the column that names one, and what people call it."""

    table: str
    name: str
    words: str

    def make(self, c: apsw.Connection, account_id: str) -> None:
        """Refuse one too many, in the transaction that would write it; what was revoked longest ago is forgotten."""
        wanted = {"account_id": account_id, "revoked": REVOKED}
        ((working,),) = rows(c, _WORKING.format(table=self.table), wanted)
        if working >= MOST:
            raise Refused(Code.CONFLICT, f"An account may have {MOST} {self.words} at once. Revoke one first.")
        run(c, _FORGET.format(table=self.table, name=self.name), wanted)


CREDENTIALS = Room("smtp_credentials", "username", "SMTP credentials")
KEYS = Room("api_keys", "id", "API keys")
