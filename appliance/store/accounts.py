"""Accounts with their balance and ledger, suspension and daily cap, the users who log in, and the first account of all.

Invariant: the lines of a ledger, in the order of their ids, add up to the balance.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import apsw

from appliance.errors import Code, Refused
from appliance.model.mail import Account, LedgerEntry, LedgerKind, Role, Scope, User
from appliance.outside import Outside, identifier_from
from appliance.store.access import add_credential, add_domain, add_key
from appliance.store.engine import Engine, statement
from appliance.store.sql import NEWEST, Many, Row, first, rows, run
from appliance.times import DAY

MAX_CREDITS = 10**15  # far from the edge of a 64-bit integer, whatever is added later

_INSERT_ACCOUNT = """INSERT INTO accounts (id, name, credits, created_at) VALUES (:id, :name, :credits, :now)
    ON CONFLICT DO NOTHING RETURNING id"""
_INSERT_USER = """INSERT INTO users (id, account_id, email, password_hash, role, created_at)
    VALUES (:id, :account_id, :email, :password_hash, :role, :now)
    ON CONFLICT DO NOTHING RETURNING id"""
_ACCOUNTS = """SELECT a.id, a.name, u.email, a.credits, a.daily_cap, a.suspended, a.created_at, a.stored_bytes
    FROM accounts a JOIN users u ON u.account_id = a.id"""
_CHANGE_CREDITS = """UPDATE accounts SET credits = credits + :amount
    WHERE id = :account_id AND credits + :amount BETWEEN 0 AND :most RETURNING credits"""
_IS_ONLY_ONE = "SELECT count(*) FROM (SELECT 1 FROM accounts WHERE suspended = 0 LIMIT 2)"
_CREDITS = "SELECT credits FROM accounts WHERE id = :account_id"
_SET_CREDITS = "UPDATE accounts SET credits = :credits WHERE id = :account_id"
_SET_SUSPENDED = "UPDATE accounts SET suspended = :suspended WHERE id = :account_id"
_SET_DAILY_CAP = "UPDATE accounts SET daily_cap = :daily_cap WHERE id = :account_id"
# The day's volume is counted only under a cap, so a new cap first counts what was sent before it.
_COUNT_TODAY = """INSERT INTO daily_volume (account_id, day, recipients)
    SELECT :account_id, :day, coalesce(sum(recipient_count), 0) FROM messages
    WHERE account_id = :account_id AND id >= :first_id AND source <> 'test'
    ON CONFLICT (account_id, day) DO UPDATE SET recipients = excluded.recipients"""
_LAST_LINE = "SELECT max(id) FROM credit_ledger WHERE account_id = :account_id"
_WRITE_LEDGER = Many("""INSERT INTO credit_ledger (id, account_id, kind, amount, balance, message_id, recipient_id,
    created_at) VALUES {(?, ?, ?, ?, ?, ?, ?, ?)}""")
_LEDGER = """SELECT id, kind, amount, balance, message_id, recipient_id, created_at FROM credit_ledger
    WHERE account_id = :account_id AND id < :before ORDER BY id DESC LIMIT :most"""
_USERS = """SELECT u.id, u.account_id, a.name, u.email, u.role, u.password_hash, u.token_epoch
    FROM users u JOIN accounts a ON a.id = u.account_id"""
_CHANGE_LOGIN = """UPDATE users SET password_hash = :password_hash, token_epoch = token_epoch + 1
    WHERE id = :user_id AND token_epoch = coalesce(:epoch, token_epoch) RETURNING id"""
_END_SESSIONS = "DELETE FROM sessions WHERE user_id = :user_id"
_OF_SESSION = "JOIN sessions s ON s.user_id = u.id WHERE s.id = :value AND s.expires_at > :now"


def ledger_line(
    outside: Outside,
    account_id: str,
    kind: LedgerKind,
    amount: int,
    balance: int,
    message_id: str | None = None,
    recipient_id: str | None = None,
) -> Row:
    return account_id, kind.value, amount, balance, message_id, recipient_id, outside.now()


def write_ledger(c: apsw.Connection, outside: Outside, lines: Iterable[Row]) -> None:
    """Write lines in the order of what they did to the balance, as a step of the transaction that changes it.

    Ids sort in that order, also with a clock that was set back: else the balances shown would not add up.
    """
    last: dict[str, str | None] = {}
    numbered = []
    for line in lines:
        account_id = line[0]
        if account_id not in last:
            ((last[account_id],),) = rows(c, _LAST_LINE, {"account_id": account_id})
        last[account_id] = line_id = outside.identifier_after("led", last[account_id])
        numbered.append((line_id, *line))
    _WRITE_LEDGER.run(c, numbered)


def create_account(
    c: apsw.Connection, outside: Outside, name: str, email: str, password_hash: str, role: Role, credit: int | None
) -> Account:
    """An account with its first user, as a step of a transaction."""
    now, account_id = outside.now(), outside.identifier("acc")
    if credit is not None and not 0 <= credit <= MAX_CREDITS:
        raise Refused(Code.INVALID_REQUEST, f"credits: must lie between 0 and {MAX_CREDITS}")
    account = {"id": account_id, "name": name, "credits": credit, "now": now}
    if first(c, _INSERT_ACCOUNT, account) is None:
        raise Refused(Code.CONFLICT, f"an account named {name!r} already exists")
    user = {"id": outside.identifier("usr"), "account_id": account_id, "email": email.lower(), "now": now}
    user |= {"password_hash": password_hash, "role": role.value}
    if first(c, _INSERT_USER, user) is None:
        raise Refused(Code.CONFLICT, f"the email address {email} already logs in to another account")
    if credit:
        write_ledger(c, outside, [ledger_line(outside, account_id, LedgerKind.GRANT, credit, credit)])
    return Account(account_id, name, email.lower(), credit, None, False, now)


@dataclass(frozen=True, slots=True)
class Accounts:
    engine: Engine
    outside: Outside

    async def create(
        self, name: str, email: str, password_hash: str, role: Role = Role.CUSTOMER, credit: int | None = None
    ) -> Account:
        """Create an account with its first user; `credit` None means unlimited."""
        return await self.engine.write(
            lambda c: create_account(c, self.outside, name, email, password_hash, role, credit)
        )

    def all(self) -> list[Account]:
        return self.engine.read(lambda c: [_account(row) for row in rows(c, _ACCOUNTS + " ORDER BY a.name", {})])

    def is_only_one(self) -> bool:
        """Whether there is no second account that may send."""
        row = self.engine.read(lambda c: first(c, _IS_ONLY_ONE, {}))
        return row is None or row[0] < 2

    def page(self, after: str, most: int) -> list[Account]:
        wanted = {"after": after, "most": most}
        query = _ACCOUNTS + " WHERE a.name > :after ORDER BY a.name LIMIT :most"
        return [_account(row) for row in self.engine.read(lambda c: rows(c, query, wanted))]

    def named(self, name: str) -> Account:
        return self._one("WHERE a.name = :value", name, f"there is no account named {name!r}")

    def find(self, account_id: str) -> Account:
        return self._one("WHERE a.id = :value", account_id, "There is no account with this id.")

    def _one(self, where: str, value: str, otherwise: str) -> Account:
        row = self.engine.read(lambda c: first(c, f"{_ACCOUNTS} {where}", {"value": value}))
        if row is None:
            raise Refused(Code.NOT_FOUND, otherwise)
        return _account(row)

    async def change_credits(self, account_id: str, amount: int) -> int:
        """Add to (or take from) a balance; the new balance. Never below 0, never on an unlimited account."""
        return await self.engine.write(lambda c: self._change_credits(c, account_id, amount))

    def _change_credits(self, c: apsw.Connection, account_id: str, amount: int) -> int:
        change = {"account_id": account_id, "amount": amount, "most": MAX_CREDITS}
        row = first(c, _CHANGE_CREDITS, change)
        if row is None:
            raise self._impossible(c, account_id, amount)
        write_ledger(c, self.outside, [ledger_line(self.outside, account_id, LedgerKind.GRANT, amount, row[0])])
        return int(row[0])

    def _impossible(self, c: apsw.Connection, account_id: str, amount: int) -> Refused:
        balance = _balance(c, account_id)
        if balance is None:
            return Refused(Code.CONFLICT, "credits: the account is unlimited, so there is no balance to change")
        limits = f"a balance lies between 0 and {MAX_CREDITS}"
        return Refused(Code.CONFLICT, f"credits: {amount:+d} is not possible with a balance of {balance}: {limits}")

    async def set_credits(self, account_id: str, balance: int) -> None:
        """Start counting (again) at this balance, also on an account that was unlimited."""
        await self.engine.write(lambda c: self._set_credits(c, account_id, balance))

    def _set_credits(self, c: apsw.Connection, account_id: str, balance: int) -> None:
        if not 0 <= balance <= MAX_CREDITS:
            raise Refused(Code.INVALID_REQUEST, f"credits: must lie between 0 and {MAX_CREDITS}")
        before = _balance(c, account_id)
        run(c, _SET_CREDITS, {"account_id": account_id, "credits": balance})
        line = ledger_line(self.outside, account_id, LedgerKind.GRANT, balance - (before or 0), balance)
        write_ledger(c, self.outside, [line])

    async def set_unlimited(self, account_id: str) -> None:
        """Stop counting credits for this account; what is left leaves the ledger, so that its lines still add up."""
        await self.engine.write(lambda c: self._set_unlimited(c, account_id))

    def _set_unlimited(self, c: apsw.Connection, account_id: str) -> None:
        before = _balance(c, account_id)
        run(c, _SET_CREDITS, {"account_id": account_id, "credits": None})
        if before:
            write_ledger(c, self.outside, [ledger_line(self.outside, account_id, LedgerKind.GRANT, -before, 0)])

    async def set_suspended(self, account_id: str, suspended: bool) -> None:
        change = {"account_id": account_id, "suspended": int(suspended)}
        await self.engine.write(statement(_SET_SUSPENDED, change))

    async def set_daily_cap(self, account_id: str, recipients: int | None) -> None:
        day = self.outside.now() // DAY
        change = {"account_id": account_id, "daily_cap": recipients}
        count = {"account_id": account_id, "day": day, "first_id": identifier_from("msg", day * DAY)}

        def work(c: apsw.Connection) -> None:
            run(c, _SET_DAILY_CAP, change)
            run(c, _COUNT_TODAY, count)

        await self.engine.write(work)

    def ledger(self, account_id: str, most: int = 100, before: str | None = None) -> list[LedgerEntry]:
        """The newest changes of a balance, or those before one of them."""
        wanted = {"account_id": account_id, "most": most, "before": before or NEWEST}
        return self.engine.read(lambda c: [_entry(row) for row in rows(c, _LEDGER, wanted)])

    # ---- users and their sessions

    def user_by_email(self, email: str) -> User | None:
        return self._user("WHERE u.email = :value", email.lower())

    def user(self, user_id: str) -> User | None:
        return self._user("WHERE u.id = :value", user_id)

    def user_of_session(self, session_id: str) -> User | None:
        return self._user(_OF_SESSION, session_id)

    def _user(self, where: str, value: str) -> User | None:
        wanted = {"value": value, "now": self.outside.now()}
        row = self.engine.read(lambda c: first(c, f"{_USERS} {where}", wanted))
        return None if row is None else User(row[0], row[1], row[2], row[3], Role(row[4]), row[5], row[6])

    async def set_password(self, user_id: str, password_hash: str, epoch: int | None = None) -> bool:
        """Change a password, and with it end every session and revoke every token of that user.

        With an epoch, only if the password is still the one of then; whether it was changed.
        """
        change = {"user_id": user_id, "password_hash": password_hash, "epoch": epoch}

        def work(c: apsw.Connection) -> bool:
            if first(c, _CHANGE_LOGIN, change) is None:
                return False
            run(c, _END_SESSIONS, {"user_id": user_id})
            return True

        return await self.engine.write(work)


def _balance(c: apsw.Connection, account_id: str) -> int | None:
    row = first(c, _CREDITS, {"account_id": account_id})
    return None if row is None else row[0]


def _account(row: Row) -> Account:
    account_id, name, email, balance, daily_cap, suspended, *rest = row
    return Account(account_id, name, email, balance, daily_cap, bool(suspended), *rest)


def _entry(row: Row) -> LedgerEntry:
    return LedgerEntry(row[0], LedgerKind(row[1]), *row[2:])


# ---- the first account of an installation

_ANY_ACCOUNT = "SELECT name FROM accounts ORDER BY created_at LIMIT 1"


@dataclass(frozen=True, slots=True)
class FirstAccount:
    """An account with one of everything; its secrets are known only now."""

    account: Account
    domain: str
    username: str
    smtp_password: str = field(repr=False)
    key_id: str
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class FirstStart:
    engine: Engine
    outside: Outside

    def any_account(self) -> str | None:
        """The name of the oldest account, None when there is none yet."""
        return self.engine.read(_any_account)

    async def create(self, *, name: str, email: str, password_hash: str, domain: str) -> FirstAccount | None:
        """An account with a user, a domain, an SMTP credential and an API key; None when there is an account."""
        return await self.engine.write(lambda c: _create(c, self.outside, name, email, password_hash, domain))


def _any_account(c: apsw.Connection) -> str | None:
    row = first(c, _ANY_ACCOUNT, {})
    return None if row is None else str(row[0])


def _create(
    c: apsw.Connection, outside: Outside, name: str, email: str, password_hash: str, domain: str
) -> FirstAccount | None:
    if _any_account(c) is not None:
        return None
    account = create_account(c, outside, name, email, password_hash, Role.CUSTOMER, None)
    add_domain(c, outside, account.id, domain, usable=True)
    username, password = add_credential(c, outside, account.id)
    key_id, key = add_key(c, outside, account.id, Scope.FULL, test=False)
    return FirstAccount(account, domain, username, password, key_id, key)
