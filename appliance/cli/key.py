"""`appliance key …`: creates, lists, rolls and revokes API keys."""

from typing import TYPE_CHECKING

import click

from appliance.cli import database
from appliance.cli.options import PRINTABLE, SPAN, TIME_AHEAD, Parsed, common, config_option, flag, text_option
from appliance.cli.output import record, show, show_list, show_record

if TYPE_CHECKING:
    from appliance.model.accounts import ApiKey
    from appliance.store import Store

KEY_COLUMNS = {"id": "ID", "account": "ACCOUNT", "name": "NAME", "hint": "ENDS IN", "scope": "SCOPE", "test": "TEST"}
KEY_COLUMNS |= {"domain": "DOMAIN", "created_by": "CREATED BY", "created_at": "CREATED (UTC)"}
KEY_COLUMNS |= {"expires_at": "EXPIRES (UTC)", "last_used_at": "LAST USED (UTC)", "last_used_from": "FROM"}
KEY_COLUMNS |= {"revoked_at": "REVOKED (UTC)"}
KEY_FIELDS = (
    *("name", "hint", "scope", "test", "domain", "created_by", "created_at", "expires_at", "last_used_at"),
    *("last_used_from", "previous_hint", "previous_expires_at", "revoked_at"),
)
SCOPES = ("send", "read", "full", "manage")


def _scope(value: str) -> str:
    """One of SCOPES; `send,read` is `full`, and `manage` includes the others."""
    words = set(value.split(","))
    if not words <= set(SCOPES):
        raise ValueError(f"{value!r} is not one of {', '.join(SCOPES)}, nor several of them with commas")
    if "manage" in words:
        return "manage"
    return words.pop() if len(words) == 1 else "full"


@click.group()
@config_option
def key() -> None:
    """Manage API keys, which programs use to send over HTTP or to manage the account."""


@key.command()
@database.of_only_account
@flag("--test", "Create a test key: its messages are simulated and free.")
@click.option(
    "--scope",
    type=Parsed("scope", _scope),
    default="send",
    show_default=True,
    metavar="SCOPE",
    help="Permissions: send, read (message status), full (both) or manage (both, and a developer's routes of /v1).",
)
@text_option("--domain", "DOMAIN", "Restrict the key to this sending domain.")
@click.option(
    "--expires", type=TIME_AHEAD, metavar="TIME", help="Expiry: a span such as 90d, or a date (default never)."
)
@text_option("--name", "TEXT", "Label of the key.", "label")
def create(
    name: str, test: bool, scope: str, domain: str | None, expires: int | None, label: str | None, as_json: bool
) -> None:
    """Create an API key for the account NAME. The key itself is shown only once.

    \b
    Examples:
      appliance key create acme --scope full
      appliance key create acme --scope manage --domain example.com --expires 90d
      appliance key create acme --test --json
    """
    from appliance.intake import account_rules
    from appliance.model.accounts import Scope

    if test and scope == "manage":
        raise click.UsageError("--test cannot be combined with --scope manage: such a key changes real settings.")
    with database.refusals():
        only = None if domain is None else account_rules.domain_name(domain)
    key_id, secret = database.run_for(
        name,
        lambda store, account_id: store.access.create_key(
            account_id, scope=Scope(scope), test=test, name=label or "", domain=only, expires_at=expires
        ),
    )
    show_record(as_json, {"id": key_id, "key": secret})


@key.command("list")
@click.argument("name", type=PRINTABLE, required=False)
@common
def list_all(name: str | None, as_json: bool) -> None:
    """List the API keys of the account NAME or of all accounts, including revoked ones.

    \b
    Examples:
      appliance key list
      appliance key list acme --json
    """
    keys: list[ApiKey]
    if name is None:
        keys = database.run(lambda store: store.access.keys(), or_nothing=[])
    else:
        keys = database.run_for(name, lambda store, account_id: store.access.keys(account_id))
    rows = [{"id": key.id, "account": key.account_name} | record(key, *KEY_FIELDS) for key in keys]
    nothing = f"No API keys yet. Create one: appliance key create {name or 'NAME'}"
    show_list(as_json, "keys", rows, KEY_COLUMNS, nothing)


@key.command()
@database.words_argument("ID")
@click.option(
    "--overlap",
    type=SPAN,
    default="24h",
    show_default=True,
    metavar="SPAN",
    help="Time for which the previous secret still works; 0 revokes it at once.",
)
@common
def roll(words: tuple[str, ...], overlap: int, as_json: bool) -> None:
    """Give the API key ID a new secret, which is shown only once. With NAME, only if that account owns the key.

    \b
    Examples:
      appliance key roll key_01k8hv1f7x5c4t9rq2m6b3n0pw
      appliance key roll acme key_01k8hv1f7x5c4t9rq2m6b3n0pw --overlap 0
    """
    name, key_id = database.name_and_last(words)

    async def work(store: "Store") -> "tuple[str, ApiKey]":
        account_id = None if name is None else (await store.accounts.named(name)).id
        key = await store.access.key(key_id, account_id)
        account_id = (await store.accounts.named(key.account_name)).id
        secret = await store.access.roll_key(key, overlap, account_id)
        return secret, await store.access.key(key_id)

    secret, rolled = database.run(work)
    show_record(as_json, {"id": key_id, "key": secret} | record(rolled, "previous_expires_at"))


@key.command()
@database.words_argument("ID")
@common
def revoke(words: tuple[str, ...], as_json: bool) -> None:
    """Revoke the API key ID. With NAME, only if that account owns the key.

    \b
    Examples:
      appliance key revoke key_01k8hv1f7x5c4t9rq2m6b3n0pw
      appliance key revoke acme key_01k8hv1f7x5c4t9rq2m6b3n0pw
    """
    name, key_id = database.name_and_last(words)

    async def work(store: "Store") -> str:
        named = name
        if named is None and key_id.startswith("key_"):
            named = (await store.access.key(key_id)).account_name
        return await store.access.revoke_key(key_id, None if named is None else (await store.accounts.named(named)).id)

    revoked = database.run(work)
    show(as_json, {"id": revoked, "revoked": True}, f"Revoked API key {revoked}.")
