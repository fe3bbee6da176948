"""`appliance audit`: who changed what, when and from where."""

from typing import Any

import click

from appliance.cli import database
from appliance.cli.options import PRINTABLE, TIME_AGO, common
from appliance.cli.output import printable, show_list

AUDIT_COLUMNS = {"created_at": "TIME (UTC)", "account": "ACCOUNT", "who": "WHO", "action": "ACTION"}
AUDIT_COLUMNS |= {"object": "OBJECT", "address": "FROM"}
AUDIT_FIELDS = ("actor_kind", "actor", "actor_name", "action", "object", "details", "address")
MOST_LINES = 10_000


@click.command()
@click.argument("name", type=PRINTABLE, required=False)
@click.option("--action", type=PRINTABLE, default=None, metavar="WORD", help="Only these: api_key.created, or api_key.")
@click.option("--since", type=TIME_AGO, default=None, metavar="TIME", help="A span such as 2d, or a date.")
@click.option("--until", type=TIME_AGO, default=None, metavar="TIME", help="The same, for the end.")
@click.option("--limit", type=click.IntRange(1, MOST_LINES), default=100, show_default=True, help="Lines at most.")
@common
def audit(
    name: str | None, action: str | None, since: int | None, until: int | None, limit: int, as_json: bool
) -> None:
    """List who changed what in the account NAME, or in all and the installation; the newest first.

    \b
    Examples:
      appliance audit
      appliance audit acme --action api_key --since 30d
    """
    from appliance.model.dashboard import AuditEntry
    from appliance.store import Store
    from appliance.times import rfc3339

    async def read(store: Store) -> tuple[list[AuditEntry], dict[str, str]]:
        accounts = {account.id: account.name for account in await store.accounts.all()}
        of = None if name is None else (await store.accounts.named(name)).id
        end = 2**53 if until is None else until
        found = await store.audit.page(of, action=action or "", since=since or 0, until=end, most=limit)
        return found, accounts

    nothing: tuple[list[AuditEntry], dict[str, str]] = ([], {})
    found, accounts = database.run(read, or_nothing=nothing)
    rows: list[dict[str, Any]] = []
    for each in found:
        account = accounts.get(each.account_id, each.account_id) or None
        row: dict[str, Any] = {"created_at": rfc3339(each.created_at), "account": account}
        row |= {field: getattr(each, field) for field in AUDIT_FIELDS}
        if not as_json:
            row = {key: printable(value) if isinstance(value, str) else value for key, value in row.items()}
            row["who"] = printable(f"{each.actor} ({each.actor_name or each.actor_kind})")
        rows.append(row)
    show_list(as_json, "audit", rows, AUDIT_COLUMNS, "Nothing was changed yet.")
