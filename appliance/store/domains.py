"""Domains that customers add, pending until DNS proves them; their DNS checks, return paths and signing keys.

Private keys are stored sealed. At most one key of each kind signs for a domain; retired ones stay published. Activating
the pending keys of a rotation retires the others in the same transaction.
"""

from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from appliance.errors import Code, Refused
from appliance.model.accounts import Domain, DomainDns, RecordStatus, StoredDkimKey
from appliance.store.access import SELECTED_DOMAIN, add_domain, domain_of
from appliance.store.engine import Row, StorePart, Tx, record, rows, run, transaction
from appliance.store.receiving import remove_of_domain
from appliance.times import DAY, HOUR, MINUTE

DOMAINS_PER_ACCOUNT = 200  # without the operator's help
DNS_ASKED_EVERY = 10 * MINUTE  # per domain, until all its records are right
UNUSED_ASKED_EVERY = MINUTE  # per domain whose mail does not use its return path or its new keys yet
GOOD_DNS_ASKED_EVERY = HOUR  # afterwards, so that a broken record is noticed within the hour
SILENT_DNS_ASKED_EVERY = DAY  # after failed lookups: the time since the first failure, at most this

_FIND = f"""SELECT {SELECTED_DOMAIN} FROM domains WHERE account_id = :account_id AND name = :name
    AND removed_at IS NULL"""
_PAGE = f"""SELECT {SELECTED_DOMAIN} FROM domains
    WHERE account_id = :account_id AND name > :after AND removed_at IS NULL ORDER BY name LIMIT :most"""
_COUNT = "SELECT count(*) FROM domains WHERE account_id = :account_id"
_VERIFIED = f"""UPDATE domains SET usable = 1, verified_at = :now
    WHERE account_id = :account_id AND name = :name AND removed_at IS NULL RETURNING {SELECTED_DOMAIN}"""
_REMOVE = f"""UPDATE domains SET usable = 0, removed_at = :now, return_path = NULL, return_path_at = NULL, dns = NULL
    WHERE account_id = :account_id AND name = :name AND removed_at IS NULL RETURNING {SELECTED_DOMAIN}"""

# ---- what DNS shows

_DUE = f"""SELECT account_id, {SELECTED_DOMAIN} FROM (
        SELECT account_id, name, usable, created_at, verified_at, return_path, return_path_at, dns, dns_check_at,
            row_number() OVER (PARTITION BY account_id ORDER BY dns_check_at, name) AS turn
        FROM domains WHERE dns_check_at <= :now AND removed_at IS NULL
    ) due WHERE turn <= :of_each ORDER BY turn, dns_check_at, account_id, name LIMIT :most"""
_CHECKED = """UPDATE domains SET dns = :dns, dns_check_at = CASE WHEN EXISTS (SELECT 1 FROM dkim_keys
            WHERE account_id = :account_id AND domain = :name AND pending = 1) THEN :soon ELSE :next END
    WHERE account_id = :account_id AND name = :name AND removed_at IS NULL
        AND coalesce(return_path, 'bounces.' || name) = :return_path"""

_RETURN_PATH = """SELECT coalesce(return_path, 'bounces.' || name) FROM domains
    WHERE account_id = :account_id AND name = :name AND return_path_at IS NOT NULL"""
_SWITCH = """UPDATE domains SET return_path_at = :at
    WHERE account_id = :account_id AND name = :name AND removed_at IS NULL
        AND coalesce(return_path, 'bounces.' || name) = :return_path"""
_START, _STOP = (f"{_SWITCH} AND return_path_at IS {state} RETURNING name" for state in ("NULL", "NOT NULL"))
_OWNERS = """SELECT account_id, name FROM domains
    WHERE coalesce(return_path, 'bounces.' || name) = :return_path AND removed_at IS NULL ORDER BY account_id, name"""


