"""In charge of the commands `appliance account …`."""

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import CAP, CHANGE, CREDITS, TEXT, common, config_option, number
from appliance.cli.output import show, show_list, show_record

if TYPE_CHECKING:
    from appliance.model.mail import Account
    from appliance.store import Store

COLUMNS = {
    "name": "NAME",
    "email": "EMAIL",
    "credits": "CREDITS",
    "daily_cap": "DAILY CAP",
    "suspended": "SUSPENDED",
    "created_at": "CREATED (UTC)",
}
PASSWORD_READ = 4096  # bytes: more than any password may have, and an end to `< /dev/zero`

name_argument = click.argument("name", type=TEXT)
password_option = click.option(
    "--password-stdin",
    is_flag=True,
    help="Read the password from standard input. Needed: on the command line every user of the machine could see it.",
)


@click.group()
@config_option
def account() -> None:
    """Accounts: who may send, and how much."""


@account.command()
@name_argument
@click.option("--email", required=True, metavar="ADDRESS", help="Address of the account's user, for logging in.")
@password_option
@click.option(
    "--credits",
    "balance",
    type=CREDITS,
    default="unlimited",
    metavar="N|unlimited",
    show_default=True,
    help="How many recipients may be sent to.",
)
@click.option("--admin", is_flag=True, help="The user may also manage other accounts.")
@common
def create(name: str, email: str, password_stdin: bool, balance: int | str, admin: bool, as_json: bool) -> None:
    """Create the account NAME and the user who logs in to it.

    NAME has 1 to 64 letters, digits, dots, underscores and hyphens, and begins with a letter or digit.

    \b
    Examples:
      echo 'a long password' | appliance account create acme --email owner@acme.example --password-stdin
      appliance account create acme --email owner@acme.example --password-stdin --credits 1000 < password.txt
    """
    from appliance.intake import account_rules
    from appliance.model.mail import Role

    given = _read_password(password_stdin)
    with database.refusals():
        name, email = account_rules.account_name(name), account_rules.login_email(email)
        password_hash = _hash(given)
    role = Role.ADMIN if admin else Role.CUSTOMER

    async def work(store: "Store") -> "Account":
        return await store.accounts.create(name, email, password_hash, role, number(balance))

    made = database.run(work, create=True)
    show(as_json, _record(made), f"Created account {made.name}. Next: appliance domain add {made.name} DOMAIN")


@account.command("list")
@common
def list_all(as_json: bool) -> None:
    """List every account.

    \b
    Examples:
      appliance account list
      appliance account list --json
    """

    async def work(store: "Store") -> "list[Account]":
        return store.accounts.all()

    empty: list[Account] = []
    rows = [_record(found) for found in database.run(work, or_nothing=empty)]
    nothing = "No accounts yet. Create one: appliance account create NAME --email ADDRESS --password-stdin"
    show_list(as_json, "accounts", [_worded(row, as_json) for row in rows], COLUMNS, nothing)


@account.command("show")
@name_argument
@common
def show_one(name: str, as_json: bool) -> None:
    """Show one account: its user, credits and limits.

    \b
    Examples:
      appliance account show acme
      appliance account show acme --json
    """
    row = _record(_changed(name))
    show_record(as_json, row, _worded(row, as_json))


@account.command()
@name_argument
@common
def suspend(name: str, as_json: bool) -> None:
    """Stop an account from sending; what it has queued already still goes out.

    \b
    Example:
      appliance account suspend acme
    """
    row = _record(_changed(name, lambda store, found: store.accounts.set_suspended(found.id, True)))
    show(as_json, row, f"Suspended account {name}.")


@account.command()
@name_argument
@common
def resume(name: str, as_json: bool) -> None:
    """Let a suspended account send again.

    \b
    Example:
      appliance account resume acme
    """
    row = _record(_changed(name, lambda store, found: store.accounts.set_suspended(found.id, False)))
    show(as_json, row, f"Resumed account {name}.")


