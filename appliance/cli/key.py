"""`appliance key …`: creates, lists, rolls and revokes API keys."""

from typing import TYPE_CHECKING

import click

from appliance.cli import database
from appliance.cli.options import PRINTABLE, SPAN, TIME_AHEAD, common, config_option
from appliance.cli.output import record, show, show_list, show_record

if TYPE_CHECKING:
    from appliance.model.accounts import ApiKey
    from appliance.store import Store

KEY_COLUMNS = {"id": "ID", "account": "ACCOUNT", "name": "NAME", "hint": "ENDS IN", "scope": "SCOPE", "test": "TEST"}
KEY_COLUMNS |= {
    "domain": "DOMAIN",
    "created_by": "CREATED BY",
    "created_at": "CREATED (UTC)",
    "expires_at": "EXPIRES (UTC)",
}
KEY_COLUMNS |= {"last_used_at": "LAST USED (UTC)", "last_used_from": "FROM", "revoked_at": "REVOKED (UTC)"}
_FIELDS = (
    "name",
    "hint",
    "scope",
    "test",
    "domain",
    "created_by",
    "created_at",
    "expires_at",
    "last_used_at",
    "last_used_from",
)
KEY_FIELDS = (*_FIELDS, "previous_hint", "previous_expires_at", "revoked_at")
SCOPES = ("send", "read", "full", "manage")


class Scopes(click.ParamType[str]):
    """One word for what a key may do; `send,read` is `full`."""

    name = "scope"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The word; `manage` includes the others."""
        words = set(value.split(","))
        if not words <= set(SCOPES):
            self.fail(f"{value!r} is not one of {', '.join(SCOPES)}, nor several of them with commas", param, ctx)
        if "manage" in words:
            return "manage"
        return words.pop() if len(words) == 1 else "full"


@click.group()
@config_option
def key() -> None:
    """API keys, for programs that send over HTTP or manage the account."""


@key.command()
@database.of_only_account
@click.option("--test", is_flag=True, help="Its messages cost nothing and never leave the machine.")
@click.option(
    "--scope",
    type=Scopes(),
    default="send",
    show_default=True,
    metavar="SCOPE",
    help="send, read (what became of messages), full (both), or manage (both, and all that a developer may under /v1).",
)
@click.option("--domain", type=PRINTABLE, metavar="DOMAIN", help="The only domain that it may send from.")
@click.option("--expires", type=TIME_AHEAD, metavar="TIME", help="When it ends: 90d from now, or a date. Else never.")
@click.option("--name", "label", type=PRINTABLE, metavar="TEXT", help="What to call it.")
def create(
    name: str, test: bool, scope: str, domain: str | None, expires: int | None, label: str | None, as_json: bool
) -> None:
    """Create an API key for the account NAME. The key itself is shown only now.

    \b
    Examples:
      appliance key create acme --scope full
      appliance key create acme --scope manage --domain example.com --expires 90d
      appliance key create acme --test --json
    """
    from appliance.intake import account_rules
    from appliance.model.accounts import Scope

    if test and scope == "manage":
        raise click.UsageError("A key with the scope manage changes what is real: it cannot be a test key.")
    with database.refusals():
        only = None if domain is None else account_rules.domain_name(domain)
    key_id, secret = database.run_for(
        name,
        lambda store, account_id: store.access.create_key(
            account_id, scope=Scope(scope), test=test, name=label or "", domain=only, expires_at=expires
        ),
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
    rows = [{"id": each.id, "account": each.account_name} | record(each, *KEY_FIELDS) for each in found]
    nothing = f"No API keys yet. Create one: appliance key create {name or 'NAME'}"
    show_list(as_json, "keys", rows, KEY_COLUMNS, nothing)


@key.command()
@click.argument("name_and_id", type=PRINTABLE, nargs=-1, required=True, metavar="[NAME] ID")
@click.option(
    "--overlap",
    type=SPAN,
    default="24h",
    show_default=True,
    metavar="SPAN",
    help="For how long the former secret still works; 0 ends it at once.",
)
@common
def roll(name_and_id: tuple[str, ...], overlap: int, as_json: bool) -> None:
    """Give the API key of that ID a new secret, shown only now. With NAME only if it belongs to that account.

    \b
    Examples:
      appliance key roll key_01k8hv1f7x5c4t9rq2m6b3n0pw
      appliance key roll acme key_01k8hv1f7x5c4t9rq2m6b3n0pw --overlap 0
    """
    from appliance.times import rfc3339

    name, key_id = _named(name_and_id)

    async def work(store: "Store") -> "tuple[str, ApiKey]":
        account_id = None if name is None else (await store.accounts.named(name)).id
        found = await store.access.key(key_id, account_id)
        account_id = (await store.accounts.named(found.account_name)).id
        secret = await store.access.roll_key(found, overlap, account_id)
        return secret, await store.access.key(key_id)

    secret, rolled = database.run(work)
    until = rolled.previous_expires_at
    made = {"id": key_id, "key": secret, "previous_expires_at": None if until is None else rfc3339(until)}
    show_record(as_json, made, made)


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
    name, key_id = _named(name_and_id)

    async def work(store: "Store") -> str:
        named = name
        if named is None and key_id.startswith("key_"):
            named = (await store.access.key(key_id)).account_name
        return await store.access.revoke_key(key_id, None if named is None else (await store.accounts.named(named)).id)

    revoked = database.run(work)
    show(as_json, {"id": revoked, "revoked": True}, f"Revoked API key {revoked}.")


def _named(name_and_id: tuple[str, ...]) -> tuple[str | None, str]:
    if len(name_and_id) > 2:
        raise click.UsageError(f"Got unexpected extra argument ({name_and_id[2]})")
    *name, key_id = name_and_id
    return (name[0] if name else None), key_id
