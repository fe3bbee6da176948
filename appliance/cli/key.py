"""`appliance key …` and `appliance credential …`: API keys and SMTP credentials of an account."""

from typing import TYPE_CHECKING

import click

from appliance.cli import database
from appliance.cli.options import SPAN, TIME_AHEAD, CommandGroup, Parsed, common, default_option, flag, text_option
from appliance.cli.output import record, show, show_list, show_record

if TYPE_CHECKING:
    from appliance.model.accounts import ApiKey
    from appliance.store import Store

KEY_COLUMNS = {"id": "ID", "account": "ACCOUNT", "name": "NAME", "hint": "ENDS IN", "scope": "SCOPE", "test": "TEST"}
KEY_COLUMNS |= {"domain": "DOMAIN", "stream": "STREAM", "created_by": "CREATED BY", "created_at": "CREATED (UTC)"}
KEY_COLUMNS |= {"expires_at": "EXPIRES (UTC)", "last_used_at": "LAST USED (UTC)", "last_used_from": "FROM"}
KEY_COLUMNS |= {"revoked_at": "REVOKED (UTC)"}
KEY_SPARE = (
    *("last_used_from", "created_by", "stream", "domain", "created_at", "expires_at"),
    *("test", "last_used_at", "name", "hint"),
)
KEY_FIELDS = (
    *("name", "hint", "scope", "test", "domain", "stream", "created_by", "created_at", "expires_at", "last_used_at"),
    *("last_used_from", "previous_hint", "previous_expires_at", "revoked_at"),
)
CREDENTIAL_COLUMNS = {"username": "USERNAME", "dsn": "DSN", "stream": "STREAM", "created_by": "CREATED BY"}
CREDENTIAL_COLUMNS |= {"created_at": "CREATED (UTC)", "revoked_at": "REVOKED (UTC)"}
SCOPES = ("send", "read", "full", "manage")
SCOPE_HELP = "Permissions: send, read (message status), full (both) or manage (both, and a developer's routes of /v1)."
STREAM_HELP = "Stream of messages that name none (default transactional)."
OVERLAP_HELP = "Time for which the previous secret still works; 0 revokes it at once."


def _scope(value: str) -> str:
    """One of SCOPES; `send,read` is `full`, and `manage` includes the others."""
    words = set(value.split(","))
    if not words <= set(SCOPES):
        raise ValueError(f"{value!r} is not one of {', '.join(SCOPES)}, nor several of them with commas")
    if "manage" in words:
        return "manage"
    return words.pop() if len(words) == 1 else "full"


def _check_stream(name: str | None) -> None:
    from appliance.model.streams import configured_streams

    if name is not None:
        configured_streams(database.load_settings().delivery.streams).get(name, "--stream")


key = CommandGroup(
    "key", "Manage API keys, which programs use to send over HTTP or to manage the account.", {"revoke": "remove"}
)


@key.command(action="api_key.created")
@database.of_only_account
@flag("--test", "Create a test key: its messages are simulated and free.")
@default_option("--scope", "send", SCOPE_HELP, type=Parsed("scope", _scope), metavar="SCOPE")
@text_option("--domain", "DOMAIN", "Restrict the key to this sending domain.", **database.completed("domain"))
@click.option(
    "--expires", type=TIME_AHEAD, metavar="TIME", help="Expiry: a span such as 90d, or a date (default never)."
)
@text_option("--name", "TEXT", "Label of the key.", "label")
@text_option("--stream", "NAME", STREAM_HELP, **database.completed("stream"))
def create(
    name: str,
    test: bool,
    scope: str,
    domain: str | None,
    expires: int | None,
    label: str | None,
    stream: str | None,
) -> None:
    """Create an API key for the account. The key itself is shown only once.

    Examples:
      appliance key create --account acme --scope full
      appliance key create --account acme --scope manage --domain example.com --expires 90d
    """
    from appliance.intake import account_rules
    from appliance.model.accounts import Scope

    if test and scope == "manage":
        raise click.UsageError("--test cannot be combined with --scope manage: such a key changes real settings.")
    with database.refusals():
        only = None if domain is None else account_rules.domain_name(domain)
        _check_stream(stream)
    key_id, secret = database.run_for(
        name,
        lambda store, account_id: store.access.create_key(
            account_id, scope=Scope(scope), test=test, name=label or "", domain=only, expires_at=expires, stream=stream
        ),
    )
    show_record({"id": key_id, "key": secret})


