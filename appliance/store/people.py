"""The users of an account, their roles, and links that set a password: invitations and password resets.

Invariants: an account has an owner. A link works once, and only the hash of its token is stored. Removing a user, or
changing the role or the password, invalidates the user's tokens. Removing an owner withdraws the owner's invitations.
Only an administrator can change an administrator, and the last administrator cannot be removed. This module also
stores the saved views of the message list.
"""

from collections.abc import Mapping

import msgspec
import pybase64

from appliance.errors import Code, Refused
from appliance.model.accounts import AccountRole, OwnedAccess, PasswordLink, Person, RemovedPerson, Role
from appliance.model.dashboard import SavedView
from appliance.store.access import CREDENTIAL_BYTES, disown_access, limit_access_to_reading, revoke_access, sha256
from appliance.store.engine import Bindings, StorePart, Tx, first, one, record, rows, run, transaction
from appliance.times import DAY, HOUR

INVITATION_LIFETIME = 7 * DAY
RESET_LIFETIME = DAY  # of a password link
FORGOTTEN_LIFETIME = HOUR  # of a password link that the user requested
PEOPLE_PER_ACCOUNT = 100  # users and open invitations

UNKNOWN_PERSON = "There is no such user in this account."
LAST_OWNER = "An account needs an owner: make another user an owner first."
ONLY_BY_ADMIN = "This user is an administrator. Only an administrator may change or remove an administrator."
LAST_ADMIN = (
    "This is the only administrator of the installation. Make another one first: appliance account role NAME admin"
)

_PEOPLE = """SELECT u.id, u.email, u.account_role, u.role, f.confirmed_at IS NOT NULL, u.created_at,
        (SELECT max(s.renewed_at) FROM sessions s WHERE s.user_id = u.id AND s.expires_at > :now)
    FROM users u LEFT JOIN second_factors f ON f.user_id = u.id
    WHERE u.account_id = :account_id"""
_COUNT = "SELECT count(*) FROM users WHERE account_id = :account_id"
_OWNERS = "SELECT count(*) FROM users WHERE account_id = :account_id AND account_role = 'owner'"
_ADMINS = "SELECT count(*) FROM users WHERE role = 'admin'"
_SET_ROLE = """UPDATE users SET account_role = :account_role, token_epoch = token_epoch + 1
    WHERE id = :user_id AND account_id = :account_id AND account_role <> :account_role"""
_LINK = "id, account_id, user_id, email, account_role, created_at, expires_at"
_INVITATIONS = f"""SELECT {_LINK} FROM password_links
    WHERE account_id = :account_id AND user_id IS NULL AND expires_at > :now ORDER BY id"""
_OPEN = f"SELECT {_LINK} FROM password_links WHERE token_sha256 = :sha256 AND expires_at > :now"
_USE = f"DELETE FROM password_links WHERE token_sha256 = :sha256 AND expires_at > :now RETURNING {_LINK}"
_ADD_LINK = """INSERT INTO password_links
        (id, account_id, user_id, email, account_role, token_sha256, created_at, expires_at)
    VALUES (:id, :account_id, :user_id, :email, :account_role, :sha256, :now, :expires_at)"""
_REPLACE_INVITATION = "DELETE FROM password_links WHERE account_id = :account_id AND email = :email AND user_id IS NULL"
_WITHDRAW_ALL = "DELETE FROM password_links WHERE account_id = :account_id AND user_id IS NULL"
_END_RESETS = "DELETE FROM password_links WHERE user_id = :user_id"
# An anonymous request replaces links like its own, but not an administrator's longer one.
_REPLACE_RESET = f"{_END_RESETS} AND expires_at - created_at <= :lifetime"
_WITHDRAW = """DELETE FROM password_links WHERE id = :id AND account_id = :account_id AND user_id IS NULL
    AND expires_at > :now RETURNING email"""
_ACCOUNT_OF = "SELECT account_id FROM users WHERE email = :email"
_FOR_RESET = "SELECT account_id, email, account_role FROM users WHERE id = :user_id"
_ADD_USER = """INSERT INTO users (id, account_id, email, password_hash, role, account_role, created_at)
    VALUES (:id, :account_id, :email, :password_hash, 'customer', :account_role, :now)
    ON CONFLICT DO NOTHING RETURNING id"""
_SET_EMAIL = "UPDATE users SET email = :email WHERE email = :former"
_CHANGE_LOGIN = """UPDATE users SET password_hash = :password_hash, token_epoch = token_epoch + 1
    WHERE id = :user_id AND token_epoch = coalesce(:epoch, token_epoch) RETURNING id"""
# Rows of users, deleted before them.
OF_USER = tuple(
    f"DELETE FROM {table} WHERE user_id"
    for table in ("sessions", "password_links", "recovery_codes", "second_factors", "saved_views")
)
_END_SESSIONS, *_ = OF_USER
_REMOVE = "DELETE FROM users WHERE id = :user_id"


