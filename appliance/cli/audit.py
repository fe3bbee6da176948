"""`appliance audit`: who changed what, when and from where."""

from typing import Any

import click

from appliance.cli import database
from appliance.cli.options import PRINTABLE, TIME_AGO, common, number_option, text_option
from appliance.cli.output import printable_row, show_list

AUDIT_COLUMNS = {"created_at": "TIME (UTC)", "account": "ACCOUNT", "who": "WHO", "action": "ACTION"}
AUDIT_COLUMNS |= {"object": "OBJECT", "address": "FROM"}
AUDIT_FIELDS = ("actor_kind", "actor", "actor_name", "action", "object", "details", "address")
MOST_LINES = 10_000


@click.command()
@click.argument("name", type=PRINTABLE, required=False)
@text_option("--action", "WORD", "Filter by action, such as api_key.created or api_key.")
@click.option("--since", type=TIME_AGO, default=None, metavar="TIME", help="Only entries from then on: 2d, or a date.")
@click.option("--until", type=TIME_AGO, default=None, metavar="TIME", help="Only entries before this time.")
@number_option("--limit", 100, MOST_LINES, "Number of entries to show.")
@common
def audit(
    name: str | None, action: str | None, since: int | None, until: int | None, limit: int, as_json: bool
) -> None:
    """List who changed what, newest first, in the account NAME or in the whole installation.

    \b
    Examples:
      appliance audit
      appliance audit acme --action api_key --since 30d
    """
    from appliance.model.dashboard import AuditEntry
    from appliance.store import Store
    from appliance.times import LATEST, rfc3339

    async def read(store: Store) -> tuple[list[AuditEntry], dict[str, str]]:
        accounts = {account.id: account.name for account in await store.accounts.all()}
        account_id = None if name is None else (await store.accounts.named(name)).id
        end = LATEST if until is None else until
        page = store.audit.page(account_id, action=action or "", since=since or 0, until=end, most=limit)
        return await page, accounts

    nothing: tuple[list[AuditEntry], dict[str, str]] = ([], {})
    entries, accounts = database.run(read, or_nothing=nothing)
    rows: list[dict[str, Any]] = []
    for entry in entries:
        account = accounts.get(entry.account_id, entry.account_id) or None
        row: dict[str, Any] = {"created_at": rfc3339(entry.created_at), "account": account}
        row |= {field: getattr(entry, field) for field in AUDIT_FIELDS}
        who = {"who": f"{entry.actor} ({entry.actor_name or entry.actor_kind})"}
        rows.append(row if as_json else printable_row(row | who))
    show_list(as_json, "audit", rows, AUDIT_COLUMNS, "Nothing was changed yet.")
