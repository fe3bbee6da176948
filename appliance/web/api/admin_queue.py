"""The installation: /v1/admin/nodes and /v1/admin/queue for administrators, /healthz and /readyz for monitoring."""

from typing import Annotated

import msgspec
from msgspec import Meta

from appliance.errors import Code, Refused
from appliance.message.characters import fault_in_line
from appliance.model.accounts import User
from appliance.report.queue import PauseReport, WaitingPool, WarmingAddress, by_pool, pause_of, warming
from appliance.store.audit import about, concerns
from appliance.store.pools import EVERY, RESTORED
from appliance.web.api.suppressions import REASON
from appliance.web.app import Routes, check_line
from appliance.web.exchange import ApiAnswer, SinglePage, object_from
from appliance.web.operations import Json, Operation, Tag, for_admins, parameter

NODE_NAME_LENGTH = 63
SHOWN_POOLS = 100  # largest pools first
SHOWN_DESTINATIONS = 5  # per pool
SHOWN_WARMUPS = 100
POOL_LENGTH = 253  # a pool is named in the settings or after a domain
PAUSED = "paused by an administrator"
RESUME_THERE = (
    "A restore from a backup started this pause, because its mail may have been sent already. Check the "
    "server, then run `appliance resume` there; --cancel-old drops mail accepted before the restore."
)


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


class NodesAnswer(ApiAnswer):
    """The nodes of the shared database, including those that ended in the last hour. Empty with SQLite."""

    nodes: Annotated[list[NodeReport], Meta(description="Nodes, live nodes first.")]
    next: SinglePage


class DrainAnswer(ApiAnswer):
    """The node that is draining."""

    name: Annotated[str, Meta(description="Node name.")]
    draining: Annotated[bool, Meta(description="Always true.")]


class PauseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The reason of a pause."""

    reason: Annotated[str, Meta(description="Reason, shown to affected accounts."), REASON] = PAUSED


class PoolHeldAnswer(ApiAnswer):
    """The hold of a pool."""

    pool: Annotated[str, Meta(description="Pool name.")]
    held: Annotated[bool, Meta(description="Whether mail to the pool is on hold.")]
    reason: Annotated[str | None, Meta(description="Reason for the hold; null if not held.")]


class MailPausedAnswer(ApiAnswer):
    """The pause of all mail."""

    paused: Annotated[PauseReport | None, Meta(description="The pause of all mail; null if mail is not paused.")]


class QueueAnswer(ApiAnswer):
    """The queue of all accounts by pool. Nothing is delivered while `paused` is set."""

    paused: Annotated[PauseReport | None, Meta(description="The pause of all mail; null if mail is not paused.")]
    pools: Annotated[list[WaitingPool], Meta(description="The 100 pools with the most mail, and all held pools.")]
    warmups: Annotated[list[WarmingAddress], Meta(description="Sending addresses in warm-up; limiting ones first.")]
    sandbox: Annotated[int, Meta(description="Recipients queued for simulated delivery. They belong to no pool.")]
    next: SinglePage


def _name(name: str, description: str, length: int, example: str) -> Json:
    schema = {"type": "string", "minLength": 1, "maxLength": length, "examples": [example]}
    return parameter(name, "path", description, schema)


_NODE = _name("name", "Node name.", NODE_NAME_LENGTH, "mail2")
_POOL = _name("pool", "Pool name.", POOL_LENGTH, "google")
_DRAINING = (202, DrainAnswer, "The node hands over its mail and ends.")


class InstallationRoutes(Routes):
    tag = Tag.ADMINISTRATION

    @for_admins("GET /v1/admin/nodes", NodesAnswer)
    async def list_nodes(self, _admin: User) -> NodesAnswer:
        """List the nodes that share the database."""
        nodes = [object_from(NodeReport, node) for node in await self.store.engine.nodes()]
        return NodesAnswer(nodes, None)

    @for_admins("POST /v1/admin/nodes/{name}/drain", _DRAINING, _NODE, action="node.drained")
    async def drain_node(self, _admin: User, name: str) -> DrainAnswer:
        """Make a node hand over its mail and end."""
        known = len(name) <= NODE_NAME_LENGTH and not fault_in_line(name) and await self.store.engine.drain(name)
        if not known:
            raise Refused(Code.NOT_FOUND, "No running node has this name.")
        return DrainAnswer(name, True)

    @for_admins("GET /v1/admin/queue", QueueAnswer)
    async def get_queue(self, _admin: User) -> QueueAnswer:
        """Read the queue of all accounts by provider pool."""
        mail = await self.store.queue_control.summary(SHOWN_POOLS, SHOWN_DESTINATIONS)
        holds = await self.store.pools.all_holds()
        paused = pause_of(next((hold for hold in holds if hold.pool == EVERY), None))
        pools = by_pool(mail, [hold for hold in holds if hold.pool != EVERY], await self.store.pools.states())
        warmups = warming(await self.store.warmups.told(self.services.config.warmup, SHOWN_WARMUPS))
        sandbox = await self.store.queue_control.simulated()
        return QueueAnswer(paused, pools, warmups, sandbox, None)

    @for_admins("POST /v1/admin/queue/pause", MailPausedAnswer, action="mail.paused")
    async def pause_mail(self, _admin: User, body: PauseRequest) -> MailPausedAnswer:
        """Pause all mail and webhooks on all nodes until resumed. New mail is accepted and queued."""
        check_line("reason", body.reason)
        about("all mail", {"reason": body.reason})
        concerns("")
        await self.store.pools.hold(EVERY, body.reason)
        return MailPausedAnswer(pause_of(await self.store.pools.paused()))

    @for_admins("POST /v1/admin/queue/resume", MailPausedAnswer, Code.NOT_FOUND, Code.CONFLICT, action="mail.resumed")
    async def resume_mail(self, _admin: User) -> MailPausedAnswer:
        """Resume all mail on all nodes. A pause after a restore can only be ended on the server."""
        paused = await self.store.pools.paused()
        if paused is not None and paused.reason.startswith(RESTORED):
            raise Refused(Code.CONFLICT, RESUME_THERE)
        about("all mail")
        concerns("")
        if not await self.store.pools.release(EVERY):
            raise Refused(Code.NOT_FOUND, "Mail is not paused.")
        return MailPausedAnswer(None)

    @for_admins("POST /v1/admin/queue/{pool}/pause", PoolHeldAnswer, _POOL, action="pool.paused")
    async def pause_pool(self, _admin: User, pool: str, body: PauseRequest) -> PoolHeldAnswer:
        """Hold mail to a pool on all nodes until resumed."""
        check_line("reason", body.reason)
        await self.store.pools.hold(_checked(pool), body.reason)
        return PoolHeldAnswer(pool, True, (await self.store.pools.holds())[pool].reason)

    @for_admins("POST /v1/admin/queue/{pool}/resume", PoolHeldAnswer, _POOL, action="pool.resumed")
    async def resume_pool(self, _admin: User, pool: str) -> PoolHeldAnswer:
        """Lift every hold and slow-down of a pool on all nodes, manual or automatic."""
        if not (await self.store.pools.resume(_checked(pool))).was_held:
            raise Refused(Code.NOT_FOUND, "This pool is not held.")
        return PoolHeldAnswer(pool, False, None)


def _checked(pool: str) -> str:
    if len(pool) > POOL_LENGTH or fault_in_line(pool) or pool == EVERY:
        raise Refused(Code.NOT_FOUND, "No pool has this name.")
    return pool


class HealthAnswer(ApiAnswer):
    """The service is healthy."""

    status: Annotated[str, Meta(description="`ok` (`/healthz`) or `ready` (`/readyz`).")]


class HealthRoutes(Routes):
    tag = Tag.HEALTH

    @Operation("GET /healthz", (200, HealthAnswer, "Alive."))
    async def get_health(self) -> HealthAnswer:
        """Check that the process is alive."""
        return HealthAnswer("ok")

    @Operation("GET /readyz", (200, HealthAnswer, "Ready."), (Code.SERVICE_UNAVAILABLE, Code.TEMPORARY_FAILURE))
    async def get_readiness(self) -> HealthAnswer:
        """Check that the service accepts mail: storage is writable, and no shutdown is in progress."""
        if self.services.stopping.is_set():
            text = "The server is shutting down. Retry in a few seconds."
            raise Refused(Code.SERVICE_UNAVAILABLE, text, retry_after=5)
        self.services.intake.check_disk()
        await self.store.check_writable()
        self.services.intake.check_clock()
        if not self.store.engine.holds_lease():
            text = "This node cannot deliver: its lease has expired. Retry in a few seconds."
            raise Refused(Code.SERVICE_UNAVAILABLE, text, retry_after=5)
        return HealthAnswer("ready")