class People(StorePart):
    async def of(self, account_id: str) -> list[Person]:
        bindings = {"account_id": account_id, "now": self.env.now()}
        return await self.engine.all(_person, f"{_PEOPLE} ORDER BY u.id", bindings)

    async def one(self, account_id: str, user_id: str) -> Person:
        bindings = {"account_id": account_id, "user_id": user_id, "now": self.env.now()}
        results = await self.engine.one(_person, f"{_PEOPLE} AND u.id = :user_id", bindings)
        if results is None:
            raise Refused(Code.NOT_FOUND, UNKNOWN_PERSON)
        return results

    @transaction
    def set_role(self, tx: Tx, account_id: str, user_id: str, role: AccountRole, *, by_admin: bool = False) -> None:
        """Change a user's role. Its tokens end, and its API keys lose what the new role forbids."""
        change = {"account_id": account_id, "user_id": user_id, "account_role": role.value, "now": self.env.now()}
        former = _person_to_change(tx, change, by_admin=by_admin).account_role
        run(tx, _SET_ROLE, change)
        if role is AccountRole.VIEWER:
            limit_access_to_reading(tx, account_id, user_id, self.env.now())
        if former is AccountRole.OWNER and role is not AccountRole.OWNER:
            run(tx, _WITHDRAW_ALL, change)
        _check_owner(tx, account_id)

    @transaction
    def set_email(self, tx: Tx, former: str, email: str) -> None:
        if first(tx, _ACCOUNT_OF, {"email": email}) is not None:
            raise Refused(Code.CONFLICT, f"email: {email} already logs in to an account. Choose another address.")
        run(tx, _SET_EMAIL, {"email": email, "former": former})

    @transaction
    def remove(
        self, tx: Tx, account_id: str, user_id: str, *, by_admin: bool = False, keep_keys: bool = False
    ) -> RemovedPerson:
        """Delete a user, and revoke its API keys and SMTP credentials; with `keep_keys` they become the account's."""
        now = self.env.now()
        change = {"account_id": account_id, "user_id": user_id, "now": now}
        former, revoked = _person_to_change(tx, change, by_admin=by_admin), OwnedAccess()
        if keep_keys:
            disown_access(tx, account_id, user_id)
        else:
            revoked = revoke_access(tx, account_id, user_id, now)
        for statement in OF_USER:
            run(tx, f"{statement} = :user_id", change)
        run(tx, _REMOVE, change)
        if former.account_role is AccountRole.OWNER:
            run(tx, _WITHDRAW_ALL, change)
        _check_owner(tx, account_id)
        if former.role is Role.ADMIN:
            check_admin(tx)
        return RemovedPerson(former.email, revoked)

    async def invitations(self, account_id: str) -> list[PasswordLink]:
        return await self.engine.all(_link, _INVITATIONS, {"account_id": account_id, "now": self.env.now()})

    @transaction
    def invite(self, tx: Tx, account_id: str, email: str, role: AccountRole) -> tuple[PasswordLink, str]:
        """Create an invitation and its token. It does not reveal whether the address logs in to another account."""
        row: dict[str, object] = {"account_id": account_id, "user_id": None, "email": email.lower()}
        row |= {"account_role": role.value, **self._new_link(INVITATION_LIFETIME)}
        if one(tx, str, _ACCOUNT_OF, row) == account_id:
            raise Refused(Code.CONFLICT, f"email: {row['email']} logs in to this account already")
        run(tx, _REPLACE_INVITATION, row)
        users = one(tx, int, _COUNT, row) or 0
        if users + len(rows(tx, _INVITATIONS, row)) >= PEOPLE_PER_ACCOUNT:
            text = f"An account has at most {PEOPLE_PER_ACCOUNT} users and open invitations: remove one first."
            raise Refused(Code.CONFLICT, text)
        return self._add_link(tx, row)

    async def withdraw(self, account_id: str, invitation_id: str) -> str:
        result = {"account_id": account_id, "id": invitation_id, "now": self.env.now()}
        results = await self.engine.change(_WITHDRAW, result)
        if not results:
            raise Refused(Code.NOT_FOUND, "There is no such invitation in this account.")
        return str(results[0][0])

    @transaction
    def reset(self, tx: Tx, user_id: str, lifetime: int = RESET_LIFETIME) -> tuple[PasswordLink, str]:
        """Create a password link for a user, and its token; earlier links with no longer lifetime end."""
        row: dict[str, object] = {"user_id": user_id, **self._new_link(lifetime)}
        results = first(tx, _FOR_RESET, row)
        if results is None:
            raise Refused(Code.NOT_FOUND, "No user has this id.")
        run(tx, _REPLACE_RESET, {**row, "lifetime": lifetime})
        return self._add_link(tx, row | dict(zip(("account_id", "email", "account_role"), results, strict=True)))

    def _new_link(self, lifetime: int) -> dict[str, object]:
        now = self.env.now()
        return {"id": self.env.identifier("inv"), "now": now, "expires_at": now + lifetime}

    def _add_link(self, tx: Tx, row: Bindings) -> tuple[PasswordLink, str]:
        token = pybase64.urlsafe_b64encode(self.env.token_bytes(CREDENTIAL_BYTES)).decode().rstrip("=")
        stored = {**row, "sha256": sha256(token)}
        run(tx, _ADD_LINK, stored)
        link = one(tx, _link, _OPEN, stored)
        assert link is not None  # noqa: S101 - it was just written
        return link, token

    async def open_link(self, token: str) -> PasswordLink | None:
        return await self.engine.one(_link, _OPEN, {"sha256": sha256(token), "now": self.env.now()})

    @transaction
    def use_link(self, tx: Tx, token: str, password_hash: str) -> PasswordLink | None:
        user = {"password_hash": password_hash, "now": self.env.now()}
        link = one(tx, _link, _USE, user | {"sha256": sha256(token)})
        if link is None:
            return None
        if link.user_id is not None:
            change_login(tx, link.user_id, password_hash)
            return link
        named = {"id": self.env.identifier("usr"), "account_id": link.account_id, "email": link.email}
        if first(tx, _ADD_USER, user | named | {"account_role": link.account_role.value}) is None:
            text = f"{link.email} logs in to another account: ask for an invitation of another address."
            raise Refused(Code.CONFLICT, text)
        return link


