"""Accounts with their balance and ledger, suspension and daily cap, the users who log in, and the first account of all.

Invariant: the lines of a ledger, in the order of their ids, add up to the balance. A deleted account has no user, so
nothing here finds it; its row stays, for its ledger and its mail.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from appliance.environment import Environment, identifier_from
from appliance.errors import Code, Refused
from appliance.model.accounts import Account, LedgerEntry, LedgerKind, Role, Scope, User
from appliance.store.access import add_credential, add_domain, add_key
from appliance.store.audit import of_account
from appliance.store.engine import NEWEST, Bulk, StorePart, Tx, first, one, record, rows, run, transaction
from appliance.store.people import OF_USER, change_login, check_admin
from appliance.store.receiving import REMOVE_OF_ACCOUNT
from appliance.store.webhooks import DELETE_WEBHOOK
from appliance.times import DAY

MAX_CREDITS = 10**15  # far below the limit of a 64-bit integer

_INSERT_ACCOUNT = """INSERT INTO accounts (id, name, credits, created_at) VALUES (:id, :name, :credits, :now)
    ON CONFLICT DO NOTHING RETURNING id"""
# The user whose address represents the account: its first owner. Ids sort by time.
_FIRST_OWNER = "(SELECT min(o.id) FROM users o WHERE o.account_id = {account_id} AND o.account_role = 'owner')"
_SET_ROLE = f"""UPDATE users SET role = :role, token_epoch = token_epoch + 1
    WHERE account_id = :account_id AND role <> :role
        AND (:role = 'customer' OR id = {_FIRST_OWNER.format(account_id=":account_id")}) RETURNING id"""
_INSERT_USER = """INSERT INTO users (id, account_id, email, password_hash, role, created_at)
    VALUES (:id, :account_id, :email, :password_hash, :role, :now)
    ON CONFLICT DO NOTHING RETURNING id"""
_ACCOUNTS = f"""SELECT a.id, a.name, u.email, a.credits, a.daily_cap, a.suspended, a.created_at, a.stored_bytes
    FROM accounts a JOIN users u ON u.id = {_FIRST_OWNER.format(account_id="a.id")}"""
_CHANGE_CREDITS = """UPDATE accounts SET credits = credits + :amount
    WHERE id = :account_id AND credits + :amount BETWEEN 0 AND :most RETURNING credits"""
_MAY_SEND = "SELECT count(*) FROM (SELECT 1 FROM accounts WHERE suspended = 0 LIMIT 2) found"
_CREDITS = "SELECT credits FROM accounts WHERE id = :account_id"
_SET_CREDITS = "UPDATE accounts SET credits = :credits WHERE id = :account_id"
_SET_SUSPENDED = "UPDATE accounts SET suspended = :suspended WHERE id = :account_id RETURNING id"
_SET_DAILY_CAP = "UPDATE accounts SET daily_cap = :daily_cap WHERE id = :account_id"
# The day's volume is counted only under a cap, so a new cap first counts the day's earlier recipients.
_COUNT_TODAY = """INSERT INTO daily_volume (account_id, day, recipients)
    SELECT :account_id, :day, coalesce(sum(recipient_count), 0) FROM messages
    WHERE account_id = :account_id AND id >= :first_id AND source <> 'test'
    ON CONFLICT (account_id, day) DO UPDATE SET recipients = excluded.recipients"""
_RETURN_CREDITS = """UPDATE accounts SET credits = credits + :count WHERE id = :account_id AND credits IS NOT NULL
    RETURNING credits"""
_LAST_LINE = "SELECT max(id) FROM credit_ledger WHERE account_id = :account_id"
_WRITE_LEDGER = Bulk("""INSERT INTO credit_ledger (id, account_id, kind, amount, balance, message_id, recipient_id,
    created_at) VALUES {(?, ?, ?, ?i, ?i, ?, ?, ?i)}""")
_LEDGER = """SELECT id, kind, amount, balance, message_id, recipient_id, created_at FROM credit_ledger
    WHERE account_id = :account_id AND id < :before ORDER BY id DESC LIMIT :most"""
_USERS = """SELECT u.id, u.account_id, a.name, u.email, u.role, u.password_hash, u.token_epoch, u.account_role,
        f.confirmed_at IS NOT NULL
    FROM users u JOIN accounts a ON a.id = u.account_id LEFT JOIN second_factors f ON f.user_id = u.id"""
_ACCOUNT_ADMINS = "SELECT count(*) FROM users WHERE account_id = :account_id AND role = 'admin'"
# Ends with an account. Its domains' keys stay, for queued mail; its name is free again.
_DELETE_STEPS = (
    *(f"{item} IN (SELECT id FROM users WHERE account_id = :account_id)" for item in OF_USER),
    "DELETE FROM password_links WHERE account_id = :account_id",
    "DELETE FROM users WHERE account_id = :account_id",
    "UPDATE smtp_credentials SET revoked_at = coalesce(revoked_at, :now) WHERE account_id = :account_id",
    "UPDATE api_keys SET revoked_at = coalesce(revoked_at, :now) WHERE account_id = :account_id",
    """UPDATE domains SET usable = 0, removed_at = :now, return_path = NULL, return_path_at = NULL
        WHERE account_id = :account_id AND removed_at IS NULL""",
    REMOVE_OF_ACCOUNT,
    DELETE_WEBHOOK,
    "UPDATE accounts SET suspended = 1, name = name || ' (deleted, ' || id || ')' WHERE id = :account_id",
)
_OF_SESSION = "JOIN sessions s ON s.user_id = u.id WHERE s.id = :value AND s.expires_at > :now"


# Account, kind, amount, balance afterwards, message and recipient.
LedgerLine = tuple[str, LedgerKind, int, int, str | None, str | None]


def write_ledger(tx: Tx, env: Environment, lines: Iterable[LedgerLine]) -> None:
    """Write lines in the order of their effect on the balance. Their ids ascend even after the clock was set back."""
    last: dict[str, str | None] = {}
    numbered, now = [], env.now()
    for account_id, kind, *rest in lines:
        if account_id not in last:
            ((last[account_id],),) = rows(tx, _LAST_LINE, {"account_id": account_id})
        last[account_id] = line_id = env.identifier_after("led", last[account_id])
        numbered.append((line_id, account_id, str(kind), *rest, now))
    _WRITE_LEDGER.run(tx, numbered)


def return_credits(tx: Tx, account_id: str, recipients: Sequence[tuple[str, str]]) -> list[LedgerLine]:
    """Return the credits of recipients, given as (message id, recipient id); return the ledger lines to write."""
    balance = one(tx, int, _RETURN_CREDITS, {"account_id": account_id, "count": len(recipients)})
    if balance is None:
        return []  # unlimited by now
    before = balance - len(recipients)
    return [(account_id, LedgerKind.RELEASE, 1, before + number, *item) for number, item in enumerate(recipients, 1)]


def create_account(
    tx: Tx, env: Environment, name: str, email: str, password_hash: str, role: Role, credit: int | None
) -> Account:
    now, account_id = env.now(), env.identifier("acc")
    if credit is not None:
        _check_credits(credit)
    account = {"id": account_id, "name": name, "credits": credit, "now": now}
    if first(tx, _INSERT_ACCOUNT, account) is None:
        raise Refused(Code.CONFLICT, f"an account named {name!r} already exists")
    user = {"id": env.identifier("usr"), "account_id": account_id, "email": email.lower(), "now": now}
    user |= {"password_hash": password_hash, "role": role.value}
    if first(tx, _INSERT_USER, user) is None:
        raise Refused(Code.CONFLICT, f"the email address {email} already logs in to another account")
    if credit:
        _grant(tx, env, account_id, credit, credit)
    return Account(account_id, name, email.lower(), credit, None, False, now)


class Accounts(StorePart):
    @transaction
    def create(
        self, tx: Tx, name: str, email: str, password_hash: str, role: Role = Role.CUSTOMER, credit: int | None = None
    ) -> Account:
        return create_account(tx, self.env, name, email, password_hash, role, credit)

    async def all(self) -> list[Account]:
        return await self.engine.all(_account, _ACCOUNTS + " ORDER BY a.name", {})

    async def is_only_one(self) -> bool:
        return bool((await self.engine.rows(_MAY_SEND, {}))[0][0] < 2)

    async def page(self, after: str, most: int) -> list[Account]:
        query = _ACCOUNTS + " WHERE a.name > :after ORDER BY a.name LIMIT :most"
        return await self.engine.all(_account, query, {"after": after, "most": most})

    async def named(self, name: str) -> Account:
        results = await self._one("WHERE a.name = :value", name, f"there is no account named {name!r}")
        of_account(results.id)
        return results

    async def find(self, account_id: str) -> Account:
        return await self._one("WHERE a.id = :value", account_id, "There is no account with this id.")

    async def _one(self, where: str, value: str, otherwise: str) -> Account:
        account = await self.engine.one(_account, f"{_ACCOUNTS} {where}", {"value": value})
        if account is None:
            raise Refused(Code.NOT_FOUND, otherwise)
        return account

    @transaction
    def change_credits(self, tx: Tx, account_id: str, amount: int) -> int:
        """Add to a balance, or take from it; return the new balance. Never below 0, never on an unlimited account."""
        change = {"account_id": account_id, "amount": amount, "most": MAX_CREDITS}
        balance = one(tx, int, _CHANGE_CREDITS, change)
        if balance is not None:
            _grant(tx, self.env, account_id, amount, balance)
            return balance
        if (balance := _balance(tx, account_id)) is None:
            raise Refused(Code.CONFLICT, "credits: the account is unlimited, so there is no balance to change")
        why = f"with a balance of {balance}: a balance lies between 0 and {MAX_CREDITS}"
        raise Refused(Code.CONFLICT, f"credits: {amount:+d} is not possible {why}")

    @transaction
    def set_credits(self, tx: Tx, account_id: str, balance: int | None) -> None:
        """Set a balance; None: unlimited. A ledger line removes the old balance, so the lines still add up."""
        if balance is not None:
            _check_credits(balance)
        before = _balance(tx, account_id) or 0
        run(tx, _SET_CREDITS, {"account_id": account_id, "credits": balance})
        if before or balance is not None:
            _grant(tx, self.env, account_id, (balance or 0) - before, balance or 0)

    async def set_suspended(self, account_id: str, suspended: bool) -> None:
        await self.engine.change(_SET_SUSPENDED, {"account_id": account_id, "suspended": int(suspended)})

    @transaction
    def delete(self, tx: Tx, account_id: str) -> None:
        """Delete an account: no login, sending or posts. Queued mail is delivered. The only administrator stays."""
        row = {"account_id": account_id, "now": self.env.now()}
        has_admin = one(tx, int, _ACCOUNT_ADMINS, {"account_id": account_id})
        for step in _DELETE_STEPS:
            run(tx, step, row)
        if has_admin:
            check_admin(tx)

    @transaction
    def set_role(self, tx: Tx, account_id: str, role: Role) -> None:
        """Make the account's first owner an administrator, or all its users customers. The last administrator stays."""
        if rows(tx, _SET_ROLE, {"account_id": account_id, "role": role.value}) and role is Role.CUSTOMER:
            check_admin(tx)

    @transaction
    def set_daily_cap(self, tx: Tx, account_id: str, recipients: int | None) -> None:
        day = self.env.now() // DAY
        run(tx, _SET_DAILY_CAP, {"account_id": account_id, "daily_cap": recipients})
        first_id = identifier_from("msg", day * DAY)
        run(tx, _COUNT_TODAY, {"account_id": account_id, "day": day, "first_id": first_id})

    async def ledger(self, account_id: str, most: int = 100, before: str | None = None) -> list[LedgerEntry]:
        bindings = {"account_id": account_id, "most": most, "before": before or NEWEST}
        return await self.engine.all(_entry, _LEDGER, bindings)

    async def user_by_email(self, email: str) -> User | None:
        return await self._user("WHERE u.email = :value", email.lower())

    async def user(self, user_id: str) -> User | None:
        return await self._user("WHERE u.id = :value", user_id)

    async def user_of_session(self, session_id: str) -> User | None:
        return await self._user(_OF_SESSION, session_id)

    async def _user(self, where: str, value: str) -> User | None:
        return await self.engine.one(_user, f"{_USERS} {where}", {"value": value, "now": self.env.now()})

    @transaction
    def set_password(self, tx: Tx, user_id: str, password_hash: str, epoch: int | None = None) -> bool:
        """Change a password and end the user's sessions, tokens and links; with `epoch`, only if unchanged since."""
        return change_login(tx, user_id, password_hash, epoch)