# `-20` is an amount here, not an option that click does not know.
@account.command(context_settings={"ignore_unknown_options": True})
@name_argument
@click.argument("amount", type=CHANGE)
@click.option("--set", "is_balance", is_flag=True, help="AMOUNT is the new balance, not a change of it.")
@common
def credit(name: str, amount: int | str, is_balance: bool, as_json: bool) -> None:
    """Change the credits of an account: one credit is one recipient.

    AMOUNT is added (500 or +500), taken away (-20), or the word unlimited. A balance never falls below zero. An
    unlimited account counts again after --set.

    \b
    Examples:
      appliance account credit acme 500
      appliance account credit acme -20
      appliance account credit acme 1000 --set
      appliance account credit acme unlimited
    """

    async def change(store: "Store", found: "Account") -> None:
        wanted = number(amount)
        if wanted is None:
            await store.accounts.set_unlimited(found.id)
        elif is_balance:
            await store.accounts.set_credits(found.id, wanted)
        else:
            await store.accounts.change_credits(found.id, wanted)

    row = _record(_changed(name, change))
    show(as_json, row, f"Account {name} now has {_worded(row, as_json)['credits']} credits.")


@account.command()
@name_argument
@click.argument("recipients", type=CAP)
@common
def cap(name: str, recipients: int | str, as_json: bool) -> None:
    """Limit how many recipients an account may send to in a day (UTC), to warm up a new sender slowly.

    RECIPIENTS is a number from 1 on, or the word off.

    \b
    Examples:
      appliance account cap acme 200
      appliance account cap acme off
    """
    row = _record(_changed(name, lambda store, found: store.accounts.set_daily_cap(found.id, number(recipients))))
    limit = "no daily cap" if row["daily_cap"] is None else f"a cap of {row['daily_cap']} recipients a day"
    show(as_json, row, f"Account {name} now has {limit}.")


@account.command("password")
@name_argument
@password_option
@common
def change_password(name: str, password_stdin: bool, as_json: bool) -> None:
    """Give the account's user a new password; whoever is logged in must log in again.

    \b
    Example:
      appliance account password acme --password-stdin < password.txt
    """
    given = _read_password(password_stdin)
    with database.refusals():
        password_hash = _hash(given)

    async def change(store: "Store", found: "Account") -> None:
        user = store.accounts.user_by_email(found.email)
        if user is not None:
            await store.accounts.set_password(user.id, password_hash)

    row = _record(_changed(name, change))
    show(as_json, row, f"Changed the password of {row['email']}.")


# ---- what the commands share


def _changed(name: str, change: "Callable[[Store, Account], Awaitable[object]] | None" = None) -> "Account":
    """The account of that name, after the change."""

    async def work(store: "Store") -> "Account":
        found = store.accounts.named(name)
        if change is not None:
            await change(store, found)
        return store.accounts.named(name)

    return database.run(work)


def _record(found: "Account") -> dict[str, Any]:
    from appliance.times import rfc3339

    return {
        "id": found.id,
        "name": found.name,
        "email": found.email,
        "credits": found.credits,
        "daily_cap": found.daily_cap,
        "suspended": found.suspended,
        "created_at": rfc3339(found.created_at),
        "stored_bytes": found.stored_bytes,
    }


def _worded(row: dict[str, Any], as_json: bool) -> dict[str, Any]:
    """For people, no limit is a word."""
    if as_json:
        return row
    from appliance.store.stored_bytes import readable

    none = {"credits": "unlimited", "daily_cap": "off"}
    worded = {key: none.get(key) if value is None else value for key, value in row.items()}
    return worded | {"stored_bytes": readable(row["stored_bytes"])}


def _read_password(password_stdin: bool) -> bytes:
    if not password_stdin:
        raise click.UsageError("Missing option '--password-stdin': the password is read from standard input.")
    if sys.stdin is None:  # closed by the caller
        return b""
    if not sys.stdin.isatty():
        return sys.stdin.buffer.read(PASSWORD_READ)
    typed: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return typed.encode("utf-8", "surrogateescape")


def _hash(given: bytes) -> str:
    from appliance.intake import account_rules
    from appliance.keys import passwords

    return passwords.hash_password(account_rules.password(given))
