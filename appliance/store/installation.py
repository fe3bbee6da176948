"""Records of the installation: its key file, its last start, resumed pools, and the certificates that nodes share."""

from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from appliance.model.database import LastStart
from appliance.store.engine import StorePart, Tx, first, one, run, transaction

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
    """The last pools that an operator resumed, each with a unique, ascending number."""
    results = one(tx, str, _VALUE, {"name": RESUMED_POOLS})
    return {} if results is None else _RESUMED.decode(results)


def note_resumed(tx: Tx, pool: str) -> None:
    """Note that an operator resumed a pool. Servers that see a new number lift its slow-down."""
    pools = resumed_pools(tx)
    number = max(pools.values(), default=0) + 1
    pools.pop(pool, None)
    kept = dict(list(pools.items())[1 - RESUMED_KEPT :])
    run(tx, _SET, {"name": RESUMED_POOLS, "value": msgspec.json.encode(kept | {pool: number}).decode()})


def last_start(tx: Tx) -> LastStart | None:
    results = one(tx, str, _VALUE, {"name": LAST_START})
    return None if results is None else msgspec.json.decode(results, type=LastStart)


class InstallationRecords(StorePart):
    async def key_fingerprint(self) -> str | None:
        """Fingerprint of the key file in use; None before the first start of a server."""
        return await self.engine.one(str, _VALUE, {"name": KEY_FINGERPRINT})

    @transaction
    def claim_key(self, tx: Tx, fingerprint: str) -> str:
        run(tx, _ADD, {"name": KEY_FINGERPRINT, "value": fingerprint})
        return one(tx, str, _VALUE, {"name": KEY_FINGERPRINT}) or fingerprint

    async def replace_key(self, fingerprint: str) -> None:
        await self.engine.change(_SET, {"name": KEY_FINGERPRINT, "value": fingerprint})

    async def has_secrets(self) -> bool:
        return await self.engine.read(lambda tx: first(tx, _SEALED, {})) is not None

    @transaction
    def note_start(self, tx: Tx, start: LastStart) -> None:
        """Store what `upgrade --check` of the next version compares."""
        if last_start(tx) != start:
            run(tx, _SET, {"name": LAST_START, "value": msgspec.json.encode(start).decode()})


# ---- ACME on a shared database. Only the node with the chore writes: one suspended during an order replaces nothing.

ACME_CHORE = "acme"
CHALLENGES_READ = 200  # at once; a certificate of Let's Encrypt has 100 names at most

_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_ANNOUNCE = "UPDATE nodes SET acme = :wanted WHERE owner = current_setting('appliance.owner')"
_WANTED = f"""SELECT acme FROM nodes WHERE adopted_by IS NULL AND lease_until > {_NOW} AND acme <> ''
    ORDER BY started_at DESC, owner DESC"""
_RECORDS = "SELECT name, sealed FROM acme_records"
# Locked, so that a node takes over the chore, and reads, only after this transaction.
_IS_OURS = "SELECT 1 FROM chores WHERE name = :chore AND owner = current_setting('appliance.owner') FOR SHARE"
_KEEP = """INSERT INTO acme_records (name, sealed) VALUES (:name, :sealed)
    ON CONFLICT (name) DO UPDATE SET sealed = excluded.sealed"""
_CHALLENGES = "SELECT token, text FROM acme_challenges LIMIT :most"
_PUBLISH = """INSERT INTO acme_challenges (token, text) VALUES (:token, :text)
    ON CONFLICT (token) DO UPDATE SET text = excluded.text"""
_WITHDRAW = "DELETE FROM acme_challenges"


class SharedAcme(Struct, frozen=True):
    wanted: list[str]  # announcements of live nodes, last started first
    records: dict[str, bytes]  # sealed, by their names


class SharedCertificates(StorePart):
    async def announce(self, announcement: str) -> None:
        """Tell the other nodes which certificate this one needs, while it is a node."""
        await self.engine.write(lambda tx: run(tx, _ANNOUNCE, {"wanted": announcement}), locks=True)

    async def look(self) -> SharedAcme:
        announced = await self.engine.all(str, _WANTED, {})
        return SharedAcme(announced, dict(await self.engine.rows(_RECORDS, {})))

    async def keep(self, records: Mapping[str, bytes]) -> bool:
        """Replace sealed records in one transaction. Return False and write nothing if another node has the chore."""

        def work(tx: Tx) -> None:
            for name, sealed in records.items():
                run(tx, _KEEP, {"name": name, "sealed": sealed})

        return await self._if_ours(work)

    async def publish(self, token: str, text: str) -> bool:
        """Publish a challenge to all nodes; False if another node has the chore."""
        return await self._if_ours(lambda tx: run(tx, _PUBLISH, {"token": token, "text": text}))

    async def withdraw(self) -> bool:
        """Remove all challenges, including those of lost nodes, if this node has the chore."""
        return await self._if_ours(lambda tx: run(tx, _WITHDRAW, {}))

    async def challenges(self) -> dict[str, str]:
        return dict(await self.engine.rows(_CHALLENGES, {"most": CHALLENGES_READ}))

    async def _if_ours(self, change: Callable[[Tx], None]) -> bool:
        def work(tx: Tx) -> bool:
            if first(tx, _IS_OURS, {"chore": ACME_CHORE}) is None:
                return False
            change(tx)
            return True

        return await self.engine.write(work, locks=True)
