"""The nodes that share the database, for administrators: /v1/admin/nodes."""

import msgspec

from appliance.errors import Code, Refused
from appliance.message.characters import fault_in_line
from appliance.model.accounts import User
from appliance.model.database import NodeState
from appliance.times import SECOND, rfc3339
from appliance.web.app import Routes, request_id
from appliance.web.operations import Json, for_admins, parameter

NODE_NAME_LENGTH = 63


class NodeReport(msgspec.Struct):
    """A node: `state` is running, draining, away (its lease has run out) or ended."""

    name: str
    state: str
    address: str
    version: str
    started_at: str
    lease_seconds: float
    in_flight: int
    waiting: int
    skew_seconds: float


class NodesAnswer(msgspec.Struct):
    """The nodes on the shared database, those that ended in the last hour too; none with the embedded one."""

    nodes: list[NodeReport]
    next: str | None
    request_id: str


class DrainAnswer(msgspec.Struct):
    """The node that was asked to end."""

    name: str
    draining: bool
    request_id: str


_NAME_SCHEMA: Json = {"type": "string", "minLength": 1, "maxLength": NODE_NAME_LENGTH, "examples": ["mail2"]}
_NODE = parameter("name", "path", "The node's name.", _NAME_SCHEMA)


class AdminNodeRoutes(Routes):
    @for_admins("GET /v1/admin/nodes", (200, NodesAnswer, "The nodes."))
    async def list_nodes(self, _admin: User) -> NodesAnswer:
        """List the nodes that share the database."""
        return NodesAnswer([_report(each) for each in await self.store.engine.nodes()], None, request_id())

    @for_admins(
        "POST /v1/admin/nodes/{name}/drain",
        (202, DrainAnswer, "It hands over its mail and ends."),
        Code.NOT_FOUND,
        parameters=(_NODE,),
        action="node.drained",
    )
    async def drain_node(self, _admin: User, name: str) -> DrainAnswer:
        """Have a node hand over its mail to the others and end."""
        known = len(name) <= NODE_NAME_LENGTH and not fault_in_line(name) and await self.store.engine.drain(name)
        if not known:
            raise Refused(Code.NOT_FOUND, "There is no running node of this name.")
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
