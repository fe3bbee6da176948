"""In charge of the queue in an administrator's hands: /v1/admin/queue."""

from typing import Annotated

import msgspec
from msgspec import Meta
from quart import Blueprint, Response

from appliance.config.settings import WarmupSettings
from appliance.errors import Code, Refused, invalid
from appliance.message.characters import LINE_PATTERN, fault_in_line
from appliance.report.queue import Pause, WaitingPool, WarmingAddress, by_pool, pause_of, warming
from appliance.store.pools import EVERY
from appliance.web.app import Services, answer, json_request, request_id
from appliance.web.operations import for_admins, parameter

POOLS = 100  # shown, the largest first
DESTINATIONS = 5  # of each pool
WARMUPS = 100  # shown
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

    paused: Pause | None
    pools: list[WaitingPool]
    warmups: list[WarmingAddress]
    next: str | None
    request_id: str


BODY = msgspec.json.Decoder(PauseRequest)


def blueprint(services: Services, warmup: WarmupSettings) -> Blueprint:
    """The routes."""
    routes = Blueprint("admin_queue", __name__)
    store = services.store

    @routes.get("/v1/admin/queue")
    async def show() -> Response:
        await services.admin()
        mail = await store.queue_control.summarise(POOLS, DESTINATIONS)
        holds = store.pools.holds()
        paused = pause_of(holds.pop(EVERY, None))
        pools = by_pool(mail, holds, store.pools.states())
        return answer(QueueAnswer(paused, pools, warming(store.warmups.told(warmup, WARMUPS)), None, request_id()))

    @routes.post("/v1/admin/queue/<pool>/pause")
    async def pause(pool: str) -> Response:
        await services.admin()
        body = await json_request(BODY)
        if fault := fault_in_line(body.reason):
            raise invalid("reason", f"must not contain {fault}")
        await store.pools.hold(_name(pool), body.reason)
        return answer(PoolHeldAnswer(pool, True, store.pools.holds()[pool].reason, request_id()))

    @routes.post("/v1/admin/queue/<pool>/resume")
    async def resume(pool: str) -> Response:
        await services.admin()
        if not await store.pools.release(_name(pool)):
            raise Refused(Code.NOT_FOUND, "This pool is not held.")
        return answer(PoolHeldAnswer(pool, False, None, request_id()))

    return routes


def _name(pool: str) -> str:
    # All mail is paused and resumed on the server's shell alone: after a restore somebody has to look there first.
    if len(pool) > POOL_LENGTH or fault_in_line(pool) or pool == EVERY:
        raise Refused(Code.NOT_FOUND, "There is no pool of this name.")
    return pool


_POOL = parameter(
    "pool",
    "path",
    "The pool's name.",
    {"type": "string", "minLength": 1, "maxLength": POOL_LENGTH, "examples": ["google"]},
)

OPERATIONS = (
    for_admins(
        "get",
        "/v1/admin/queue",
        "Read what waits of all accounts' mail, by provider pool.",
        (200, QueueAnswer, "The pools with most mail, and all that are held."),
    ),
    for_admins(
        "post",
        "/v1/admin/queue/{pool}/pause",
        "Hold the mail of a pool until it is resumed.",
        (200, PoolHeldAnswer, "Held; a pool that was held before keeps its reason."),
        Code.NOT_FOUND,
        body=PauseRequest,
        parameters=(_POOL,),
    ),
    for_admins(
        "post",
        "/v1/admin/queue/{pool}/resume",
        "Let the mail of a pool go again, whoever held it.",
        (200, PoolHeldAnswer, "Open again."),
        Code.NOT_FOUND,
        parameters=(_POOL,),
    ),
)
