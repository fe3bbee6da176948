"""`appliance nodes`: lists and drains the nodes of a cluster, which share a PostgreSQL database."""

from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import PRINTABLE, common
from appliance.cli.output import record, show, show_list

if TYPE_CHECKING:
    from appliance.model.database import NodeState

COLUMNS = {"name": "node", "state": "state", "address": "address", "version": "version", "started_at": "started"}
COLUMNS |= {"lease_seconds": "lease", "in_flight": "in flight", "waiting": "waiting", "skew_seconds": "skew"}
NO_NODES = "This installation uses an SQLite file, so it has no nodes: see docs/cluster.md."


@click.group(invoke_without_command=True)
@common
@click.pass_context
def nodes(ctx: click.Context, as_json: bool) -> None:
    """Manage the nodes of a cluster. Without a command, list them."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_all, as_json=as_json)
    elif as_json:
        raise click.UsageError(f"Put --json after the command: appliance nodes {ctx.invoked_subcommand} --json")


@nodes.command("list")
@common
def list_all(as_json: bool) -> None:
    """List the nodes: lease in seconds, recipients in flight and waiting, clock skew in seconds.

    \b
    Examples:
      appliance nodes
      appliance nodes list --json
    """
    settings = database.load_settings()
    if not settings.store.url:
        show(as_json, {"nodes": []}, NO_NODES)
        return
    states: list[NodeState] = database.run(lambda store: store.engine.nodes(), settings=settings)
    show_list(as_json, "nodes", [*map(_row, states)], COLUMNS, "No node has started yet: appliance serve")


@nodes.command()
@click.argument("name", type=PRINTABLE)
@common
def drain(name: str, as_json: bool) -> None:
    """Stop the node NAME and hand its mail over to the other nodes.

    The node finishes deliveries in flight, accepts nothing new, and exits with 0. If its service manager would restart
    it, stop the service instead.

    \b
    Example:
      appliance nodes drain mail2
    """
    settings = database.load_settings()
    if not settings.store.url:
        raise click.ClickException(NO_NODES)
    if not database.run(lambda store: store.engine.drain(name), settings=settings):
        raise click.ClickException(f"no running node is named {name!r}: see appliance nodes list")
    show(as_json, {"node": name, "draining": True}, f"Node {name} hands over its mail and stops.")


def _row(node: "NodeState") -> dict[str, Any]:
    return {
        **record(node, "name", "state", "address", "version", "started_at"),
        "lease_seconds": round(max(0, node.lease) / 1_000_000, 1),
        **record(node, "in_flight", "waiting"),
        "skew_seconds": round(node.skew / 1_000_000, 3),
    }
