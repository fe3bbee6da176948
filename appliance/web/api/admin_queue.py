"""The queue of all accounts, managed by administrators: /v1/admin/queue."""

from typing import Annotated

import msgspec
from msgspec import Meta

from appliance.errors import Code, Refused
from appliance.message.characters import LINE_PATTERN, fault_in_line
from appliance.model.accounts import User
from appliance.report.queue import PauseReport, WaitingPool, WarmingAddress, by_pool, pause_of, warming
from appliance.store.audit import about, concerns
from appliance.store.pools import EVERY, RESTORED
from appliance.web.app import Routes, check_line, request_id
from appliance.web.operations import Json, for_admins, parameter

SHOWN_POOLS = 100  # of the queue, the largest first
SHOWN_DESTINATIONS = 5  # of each pool
SHOWN_WARMUPS = 100
POOL_LENGTH = 253  # a pool is named in the settings, or after a domain
PAUSED = "paused by an administrator"
NOT_PAUSED = "Mail is not paused."
RESUME_THERE = (
    "This pause was begun by the restore of a backup, whose mail may have been sent since. Check the server, and then"
    " run `appliance resume` there, with --cancel-old to give up what was accepted before."
)


class PauseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a pause."""

    reason: Annotated[str, Meta(min_length=1, max_length=200, extra_json_schema={"pattern": LINE_PATTERN})] = PAUSED


class PoolHeldAnswer(msgspec.Struct):
    """Whether a pool's mail is held now, and why."""

    pool: str
    held: bool
    reason: str | None
    request_id: str


class MailPausedAnswer(msgspec.Struct):
    """Whether all mail is paused now, since when and why."""

    paused: PauseReport | None
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
        "POST /v1/admin/queue/pause",
        (200, MailPausedAnswer, "Paused; a pause that was there keeps its reason."),
        body=PauseRequest,
        action="mail.paused",
    )
    async def pause_mail(self, _admin: User, body: PauseRequest) -> MailPausedAnswer:
        """Pause all mail and webhook posts, on all nodes, until it is resumed; new mail is accepted and waits."""
        check_line("reason", body.reason)
        about("all mail", {"reason": body.reason})
        concerns("")
        await self.store.pools.hold(EVERY, body.reason)
        return MailPausedAnswer(pause_of(await self.store.pools.paused()), request_id())

    @for_admins(
        "POST /v1/admin/queue/resume",
        (200, MailPausedAnswer, "Not paused any more."),
        Code.NOT_FOUND,
        Code.CONFLICT,
        action="mail.resumed",
    )
    async def resume_mail(self, _admin: User) -> MailPausedAnswer:
        """Resume all mail, on all nodes. A pause that the restore of a backup began is ended on the server only."""
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
        """Lift every hold and slow-down of a pool, on all nodes, whether an administrator or a server began it."""
        if not (await self.store.pools.resume(_name(pool))).was_held:
            raise Refused(Code.NOT_FOUND, "This pool is not held.")
        return PoolHeldAnswer(pool, False, None, request_id())


def _name(pool: str) -> str:
    if len(pool) > POOL_LENGTH or fault_in_line(pool) or pool == EVERY:
        raise Refused(Code.NOT_FOUND, "There is no pool of this name.")
    return pool
