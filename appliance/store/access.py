"""Who may send: From domains, SMTP credentials and API keys of the accounts, and the callers they stand for.

Of a secret only its SHA-256 is stored. An owner may have so many credentials; the operator is not limited. A key that
was rolled has two secrets until the time of the former one has ended.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import msgspec
import pybase64

from appliance.errors import Code, Refused
from appliance.model.mail import (
    ApiKey,
    Caller,
    CredentialKind,
    Domain,
    DomainDns,
    KeyPrincipal,
    Scope,
    SmtpCredential,
)
from appliance.outside import Outside
from appliance.store.engine import NEWEST, Bindings, StorePart, Tx, rows, run

CREDENTIAL_BYTES = 32  # 256 bits: nothing to guess, so a plain SHA-256 is enough to store

# The fields of a Domain. Without a name of its own the return path is the one that this expression makes.
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
    WHERE account_id = :account_id AND removed_at IS NULL ORDER BY name"""  # noqa: S608 - the names of our own columns
_ADD_CREDENTIAL = """INSERT INTO smtp_credentials (username, account_id, password_sha256, name, created_at)
    VALUES (:username, :account_id, :sha256, :name, :now)"""
_CREDENTIALS = """SELECT username, created_at, revoked_at, name, last_used_at FROM smtp_credentials
    WHERE account_id = :account_id"""
_REVOKE_CREDENTIAL = """UPDATE smtp_credentials SET revoked_at = coalesce(revoked_at, :now)
    WHERE account_id = :account_id AND username = :username RETURNING username"""
_ADD_KEY = """INSERT INTO api_keys (id, account_id, key_sha256, hint, scope, test, name, created_at, domain, expires_at)
    VALUES (:id, :account_id, :sha256, :hint, :scope, :test, :name, :now, :domain, :expires_at)"""
_KEYS = """SELECT k.id, a.name, k.hint, k.scope, k.test, k.created_at, k.revoked_at, k.name, k.last_used_at,
        k.last_used_from, k.domain, k.expires_at, CASE WHEN k.previous_expires_at > :now THEN k.previous_hint END,
        CASE WHEN k.previous_expires_at > :now THEN k.previous_expires_at END
    FROM api_keys k JOIN accounts a ON a.id = k.account_id"""
# Of a key that works.
_ROLL_KEY = """UPDATE api_keys SET previous_sha256 = key_sha256, previous_hint = hint,
        previous_expires_at = :previous_expires_at, key_sha256 = :sha256, hint = :hint
    WHERE id = :id AND account_id = coalesce(:account_id, account_id) AND revoked_at IS NULL
        AND (expires_at IS NULL OR expires_at > :now) RETURNING id"""
_REVOKE_KEY = """UPDATE api_keys SET revoked_at = coalesce(revoked_at, :now)
    WHERE (id = :key OR key_sha256 = :sha256) AND account_id = coalesce(:account_id, account_id) RETURNING id"""
# Of the account, its usable domains, each with "=" and its return path if that is in use, and its tags with links to
# unsubscribe (a tag has no comma), in the same statement: so it is of one moment. Our own words (S608).
_SENDER = """a.id, a.suspended,
    (SELECT string_agg(d.name || CASE WHEN d.return_path_at IS NULL THEN ''
        ELSE '=' || coalesce(d.return_path, 'bounces.' || d.name) END, ' ')
        FROM domains d WHERE d.account_id = a.id AND d.usable = 1),
    (SELECT string_agg(u.tag, ',') FROM unsubscribe_tags u WHERE u.account_id = a.id)"""
_CALLER_BY_CREDENTIAL = f"""SELECT {_SENDER}, s.password_sha256 FROM smtp_credentials s
    JOIN accounts a ON a.id = s.account_id WHERE s.username = :username AND s.revoked_at IS NULL"""  # noqa: S608
_CALLER_BY_KEY = f"""SELECT {_SENDER}, k.id, k.scope, k.test, k.name, k.domain, k.expires_at,
        CASE WHEN k.key_sha256 <> :sha256 THEN k.previous_expires_at END
    FROM api_keys k JOIN accounts a ON a.id = k.account_id
    WHERE (k.key_sha256 = :sha256 OR k.previous_sha256 = :sha256) AND k.revoked_at IS NULL"""  # noqa: S608
