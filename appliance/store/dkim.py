"""In charge of the signing keys in the store: sealed, at most one of each kind in use for a domain."""

from dataclasses import dataclass

import apsw

from appliance.model.mail import StoredDkimKey
from appliance.outside import Outside
from appliance.store.engine import Engine
from appliance.store.sql import rows, run

_ADD = """
INSERT INTO dkim_keys (account_id, domain, selector, algorithm, private_key, record, created_at)
VALUES (:account_id, :domain, :selector, :algorithm, :private_key, :record, :now)
"""
_RETIRE = """
UPDATE dkim_keys SET retired_at = :now WHERE account_id = :account_id AND domain = :domain AND retired_at IS NULL
"""
_KEYS = """
SELECT selector, algorithm, private_key, record, created_at, retired_at FROM dkim_keys
WHERE account_id = :account_id AND domain = :domain ORDER BY created_at, selector
"""
_SELECTORS = "SELECT selector FROM dkim_keys WHERE domain = :domain"
_WITHOUT = """
SELECT d.account_id, d.name FROM domains d WHERE d.usable = 1 AND NOT EXISTS
    (SELECT 1 FROM dkim_keys k WHERE k.account_id = d.account_id AND k.domain = d.name AND k.retired_at IS NULL)
"""


@dataclass(frozen=True, slots=True)
class DkimKeys:
    """The signing keys of the accounts' domains."""

    engine: Engine
    outside: Outside

    async def replace(self, account_id: str, domain: str, keys: list[StoredDkimKey]) -> None:
        """Let these keys sign from now on; the ones before them retire, their records to stay published for a while."""
        await self.engine.write(lambda c: _replace(c, account_id, domain, keys, self.outside.now()))

    def of(self, account_id: str, domain: str) -> list[StoredDkimKey]:
        """Every key of a domain, retired ones too, oldest first."""
        wanted = {"account_id": account_id, "domain": domain}
        return [StoredDkimKey(*row) for row in self.engine.read(lambda c: rows(c, _KEYS, wanted))]

    def selectors(self, domain: str) -> list[str]:
        """The names of all keys for a domain, whichever account they are of."""
        return [selector for (selector,) in self.engine.read(lambda c: rows(c, _SELECTORS, {"domain": domain}))]

    def domains_without(self) -> list[tuple[str, str]]:
        """Usable domains (account, name) that have no key to sign with yet."""
        return [(account_id, name) for account_id, name in self.engine.read(lambda c: rows(c, _WITHOUT, {}))]


def _replace(c: apsw.Connection, account_id: str, domain: str, keys: list[StoredDkimKey], now: int) -> None:
    run(c, _RETIRE, {"account_id": account_id, "domain": domain, "now": now})
    for key in keys:
        run(
            c,
            _ADD,
            {
                "account_id": account_id,
                "domain": domain,
                "selector": key.selector,
                "algorithm": key.algorithm,
                "private_key": key.private_key,
                "record": key.record,
                "now": now,
            },
        )
