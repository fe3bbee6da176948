"""The nodes of a shared database, for administrators: /v1/admin/nodes."""

from typing import Annotated

import msgspec
from msgspec import Meta

from appliance.errors import Code, Refused
from appliance.message.characters import fault_in_line
from appliance.model.accounts import User
from appliance.model.database import NodeState
from appliance.times import SECOND, rfc3339
from appliance.web.answer import RequestId, SinglePage
from appliance.web.app import Routes, request_id
from appliance.web.operations import Json, Tag, for_admins, parameter

NODE_NAME_LENGTH = 63


class NodeReport(msgspec.Struct):
    """A node of the cluster."""

    name: Annotated[str, Meta(description="Node name (`server.node`).")]
    state: Annotated[str, Meta(description="`running`, `draining`, `away` (lease expired) or `ended`.")]
    address: Annotated[str, Meta(description="Host name.")]
    version: Annotated[str, Meta(description="Program version.")]
    started_at: Annotated[str, Meta(description="Start time.")]
    lease_seconds: Annotated[float, Meta(description="Seconds until the lease expires.")]
    in_flight: Annotated[int, Meta(description="Recipients in open SMTP sessions.")]
    waiting: Annotated[int, Meta(description="Queued recipients that the node owns.")]
    skew_seconds: Annotated[float, Meta(description="Seconds that the clock is ahead of the database.")]


class NodesAnswer(msgspec.Struct):
    """The nodes of the shared database, including those that ended in the last hour. Empty with SQLite."""

    nodes: Annotated[list[NodeReport], Meta(description="Nodes, live nodes first.")]
    next: SinglePage
    request_id: RequestId


class DrainAnswer(msgspec.Struct):
    """The node that is draining."""

    name: Annotated[str, Meta(description="Node name.")]
    draining: Annotated[bool, Meta(description="Always true.")]
    request_id: RequestId


_NAME_SCHEMA: Json = {"type": "string", "minLength": 1, "maxLength": NODE_NAME_LENGTH, "examples": ["mail2"]}
_NODE = parameter("name", "path", "Node name.", _NAME_SCHEMA)


class AdminNodeRoutes(Routes):
    tag = Tag.ADMINISTRATION

    @for_admins("GET /v1/admin/nodes", NodesAnswer)
    async def list_nodes(self, _admin: User) -> NodesAnswer:
        """List the nodes that share the database."""
        return NodesAnswer([_report(node) for node in await self.store.engine.nodes()], None, request_id())

    @for_admins(
        "POST /v1/admin/nodes/{name}/drain",
        (202, DrainAnswer, "The node hands over its mail and ends."),
        Code.NOT_FOUND,
        parameters=(_NODE,),
        action="node.drained",
    )
    async def drain_node(self, _admin: User, name: str) -> DrainAnswer:
        """Make a node hand over its mail and end."""
        known = len(name) <= NODE_NAME_LENGTH and not fault_in_line(name) and await self.store.engine.drain(name)
        if not known:
            raise Refused(Code.NOT_FOUND, "No running node has this name.")
        return DrainAnswer(name, True, request_id())


def _report(node: NodeState) -> NodeReport:
    return NodeReport(
        node.name,
        node.state,
        node.address,
        node.version,
        rfc3339(node.started_at),
        round(max(0, node.lease) / SECOND, 1),
        node.in_flight,
        node.waiting,
        round(node.skew / SECOND, 3),
    )
