"""`appliance attention`: problems that need a person, as the dashboard and GET /v1/attention show them."""

from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import Command
from appliance.cli.output import record, show_list
from appliance.environment import Environment
from appliance.times import rfc3339

if TYPE_CHECKING:
    from appliance.model.attention import AttentionItem
    from appliance.store import Store

ATTENTION_COLUMNS = {"severity": "SEVERITY", "account": "ACCOUNT", "title": "PROBLEM", "since": "SINCE (UTC)"}
ATTENTION_COLUMNS |= {"detail": "DETAIL"}


@click.command(cls=Command, reads=True)
@database.list_of_accounts
def attention(name: str | None) -> None:
    """List what needs attention, in the whole installation or in one account, the most serious first.

    Lists broken DNS of domains, high bounce and complaint rates, held mail, a failing webhook, expiring API keys and
    low credits; for the whole installation also expiring certificates, low disk space and a growing queue.

    Examples:
      appliance attention
      appliance attention --account acme --json
    """
    from appliance.attention.problems import Problems
    from appliance.intake.limits import FreeSpace

    settings, env = database.load_settings(), Environment()
    limits = settings.limits
    space = FreeSpace(settings.server.data_dir, limits.min_free_disk, limits.min_free_disk_percent, env)

    async def read(store: "Store") -> list[dict[str, Any]]:
        problems = Problems(settings, store, env, space)
        accounts = await store.accounts.all() if name is None else [await store.accounts.named(name)]
        lists: list[tuple[str | None, list[AttentionItem]]] = [
            (account.name, await problems.shown(account, is_admin=False)) for account in accounts
        ]
        if name is None:
            lists.append((None, await problems.shown(None, is_admin=True)))
        rows = [
            record(problem, "kind", "severity", "title", "detail", "link")
            | {"since": rfc3339(problem.since or 0), "account": account}
            for account, shown in lists
            for problem in shown
        ]
        return sorted(rows, key=lambda row: str(row["severity"]))

    rows = database.run(read, settings=settings, or_nothing=list)
    show_list({"items": rows}, ATTENTION_COLUMNS, "Nothing needs attention.", ("detail", "account"), _worded)


def _worded(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"since": row["since"][:16].replace("T", " ")}
