"""`appliance account …`: creates, lists, limits, suspends and deletes accounts."""

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import CommandGroup, default_option, flag, listing, number, number_or, text_option
from appliance.cli.output import record, show, show_list, show_record

if TYPE_CHECKING:
    from appliance.model.accounts import Account
    from appliance.store import Store

ACCOUNT_COLUMNS = {"name": "NAME", "email": "EMAIL", "credits": "CREDITS", "daily_cap": "DAILY CAP"}
ACCOUNT_COLUMNS |= {"suspended": "SUSPENDED", "created_at": "CREATED (UTC)"}
ACCOUNT_FIELDS = ("id", "name", "email", "credits", "daily_cap", "suspended", "created_at", "stored_bytes")
CREDIT_BALANCE = number_or("unlimited", r"[0-9]{1,16}", "a number of credits")
CREDIT_CHANGE = number_or("unlimited", r"[+-]?[0-9]{1,16}", "a number such as 500, +500 or -20")
DAILY_CAP = number_or("off", r"[1-9][0-9]{0,15}", "a number of recipients, at least 1")
PASSWORD_BYTES_READ = 4096  # longer than any password, and a limit for `< /dev/zero`

CREDITS_HELP = "Number of recipients that the account may send to."
_PASSWORD_HELP = "Read the password from standard input. Required: other users can see the command line."  # noqa: S105
password_option = flag("--password-stdin", _PASSWORD_HELP)
account = CommandGroup("account", "Manage accounts and their limits.", {"delete": "remove"})


@account.command(action="account.created")
@database.account_argument
@click.argument("address", metavar="EMAIL", required=False)
@click.option("--email", hidden=True)
@password_option
@default_option("--credits", "unlimited", CREDITS_HELP, "balance", type=CREDIT_BALANCE, metavar="N|unlimited")
@flag("--admin", "Make the user an administrator of all accounts.")
def create(
    name: str, address: str | None, email: str | None, password_stdin: bool, balance: int | str, admin: bool
) -> None:
    """Create the account NAME and the user who logs in to it with EMAIL.

    NAME has 1 to 64 letters, digits, dots, underscores and hyphens, and starts with a letter or digit.

    Examples:
      echo 'a long password' | appliance account create acme owner@acme.example --password-stdin
      appliance account create acme owner@acme.example --password-stdin --credits 1000 < password.txt
    """
    from appliance.intake import account_rules
    from appliance.model.accounts import Role
    from appliance.store.audit import about

    if (login := address if email is None else email) is None:
        raise click.UsageError("Missing argument 'EMAIL'.")
    typed = _read_password(password_stdin)
    with database.refusals():
        name, login = account_rules.account_name(name), account_rules.login_email(login)
    password_hash, role = _hash(typed), Role.ADMIN if admin else Role.CUSTOMER
    amount = number(balance)

    async def work(store: "Store") -> "Account":
        about(name)
        return await store.accounts.create(name, login, password_hash, role, amount)

    made = database.run(work, create=True)
    text = f"Created account {made.name}. Next: appliance domain add --account {made.name} DOMAIN"
    show(record(made, *ACCOUNT_FIELDS), text)


@account.command("list", reads=True)
@listing
def list_all() -> None:
    """List every account."""
    accounts: list[Account] = database.run(lambda store: store.accounts.all(), or_nothing=list)
    rows = [record(account, *ACCOUNT_FIELDS) for account in accounts]
    nothing = "No accounts yet. Create one: appliance account create NAME EMAIL --password-stdin"
    show_list({"accounts": rows}, ACCOUNT_COLUMNS, nothing, ("created_at", "daily_cap"), _worded)


@account.command("show", reads=True)
@database.account_argument
def show_one(name: str) -> None:
    """Show one account: its user, credits and limits."""
    row = _changed(name)
    show_record(row, _worded(row))


