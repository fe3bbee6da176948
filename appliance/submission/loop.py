"""In charge of trio-asyncio's loop as submission runs it: without its waits, and not ended by anybody's error."""

import asyncio
import ssl
from typing import Any, Final

import trio

from appliance.telemetry.log import get_logger

IN_A_ROW: Final = 64  # callbacks before other Trio tasks have a turn

log = get_logger("submission")


def prepare(loop: Any) -> None:
    """Set up a loop that was just opened; it has no types, and what is replaced has no other way in."""
    loop.set_exception_handler(_complain)
    loop.synchronize = _read_on
    one = loop._main_loop_one

    async def many(no_wait: bool = False) -> None:
        """Run what waits in the queue, as asyncio's own loop does.

        trio-asyncio runs one callback in a turn of the scheduler. A connection takes four of them, a handshake many
        more: with twenty clients at work each new one waited 40 ms for its greeting.
        """
        await one(no_wait=no_wait)
        try:
            for _ in range(IN_A_ROW):
                await one(no_wait=True)
        except trio.WouldBlock:
            pass

    loop._main_loop_one = many


async def _read_on() -> None:
    """In place of trio-asyncio's wait, after each read, until every callback in its queue has run.

    asyncio's loop would run those before it looks at a socket again. Nothing here depends on that order: a session
    answers within the read, and whatever it schedules (only its end) finds the reader removed already. The wait takes
    two turns of the scheduler for every command, an eighth of all the time that a message costs.
    """


def _complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What asyncio would report by itself. Unless somebody takes it, trio-asyncio lets it end the process."""
    error = context.get("exception")
    # A connection that broke, or TLS that was none, is the client's affair.
    if not isinstance(error, OSError | ssl.SSLError):
        log.exception("connection failed", error, message=str(context.get("message", "")))
