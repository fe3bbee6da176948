"""The metrics listener: one page over plain HTTP, without authentication, for loopback or a trusted network."""

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from appliance.config.values import Endpoint
from appliance.metrics.page import CONTENT_TYPE, page
from appliance.metrics.readings import Readings
from appliance.net.connection_limits import ConnectionTable
from appliance.net.connection_server import accept_connections
from appliance.net.http_server import ShortConnection, answer_one, response
from appliance.telemetry.log import get_logger
from appliance.telemetry.metrics import COUNTERS, HISTOGRAMS, LOOP_LAG

METRICS_CONNECTIONS = 100  # at once
SCRAPE_TIMEOUT = 5.0  # seconds for a whole request and its answer
LAG_EVERY = 0.1  # seconds between two measurements of the event loop's lag

log = get_logger("metrics")

_response = partial(response, kind=CONTENT_TYPE)


async def serve(
    binds: tuple[Endpoint, ...],
    readings: Readings,
    *,
    scrape_timeout: float = SCRAPE_TIMEOUT,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; without an address to listen on there is nothing to do."""
    listeners = [listener for bind in binds for listener in await trio.open_tcp_listeners(bind.port, host=bind.host)]
    task_status.started([str(Endpoint(*listener.socket.getsockname()[:2])) for listener in listeners])
    if not listeners:
        return
    table: ConnectionTable[ShortConnection] = ConnectionTable(METRICS_CONNECTIONS, METRICS_CONNECTIONS)

    async def make_page() -> str:
        return page(COUNTERS, HISTOGRAMS, await readings.now())

    async def serve_one(stream: trio.SocketStream) -> None:
        try:
            await answer_one(stream, table, scrape_timeout, partial(answer, make_page=make_page))
        except Exception:  # ends this request only
            log.exception("metrics request failed")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch_loop)
        for listener in listeners:
            nursery.start_soon(accept_connections, listener, serve_one, nursery)


async def _watch_loop() -> None:
    """Measure how late this task is woken: every sender and every delivery waits as long."""
    while True:
        due = trio.current_time() + LAG_EVERY
        await trio.sleep_until(due)
        LOOP_LAG.add(max(0.0, trio.current_time() - due))


async def answer(head: bytes, make_page: Callable[[], Awaitable[str]]) -> bytes:
    """The whole answer to the head of a request; the connection ends with it."""
    if b"\r\n\r\n" not in head:
        return _response("400 Bad Request", "This is no request.\n")
    method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if path != b"/metrics":
        return _response("404 Not Found", "The page is /metrics.\n")
    if method not in (b"GET", b"HEAD"):
        return _response("405 Method Not Allowed", "The page can only be read.\n", "Allow: GET, HEAD\r\n")
    return _response("200 OK", await make_page(), whole=method == b"GET")