@account.command(action="account.suspended")
@database.account_argument
def suspend(name: str) -> None:
    """Stop an account from sending. Mail that it has queued is still delivered."""
    row = _changed(name, lambda store, account: store.accounts.set_suspended(account.id, True))
    show(row, f"Suspended account {name}.")


@account.command(action="account.resumed")
@database.account_argument
def resume(name: str) -> None:
    """Let a suspended account send again."""
    row = _changed(name, lambda store, account: store.accounts.set_suspended(account.id, False))
    show(row, f"Resumed account {name}.")


# `-20` is an amount here, not an option that click does not know.
@account.command(context_settings={"ignore_unknown_options": True}, action="account.credits_changed")
@database.account_argument
@click.argument("amount", type=CREDIT_CHANGE)
@flag("--set", "Set the balance to AMOUNT instead of changing it by AMOUNT.", "is_balance")
def credit(name: str, amount: int | str, is_balance: bool) -> None:
    """Change the credits of an account. One credit pays for one recipient.

    AMOUNT is added (500 or +500), subtracted (-20), or the word unlimited. A balance never falls below zero. Use --set
    to limit an unlimited account again.

    Examples:
      appliance account credit acme 500
      appliance account credit acme -20
      appliance account credit acme 1000 --set
      appliance account credit acme unlimited
    """

    async def change(store: "Store", account: "Account") -> None:
        credits = number(amount)
        if credits is None or is_balance:
            await store.accounts.set_credits(account.id, credits)
        else:
            await store.accounts.change_credits(account.id, credits)

    row = _changed(name, change)
    show(row, f"Account {name} now has {_worded(row)['credits']} credits.")


@account.command(action="account.cap_changed")
@database.account_argument
@click.argument("recipients", type=DAILY_CAP)
def cap(name: str, recipients: int | str) -> None:
    """Limit the recipients that an account may send to per day (UTC), to warm up a new sender.

    RECIPIENTS is a number, at least 1, or the word off.

    Examples:
      appliance account cap acme 200
      appliance account cap acme off
    """
    row = _changed(name, lambda store, account: store.accounts.set_daily_cap(account.id, number(recipients)))
    limit = "no daily cap" if row["daily_cap"] is None else f"a cap of {row['daily_cap']} recipients a day"
    show(row, f"Account {name} now has {limit}.")


@account.command("sources", action="account.sources_changed")
@database.account_argument
@text_option("--stream", "NAME", "Stream whose sources to change.", **database.completed("stream"))
@text_option(
    "--sources",
    "A,B",
    "Names of the sources, separated by commas. Default: show the current ones.",
    "names",
    **database.completed("source"),
)
@flag("--clear", "Use the sources of the stream's settings again.")
def set_sources(name: str, stream: str | None, names: str | None, clear: bool) -> None:
    """Show or set the source addresses that an account's mail of a stream leaves from.

    A running server uses them within a second, also for queued mail.

    Examples:
      appliance account sources acme
      appliance account sources acme --stream broadcast --sources news1,news2
      appliance account sources acme --stream broadcast --clear
    """
    from appliance.intake.account_rules import source_names

    if clear and names is not None:
        raise click.UsageError("--clear cannot be combined with --sources.")
    if (clear or names is not None) != (stream is not None):
        raise click.UsageError("To change sources, name the --stream, and give either --sources or --clear.")
    with database.refusals():
        chosen = source_names(database.load_settings().delivery, stream or "", names or "") if stream else []

    async def work(store: "Store", account_id: str) -> dict[str, tuple[str, ...]]:
        if stream is not None:
            await store.sources.set_own(account_id, stream, chosen)
        return await store.sources.own_of(account_id)

    own = database.run_for(name, work)
    lines = [f"{name} sends {item} from {', '.join(sources)}." for item, sources in own.items()]
    text = "\n".join(lines) or f"{name} has no sources of its own: its mail leaves from those of each stream."
    show({"name": name, "sources": {item: list(sources) for item, sources in own.items()}}, text)


