"""The queue of all accounts, for administrators: /v1/admin/queue."""

from typing import Annotated

import msgspec
from msgspec import Meta

from appliance.errors import Code, Refused
from appliance.message.characters import LINE_PATTERN, fault_in_line
from appliance.model.accounts import User
from appliance.report.queue import PauseReport, WaitingPool, WarmingAddress, by_pool, pause_of, warming
from appliance.store.audit import about, concerns
from appliance.store.pools import EVERY, RESTORED
from appliance.web.answer import RequestId, SinglePage
from appliance.web.app import Routes, check_line, request_id
from appliance.web.operations import Json, Tag, for_admins, parameter

SHOWN_POOLS = 100  # largest pools first
SHOWN_DESTINATIONS = 5  # per pool
SHOWN_WARMUPS = 100
POOL_LENGTH = 253  # a pool is named in the settings or after a domain
PAUSED = "paused by an administrator"
NOT_PAUSED = "Mail is not paused."
RESUME_THERE = (
    "A restore from a backup started this pause, because its mail may have been sent already. Check the "
    "server, then run `appliance resume` there; --cancel-old drops mail accepted before the restore."
)


class PauseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The reason of a pause."""

    reason: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=200,
            extra_json_schema={"pattern": LINE_PATTERN},
            description="Reason, shown to affected accounts.",
        ),
    ] = PAUSED


class PoolHeldAnswer(msgspec.Struct):
    """The hold of a pool."""

    pool: Annotated[str, Meta(description="Pool name.")]
    held: Annotated[bool, Meta(description="Whether mail to the pool is on hold.")]
    reason: Annotated[str | None, Meta(description="Reason for the hold; null if not held.")]
    request_id: RequestId


class MailPausedAnswer(msgspec.Struct):
    """The pause of all mail."""

    paused: Annotated[PauseReport | None, Meta(description="The pause of all mail; null if mail is not paused.")]
    request_id: RequestId


class QueueAnswer(msgspec.Struct):
    """The queue of all accounts by pool. Nothing is delivered while `paused` is set."""

    paused: Annotated[PauseReport | None, Meta(description="The pause of all mail; null if mail is not paused.")]
    pools: Annotated[list[WaitingPool], Meta(description="The 100 pools with the most mail, and all held pools.")]
    warmups: Annotated[list[WarmingAddress], Meta(description="Sending addresses in warm-up; limiting ones first.")]
    sandbox: Annotated[int, Meta(description="Recipients queued for simulated delivery. They belong to no pool.")]
    next: SinglePage
    request_id: RequestId


_NAME_SCHEMA: Json = {"type": "string", "minLength": 1, "maxLength": POOL_LENGTH, "examples": ["google"]}
_POOL = parameter("pool", "path", "Pool name.", _NAME_SCHEMA)


class AdminQueueRoutes(Routes):
    tag = Tag.ADMINISTRATION

    @for_admins("GET /v1/admin/queue", QueueAnswer)
    async def get_queue(self, _admin: User) -> QueueAnswer:
        """Read the queue of all accounts by provider pool."""
        mail = await self.store.queue_control.summary(SHOWN_POOLS, SHOWN_DESTINATIONS)
        holds = await self.store.pools.all_holds()
        paused = pause_of(next((hold for hold in holds if hold.pool == EVERY), None))
        pools = by_pool(mail, [hold for hold in holds if hold.pool != EVERY], await self.store.pools.states())
        warmups = warming(await self.store.warmups.told(self.services.config.warmup, SHOWN_WARMUPS))
        sandbox = await self.store.queue_control.simulated()
        return QueueAnswer(paused, pools, warmups, sandbox, None, request_id())

    @for_admins("POST /v1/admin/queue/pause", MailPausedAnswer, body=PauseRequest, action="mail.paused")
    async def pause_mail(self, _admin: User, body: PauseRequest) -> MailPausedAnswer:
        """Pause all mail and webhooks on all nodes until resumed. New mail is accepted and queued."""
        check_line("reason", body.reason)
        about("all mail", {"reason": body.reason})
        concerns("")
        await self.store.pools.hold(EVERY, body.reason)
        return MailPausedAnswer(pause_of(await self.store.pools.paused()), request_id())

    @for_admins("POST /v1/admin/queue/resume", MailPausedAnswer, Code.NOT_FOUND, Code.CONFLICT, action="mail.resumed")
    async def resume_mail(self, _admin: User) -> MailPausedAnswer:
        """Resume all mail on all nodes. A pause after a restore can only be ended on the server."""
        paused = await self.store.pools.paused()
        if paused is not None and paused.reason.startswith(RESTORED):
            raise Refused(Code.CONFLICT, RESUME_THERE)
        about("all mail")
        concerns("")
        if not await self.store.pools.release(EVERY):
            raise Refused(Code.NOT_FOUND, NOT_PAUSED)
        return MailPausedAnswer(None, request_id())

    @for_admins(
        "POST /v1/admin/queue/{pool}/pause",
        PoolHeldAnswer,
        Code.NOT_FOUND,
        body=PauseRequest,
        parameters=(_POOL,),
        action="pool.paused",
    )
    async def pause_pool(self, _admin: User, pool: str, body: PauseRequest) -> PoolHeldAnswer:
        """Hold mail to a pool on all nodes until resumed."""
        check_line("reason", body.reason)
        await self.store.pools.hold(_name(pool), body.reason)
        return PoolHeldAnswer(pool, True, (await self.store.pools.holds())[pool].reason, request_id())

    @for_admins(
        "POST /v1/admin/queue/{pool}/resume", PoolHeldAnswer, Code.NOT_FOUND, parameters=(_POOL,), action="pool.resumed"
    )
    async def resume_pool(self, _admin: User, pool: str) -> PoolHeldAnswer:
        """Lift every hold and slow-down of a pool on all nodes, manual or automatic."""
        if not (await self.store.pools.resume(_name(pool))).was_held:
            raise Refused(Code.NOT_FOUND, "This pool is not held.")
        return PoolHeldAnswer(pool, False, None, request_id())


def _name(pool: str) -> str:
    if len(pool) > POOL_LENGTH or fault_in_line(pool) or pool == EVERY:
        raise Refused(Code.NOT_FOUND, "No pool has this name.")
    return pool
