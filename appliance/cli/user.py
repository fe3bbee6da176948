"""`appliance user …` and `appliance audit`: the users of an account, and who changed what.

A link is printed once, by the command that creates it; the database has only the hash of its token.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import (
    PRINTABLE,
    TIME_AGO,
    Command,
    CommandGroup,
    common,
    flag,
    is_json,
    number_option,
    text_option,
)
from appliance.cli.output import record, show, show_list, show_record
from appliance.environment import Environment
from appliance.errors import Code, Refused
from appliance.times import LATEST

if TYPE_CHECKING:
    from appliance.model.accounts import PasswordLink, Person, User
    from appliance.model.dashboard import AuditEntry
    from appliance.store import Store

    SentLink = tuple[PasswordLink, str, bool]  # with its token, and whether the server mails it

USER_COLUMNS = {"email": "EMAIL", "role": "ROLE", "admin": "ADMIN", "totp": "SECOND FACTOR"}
USER_COLUMNS |= {"created_at": "CREATED (UTC)", "last_seen_at": "LAST SEEN (UTC)", "expires_at": "INVITED UNTIL (UTC)"}
AUDIT_COLUMNS = {"created_at": "TIME (UTC)", "account": "ACCOUNT", "who": "WHO", "action": "ACTION"}
AUDIT_COLUMNS |= {"object": "OBJECT", "address": "FROM"}
AUDIT_FIELDS = ("actor_kind", "actor", "actor_name", "action", "object", "details", "address")
MOST_LINES = 10_000
USER_ROLES = click.Choice(["owner", "developer", "viewer"])

user = CommandGroup("user", "Manage the users of an account and their roles.", {"invite": "add"})


@user.command("list", reads=True)
@database.list_of_only_account
def list_all(name: str) -> None:
    """List the users and the open invitations of the account."""

    async def read(store: "Store", account_id: str) -> "tuple[list[Person], list[PasswordLink]]":
        return await store.people.of(account_id), await store.people.invitations(account_id)

    people, links = database.run_for(name, read)
    users, invitations = [*map(_person, people)], [*map(_invitation, links)]
    if is_json():
        show({"users": users, "invitations": invitations}, "")
    else:
        rows = [dict.fromkeys(USER_COLUMNS) | row for row in (*users, *invitations)]
        show_list({"users": rows}, USER_COLUMNS, "No users.", ("created_at", "totp"))


@user.command(action="user.invited")
@database.words_argument("EMAIL ROLE")
@click.option("--role", type=USER_ROLES, hidden=True)
@common
def add(words: tuple[str, ...], account: str | None, role: str | None) -> None:
    """Invite a user to the account: print a link, only once, with which the user sets a password.

    ROLE is viewer (read only), developer (all but managing users) or owner. The server mails the link to the user if
    notifications.from is set; otherwise give the link to the user yourself. It works once, within seven days. Another
    invitation to the same address replaces it.

    Examples:
      appliance user add ann@acme.example developer
      appliance user add --account acme bob@acme.example viewer
    """
    from appliance.intake import account_rules
    from appliance.model.accounts import AccountRole
    from appliance.store.audit import about

    if role is None:
        if len(words) < 2:
            raise click.UsageError("Missing argument 'ROLE'.")
        words, role = words[:-1], USER_ROLES.convert(words[-1], None, click.get_current_context())
    name, email = database.name_and_last(words, account)
    name = database.only_account(name)
    with database.refusals():
        address = account_rules.login_email(email)

    async def work(store: "Store", account_id: str) -> "SentLink":
        existing = await store.accounts.user_by_email(address)
        if existing is not None and existing.account_id != account_id:  # the operator may know
            raise Refused(Code.CONFLICT, f"email: {address} already logs in to account {existing.account_name}")
        about(address, {"role": role})
        return await _mailed(store, *await store.people.invite(account_id, address, AccountRole(role)), name)

    _show_link(*database.run_for(name, work))


@user.command("role", action="user.role_changed")
@database.of_only_account_and("EMAIL")
@click.argument("role", type=USER_ROLES)
def change_role(name: str, email: str, role: str) -> None:
    """Change the role of a user of the account. The last owner cannot be changed.

    A user who becomes a viewer may no longer send: the user's API keys with scope full or manage become read-only, and
    API keys with scope send and SMTP credentials are revoked.

    Examples:
      appliance user role ann@acme.example viewer
      appliance user role --account acme ann@acme.example owner
    """
    from appliance.model.accounts import AccountRole
    from appliance.store.audit import about

    async def work(store: "Store", account_id: str) -> "Person":
        person = await _named(store, name, account_id, email)
        about(person.email, {"role": role})
        await store.people.set_role(account_id, person.id, AccountRole(role), by_admin=True)
        return await store.people.one(account_id, person.id)

    row = _person(database.run_for(name, work))
    show(row, f"{row['email']} is now {role} in account {name}.")


@user.command(action="user.removed")
@database.of_only_account_and("EMAIL")
@flag("--keep-keys", "Keep the user's API keys and SMTP credentials.")
def remove(name: str, email: str, keep_keys: bool) -> None:
    """Remove a user from the account, or withdraw an invitation.

    The user's sessions end. The API keys and SMTP credentials that the user created are listed and revoked. The last
    owner of an account and the last administrator of the installation cannot be removed.

    Examples:
      appliance user remove ann@acme.example
      appliance user remove --account acme ann@acme.example --keep-keys
    """
    from appliance.model.accounts import OwnedAccess, RemovedPerson
    from appliance.store.audit import about

    async def work(store: "Store", account_id: str) -> "tuple[str, RemovedPerson]":
        for link in await store.people.invitations(account_id):
            if link.email == email.lower():
                about(link.email)
                await store.people.withdraw(account_id, link.id)
                return link.id, RemovedPerson(link.email, OwnedAccess())
        person = await _named(store, name, account_id, email)
        about(person.email, {"keep_keys": "true"} if keep_keys else None)
        return person.id, await store.people.remove(account_id, person.id, by_admin=True, keep_keys=keep_keys)

    removed_id, removed = database.run_for(name, work)
    address, keys, credentials = removed.email, removed.revoked.api_keys, removed.revoked.smtp_credentials
    invited = removed_id.startswith("inv_")
    text = f"Withdrew the invitation of {address}." if invited else f"Removed {address} from account {name}."
    text += "".join(f"\nRevoked API key {key_id} {label}".rstrip() for key_id, label in keys.items())
    text += "".join(f"\nRevoked SMTP credential {username} {label}".rstrip() for username, label in credentials.items())
    revoked = {"api_keys": list(keys), "smtp_credentials": list(credentials)}
    show({"id": removed_id, "email": address, "removed": True, "revoked": revoked}, text)


@user.command("reset-password", action="password.reset")
@click.argument("email", type=PRINTABLE)
@common
def reset_password(email: str) -> None:
    """Print a link, only once, with which a user of any account sets a new password, and mail it to the user.

    No mail is sent unless notifications.from is set. The link works once, within a day. The old password works until
    then, and two-factor authentication stays on.
    """

    async def work(store: "Store", user: "User") -> "SentLink":
        return await _mailed(store, *await store.people.reset(user.id), user.account_name)

    _show_link(*_run_for_user(email, work))


@user.command("reset-totp", action="totp.disabled")
@click.argument("email", type=PRINTABLE)
@common
def reset_totp(email: str) -> None:
    """Turn off two-factor authentication for a user who lost the app and the recovery codes."""

    async def work(store: "Store", user: "User") -> str:
        if not user.has_totp:
            raise Refused(Code.NOT_FOUND, f"{user.email} does not use two-factor authentication")
        await store.second_factors.remove(user.id)
        return user.email

    address = _run_for_user(email, work)
    show({"email": address, "totp": False}, f"{address} now logs in without two-factor authentication.")


def _run_for_user(email: str, work: "Callable[[Store, User], Awaitable[database.T]]") -> "database.T":
    from appliance.store.audit import about, concerns

    async def of_user(store: "Store") -> "database.T":
        user = await store.accounts.user_by_email(email)
        if user is None:
            raise Refused(Code.NOT_FOUND, f"no user has the address {email}")
        about(user.email)
        concerns(user.account_id)
        return await work(store, user)

    return database.run(of_user)


async def _named(store: "Store", name: str, account_id: str, email: str) -> "Person":
    for person in await store.people.of(account_id):
        if person.email == email.lower():
            return person
    raise Refused(Code.NOT_FOUND, f"{email} is not a user of account {name}: see appliance user list --account {name}")


def _person(person: "Person") -> dict[str, Any]:
    row = {**record(person, "id", "email"), "role": person.account_role.value, "admin": person.role.value == "admin"}
    return row | {"totp": person.has_totp} | record(person, "created_at", "last_seen_at")


def _invitation(link: "PasswordLink") -> dict[str, Any]:
    row = {"id": link.id, "email": link.email, "role": link.account_role.value}
    return row | record(link, "created_at", "expires_at")


async def _mailed(store: "Store", link: "PasswordLink", token: str, account_name: str) -> "SentLink":
    from appliance.attention.mail import Mailer

    mailer = Mailer(database.load_settings(), store, Environment())
    return link, token, await mailer.mail_link(link, token, account_name)


def _show_link(link: "PasswordLink", token: str, mailed: bool) -> None:
    from appliance.intake import account_rules

    url = account_rules.password_link(database.load_settings().http.base_url, link.email, token)
    show_record(_invitation(link) | {"link": url, "mailed": mailed})


@click.command(cls=Command, reads=True)
@text_option("--action", "WORD", "Filter by action, such as api_key.created or api_key.")
@click.option("--since", type=TIME_AGO, metavar="TIME", help="Only entries from then on: 2d, or a date.")
@click.option("--until", type=TIME_AGO, metavar="TIME", help="Only entries before this time.")
@number_option("--limit", 100, MOST_LINES, "Number of entries to show.")
@database.list_of_accounts
def audit(name: str | None, action: str | None, since: int | None, until: int | None, limit: int) -> None:
    """List who changed what, newest first, in the whole installation or in one account.

    Examples:
      appliance audit
      appliance audit --account acme --action api_key --since 30d
    """

    async def read(store: "Store") -> "tuple[list[AuditEntry], dict[str, str]]":
        accounts = {account.id: account.name for account in await store.accounts.all()}
        account_id = None if name is None else (await store.accounts.named(name)).id
        end = LATEST if until is None else until
        page = store.audit.page(account_id, action=action or "", since=since or 0, until=end, most=limit)
        return await page, accounts

    entries, accounts = database.run(read, or_nothing=lambda: ([], {}))
    rows = []
    for entry in entries:
        of_account = {"account": accounts.get(entry.account_id, entry.account_id) or None}
        rows.append(record(entry, "created_at") | of_account | record(entry, *AUDIT_FIELDS))
    show_list({"audit": rows}, AUDIT_COLUMNS, "Nothing was changed yet.", ("address", "account"), _with_author)


def _with_author(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"who": f"{row['actor']} ({row['actor_name'] or row['actor_kind']})"}
