"""A running appliance whose account receives the mail of a domain."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.delivery.world import World, world
from tests.e2e.feedback.feedback import LISTENS

DOMAIN = "in.example.com"


@asynccontextmanager
async def receiving(directory: Path) -> AsyncIterator[World]:
    async with world(directory, LISTENS) as made:
        answer = await made.ask("POST", "/v1/inbound/addresses", {"address": DOMAIN})
        assert answer.status_code == 201, answer.text
        yield made


def listener(made: World) -> tuple[str, int]:
    parts = urlsplit(made.running.inbound[0])
    return parts.hostname or "", parts.port or 0


async def arrived(made: World, count: int = 1) -> list[Any]:
    """The received messages, in detail; the newest first."""
    await made.until(lambda: made.rows("SELECT count(*) FROM received_messages") == [(count,)])
    listed = (await made.ask("GET", "/v1/inbound")).json()["emails"]
    return [(await made.ask("GET", f"/v1/inbound/{item['id']}")).json() for item in listed]