_CALLER_BY_ACCOUNT = f"SELECT {_SENDER} FROM accounts a WHERE a.id = :account_id"  # noqa: S608
# How a caller's idempotency scope begins, and where its last use is written down.
_USED = {
    "smtp": "UPDATE smtp_credentials SET last_used_at = :at WHERE username = :name",
    "key": "UPDATE api_keys SET last_used_at = :at, last_used_from = :address WHERE id = :name",
}

_WORKING = "SELECT count(*) FROM {table} WHERE account_id = :account_id AND {ended} IS NULL"
_FORGET = """DELETE FROM {table} WHERE account_id = :account_id AND {ended} IS NOT NULL AND {name} NOT IN
        (SELECT {name} FROM {table} WHERE account_id = :account_id AND {ended} IS NOT NULL
        ORDER BY {ended} DESC, {name} DESC LIMIT :revoked)"""


@dataclass(frozen=True, slots=True)
class CredentialLimits:
    """How many of either kind an owner may have."""

    working: int = 100  # at once
    revoked: int = 1_000  # kept to be shown; a program that makes and revokes all day would fill the lists without end


# Table, column that names a row, since when it does not work any more, and the word for people.
_CREDENTIAL_TABLE = ("smtp_credentials", "username", "revoked_at", "SMTP credentials")
_KEY_ENDED = "coalesce(revoked_at, CASE WHEN expires_at <= :now THEN expires_at END)"
_KEY_TABLE = ("api_keys", "id", _KEY_ENDED, "API keys")


