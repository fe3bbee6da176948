"""The domains that customers add themselves, pending until DNS has proven them, and their signing keys.

Private keys are stored sealed; at most one key of each kind signs for a domain, retired ones stay published.
"""

from dataclasses import dataclass

import apsw

from appliance.errors import Code, Refused
from appliance.model.mail import Domain, StoredDkimKey
from appliance.outside import Outside
from appliance.store.access import add_domain
from appliance.store.engine import Engine
from appliance.store.sql import Row, first, rows, run

DOMAINS_PER_ACCOUNT = 200  # that can be added without the operator

_COLUMNS = "name, usable, created_at, verified_at"
_FIND = f"""SELECT {_COLUMNS} FROM domains WHERE account_id = :account_id AND name = :name
    AND removed_at IS NULL"""  # noqa: S608 - the names of our own columns, as below
_PAGE = f"""SELECT {_COLUMNS} FROM domains
    WHERE account_id = :account_id AND name > :after AND removed_at IS NULL ORDER BY name LIMIT :most"""  # noqa: S608
_COUNT = "SELECT count(*) FROM domains WHERE account_id = :account_id"
_VERIFIED = f"""UPDATE domains SET usable = 1, verified_at = :now
    WHERE account_id = :account_id AND name = :name AND removed_at IS NULL RETURNING {_COLUMNS}"""  # noqa: S608
_REMOVE = """UPDATE domains SET usable = 0, removed_at = :now
    WHERE account_id = :account_id AND name = :name AND removed_at IS NULL RETURNING name"""


@dataclass(frozen=True, slots=True)
class Domains:
    engine: Engine
    outside: Outside
    most: int = DOMAINS_PER_ACCOUNT

    async def register(self, account_id: str, name: str) -> Domain:
        """Add a domain that may not be used before it is proven."""
        return await self.engine.write(lambda c: self._register(c, account_id, name))

    def _register(self, c: apsw.Connection, account_id: str, name: str) -> Domain:
        if _find(c, account_id, name) is not None:
            raise Refused(Code.CONFLICT, f"domain: {name} is registered already")
        ((count,),) = rows(c, _COUNT, {"account_id": account_id})
        if count >= self.most:  # removed ones count, too: each has keys
            raise Refused(Code.CONFLICT, f"domain: an account may add {self.most} domains. Ask the operator for more.")
        add_domain(c, self.outside, account_id, name, usable=False)
        added = _find(c, account_id, name)
        assert added is not None  # noqa: S101 - it was written just now
        return added

    def find(self, account_id: str, name: str) -> Domain:
        found = self.engine.read(lambda c: _find(c, account_id, name))
        if found is None:
            raise _unknown()
        return found

    def page(self, account_id: str, after: str, most: int) -> list[Domain]:
        wanted = {"account_id": account_id, "after": after, "most": most}
        return [_domain(row) for row in self.engine.read(lambda c: rows(c, _PAGE, wanted))]

    async def prove(self, account_id: str, name: str) -> Domain:
        """DNS has shown that the account's owner has the domain: it may be used from now on."""
        row = {"account_id": account_id, "name": name, "now": self.outside.now()}
        found = await self.engine.write(lambda c: first(c, _VERIFIED, row))
        if found is None:
            raise _unknown()
        return _domain(found)

    async def remove(self, account_id: str, name: str) -> None:
        """Let nothing more be sent from a domain. Its keys stay, to sign what is on its way."""
        row = {"account_id": account_id, "name": name, "now": self.outside.now()}
        if await self.engine.write(lambda c: first(c, _REMOVE, row)) is None:
            raise _unknown()


def _find(c: apsw.Connection, account_id: str, name: str) -> Domain | None:
    row = first(c, _FIND, {"account_id": account_id, "name": name})
    return None if row is None else _domain(row)


def _domain(row: Row) -> Domain:
    name, usable, created_at, verified_at = row
    return Domain(name, bool(usable), created_at, verified_at)


def _unknown() -> Refused:
    return Refused(Code.NOT_FOUND, "There is no such domain in this account.")


# ---- signing keys

_ADD = """INSERT INTO dkim_keys (account_id, domain, selector, algorithm, private_key, record, created_at)
    VALUES (:account_id, :domain, :selector, :algorithm, :private_key, :record, :now)"""
_RETIRE = """UPDATE dkim_keys SET retired_at = :now
    WHERE account_id = :account_id AND domain = :domain AND retired_at IS NULL"""
_KEYS = """SELECT selector, algorithm, private_key, record, created_at, retired_at FROM dkim_keys
    WHERE account_id = :account_id AND domain = :domain ORDER BY created_at, selector"""
_SELECTORS = "SELECT selector FROM dkim_keys WHERE domain = :domain"


@dataclass(frozen=True, slots=True)
class DkimKeys:
    engine: Engine
    outside: Outside

    async def replace(self, account_id: str, domain: str, keys: list[StoredDkimKey]) -> None:
        """Let these keys sign from now on; the ones before them retire, their records to stay published for a while."""
        await self.engine.write(lambda c: _replace(c, account_id, domain, keys, self.outside.now()))

    def of(self, account_id: str, domain: str) -> list[StoredDkimKey]:
        wanted = {"account_id": account_id, "domain": domain}
        return [StoredDkimKey(*row) for row in self.engine.read(lambda c: rows(c, _KEYS, wanted))]

    def selectors(self, domain: str) -> list[str]:
        """The names of all keys for a domain, whichever account they are of."""
        return [selector for (selector,) in self.engine.read(lambda c: rows(c, _SELECTORS, {"domain": domain}))]


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
