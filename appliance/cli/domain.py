"""In charge of the commands `appliance domain …`."""

from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import TEXT, common, config_option
from appliance.cli.output import show, show_list

if TYPE_CHECKING:
    from appliance.model import Domain
    from appliance.store import Store

COLUMNS = {"name": "DOMAIN", "usable": "MAY SEND", "created_at": "ADDED (UTC)"}


@click.group()
@config_option
def domain() -> None:
    """Domains: what an account may write into From."""


@domain.command()
@click.argument("name", type=TEXT)
@click.argument("domain", type=TEXT)
@common
def add(name: str, domain: str, as_json: bool) -> None:
    """Let the account NAME send from DOMAIN, at once. A subdomain is a domain of its own.

    \b
    Examples:
      appliance domain add acme acme.example
      appliance domain add acme bücher.example
    """
    from appliance import provisioning

    with database.refusals():
        wanted = provisioning.domain_name(domain)

    async def work(store: "Store") -> "Domain":
        account = store.accounts.named(name)
        await store.access.add_domain(account.id, wanted, usable=True)
        return next(found for found in store.access.domains(account.id) if found.name == wanted)

    added = database.run(work)
    show(as_json, _record(added), f"Account {name} may now send from {added.name}.")


@domain.command("list")
@click.argument("name", type=TEXT)
@common
def list_all(name: str, as_json: bool) -> None:
    """List the domains of the account NAME.

    \b
    Example:
      appliance domain list acme
    """

    async def work(store: "Store") -> "list[Domain]":
        return store.access.domains(store.accounts.named(name).id)

    rows = [_record(found) for found in database.run(work)]
    show_list(as_json, "domains", rows, COLUMNS, f"No domains yet. Add one: appliance domain add {name} DOMAIN")


def _record(found: "Domain") -> dict[str, Any]:
    from appliance.events import rfc3339

    return {"name": found.name, "usable": found.usable, "created_at": rfc3339(found.created_at)}