def sha256(secret: str) -> bytes:
    """How our own 256-bit secrets are stored."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


# ---- steps of a transaction


def add_domain(
    tx: Tx, outside: Outside, account_id: str, name: str, *, usable: bool, return_path: str | None = None
) -> None:
    """Register a From domain; adding it again may make it usable, never the reverse.

    Another return path than it has is not in use before DNS shows its records; with None it stays.
    """
    run(tx, _ADD_DOMAIN, {"account_id": account_id, "name": name, "usable": int(usable), "now": outside.now()})
    if return_path is not None:
        run(tx, _SET_RETURN_PATH, {"account_id": account_id, "name": name, "return_path": return_path})


_dns = msgspec.json.Decoder(DomainDns)


def domain_of(
    name: str,
    usable: int,
    created_at: int,
    verified_at: int | None,
    return_path: str,
    return_path_at: int | None,
    dns: str | None,
) -> Domain:
    """The domain of a row of SELECTED_DOMAIN."""
    shown = None if dns is None else _dns.decode(dns)
    return Domain(name, bool(usable), created_at, verified_at, return_path, return_path_at, shown)


def add_credential(tx: Tx, outside: Outside, account_id: str, name: str = "") -> tuple[str, str]:
    username, password = outside.identifier("smtp"), _new_secret(outside, "")
    row = {"username": username, "account_id": account_id, "sha256": sha256(password), "now": outside.now()}
    run(tx, _ADD_CREDENTIAL, row | {"name": name})
    return username, password


def add_key(
    tx: Tx,
    outside: Outside,
    account_id: str,
    scope: Scope,
    *,
    test: bool,
    name: str = "",
    domain: str | None = None,
    expires_at: int | None = None,
) -> tuple[str, str]:
    key_id, key = outside.identifier("key"), _new_key(outside, test=test)
    row = {"id": key_id, "account_id": account_id, "sha256": sha256(key), "hint": key[-4:], "now": outside.now()}
    row |= {"scope": scope.value, "test": int(test), "name": name, "domain": domain, "expires_at": expires_at}
    run(tx, _ADD_KEY, row)
    return key_id, key


def _new_key(outside: Outside, *, test: bool) -> str:
    return _new_secret(outside, "ma_test_" if test else "ma_live_")


def _new_secret(outside: Outside, prefix: str) -> str:
    """Text that no program takes for an option when it is given on a command line: one in 64 would begin like it."""
    while True:
        secret = prefix + pybase64.urlsafe_b64encode(outside.token_bytes(CREDENTIAL_BYTES)).decode().rstrip("=")
        if not secret.startswith("-"):
            return secret


def _make_room(
    tx: Tx, account_id: str, limits: CredentialLimits, now: int, table: str, name: str, ended: str, words: str
) -> None:
    """Refuse one too many, in the transaction that would write it; delete those that ended longest ago."""
    wanted = {"account_id": account_id, "revoked": limits.revoked, "now": now}
    ((working,),) = rows(tx, _WORKING.format(table=table, ended=ended), wanted)
    if working >= limits.working:
        raise Refused(Code.CONFLICT, f"An account may have {limits.working} {words} at once. Revoke one first.")
    run(tx, _FORGET.format(table=table, name=name, ended=ended), wanted)


@dataclass(frozen=True, slots=True)
class Access(StorePart):
    limits: CredentialLimits = CredentialLimits()

    # ---- domains

    async def add_domain(self, account_id: str, name: str, *, usable: bool, return_path: str | None = None) -> None:
        """Register a From domain; adding it again may make it usable, never the reverse."""
        add = partial(add_domain, usable=usable, return_path=return_path)
        await self.engine.write(lambda tx: add(tx, self.outside, account_id, name))

    async def domains(self, account_id: str) -> list[Domain]:
        return await self.engine.all(domain_of, _DOMAINS, {"account_id": account_id})

    # ---- SMTP credentials

    async def create_credential(self, account_id: str, name: str = "", *, by_owner: bool = False) -> tuple[str, str]:
        """A new SMTP login: (username, password). The password is known only now. An owner may have so many."""

        def work(tx: Tx) -> tuple[str, str]:
            if by_owner:
                _make_room(tx, account_id, self.limits, self.outside.now(), *_CREDENTIAL_TABLE)
            return add_credential(tx, self.outside, account_id, name)

        return await self.engine.write(work)

    async def credentials(self, account_id: str) -> list[SmtpCredential]:
        return await self._credentials("ORDER BY created_at", {"account_id": account_id})

    async def newest_credentials(self, account_id: str, before: str | None, most: int) -> list[SmtpCredential]:
        """Up to `most` of them, the newest first, from the one before `before` on."""
        wanted = {"account_id": account_id, "before": before or NEWEST, "most": most}
        return await self._credentials("AND username < :before ORDER BY username DESC LIMIT :most", wanted)

    async def credential(self, account_id: str, username: str) -> SmtpCredential:
        (found,) = await self._credentials("AND username = :username", {"account_id": account_id, "username": username})
        return found

    async def _credentials(self, which: str, wanted: Bindings) -> list[SmtpCredential]:
        return await self.engine.all(SmtpCredential, f"{_CREDENTIALS} {which}", wanted)

    async def revoke_credential(self, account_id: str, username: str) -> None:
        row = {"account_id": account_id, "username": username, "now": self.outside.now()}
        if not await self.engine.change(_REVOKE_CREDENTIAL, row):
            raise Refused(Code.NOT_FOUND, f"this account has no SMTP credential {username!r}")

    # ---- API keys

    async def create_key(
        self,
        account_id: str,
        *,
        scope: Scope,
        test: bool,
        name: str = "",
        domain: str | None = None,
        expires_at: int | None = None,
        by_owner: bool = False,
    ) -> tuple[str, str]:
        """A new API key: (id, key). The key is known only now. An owner may have so many."""
        add = partial(add_key, test=test, name=name, domain=domain, expires_at=expires_at)

        def work(tx: Tx) -> tuple[str, str]:
            if by_owner:
                _make_room(tx, account_id, self.limits, self.outside.now(), *_KEY_TABLE)
            return add(tx, self.outside, account_id, scope)

        return await self.engine.write(work)

    async def roll_key(self, key: ApiKey, overlap: int, account_id: str | None = None) -> str:
        """Give a key that works a new secret, which is known only now; the former one is good for `overlap` more."""
        secret, now = _new_key(self.outside, test=key.test), self.outside.now()
        row = {"id": key.id, "account_id": account_id, "sha256": sha256(secret), "hint": secret[-4:], "now": now}
        if not await self.engine.change(_ROLL_KEY, row | {"previous_expires_at": now + overlap}):
            raise Refused(Code.CONFLICT, "This API key was revoked or has expired. Create a new one.")
        return secret

    async def keys(self, account_id: str | None = None) -> list[ApiKey]:
        which = "" if account_id is None else "WHERE k.account_id = :account_id"
        return await self._keys(f"{which} ORDER BY k.id", {"account_id": account_id})

    async def newest_keys(self, account_id: str, before: str | None, most: int) -> list[ApiKey]:
        """Up to `most` API keys of an account, the newest first, from the one before `before` on."""
        wanted = {"account_id": account_id, "before": before or NEWEST, "most": most}
        return await self._keys(
            "WHERE k.account_id = :account_id AND k.id < :before ORDER BY k.id DESC LIMIT :most", wanted
        )

    async def key(self, key_id: str, account_id: str | None = None) -> ApiKey:
        which = "WHERE k.id = :id AND k.account_id = coalesce(:account_id, k.account_id)"
        for found in await self._keys(which, {"id": key_id, "account_id": account_id}):
            return found
        raise Refused(Code.NOT_FOUND, "there is no such API key")

    async def _keys(self, which: str, wanted: Bindings) -> list[ApiKey]:
        found = await self.engine.rows(f"{_KEYS} {which}", {**wanted, "now": self.outside.now()})
        return [
            ApiKey(key_id, account, hint, Scope(scope), bool(test), *rest)
            for key_id, account, hint, scope, test, *rest in found
        ]

    async def revoke_key(self, key: str, account_id: str | None = None) -> str:
        """Stop an API key, named by its id or by itself, from working; its id."""
        row = {"key": key, "sha256": sha256(key), "account_id": account_id, "now": self.outside.now()}
        if not (revoked := await self.engine.change(_REVOKE_KEY, row)):
            raise Refused(Code.NOT_FOUND, "there is no such API key")
        return str(revoked[0][0])

    # ---- callers

    async def record_uses(self, uses: Mapping[str, tuple[int, str]]) -> None:
        """Write down when and from which address callers, by their idempotency scope, came last."""

        def work(tx: Tx) -> None:
            for scope, (at, address) in uses.items():
                kind, _, name = scope.partition(":")
                if (update := _USED.get(kind)) is not None:
                    run(tx, update, {"name": name, "at": at, "address": address})

        await self.engine.write(work)

    async def caller_by_credential(self, username: str) -> tuple[Caller, bytes] | None:
        """Who an SMTP username stands for, with the SHA-256 its password must have."""
        for *sender, password_sha256 in await self.engine.rows(_CALLER_BY_CREDENTIAL, {"username": username}):
            return _caller(CredentialKind.SMTP, f"smtp:{username}", *sender), bytes(password_sha256)
        return None

    async def caller_by_key(self, key: str) -> Caller | None:
        """Who an API key stands for, also one that has expired: `key` tells when.

        Looking it up by its hash is the constant-time comparison.
        """
        for *sender, key_id, scope, test, name, domain, expires_at, previous_at in await self.engine.rows(
            _CALLER_BY_KEY, {"sha256": sha256(key)}
        ):
            ends = [at for at in (expires_at, previous_at) if at is not None]
            account_id, replaced = sender[0], previous_at is not None
            limits = (domain, min(ends, default=None), replaced, bool(test))
            principal = KeyPrincipal(key_id, account_id, name, Scope(scope), *limits)
            return _caller(CredentialKind.KEY, f"key:{key_id}", *sender, test=bool(test), key=principal)
        return None

    async def caller_by_account(self, account_id: str) -> Caller | None:
        made = partial(_caller, CredentialKind.TOKEN, f"account:{account_id}")
        return await self.engine.one(made, _CALLER_BY_ACCOUNT, {"account_id": account_id})


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
) -> Caller:
    pairs = [each.partition("=") for each in (domains or "").split()]
    names, return_paths = frozenset([name for name, _, _ in pairs]), {name: path for name, _, path in pairs if path}
    tags = frozenset(unsubscribe_tags.split(",") if unsubscribe_tags else ())
    may_send, may_read = (True, True) if key is None else (key.scope is not Scope.READ, key.scope is not Scope.SEND)
    fixed = (account_id, kind, scope, may_read, test, bool(suspended), names, tags, return_paths)
    return Caller(*fixed, may_send=may_send, key=key)