def _person_to_change(tx: Tx, change: Bindings, *, by_admin: bool) -> Person:
    person = one(tx, _person, f"{_PEOPLE} AND u.id = :user_id", change)
    if person is None:
        raise Refused(Code.NOT_FOUND, UNKNOWN_PERSON)
    if person.role is Role.ADMIN and not by_admin:
        raise Refused(Code.FORBIDDEN, ONLY_BY_ADMIN)
    return person


def change_login(tx: Tx, user_id: str, password_hash: str, epoch: int | None = None) -> bool:
    """Change a password and end the user's sessions, tokens and links; with `epoch`, only if unchanged since."""
    change = {"user_id": user_id, "password_hash": password_hash, "epoch": epoch}
    if first(tx, _CHANGE_LOGIN, change) is None:
        return False
    for statement in (_END_RESETS, f"{_END_SESSIONS} = :user_id"):
        run(tx, statement, change)
    return True


def check_admin(tx: Tx) -> None:
    """Refuse a change that leaves the installation without an administrator; the transaction is rolled back."""
    if not one(tx, int, _ADMINS, {}):
        raise Refused(Code.CONFLICT, LAST_ADMIN)


def _check_owner(tx: Tx, account_id: str) -> None:
    if not one(tx, int, _OWNERS, {"account_id": account_id}):
        raise Refused(Code.CONFLICT, LAST_OWNER)


_person, _link = record(Person), record(PasswordLink)


# ---- saved views of the message list

VIEWS_PER_USER = 50

_VIEWS = "SELECT id, name, filters, created_at FROM saved_views WHERE user_id = :user_id ORDER BY name, id"
_SAVE_VIEW = """INSERT INTO saved_views (user_id, id, name, filters, created_at)
    SELECT :user_id, :id, :name, :filters, :now
    WHERE (SELECT count(*) FROM saved_views WHERE user_id = :user_id) < :most
    ON CONFLICT (user_id, name) DO UPDATE SET filters = excluded.filters RETURNING id, name, filters, created_at"""
_DELETE_VIEW = "DELETE FROM saved_views WHERE user_id = :user_id AND id = :id RETURNING id"
_filters = msgspec.json.Decoder(dict[str, str])


class SavedViews(StorePart):
    async def of(self, user_id: str) -> list[SavedView]:
        return await self.engine.all(_view, _VIEWS, {"user_id": user_id})

    @transaction
    def save(self, tx: Tx, user_id: str, name: str, filters: Mapping[str, str]) -> SavedView:
        row = {"user_id": user_id, "id": self.env.identifier("view"), "name": name, "now": self.env.now()}
        row["filters"] = msgspec.json.encode(filters).decode()
        is_known = any(view[1] == name for view in rows(tx, _VIEWS, row))
        view = one(tx, _view, _SAVE_VIEW, {**row, "most": VIEWS_PER_USER + is_known})
        if view is None:
            raise Refused(Code.CONFLICT, f"A user can have {VIEWS_PER_USER} saved views. Delete one first.")
        return view

    async def delete(self, user_id: str, view_id: str) -> None:
        if not await self.engine.change(_DELETE_VIEW, {"user_id": user_id, "id": view_id}):
            raise Refused(Code.NOT_FOUND, "No saved view has this id.")


def _view(id_: str, name: str, filters: str, created_at: int) -> SavedView:
    return SavedView(id_, name, _filters.decode(filters), created_at)
