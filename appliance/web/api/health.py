"""Health checks for monitoring and load balancers: /healthz and /readyz."""

from typing import Annotated

import msgspec
from msgspec import Meta

from appliance.errors import Code, Refused
from appliance.web.answer import RequestId
from appliance.web.app import Routes, request_id
from appliance.web.operations import Operation, Tag


class HealthAnswer(msgspec.Struct):
    """The service is healthy."""

    status: Annotated[str, Meta(description="`ok` (`/healthz`) or `ready` (`/readyz`).")]
    request_id: RequestId


class HealthRoutes(Routes):
    tag = Tag.HEALTH

    @Operation("GET /healthz", (200, HealthAnswer, "Alive."))
    async def get_health(self) -> HealthAnswer:
        """Check that the process is alive."""
        return HealthAnswer("ok", request_id())

    @Operation("GET /readyz", (200, HealthAnswer, "Ready."), (Code.SERVICE_UNAVAILABLE, Code.TEMPORARY_FAILURE))
    async def get_readiness(self) -> HealthAnswer:
        """Check that the service accepts mail: storage is writable, and no shutdown is in progress."""
        if self.services.stopping.is_set():
            raise Refused(
                Code.SERVICE_UNAVAILABLE, "The server is shutting down. Retry in a few seconds.", retry_after=5
            )
        self.services.intake.check_disk()
        await self.store.check_writable()
        self.services.intake.check_clock()
        if not self.store.engine.holds_lease():
            text = "This node cannot deliver: its lease has expired. Retry in a few seconds."
            raise Refused(Code.SERVICE_UNAVAILABLE, text, retry_after=5)
        return HealthAnswer("ready", request_id())
