"""In charge of the commands `appliance credential …`."""

from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import TEXT, common, config_option
from appliance.cli.output import show, show_list, show_record

if TYPE_CHECKING:
    from appliance.model.mail import SmtpCredential
    from appliance.store import Store

COLUMNS = {"username": "USERNAME", "created_at": "CREATED (UTC)", "revoked_at": "REVOKED (UTC)"}


@click.group()
@config_option
def credential() -> None:
    """SMTP credentials, which also work as HTTP Basic."""


@credential.command()
@click.argument("name", type=TEXT)
@common
def create(name: str, as_json: bool) -> None:
    """Create an SMTP credential for the account NAME. Its password is shown only now.

    \b
    Examples:
      appliance credential create acme
      appliance credential create acme --json
    """

    async def work(store: "Store") -> tuple[str, str]:
        return await store.access.create_credential(store.accounts.named(name).id)

    username, password = database.run(work)
    made = {"username": username, "password": password}
    show_record(as_json, made, made)


@credential.command("list")
@click.argument("name", type=TEXT)
@common
def list_all(name: str, as_json: bool) -> None:
    """List the SMTP credentials of the account NAME, revoked ones too.

    \b
    Example:
      appliance credential list acme
    """

    async def work(store: "Store") -> "list[SmtpCredential]":
        return store.access.credentials(store.accounts.named(name).id)

    rows = [_record(found) for found in database.run(work)]
    nothing = f"No SMTP credentials yet. Create one: appliance credential create {name}"
    show_list(as_json, "credentials", rows, COLUMNS, nothing)


@credential.command()
@click.argument("name", type=TEXT)
@click.argument("username", type=TEXT)
@common
def revoke(name: str, username: str, as_json: bool) -> None:
    """Stop the SMTP credential USERNAME of the account NAME from working, for good.

    \b
    Example:
      appliance credential revoke acme smtp_01k8hv1f7x5c4t9rq2m6b3n0pw
    """

    async def work(store: "Store") -> None:
        await store.access.revoke_credential(store.accounts.named(name).id, username)

    database.run(work)
    show(as_json, {"username": username, "revoked": True}, f"Revoked SMTP credential {username}.")


def _record(found: "SmtpCredential") -> dict[str, Any]:
    from appliance.times import rfc3339

    revoked_at = None if found.revoked_at is None else rfc3339(found.revoked_at)
    return {"username": found.username, "created_at": rfc3339(found.created_at), "revoked_at": revoked_at}
