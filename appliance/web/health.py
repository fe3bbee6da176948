"""Health checks for monitoring: `/healthz` while the process is alive, `/readyz` while it can store mail."""

from dataclasses import dataclass

import msgspec
import trio
from quart import Response

from appliance.errors import Code, Refused
from appliance.intake.accept import MessageIntake
from appliance.store import Store
from appliance.web.app import answer, request_id
from appliance.web.operations import Operation


class HealthAnswer(msgspec.Struct):
    """All is well."""

    status: str
    request_id: str


@dataclass(frozen=True, slots=True)
class HealthRoutes:
    store: Store
    intake: MessageIntake
    stopping: trio.Event

    @Operation("GET /healthz", "Tell whether the process is alive.", (200, HealthAnswer, "Alive."))
    async def alive(self) -> Response:
        return answer(HealthAnswer("ok", request_id()))

    @Operation(
        "GET /readyz",
        "Tell whether the service takes mail: storage writable, not shutting down.",
        (200, HealthAnswer, "Ready."),
        (Code.SERVICE_UNAVAILABLE, Code.TEMPORARY_FAILURE),
    )
    async def ready(self) -> Response:
        if self.stopping.is_set():
            raise Refused(Code.SERVICE_UNAVAILABLE, "The server is shutting down.", retry_after=5)
        self.intake.check_disk()
        await self.store.check_writable()
        return answer(HealthAnswer("ready", request_id()))