@account.command("role", action="account.role_changed")
@database.account_argument
@click.argument("role", type=click.Choice(["customer", "admin"]))
def change_role(name: str, role: str) -> None:
    """Make the account's first owner an administrator of all accounts, or all of its users customers.

    All of their sessions end: they log in again.

    Examples:
      appliance account role acme admin
      appliance account role acme customer
    """
    from appliance.model.accounts import Role

    row = _changed(name, lambda store, account: store.accounts.set_role(account.id, Role(role)))
    show({"name": row["name"], "email": row["email"], "role": role}, f"{row['email']} is now {role}.")


@account.command(action="account.deleted")
@database.account_argument
@text_option("--yes", "NAME", "Confirm by repeating the name.", "confirmed")
def remove(name: str, confirmed: str | None) -> None:
    """Delete the account NAME: its users, API keys, SMTP credentials, domains and webhook stop working at once.

    Mail that it has queued is still delivered; scheduled messages are cancelled. Its messages are deleted when their
    retention ends; its ledger stays. A new account may reuse the name and the address. The only administrator of the
    installation cannot be deleted.
    To stop an account for a while: appliance account suspend

    Examples:
      appliance account remove acme
      appliance account remove acme --yes acme
    """
    row = _changed(name)
    if confirmed is None:
        if sys.stdin is None or not sys.stdin.isatty():
            raise click.UsageError(f"Missing option '--yes': repeat the name to confirm, as --yes {name}")
        confirmed = click.prompt(f"This cannot be undone. Type the name to delete account {name}", err=True)
    if confirmed != name:
        raise click.ClickException(f"{confirmed!r} is not the name {name!r}: nothing was deleted")

    async def delete(store: "Store", account_id: str) -> None:
        await store.accounts.delete(account_id)
        await store.scheduled.give_up(account_id)

    database.run_for(name, delete)
    answer = {"id": row["id"], "name": name, "email": row["email"], "deleted": True}
    show(answer, f"Deleted account {name}. Mail that it has queued is still delivered, scheduled mail is not.")


@account.command("password", action="user.password_changed")
@database.account_argument
@password_option
def change_password(name: str, password_stdin: bool) -> None:
    """Set a new password for the account's user, and end all sessions of that user.

    Example:
      appliance account password acme --password-stdin < password.txt
    """
    password_hash = _hash(_read_password(password_stdin))

    async def change(store: "Store", account: "Account") -> None:
        user = await store.accounts.user_by_email(account.email)
        if user is not None:
            await store.accounts.set_password(user.id, password_hash)

    row = _changed(name, change)
    show(row, f"Changed the password of {row['email']}.")


def _changed(name: str, change: "Callable[[Store, Account], Awaitable[object]] | None" = None) -> dict[str, Any]:
    async def work(store: "Store") -> "Account":
        if change is not None:
            await change(store, await store.accounts.named(name))
        return await store.accounts.named(name)

    return record(database.run(work), *ACCOUNT_FIELDS)


def _worded(row: dict[str, Any]) -> dict[str, Any]:
    from appliance.store.body_parts import readable

    none = {"credits": "unlimited", "daily_cap": "off"}
    worded = {key: none.get(key) if value is None else value for key, value in row.items()}
    return worded | {"stored_bytes": readable(row["stored_bytes"])}


def _read_password(password_stdin: bool) -> bytes:
    if not password_stdin:
        raise click.UsageError("Missing option '--password-stdin': the password is read from standard input.")
    if sys.stdin is None:  # closed by the caller
        return b""
    if not sys.stdin.isatty():
        return sys.stdin.buffer.read(PASSWORD_BYTES_READ)
    typed: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return typed.encode("utf-8", "surrogateescape")


def _hash(typed: bytes) -> str:
    from appliance.intake import account_rules
    from appliance.keys import secrets

    with database.refusals():
        return secrets.hash_password(account_rules.password(typed))
