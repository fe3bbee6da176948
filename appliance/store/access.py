"""Who may send: domains, SMTP credentials and API keys of the accounts, and the callers that they authenticate.

A key or credential belongs to the user who created it, and never allows more than that user's role. Only the SHA-256 of
a secret is stored. A rolled key has two secrets until the old one expires.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Required, TypedDict, Unpack

import msgspec
import pybase64
from msgspec import Struct

from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.model.accounts import (
    AccountRole,
    ApiKey,
    Caller,
    CredentialKind,
    Domain,
    DomainDns,
    DsnDefault,
    KeyPrincipal,
    OwnedAccess,
    Scope,
    SmtpCredential,
)
from appliance.store.engine import NEWEST, Bindings, StorePart, T, Tx, one, record, rows, run, transaction

CREDENTIAL_BYTES = 32  # 256 bits cannot be guessed, so storing a plain SHA-256 is safe

# The fields of a Domain. The default return path is made here.
SELECTED_DOMAIN = """name, usable, created_at, verified_at, coalesce(return_path, 'bounces.' || name), return_path_at,
    dns"""
_ADD_DOMAIN = """INSERT INTO domains (account_id, name, usable, created_at) VALUES (:account_id, :name, :usable, :now)
    ON CONFLICT (account_id, name) DO UPDATE SET
        usable = CASE WHEN domains.removed_at IS NULL AND domains.usable = 1 THEN 1 ELSE excluded.usable END,
        created_at = CASE WHEN domains.removed_at IS NULL THEN domains.created_at ELSE excluded.created_at END,
        verified_at = CASE WHEN domains.removed_at IS NULL THEN domains.verified_at END,
        dns_check_at = CASE WHEN domains.removed_at IS NULL THEN domains.dns_check_at ELSE 0 END,
        removed_at = NULL"""
_SET_RETURN_PATH = """UPDATE domains SET return_path = :return_path, return_path_at = NULL, dns_check_at = 0
    WHERE account_id = :account_id AND name = :name AND coalesce(return_path, 'bounces.' || name) <> :return_path"""
_DOMAINS = f"""SELECT {SELECTED_DOMAIN} FROM domains
    WHERE account_id = :account_id AND removed_at IS NULL ORDER BY name"""
_ADD_CREDENTIAL = """INSERT INTO smtp_credentials
        (username, account_id, password_sha256, name, created_at, created_by, dsn, stream)
    VALUES (:username, :account_id, :sha256, :name, :now, :created_by, :dsn, :stream)"""
_CREDENTIALS = """SELECT s.username, s.created_at, s.revoked_at, s.name, s.last_used_at, u.email, s.dsn, s.stream
    FROM smtp_credentials s LEFT JOIN users u ON u.id = s.created_by WHERE s.account_id = :account_id"""
_REVOKE_CREDENTIAL = """UPDATE smtp_credentials SET revoked_at = coalesce(revoked_at, :now)
    WHERE account_id = :account_id AND username = :username RETURNING username"""
_ADD_KEY = """INSERT INTO api_keys
        (id, account_id, key_sha256, hint, scope, test, name, created_at, domain, expires_at, created_by, stream)
    VALUES (:id, :account_id, :sha256, :hint, :scope, :test, :name, :now, :domain, :expires_at, :created_by, :stream)"""
_KEYS = """SELECT k.id, a.name, k.hint, k.scope, k.test, k.created_at, k.revoked_at, k.name, k.last_used_at,
        k.last_used_from, k.domain, k.expires_at, CASE WHEN k.previous_expires_at > :now THEN k.previous_hint END,
        CASE WHEN k.previous_expires_at > :now THEN k.previous_expires_at END, u.email, k.stream
    FROM api_keys k JOIN accounts a ON a.id = k.account_id LEFT JOIN users u ON u.id = k.created_by"""
# Of a key that works.
_ROLL_KEY = """UPDATE api_keys SET previous_sha256 = key_sha256, previous_hint = hint,
        previous_expires_at = :previous_expires_at, key_sha256 = :sha256, hint = :hint,
        created_by = coalesce(:rolled_by, created_by)
    WHERE id = :id AND account_id = coalesce(:account_id, account_id) AND revoked_at IS NULL
        AND (expires_at IS NULL OR expires_at > :now) RETURNING id"""
_REVOKE_KEY = """UPDATE api_keys SET revoked_at = coalesce(revoked_at, :now)
    WHERE (id = :key OR key_sha256 = :sha256) AND account_id = coalesce(:account_id, account_id) RETURNING id"""
# Of the account: its usable domains, each with "=" and its return path if that is in use, and its tags with unsubscribe
# links (a tag has no comma). One statement, so that they are consistent.
_SENDER = """a.id, a.suspended,
    (SELECT string_agg(d.name || CASE WHEN d.return_path_at IS NULL THEN ''
        ELSE '=' || coalesce(d.return_path, 'bounces.' || d.name) END, ' ')
        FROM domains d WHERE d.account_id = a.id AND d.usable = 1),
    (SELECT string_agg(u.tag, ',') FROM unsubscribe_tags u WHERE u.account_id = a.id)"""
_CALLER_BY_CREDENTIAL = f"""SELECT {_SENDER}, s.password_sha256, s.dsn, s.stream FROM smtp_credentials s
    JOIN accounts a ON a.id = s.account_id WHERE s.username = :username AND s.revoked_at IS NULL"""
_CALLER_BY_KEY = f"""SELECT {_SENDER}, k.id, k.scope, k.test, k.name, k.domain, k.expires_at,
        CASE WHEN k.key_sha256 <> :sha256 THEN k.previous_expires_at END, k.created_by, k.stream
    FROM api_keys k JOIN accounts a ON a.id = k.account_id
    WHERE (k.key_sha256 = :sha256 OR k.previous_sha256 = :sha256) AND k.revoked_at IS NULL"""
_CALLER_BY_ACCOUNT = f"SELECT {_SENDER} FROM accounts a WHERE a.id = :account_id"
# By the start of a caller's idempotency scope: how its last use is recorded.
_USED = {
    "smtp": "UPDATE smtp_credentials SET last_used_at = :at WHERE username = :name",
    "key": "UPDATE api_keys SET last_used_at = :at, last_used_from = :address WHERE id = :name",
}

_KEY_PREFIXES = {False: "ma_live_", True: "ma_test_"}  # by `test`
_WORKING = "SELECT count(*) FROM {table} WHERE account_id = :account_id AND {ended} IS NULL"
_FORGET = """DELETE FROM {table} WHERE account_id = :account_id AND {ended} IS NOT NULL AND {name} NOT IN
        (SELECT {name} FROM {table} WHERE account_id = :account_id AND {ended} IS NOT NULL
        ORDER BY {ended} DESC, {name} DESC LIMIT :revoked)"""


class CredentialLimits(Struct, frozen=True):
    working: int = 100  # at once
    revoked: int = 1_000  # kept for display; a program that creates and revokes all day must not fill the list


# Table, key column, when a row stopped working, and the name for people.
_CREDENTIAL_TABLE = ("smtp_credentials", "username", "revoked_at", "SMTP credentials")
_KEY_ENDED = "coalesce(revoked_at, CASE WHEN expires_at <= :now THEN expires_at END)"
_KEY_TABLE = ("api_keys", "id", _KEY_ENDED, "API keys")

# Of one user (`:created_by`), or with `created_by IS NOT NULL` of any user of the account.
_WORKING_KEYS = f"account_id = :account_id AND {_KEY_ENDED} IS NULL"
_WORKING_CREDENTIALS = "account_id = :account_id AND revoked_at IS NULL"
_PEOPLES_KEYS = f"""SELECT created_by, id, name, hint FROM api_keys
    WHERE {_WORKING_KEYS} AND created_by IS NOT NULL ORDER BY id"""
_PEOPLES_CREDENTIALS = f"""SELECT created_by, username, name FROM smtp_credentials
    WHERE {_WORKING_CREDENTIALS} AND created_by IS NOT NULL ORDER BY username"""
_REVOKE_KEYS = f"""UPDATE api_keys SET revoked_at = :now
    WHERE {_WORKING_KEYS} AND created_by = :created_by AND scope = coalesce(:scope, scope) RETURNING id, name"""
_REVOKE_CREDENTIALS = f"""UPDATE smtp_credentials SET revoked_at = :now
    WHERE {_WORKING_CREDENTIALS} AND created_by = :created_by RETURNING username, name"""
_ONLY_READ = """UPDATE api_keys SET scope = 'read'
    WHERE account_id = :account_id AND created_by = :created_by AND revoked_at IS NULL"""
_DISOWN = "UPDATE {table} SET created_by = NULL WHERE account_id = :account_id AND created_by = :created_by"
_ROLE_OF = "SELECT account_role FROM users WHERE id = :created_by AND account_id = :account_id"


def sha256(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


# ---- steps of a transaction
def add_domain(
    tx: Tx, env: Environment, account_id: str, name: str, *, usable: bool, return_path: str | None = None
) -> None:
    """Register a From domain, or make it usable. A new return path needs DNS records first; None keeps the old one."""
    run(tx, _ADD_DOMAIN, {"account_id": account_id, "name": name, "usable": int(usable), "now": env.now()})
    if return_path is not None:
        run(tx, _SET_RETURN_PATH, {"account_id": account_id, "name": name, "return_path": return_path})


_dns = msgspec.json.Decoder(DomainDns)


def domain_of(name: str, usable: int, *columns: Any) -> Domain:
    *times_and_path, dns = columns
    return Domain(*(name, bool(usable), *times_and_path, None if dns is None else _dns.decode(dns)))


class CredentialOptions(TypedDict, total=False):
    name: str
    created_by: str | None
    dsn: DsnDefault | None
    stream: str | None


class KeyOptions(TypedDict, total=False):
    scope: Required[Scope]
    test: Required[bool]
    name: str
    domain: str | None
    expires_at: int | None
    created_by: str | None
    stream: str | None


def add_credential(tx: Tx, env: Environment, account_id: str, **options: Unpack[CredentialOptions]) -> tuple[str, str]:
    _check_creator(tx, account_id, options.get("created_by"))
    username, password = env.identifier("smtp"), _new_secret(env, "")
    row = {"username": username, "account_id": account_id, "sha256": sha256(password), "now": env.now()}
    run(tx, _ADD_CREDENTIAL, row | {"name": "", "created_by": None, "dsn": None, "stream": None, **options})
    return username, password


def add_key(tx: Tx, env: Environment, account_id: str, **options: Unpack[KeyOptions]) -> tuple[str, str]:
    _check_creator(tx, account_id, options.get("created_by"))
    key_id, key = env.identifier("key"), _new_secret(env, _KEY_PREFIXES[options["test"]])
    row = {"id": key_id, "account_id": account_id, "sha256": sha256(key), "hint": key[-4:], "now": env.now()}
    row |= {"name": "", "domain": None, "expires_at": None, "created_by": None, "stream": None}
    run(tx, _ADD_KEY, row | {**options, "scope": options["scope"].value, "test": int(options["test"])})
    return key_id, key


def _check_creator(tx: Tx, account_id: str, created_by: str | None) -> None:
    """Refuse a user who was removed or demoted since the request was authenticated."""
    if created_by is None:
        return
    role = one(tx, AccountRole, _ROLE_OF, {"account_id": account_id, "created_by": created_by})
    if role is None or role is AccountRole.VIEWER:
        raise Refused(Code.FORBIDDEN, "The user whose login or API key this is may no longer create these.")


def revoke_access(tx: Tx, account_id: str, user_id: str, now: int) -> OwnedAccess:
    user = {"account_id": account_id, "created_by": user_id, "now": now, "scope": None}
    return OwnedAccess(dict(rows(tx, _REVOKE_KEYS, user)), dict(rows(tx, _REVOKE_CREDENTIALS, user)))


def disown_access(tx: Tx, account_id: str, user_id: str) -> None:
    for table in ("api_keys", "smtp_credentials"):
        run(tx, _DISOWN.format(table=table), {"account_id": account_id, "created_by": user_id})


def limit_access_to_reading(tx: Tx, account_id: str, user_id: str, now: int) -> None:
    """Reduce a user's API keys to reading; revoke send-only keys and all SMTP credentials."""
    user = {"account_id": account_id, "created_by": user_id, "now": now, "scope": Scope.SEND.value}
    run(tx, _REVOKE_KEYS, user)
    run(tx, _REVOKE_CREDENTIALS, user)
    run(tx, _ONLY_READ, user)