def _balance(tx: Tx, account_id: str) -> int | None:
    row = first(tx, _CREDITS, {"account_id": account_id})
    return None if row is None else row[0]


def _check_credits(balance: int) -> None:
    if not 0 <= balance <= MAX_CREDITS:
        raise Refused(Code.INVALID_REQUEST, f"credits: must lie between 0 and {MAX_CREDITS}")


def _grant(tx: Tx, env: Environment, account_id: str, amount: int, balance: int) -> None:
    write_ledger(tx, env, [(account_id, LedgerKind.GRANT, amount, balance, None, None)])


_account, _user, _entry = record(Account), record(User), record(LedgerEntry)


# ---- the first account of an installation

_ANY_ACCOUNT = """SELECT a.name FROM accounts a JOIN users u ON u.account_id = a.id
    ORDER BY a.created_at LIMIT 1"""


@dataclass(frozen=True, slots=True)
class FirstAccount:
    """An account with one of everything. Its secrets cannot be read again."""

    account: Account
    domain: str
    username: str
    smtp_password: str = field(repr=False)
    key_id: str
    key: str = field(repr=False)


class FirstStart(StorePart):
    async def any_account(self) -> str | None:
        return await self.engine.one(str, _ANY_ACCOUNT, {})

    @transaction
    def create(self, tx: Tx, *, name: str, email: str, password_hash: str, domain: str) -> FirstAccount | None:
        """Create an account with a user, a domain, an SMTP credential and an API key; None if an account exists."""
        env = self.env
        if first(tx, _ANY_ACCOUNT, {}) is not None:
            return None
        account = create_account(tx, env, name, email, password_hash, Role.ADMIN, None)
        add_domain(tx, env, account.id, domain, usable=True)
        username, password = add_credential(tx, env, account.id)
        key_id, key = add_key(tx, env, account.id, scope=Scope.FULL, test=False)
        return FirstAccount(account, domain, username, password, key_id, key)
