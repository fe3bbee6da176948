"""In charge of telling a watcher how the process is: alive, and ready to take mail."""

from collections.abc import Awaitable, Callable

import msgspec
import trio
from quart import Blueprint, Response

from appliance.errors import Code, Refused
from appliance.web.app import answer, request_id
from appliance.web.operations import Operation


class HealthAnswer(msgspec.Struct):
    """All is well."""

    status: str
    request_id: str


def blueprint(stopping: trio.Event, check_writable: Callable[[], Awaitable[None]]) -> Blueprint:
    """The routes."""
    routes = Blueprint("health", __name__)

    @routes.get("/healthz")
    async def alive() -> Response:
        return answer(HealthAnswer("ok", request_id()))

    @routes.get("/readyz")
    async def ready() -> Response:
        if stopping.is_set():
            raise Refused(Code.SERVICE_UNAVAILABLE, "The server is shutting down.", retry_after=5)
        await check_writable()
        return answer(HealthAnswer("ready", request_id()))

    return routes


OPERATIONS = (
    Operation("get", "/healthz", "Tell whether the process is alive.", (200, HealthAnswer, "Alive.")),
    Operation(
        "get",
        "/readyz",
        "Tell whether the service takes mail: storage writable, not shutting down.",
        (200, HealthAnswer, "Ready."),
        (Code.SERVICE_UNAVAILABLE, Code.TEMPORARY_FAILURE),
    ),
)