class Domains(StorePart):
    most: int = DOMAINS_PER_ACCOUNT

    @transaction
    def register(self, tx: Tx, account_id: str, name: str, return_path: str | None = None) -> Domain:
        bindings = {"account_id": account_id, "name": name}
        if rows(tx, _FIND, bindings):
            raise Refused(Code.CONFLICT, f"domain: {name} is already registered")
        ((count,),) = rows(tx, _COUNT, bindings)
        if count >= self.most:  # removed domains count: they keep their keys
            text = f"domain: an account may add {self.most} domains. Ask the operator for more."
            raise Refused(Code.CONFLICT, text)
        add_domain(tx, self.env, account_id, name, usable=False, return_path=return_path)
        return domain_of(*rows(tx, _FIND, bindings)[0])

    async def find(self, account_id: str, name: str) -> Domain:
        return _known(await self.engine.rows(_FIND, {"account_id": account_id, "name": name}))

    async def page(self, account_id: str, after: str, most: int) -> list[Domain]:
        bindings = {"account_id": account_id, "after": after, "most": most}
        return await self.engine.all(domain_of, _PAGE, bindings)

    async def prove(self, account_id: str, name: str) -> Domain:
        """Make a domain usable: DNS has proven that the account owns it."""
        row = {"account_id": account_id, "name": name, "now": self.env.now()}
        return _known(await self.engine.change(_VERIFIED, row))

    @transaction
    def remove(self, tx: Tx, account_id: str, name: str) -> None:
        """Stop sending from a domain and receiving at it. Its keys stay, to sign queued mail."""
        _known(rows(tx, _REMOVE, {"account_id": account_id, "name": name, "now": self.env.now()}))
        remove_of_domain(tx, account_id, name)

    # ---- what DNS shows

    async def due(self, most: int, of_each: int) -> list[tuple[str, Domain]]:
        """Domains due for a DNS check, at most `of_each` per account, accounts in turn, longest waiting first."""
        bindings = {"now": self.env.now(), "most": most, "of_each": of_each}
        due = await self.engine.scan(lambda tx: rows(tx, _DUE, bindings))
        return [(account_id, domain_of(*domain)) for account_id, *domain in due]

    async def record_dns(self, account_id: str, domain: Domain, dns: DomainDns) -> None:
        """Store the result of a DNS check and the time of the next one."""
        wait = GOOD_DNS_ASKED_EVERY if dns.is_good else DNS_ASKED_EVERY
        if domain.usable and domain.return_path_at is None and dns.return_path not in (None, RecordStatus.OK):
            wait = UNUSED_ASKED_EVERY
        if dns.is_unknown:
            before = None if domain.dns is None else domain.dns.unknown_since
            since = dns.checked_at if before is None else before
            dns = replace(dns, unknown_since=since)
            wait = min(max(DNS_ASKED_EVERY, dns.checked_at - since), SILENT_DNS_ASKED_EVERY)
        text, due = msgspec.json.encode(dns).decode(), dns.checked_at + wait
        row = {"account_id": account_id, "name": domain.name, "return_path": domain.return_path}
        soon = due if dns.is_unknown else dns.checked_at + UNUSED_ASKED_EVERY
        await self.engine.write(lambda tx: run(tx, _CHECKED, {**row, "dns": text, "next": due, "soon": soon}))

    async def return_path(self, account_id: str, name: str) -> str | None:
        return await self.engine.one(str, _RETURN_PATH, {"account_id": account_id, "name": name})

    async def use_return_path(self, account_id: str, domain: Domain, *, in_use: bool) -> bool:
        """Start or stop using the return path that a domain was read with; return whether that changed anything."""
        at = self.env.now() if in_use else None
        row = {"account_id": account_id, "name": domain.name, "return_path": domain.return_path, "at": at}
        return bool(await self.engine.change(_START if in_use else _STOP, row))

    async def of_return_path(self, return_path: str) -> list[tuple[str, str]]:
        return [
            (account_id, name) for account_id, name in await self.engine.rows(_OWNERS, {"return_path": return_path})
        ]


