"""What is kept of the installation itself: which key file seals its secrets, and which version started last."""

import msgspec

from appliance.model.database_server import LastStart
from appliance.store.engine import StorePart, Tx, first, one, run

KEY_FINGERPRINT = "key_fingerprint"
LAST_START = "last_start"

_VALUE = "SELECT value FROM installation WHERE name = :name"
_ADD = "INSERT INTO installation (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING"
_SET = """INSERT INTO installation (name, value) VALUES (:name, :value)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value"""
_SEALED = """SELECT 1 WHERE EXISTS (SELECT 1 FROM dkim_keys) OR EXISTS (SELECT 1 FROM webhooks)
    OR EXISTS (SELECT 1 FROM second_factors)"""


def last_start(tx: Tx) -> LastStart | None:
    """Which server started last; None if it was of a version that did not note it."""
    found = one(tx, str, _VALUE, {"name": LAST_START})
    return None if found is None else msgspec.json.decode(found, type=LastStart)


class InstallationRecords(StorePart):
    async def key_fingerprint(self) -> str | None:
        """Of the key file in use; None as long as no server has run on this database."""
        return await self.engine.one(str, _VALUE, {"name": KEY_FINGERPRINT})

    async def claim_key(self, fingerprint: str) -> str:
        """Make this key file the installation's if it has none yet; the fingerprint of the one it has then."""

        def work(tx: Tx) -> str:
            run(tx, _ADD, {"name": KEY_FINGERPRINT, "value": fingerprint})
            found = one(tx, str, _VALUE, {"name": KEY_FINGERPRINT})
            return fingerprint if found is None else found

        return await self.engine.write(work)

    async def replace_key(self, fingerprint: str) -> None:
        """Make this key file the installation's in place of any other."""
        await self.engine.change(_SET, {"name": KEY_FINGERPRINT, "value": fingerprint})

    async def has_secrets(self) -> bool:
        """Whether anything is stored that only the key file opens."""
        return await self.engine.read(lambda tx: first(tx, _SEALED, {})) is not None

    async def note_start(self, start: LastStart) -> None:
        """Keep what the next version's `upgrade --check` compares itself with."""

        def work(tx: Tx) -> None:
            if last_start(tx) != start:
                run(tx, _SET, {"name": LAST_START, "value": msgspec.json.encode(start).decode()})

        await self.engine.write(work)
