"""`appliance credential …`: creates, lists and revokes SMTP credentials."""

import click

from appliance.cli import database
from appliance.cli.options import config_option
from appliance.cli.output import record, show, show_list, show_record

CREDENTIAL_COLUMNS = {"username": "USERNAME", "created_by": "CREATED BY", "created_at": "CREATED (UTC)"}
CREDENTIAL_COLUMNS |= {"revoked_at": "REVOKED (UTC)"}


@click.group()
@config_option
def credential() -> None:
    """Manage SMTP credentials, which also work for HTTP Basic authentication."""


@credential.command()
@database.of_only_account
def create(name: str, as_json: bool) -> None:
    """Create an SMTP credential for the account NAME. Its password is shown only once.

    \b
    Examples:
      appliance credential create acme
      appliance credential create acme --json
    """
    username, password = database.run_for(name, lambda store, account_id: store.access.create_credential(account_id))
    made = {"username": username, "password": password}
    show_record(as_json, made)


@credential.command("list")
@database.of_only_account
def list_all(name: str, as_json: bool) -> None:
    """List the SMTP credentials of the account NAME, including revoked ones.

    \b
    Example:
      appliance credential list acme
    """
    credentials = database.run_for(name, lambda store, account_id: store.access.credentials(account_id))
    rows = [record(credential, *CREDENTIAL_COLUMNS) for credential in credentials]
    nothing = f"No SMTP credentials yet. Create one: appliance credential create {name}"
    show_list(as_json, "credentials", rows, CREDENTIAL_COLUMNS, nothing)


@credential.command()
@database.of_only_account_and("USERNAME")
def revoke(name: str, username: str, as_json: bool) -> None:
    """Revoke the SMTP credential USERNAME of the account NAME.

    \b
    Example:
      appliance credential revoke acme smtp_01k8hv1f7x5c4t9rq2m6b3n0pw
    """
    database.run_for(name, lambda store, account_id: store.access.revoke_credential(account_id, username))
    show(as_json, {"username": username, "revoked": True}, f"Revoked SMTP credential {username}.")
