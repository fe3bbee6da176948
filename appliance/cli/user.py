"""`appliance user …`: lists, invites, changes and removes the people of an account, and lets in who is locked out.

A link is printed once, by the command that makes it; the database has only the hash of its token.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import PRINTABLE, common, config_option
from appliance.cli.output import record, show, show_list, show_record

if TYPE_CHECKING:
    from appliance.model.accounts import PasswordLink, Person, User
    from appliance.store import Store

USER_COLUMNS = {"email": "EMAIL", "role": "ROLE", "admin": "ADMIN", "totp": "SECOND FACTOR"}
USER_COLUMNS |= {"created_at": "CREATED (UTC)", "last_seen_at": "LAST SEEN (UTC)", "expires_at": "INVITED UNTIL (UTC)"}
USER_ROLES = click.Choice(["owner", "developer", "viewer"])


@click.group()
@config_option
def user() -> None:
    """People who log in to an account, and their roles in it."""


@user.command("list")
@database.of_only_account
def list_all(name: str, as_json: bool) -> None:
    """List the people of the account NAME, and the invitations that are open.

    \b
    Examples:
      appliance user list
      appliance user list acme --json
    """

    async def read(store: "Store", account_id: str) -> "tuple[list[Person], list[PasswordLink]]":
        return await store.people.of(account_id), await store.people.invitations(account_id)

    people, links = database.run_for(name, read)
    users, invitations = [_person(each) for each in people], [_invitation(each) for each in links]
    if as_json:
        show(as_json, {"users": users, "invitations": invitations}, "")
    else:
        none = dict.fromkeys(USER_COLUMNS)
        show_list(as_json, "users", [none | each for each in (*users, *invitations)], USER_COLUMNS, "No users.")


@user.command()
@database.of_only_account_and("EMAIL")
@click.option("--role", type=USER_ROLES, required=True, help="viewer only reads; developer does all but manage people.")
def invite(name: str, email: str, role: str, as_json: bool) -> None:
    """Invite a person to the account NAME: makes a link, shown only now, by which they set a password.

    Give the link to the person: no mail is sent. It is good for seven days, and once. Another invitation of the same
    address replaces it.

    \b
    Examples:
      appliance user invite ann@acme.example --role developer
      appliance user invite acme bob@acme.example --role viewer --json
    """
    from appliance.errors import Code, Refused
    from appliance.intake import account_rules
    from appliance.model.accounts import AccountRole
    from appliance.store.audit import about

    with database.refusals():
        address = account_rules.login_email(email)

    async def work(store: "Store", account_id: str) -> "tuple[PasswordLink, str]":
        taken = await store.accounts.user_by_email(address)
        if taken is not None and taken.account_id != account_id:  # the operator may know
            raise Refused(Code.CONFLICT, f"email: {address} logs in to account {taken.account_name}")
        about(address, {"role": role})
        return await store.people.invite(account_id, address, AccountRole(role))

    _show_link(as_json, *database.run_for(name, work))


@user.command("role")
@database.of_only_account_and("EMAIL")
@click.argument("role", type=USER_ROLES)
def change_role(name: str, email: str, role: str, as_json: bool) -> None:
    """Give a person of the account NAME another role in it. An account keeps an owner.

    A person who becomes a viewer may no longer send: API keys of the person with the scope full or manage become read,
    those with the scope send and the SMTP credentials are revoked.

    \b
    Examples:
      appliance user role ann@acme.example viewer
      appliance user role acme ann@acme.example owner
    """
    from appliance.model.accounts import AccountRole
    from appliance.store.audit import about

    async def work(store: "Store", account_id: str) -> "Person":
        found = await _named(store, name, account_id, email)
        about(found.email, {"role": role})
        await store.people.set_role(account_id, found.id, AccountRole(role), by_admin=True)
        return await store.people.one(account_id, found.id)

    row = _person(database.run_for(name, work))
    show(as_json, row, f"{row['email']} is now {role} in account {name}.")


@user.command()
@database.of_only_account_and("EMAIL")
@click.option("--keep-keys", is_flag=True, help="Keep the person's API keys and SMTP credentials for the account.")
def remove(name: str, email: str, keep_keys: bool, as_json: bool) -> None:
    """Remove a person from the account NAME, or withdraw the invitation of that address.

    The person's sessions end. The API keys and SMTP credentials that the person created are listed and revoked. An
    account keeps an owner, and the installation an administrator.

    \b
    Examples:
      appliance user remove ann@acme.example
      appliance user remove acme ann@acme.example --keep-keys
    """
    from appliance.model.accounts import OwnedAccess, RemovedPerson
    from appliance.store.audit import about

    async def work(store: "Store", account_id: str) -> "tuple[str, RemovedPerson]":
        for link in await store.people.invitations(account_id):
            if link.email == email.lower():
                about(link.email)
                await store.people.withdraw(account_id, link.id)
                return link.id, RemovedPerson(link.email, OwnedAccess())
        found = await _named(store, name, account_id, email)
        about(found.email, {"keep_keys": "true"} if keep_keys else None)
        return found.id, await store.people.remove(account_id, found.id, by_admin=True, keep_keys=keep_keys)

    removed_id, removed = database.run_for(name, work)
    address, keys, credentials = removed.email, removed.revoked.api_keys, removed.revoked.smtp_credentials
    invited = removed_id.startswith("inv_")
    text = f"Withdrew the invitation of {address}." if invited else f"Removed {address} from account {name}."
    text += "".join(f"\nRevoked API key {key_id} {label}".rstrip() for key_id, label in keys.items())
    text += "".join(f"\nRevoked SMTP credential {username} {label}".rstrip() for username, label in credentials.items())
    revoked = {"api_keys": list(keys), "smtp_credentials": list(credentials)}
    show(as_json, {"id": removed_id, "email": address, "removed": True, "revoked": revoked}, text)


@user.command("reset-password")
@click.argument("email", type=PRINTABLE)
@common
def reset_password(email: str, as_json: bool) -> None:
    """Make a link, shown only now, by which a person of any account sets another password.

    It is good for a day, and once. The password so far is good until then, and a second factor stays on.

    \b
    Example:
      appliance user reset-password ann@acme.example
    """
    _show_link(as_json, *_run_for_user(email, lambda store, found: store.people.reset(found.id)))


@user.command("reset-totp")
@click.argument("email", type=PRINTABLE)
@common
def reset_totp(email: str, as_json: bool) -> None:
    """Turn off the second factor of a person who has lost the app and the recovery codes.

    \b
    Example:
      appliance user reset-totp ann@acme.example
    """
    from appliance.errors import Code, Refused

    async def work(store: "Store", found: "User") -> str:
        if not found.has_totp:
            raise Refused(Code.NOT_FOUND, f"{found.email} has no second factor")
        await store.second_factors.remove(found.id)
        return found.email

    address = _run_for_user(email, work)
    show(as_json, {"email": address, "totp": False}, f"{address} now logs in without a second factor.")


def _run_for_user(email: str, work: "Callable[[Store, User], Awaitable[database.T]]") -> "database.T":
    """The result of `work` on the user of that address, whichever account it logs in to."""
    from appliance.errors import Code, Refused
    from appliance.store.audit import about, concerns

    async def of_user(store: "Store") -> "database.T":
        found = await store.accounts.user_by_email(email)
        if found is None:
            raise Refused(Code.NOT_FOUND, f"{email} logs in to no account")
        about(found.email)
        concerns(found.account_id)
        return await work(store, found)

    return database.run(of_user)


async def _named(store: "Store", name: str, account_id: str, email: str) -> "Person":
    from appliance.errors import Code, Refused

    for each in await store.people.of(account_id):
        if each.email == email.lower():
            return each
    raise Refused(Code.NOT_FOUND, f"{email} is not in account {name}: `appliance user list {name}` shows who is")


def _person(found: "Person") -> dict[str, Any]:
    row = {"id": found.id, "email": found.email, "role": found.account_role.value, "admin": found.role.value == "admin"}
    return row | {"totp": found.has_totp} | record(found, "created_at", "last_seen_at")


def _invitation(link: "PasswordLink") -> dict[str, Any]:
    row = {"id": link.id, "email": link.email, "role": link.account_role.value}
    return row | record(link, "created_at", "expires_at")


def _show_link(as_json: bool, link: "PasswordLink", token: str) -> None:
    from appliance.intake import account_rules

    base_url = database.load_settings().http.base_url
    made = _invitation(link) | {"link": account_rules.password_link(base_url, link.email, token)}
    show_record(as_json, made, made)
