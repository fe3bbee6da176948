"""ACME on a shared database: the names each node needs, the challenges any node can serve, the certificates.

Only a shared database has these tables. The node that has the chore ACME_CHORE writes them; what another one would
write is refused, so that a node that was suspended during an order does not replace what its successor has done.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from appliance.store.engine import StorePart, Tx, first, rows, run

ACME_CHORE = "acme"
CHALLENGES_READ = 200  # at once; a certificate of Let's Encrypt has 100 names at most

_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_ANNOUNCE = "UPDATE nodes SET acme = :wanted WHERE owner = current_setting('appliance.owner')"
_WANTED = f"""SELECT acme FROM nodes WHERE adopted_by IS NULL AND lease_until > {_NOW} AND acme <> ''
    ORDER BY started_at DESC, owner DESC"""
_RECORDS = "SELECT name, sealed FROM acme_records"
# Locked: a node that takes the chore meanwhile has it, and looks, when this transaction is over.
_IS_OURS = "SELECT 1 FROM chores WHERE name = :chore AND owner = current_setting('appliance.owner') FOR SHARE"
_KEEP = """INSERT INTO acme_records (name, sealed) VALUES (:name, :sealed)
    ON CONFLICT (name) DO UPDATE SET sealed = excluded.sealed"""
_CHALLENGES = "SELECT token, text FROM acme_challenges LIMIT :most"
_PUBLISH = """INSERT INTO acme_challenges (token, text) VALUES (:token, :text)
    ON CONFLICT (token) DO UPDATE SET text = excluded.text"""
_WITHDRAW = "DELETE FROM acme_challenges"


@dataclass(frozen=True, slots=True)
class SharedAcme:
    wanted: list[str]  # what the live nodes have announced, that of the last one started first
    records: dict[str, bytes]  # sealed, by their names


class SharedCertificates(StorePart):
    async def announce(self, announcement: str) -> None:
        """Tell the other nodes which certificate this one wants, for as long as it is one of them."""
        await self.engine.write(lambda tx: run(tx, _ANNOUNCE, {"wanted": announcement}), locks=True)

    async def look(self) -> SharedAcme:
        def work(tx: Tx) -> SharedAcme:
            return SharedAcme([row for (row,) in rows(tx, _WANTED, {})], dict(rows(tx, _RECORDS, {})))

        return await self.engine.read(work)

    async def keep(self, records: Mapping[str, bytes]) -> bool:
        """Replace these records, sealed, all at once; False, with nothing written, if the chore is another node's."""

        def work(tx: Tx) -> None:
            for name, sealed in records.items():
                run(tx, _KEEP, {"name": name, "sealed": sealed})

        return await self._if_ours(work)

    async def publish(self, token: str, text: str) -> bool:
        """From now on any node finds the text for this token; False if the chore is another node's."""
        return await self._if_ours(lambda tx: run(tx, _PUBLISH, {"token": token, "text": text}))

    async def withdraw(self) -> bool:
        """Remove all challenges, also a lost node's, if this node has the chore."""
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
