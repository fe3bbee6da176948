"""`appliance key …`: creates, lists and revokes API keys."""

from typing import TYPE_CHECKING

import click

from appliance.cli import database
from appliance.cli.options import PRINTABLE, common, config_option
from appliance.cli.output import record, show, show_list, show_record

if TYPE_CHECKING:
    from appliance.model.mail import ApiKey

KEY_COLUMNS = {"id": "ID", "account": "ACCOUNT", "hint": "ENDS IN", "scope": "SCOPE", "test": "TEST"}
KEY_COLUMNS |= {"created_at": "CREATED (UTC)", "revoked_at": "REVOKED (UTC)"}


@click.group()
@config_option
def key() -> None:
    """API keys, for programs that send over HTTP."""


@key.command()
@database.of_only_account
@click.option("--test", is_flag=True, help="Its messages cost nothing and never leave the machine.")
@click.option(
    "--scope",
    type=click.Choice(["send", "full"]),
    default="send",
    show_default=True,
    help="Only send, or also read what became of messages.",
)
def create(name: str, test: bool, scope: str, as_json: bool) -> None:
    """Create an API key for the account NAME. The key itself is shown only now.

    \b
    Examples:
      appliance key create acme --scope full
      appliance key create acme --test --json
    """
    from appliance.model.mail import Scope

    key_id, secret = database.run_for(
        name, lambda store, account_id: store.access.create_key(account_id, scope=Scope(scope), test=test)
    )
    made = {"id": key_id, "key": secret}
    show_record(as_json, made, made)


@key.command("list")
@click.argument("name", type=PRINTABLE, required=False)
@common
def list_all(name: str | None, as_json: bool) -> None:
    """List the API keys of the account NAME, or of all accounts; revoked ones too.

    \b
    Examples:
      appliance key list
      appliance key list acme --json
    """
    found: list[ApiKey]
    if name is None:
        found = database.run(lambda store: store.access.keys(), or_nothing=[])
    else:
        found = database.run_for(name, lambda store, account_id: store.access.keys(account_id))
    columns = ("hint", "scope", "test", "created_at", "revoked_at")
    rows = [{"id": each.id, "account": each.account_name} | record(each, *columns) for each in found]
    nothing = f"No API keys yet. Create one: appliance key create {name or 'NAME'}"
    show_list(as_json, "keys", rows, KEY_COLUMNS, nothing)


@key.command()
@click.argument("name_and_id", type=PRINTABLE, nargs=-1, required=True, metavar="[NAME] ID")
@common
def revoke(name_and_id: tuple[str, ...], as_json: bool) -> None:
    """Stop the API key of that ID from working, for good. With NAME only if it belongs to that account.

    \b
    Examples:
      appliance key revoke key_01k8hv1f7x5c4t9rq2m6b3n0pw
      appliance key revoke acme key_01k8hv1f7x5c4t9rq2m6b3n0pw
    """
    if len(name_and_id) > 2:
        raise click.UsageError(f"Got unexpected extra argument ({name_and_id[2]})")
    *name, key_id = name_and_id
    if name:
        revoked = database.run_for(name[0], lambda store, account_id: store.access.revoke_key(key_id, account_id))
    else:
        revoked = database.run(lambda store: store.access.revoke_key(key_id))
    show(as_json, {"id": revoked, "revoked": True}, f"Revoked API key {revoked}.")
