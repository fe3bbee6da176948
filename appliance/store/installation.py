"""Single values of the installation: which key file seals its secrets, which version started last, resumed pools."""

import msgspec

from appliance.model.database import LastStart
from appliance.store.engine import StorePart, Tx, first, one, run

KEY_FINGERPRINT = "key_fingerprint"
LAST_START = "last_start"
RESUMED_POOLS = "resumed_pools"

_VALUE = "SELECT value FROM installation WHERE name = :name"
_ADD = "INSERT INTO installation (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING"
_SET = """INSERT INTO installation (name, value) VALUES (:name, :value)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value"""
_SEALED = """SELECT 1 WHERE EXISTS (SELECT 1 FROM dkim_keys) OR EXISTS (SELECT 1 FROM webhooks)
    OR EXISTS (SELECT 1 FROM second_factors)"""


_RESUMED = msgspec.json.Decoder(dict[str, int])
RESUMED_KEPT = 1_000  # pools


def resumed_pools(tx: Tx) -> dict[str, int]:
    """The pools that an operator resumed, the last ones, each with a number that no earlier one has."""
    results = one(tx, str, _VALUE, {"name": RESUMED_POOLS})
    return {} if results is None else _RESUMED.decode(results)


def note_resumed(tx: Tx, pool: str) -> None:
    """An operator resumed a pool: servers that see a new number lift the slow-down of the pool."""
    pools = resumed_pools(tx)
    number = max(pools.values(), default=0) + 1
    pools.pop(pool, None)
    kept = list(pools.items())[1 - RESUMED_KEPT :]
    value = msgspec.json.encode({**dict(kept), pool: number}).decode()
    run(tx, _SET, {"name": RESUMED_POOLS, "value": value})


def last_start(tx: Tx) -> LastStart | None:
    results = one(tx, str, _VALUE, {"name": LAST_START})
    return None if results is None else msgspec.json.decode(results, type=LastStart)


class InstallationRecords(StorePart):
    async def key_fingerprint(self) -> str | None:
        """Of the key file in use; None as long as no server has run on this database."""
        return await self.engine.one(str, _VALUE, {"name": KEY_FINGERPRINT})

    async def claim_key(self, fingerprint: str) -> str:
        """Record this key file unless one is recorded; return the recorded fingerprint."""

        def work(tx: Tx) -> str:
            run(tx, _ADD, {"name": KEY_FINGERPRINT, "value": fingerprint})
            results = one(tx, str, _VALUE, {"name": KEY_FINGERPRINT})
            return fingerprint if results is None else results

        return await self.engine.write(work)

    async def replace_key(self, fingerprint: str) -> None:
        await self.engine.change(_SET, {"name": KEY_FINGERPRINT, "value": fingerprint})

    async def has_secrets(self) -> bool:
        return await self.engine.read(lambda tx: first(tx, _SEALED, {})) is not None

    async def note_start(self, start: LastStart) -> None:
        """Keep what the next version's `upgrade --check` compares itself with."""

        def work(tx: Tx) -> None:
            if last_start(tx) != start:
                run(tx, _SET, {"name": LAST_START, "value": msgspec.json.encode(start).decode()})

        await self.engine.write(work)