@key.command("list", reads=True)
@database.list_of_accounts
def list_keys(name: str | None) -> None:
    """List the API keys of all accounts or of one, including revoked ones."""
    keys: list[ApiKey]
    if name is None:
        keys = database.run(lambda store: store.access.keys(), or_nothing=list)
    else:
        keys = database.run_for(name, lambda store, account_id: store.access.keys(account_id))
    rows = [{"id": key.id, "account": key.account_name} | record(key, *KEY_FIELDS) for key in keys]
    nothing = f"No API keys yet. Create one: appliance key create --account {name or 'NAME'}"
    show_list({"keys": rows}, KEY_COLUMNS, nothing, KEY_SPARE)


@key.command(action="api_key.rolled")
@database.words_argument("ID")
@default_option("--overlap", "24h", OVERLAP_HELP, type=SPAN, metavar="SPAN")
@common
def roll(words: tuple[str, ...], account: str | None, overlap: int) -> None:
    """Give the API key ID a new secret, which is shown only once. With --account, only if that account owns the key.

    Examples:
      appliance key roll key_01k8hv1f7x5c4t9rq2m6b3n0pw
      appliance key roll key_01k8hv1f7x5c4t9rq2m6b3n0pw --account acme --overlap 0
    """
    name, key_id = database.name_and_last(words, account)

    async def work(store: "Store") -> "tuple[str, ApiKey]":
        account_id = None if name is None else (await store.accounts.named(name)).id
        key = await store.access.key(key_id, account_id)
        account_id = (await store.accounts.named(key.account_name)).id
        secret = await store.access.roll_key(key, overlap, account_id)
        return secret, await store.access.key(key_id)

    secret, rolled = database.run(work)
    show_record({"id": key_id, "key": secret} | record(rolled, "previous_expires_at"))


@key.command(action="api_key.revoked")
@database.words_argument("ID")
@common
def remove(words: tuple[str, ...], account: str | None) -> None:
    """Revoke the API key ID. With --account, only if that account owns the key."""
    name, key_id = database.name_and_last(words, account)

    async def work(store: "Store") -> str:
        named = name
        if named is None and key_id.startswith("key_"):
            named = (await store.access.key(key_id)).account_name
        return await store.access.revoke_key(key_id, None if named is None else (await store.accounts.named(named)).id)

    revoked = database.run(work)
    show({"id": revoked, "revoked": True}, f"Revoked API key {revoked}.")


credential = CommandGroup(
    "credential", "Manage SMTP credentials, which also work for HTTP Basic authentication.", {"revoke": "remove"}
)


@credential.command("create", action="smtp_credential.created")
@database.of_only_account
@click.option(
    "--dsn",
    type=click.Choice(["failure"]),
    help="Mail a DSN for failed recipients whose RCPT has no NOTIFY (default none).",
)
@text_option("--stream", "NAME", STREAM_HELP, **database.completed("stream"))
def create_credential(name: str, dsn: str | None, stream: str | None) -> None:
    """Create an SMTP credential for the account. Its password is shown only once.

    Examples:
      appliance credential create --account acme
      appliance credential create --account acme --dsn failure
      appliance credential create --account acme --stream broadcast
    """
    from appliance.model.accounts import DsnDefault

    with database.refusals():
        _check_stream(stream)
    default = None if dsn is None else DsnDefault(dsn)
    username, password = database.run_for(
        name, lambda store, account_id: store.access.create_credential(account_id, dsn=default, stream=stream)
    )
    show_record({"username": username, "password": password})


@credential.command("list", reads=True)
@database.list_of_only_account
def list_credentials(name: str) -> None:
    """List the SMTP credentials of the account, including revoked ones."""
    credentials = database.run_for(name, lambda store, account_id: store.access.credentials(account_id))
    rows = [record(credential, *CREDENTIAL_COLUMNS) for credential in credentials]
    nothing = f"No SMTP credentials yet. Create one: appliance credential create --account {name}"
    show_list({"credentials": rows}, CREDENTIAL_COLUMNS, nothing, ("created_by", "dsn", "stream"))


@credential.command("remove", action="smtp_credential.revoked")
@database.of_only_account_and("USERNAME")
def remove_credential(name: str, username: str) -> None:
    """Revoke the SMTP credential USERNAME of the account."""
    database.run_for(name, lambda store, account_id: store.access.revoke_credential(account_id, username))
    show({"username": username, "revoked": True}, f"Revoked SMTP credential {username}.")