def _new_secret(env: Environment, prefix: str) -> str:
    """Return a secret that does not start with a dash, so that no command line takes it for an option."""
    while True:
        secret = prefix + pybase64.urlsafe_b64encode(env.token_bytes(CREDENTIAL_BYTES)).decode().rstrip("=")
        if not secret.startswith("-"):
            return secret


def _make_room(
    tx: Tx, account_id: str, limits: CredentialLimits, now: int, table: str, name: str, ended: str, words: str
) -> None:
    """Refuse a row above the limit, in the transaction that would write it; delete the rows that ended first."""
    bindings = {"account_id": account_id, "revoked": limits.revoked, "now": now}
    ((working,),) = rows(tx, _WORKING.format(table=table, ended=ended), bindings)
    if working >= limits.working:
        raise Refused(Code.CONFLICT, f"An account may have {limits.working} {words} at once. Revoke one first.")
    run(tx, _FORGET.format(table=table, name=name, ended=ended), bindings)


class Access(StorePart):
    limits: CredentialLimits = CredentialLimits()

    async def add_domain(self, account_id: str, name: str, *, usable: bool, return_path: str | None = None) -> None:
        add = partial(add_domain, usable=usable, return_path=return_path)
        await self.engine.write(lambda tx: add(tx, self.env, account_id, name))

    async def domains(self, account_id: str) -> list[Domain]:
        return await self.engine.all(domain_of, _DOMAINS, {"account_id": account_id})

    async def judge_domains(self, account_id: str, judge: Callable[[Iterable[Domain]], T]) -> T:
        """Run a function over the domains on a thread: an operator may add thousands."""

        def read(tx: Tx) -> T:
            return judge(domain_of(*row) for row in rows(tx, _DOMAINS, {"account_id": account_id}))

        return await self.engine.scan(read, account_id)

    @transaction
    def create_credential(
        self, tx: Tx, account_id: str, *, by_owner: bool = False, **options: Unpack[CredentialOptions]
    ) -> tuple[str, str]:
        """Create an SMTP login and return (username, password). The limit applies to owners, not to the operator."""
        if by_owner:
            _make_room(tx, account_id, self.limits, self.env.now(), *_CREDENTIAL_TABLE)
        return add_credential(tx, self.env, account_id, **options)

    async def credentials(self, account_id: str) -> list[SmtpCredential]:
        return await self._credentials("ORDER BY s.created_at", {"account_id": account_id})

    async def newest_credentials(self, account_id: str, before: str | None, most: int) -> list[SmtpCredential]:
        bindings = {"account_id": account_id, "before": before or NEWEST, "most": most}
        return await self._credentials("AND s.username < :before ORDER BY s.username DESC LIMIT :most", bindings)

    async def credential(self, account_id: str, username: str) -> SmtpCredential:
        whose = {"account_id": account_id, "username": username}
        return (await self._credentials("AND s.username = :username", whose))[0]

    async def _credentials(self, which: str, bindings: Bindings) -> list[SmtpCredential]:
        return await self.engine.all(_credential, f"{_CREDENTIALS} {which}", bindings)

    async def revoke_credential(self, account_id: str, username: str) -> None:
        row = {"account_id": account_id, "username": username, "now": self.env.now()}
        if not await self.engine.change(_REVOKE_CREDENTIAL, row):
            raise Refused(Code.NOT_FOUND, f"this account has no SMTP credential {username!r}")

    @transaction
    def create_key(
        self, tx: Tx, account_id: str, *, by_owner: bool = False, **options: Unpack[KeyOptions]
    ) -> tuple[str, str]:
        """A new API key: (id, key). The key is known only now. An owner may have so many."""
        if by_owner:
            _make_room(tx, account_id, self.limits, self.env.now(), *_KEY_TABLE)
        return add_key(tx, self.env, account_id, **options)

    async def roll_key(
        self, key: ApiKey, overlap: int, account_id: str | None = None, rolled_by: str | None = None
    ) -> str:
        """Give a key a new secret; the old one works for `overlap` microseconds. The key now belongs to `rolled_by`."""
        secret, now = _new_secret(self.env, _KEY_PREFIXES[key.test]), self.env.now()
        row = {"id": key.id, "account_id": account_id, "sha256": sha256(secret), "hint": secret[-4:], "now": now}
        row |= {"previous_expires_at": now + overlap, "rolled_by": rolled_by}
        if not await self.engine.change(_ROLL_KEY, row):
            raise Refused(Code.CONFLICT, "This API key was revoked or has expired. Create a new one.")
        return secret

    async def keys(self, account_id: str | None = None) -> list[ApiKey]:
        which = "" if account_id is None else "WHERE k.account_id = :account_id"
        return await self._keys(f"{which} ORDER BY k.id", {"account_id": account_id})

    async def newest_keys(
        self, account_id: str, before: str | None, most: int, domain: str | None = None
    ) -> list[ApiKey]:
        """Return up to `most` API keys, newest first, before `before`; with a domain, only keys limited to it."""
        page = {"account_id": account_id, "before": before or NEWEST, "most": most, "domain": domain}
        limited = "" if domain is None else "AND k.domain = :domain"
        which = f"WHERE k.account_id = :account_id AND k.id < :before {limited} ORDER BY k.id DESC LIMIT :most"
        return await self._keys(which, page)

    async def expiring_keys(self, account_id: str, until: int) -> list[ApiKey]:
        which = "WHERE k.account_id = :account_id AND k.revoked_at IS NULL AND k.expires_at > :now"
        page = {"account_id": account_id, "until": until}
        return await self._keys(f"{which} AND k.expires_at < :until ORDER BY k.expires_at, k.id", page)

    async def key(self, key_id: str, account_id: str | None = None) -> ApiKey:
        which = "WHERE k.id = :id AND k.account_id = coalesce(:account_id, k.account_id)"
        for key in await self._keys(which, {"id": key_id, "account_id": account_id}):
            return key
        raise Refused(Code.NOT_FOUND, "No API key has this id.")

    async def _keys(self, which: str, bindings: Bindings) -> list[ApiKey]:
        return await self.engine.all(_key, f"{_KEYS} {which}", {**bindings, "now": self.env.now()})

    async def revoke_key(self, key: str, account_id: str | None = None) -> str:
        """Revoke an API key, by its id or by the key itself; return the id."""
        row = {"key": key, "sha256": sha256(key), "account_id": account_id, "now": self.env.now()}
        if not (revoked := await self.engine.change(_REVOKE_KEY, row)):
            raise Refused(Code.NOT_FOUND, "No API key has this id.")
        return str(revoked[0][0])

    async def of_people(self, account_id: str) -> dict[str, OwnedAccess]:
        account = {"account_id": account_id, "now": self.env.now()}
        by_user: dict[str, OwnedAccess] = {}
        for user_id, key_id, name, hint in await self.engine.rows(_PEOPLES_KEYS, account):
            by_user.setdefault(user_id, OwnedAccess()).api_keys[key_id] = name or f"…{hint}"
        for user_id, username, name in await self.engine.rows(_PEOPLES_CREDENTIALS, account):
            by_user.setdefault(user_id, OwnedAccess()).smtp_credentials[username] = name
        return by_user

    @transaction
    def record_uses(self, tx: Tx, uses: Mapping[str, tuple[int, str]]) -> None:
        for scope, (at, address) in uses.items():
            kind, _, name = scope.partition(":")
            if (update := _USED.get(kind)) is not None:
                run(tx, update, {"name": name, "at": at, "address": address})

    async def caller_by_credential(self, username: str) -> tuple[Caller, bytes] | None:
        """Who an SMTP username stands for, with the SHA-256 its password must have."""
        selected = await self.engine.rows(_CALLER_BY_CREDENTIAL, {"username": username})
        for *sender, password_sha256, dsn, stream in selected:
            caller = _caller(CredentialKind.SMTP, f"smtp:{username}", *sender, dsn=dsn, stream=stream)
            return caller, bytes(password_sha256)
        return None

    async def caller_by_key(self, key: str) -> Caller | None:
        return await self.caller_by_key_hash(sha256(key))

    async def caller_by_key_hash(self, key_sha256: bytes) -> Caller | None:
        """Return the caller of an API key, expired or not. The look-up by hash is the constant-time comparison."""
        for row in await self.engine.rows(_CALLER_BY_KEY, {"sha256": key_sha256}):
            *sender, key_id, scope, test, name, domain, expires_at, previous_at, created_by, stream = row
            ends = [at for at in (expires_at, previous_at) if at is not None]
            account_id, replaced = sender[0], previous_at is not None
            limits = (domain, min(ends, default=None), replaced, bool(test), created_by)
            principal = KeyPrincipal(key_id, account_id, name, Scope(scope), *limits)
            kind, of_key = CredentialKind.KEY, f"key:{key_id}"
            return _caller(kind, of_key, *sender, test=bool(test), key=principal, stream=stream)
        return None

    async def caller_by_account(self, account_id: str) -> Caller | None:
        made = partial(_caller, CredentialKind.TOKEN, f"account:{account_id}")
        return await self.engine.one(made, _CALLER_BY_ACCOUNT, {"account_id": account_id})


_credential, _key = record(SmtpCredential), record(ApiKey)


def _caller(
    kind: CredentialKind,
    scope: str,
    account_id: str,
    suspended: int,
    domains: str | None,
    unsubscribe_tags: str | None,
    *,
    test: bool = False,
    key: KeyPrincipal | None = None,
    dsn: str | None = None,
    stream: str | None = None,
) -> Caller:
    pairs = [item.partition("=") for item in (domains or "").split()]
    names, return_paths = frozenset([name for name, _, _ in pairs]), {name: path for name, _, path in pairs if path}
    tags = frozenset(unsubscribe_tags.split(",") if unsubscribe_tags else ())
    may_send, may_read = (True, True) if key is None else (key.scope is not Scope.READ, key.scope is not Scope.SEND)
    fixed = (account_id, kind, scope, may_read, test, bool(suspended), names, tags, return_paths)
    dsn_default = None if dsn is None else DsnDefault(dsn)
    return Caller(*fixed, may_send=may_send, key=key, dsn=dsn_default, stream=stream)