def _known(selected: list[Row]) -> Domain:
    if not selected:
        raise Refused(Code.NOT_FOUND, "This account has no such domain.")
    return domain_of(*selected[0])


# ---- signing keys

_ADD = """INSERT INTO dkim_keys (account_id, domain, selector, algorithm, private_key, record, created_at, pending)
    VALUES (:account_id, :domain, :selector, :algorithm, :private_key, :record, :now, :pending)"""
_RETIRE = """UPDATE dkim_keys SET retired_at = :now
    WHERE account_id = :account_id AND domain = :domain AND retired_at IS NULL AND pending = 0"""
_ACTIVATE = "UPDATE dkim_keys SET pending = 0 WHERE account_id = :account_id AND domain = :domain AND pending = 1"
_FORGET_PENDING = "DELETE FROM dkim_keys WHERE account_id = :account_id AND domain = :domain AND pending = 1"
_KEYS = """SELECT selector, algorithm, private_key, record, created_at, retired_at, pending FROM dkim_keys
    WHERE account_id = :account_id AND domain = :domain ORDER BY created_at, selector"""
_CHECK_NOW = "UPDATE domains SET dns_check_at = :now WHERE account_id = :account_id AND name = :domain"
_SELECTORS = "SELECT selector FROM dkim_keys WHERE domain = :domain"


class DkimKeys(StorePart):
    @transaction
    def replace(
        self, tx: Tx, account_id: str, domain: str, keys: list[StoredDkimKey], *, unless_there: bool = False
    ) -> None:
        """Let these keys sign, retire earlier ones, delete pending ones. `unless_there`: nothing if others sign."""
        whose = {"account_id": account_id, "domain": domain, "now": self.env.now()}
        known = [_key(*row) for row in rows(tx, _KEYS, whose)]
        if unless_there and any(key.signs for key in known):
            return
        run(tx, _FORGET_PENDING, whose)
        run(tx, _RETIRE, whose)
        _add(tx, whose, keys, [key for key in known if not key.pending])

    @transaction
    def add_pending(self, tx: Tx, account_id: str, domain: str, keys: list[StoredDkimKey]) -> None:
        """Store keys to activate later; change nothing if others are pending."""
        whose = {"account_id": account_id, "domain": domain, "now": self.env.now()}
        known = [_key(*row) for row in rows(tx, _KEYS, whose)]
        if not any(key.pending for key in known):
            _add(tx, whose, keys, known, pending=True)
            run(tx, _CHECK_NOW, whose)

    @transaction
    def activate(self, tx: Tx, account_id: str, domain: str, selectors: Collection[str]) -> bool:
        """Activate the pending keys if they have these selectors, and retire the others. Return whether they did."""
        whose = {"account_id": account_id, "domain": domain, "now": self.env.now()}
        pending = {key.selector for row in rows(tx, _KEYS, whose) if (key := _key(*row)).pending}
        if not pending or pending != set(selectors):
            return False
        run(tx, _RETIRE, whose)
        run(tx, _ACTIVATE, whose)
        return True

    async def of(self, account_id: str, domain: str) -> list[StoredDkimKey]:
        return await self.engine.all(_key, _KEYS, {"account_id": account_id, "domain": domain})

    async def selectors(self, domain: str) -> list[str]:
        return await self.engine.all(str, _SELECTORS, {"domain": domain})


_key = record(StoredDkimKey)


def _add(
    tx: Tx, whose: dict[str, object], keys: list[StoredDkimKey], known: list[StoredDkimKey], *, pending: bool = False
) -> None:
    if {key.selector for key in keys} & {key.selector for key in known}:
        text = f"The keys of {whose['domain']} were replaced at the same moment. Look at them before you do it again."
        raise Refused(Code.CONFLICT, text)
    for key in keys:
        row = {"selector": key.selector, "algorithm": key.algorithm, "record": key.record, "pending": int(pending)}
        run(tx, _ADD, {**whose, **row, "private_key": key.private_key})
