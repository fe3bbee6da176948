"""The queue of all accounts, managed by administrators: /v1/admin/queue."""

from typing import Annotated

import msgspec
from msgspec import Meta

from appliance.errors import Code, Refused
from appliance.message.characters import LINE_PATTERN, fault_in_line
from appliance.model.mail import User
from appliance.report.queue import PauseReport, WaitingPool, WarmingAddress, by_pool, pause_of, warming
from appliance.store.pools import EVERY
from appliance.web.app import Routes, check_line, request_id
from appliance.web.operations import Json, for_admins, parameter

SHOWN_POOLS = 100  # of the queue, the largest first
SHOWN_DESTINATIONS = 5  # of each pool
SHOWN_WARMUPS = 100
POOL_LENGTH = 253  # a pool is named in the settings, or after a domain
PAUSED = "paused by an administrator"


class PauseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a pause."""

    reason: Annotated[str, Meta(min_length=1, max_length=200, extra_json_schema={"pattern": LINE_PATTERN})] = PAUSED


class PoolHeldAnswer(msgspec.Struct):
    """Whether a pool's mail is held now, and why."""

    pool: str
    held: bool
    reason: str | None
    request_id: str


class QueueAnswer(msgspec.Struct):
    """The mail of all accounts that waits, by pool: `next` is always null. While `paused` is not, none of it goes.

    `warmups` are the sending addresses that are being warmed up, those first that keep mail waiting.
    """

    paused: PauseReport | None
    pools: list[WaitingPool]
    warmups: list[WarmingAddress]
    sandbox: int
    next: str | None
    request_id: str


_NAME_SCHEMA: Json = {"type": "string", "minLength": 1, "maxLength": POOL_LENGTH, "examples": ["google"]}
_POOL = parameter("pool", "path", "The pool's name.", _NAME_SCHEMA)


class AdminQueueRoutes(Routes):
    @for_admins("GET /v1/admin/queue", (200, QueueAnswer, "The pools with most mail, and all that are held."))
    async def get_queue(self, _admin: User) -> QueueAnswer:
        """Read what waits of all accounts' mail, by provider pool."""
        mail = await self.store.queue_control.summarise(SHOWN_POOLS, SHOWN_DESTINATIONS)
        holds = await self.store.pools.all_holds()
        paused = pause_of(next((hold for hold in holds if hold.pool == EVERY), None))
        pools = by_pool(mail, [hold for hold in holds if hold.pool != EVERY], await self.store.pools.states())
        warmups = warming(await self.store.warmups.told(self.services.config.warmup, SHOWN_WARMUPS))
        sandbox = await self.store.queue_control.simulated()
        return QueueAnswer(paused, pools, warmups, sandbox, None, request_id())

    @for_admins(
        "POST /v1/admin/queue/{pool}/pause",
        (200, PoolHeldAnswer, "Held; a pool that was held before keeps its reason."),
        Code.NOT_FOUND,
        body=PauseRequest,
        parameters=(_POOL,),
        action="pool.paused",
    )
    async def pause_pool(self, _admin: User, pool: str, body: PauseRequest) -> PoolHeldAnswer:
        """Hold the mail of a pool, on all nodes, until it is resumed."""
        check_line("reason", body.reason)
        await self.store.pools.hold(_name(pool), body.reason)
        return PoolHeldAnswer(pool, True, (await self.store.pools.holds())[pool].reason, request_id())

    @for_admins(
        "POST /v1/admin/queue/{pool}/resume",
        (200, PoolHeldAnswer, "Open again."),
        Code.NOT_FOUND,
        parameters=(_POOL,),
        action="pool.resumed",
    )
    async def resume_pool(self, _admin: User, pool: str) -> PoolHeldAnswer:
        """Resume the mail of a pool, whether an administrator held it or a server, on all nodes."""
        if not await self.store.pools.release(_name(pool)):
            raise Refused(Code.NOT_FOUND, "This pool is not held.")
        return PoolHeldAnswer(pool, False, None, request_id())


def _name(pool: str) -> str:
    # All mail is paused and resumed by the command line only: after a restore the operator must check the server first.
    if len(pool) > POOL_LENGTH or fault_in_line(pool) or pool == EVERY:
        raise Refused(Code.NOT_FOUND, "There is no pool of this name.")
    return pool
