"""`appliance nodes`: the nodes that share a PostgreSQL, and how to take one out of service."""

from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import PRINTABLE, common
from appliance.cli.output import show, show_list

if TYPE_CHECKING:
    from appliance.model.database import NodeState

COLUMNS = {
    "name": "node",
    "state": "state",
    "address": "address",
    "version": "version",
    "started_at": "started",
    "lease_seconds": "lease",
    "in_flight": "in flight",
    "waiting": "waiting",
    "skew_seconds": "skew",
}
NO_NODES = "This appliance keeps its mail in a file of its own, so it has no nodes: see docs/cluster.md."


@click.group(invoke_without_command=True)
@common
@click.pass_context
def nodes(ctx: click.Context, as_json: bool) -> None:
    """The nodes that share a PostgreSQL. Without a command they are listed."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_all, as_json=as_json)
    elif as_json:
        raise click.UsageError(f"Give --json behind the command: appliance nodes {ctx.invoked_subcommand} --json")


@nodes.command("list")
@common
def list_all(as_json: bool) -> None:
    """List the nodes that share the database: lease in seconds, recipients in flight and waiting, skew of the clock.

    \b
    Examples:
      appliance nodes
      appliance nodes list --json
    """
    settings = database.load_settings()
    if not settings.store.url:
        show(as_json, {"nodes": []}, NO_NODES)
        return
    found: list[NodeState] = database.run(lambda store: store.engine.nodes(), settings=settings)
    show_list(as_json, "nodes", [_row(each) for each in found], COLUMNS, "No node has started yet: appliance serve")


@nodes.command()
@click.argument("name", type=PRINTABLE)
@common
def drain(name: str, as_json: bool) -> None:
    """Have the node NAME hand over its mail to the others and end.

    It finishes what is in flight, takes nothing new, and exits with 0; a service manager that starts it again should be
    told to stop it first.

    \b
    Example:
      appliance nodes drain mail2
    """
    settings = database.load_settings()
    if not settings.store.url:
        raise click.ClickException(NO_NODES)
    if not database.run(lambda store: store.engine.drain(name), settings=settings):
        raise click.ClickException(f"there is no running node named {name!r}")
    show(as_json, {"node": name, "draining": True}, f"Node {name} hands over its mail and ends.")


def _row(node: "NodeState") -> dict[str, Any]:
    from appliance.times import rfc3339

    return {
        "name": node.name,
        "state": node.state,
        "address": node.address,
        "version": node.version,
        "started_at": rfc3339(node.started_at),
        "lease_seconds": round(max(0, node.lease) / 1_000_000, 1),
        "in_flight": node.in_flight,
        "waiting": node.waiting,
        "skew_seconds": round(node.skew / 1_000_000, 3),
    }
