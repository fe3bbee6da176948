"""What people are told of a message: its sender by polling, the operator by `appliance explain`."""

import json
from typing import Any

import httpx
import trio
from click.testing import CliRunner

from appliance.cli import main
from tests.e2e.delivery.world import World
from tests.running_appliance import NO_TLS


async def polled(made: World, message: str) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=made.running.url, trust_env=False, timeout=30, verify=NO_TLS) as client:
        answer = await client.get(f"/emails/{message}", headers=made.running.account.bearer)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def customer_reads(made: World, message: str) -> str:
    """All that a customer reads of a message: by polling, in the dashboard, and what events tell of it."""
    shown = await made.ask("GET", f"/v1/emails/{message}")
    assert shown.status_code == 200, shown.text
    events = made.rows("SELECT * FROM events WHERE message_id = ?", message)
    return "\n".join((json.dumps(await polled(made, message)), shown.text, str(events)))


async def polled_recipient(made: World, message: str) -> dict[str, Any]:
    (recipient,) = (await polled(made, message))["recipients"]
    found: dict[str, Any] = recipient
    return found


async def explained(made: World, message: str, *options: str) -> str:
    """What the operator reads; the command has an event loop and a database connection of its own."""
    command = ["explain", message, *options, "--config", str(made.running.config_file)]
    done = await trio.to_thread.run_sync(lambda: CliRunner().invoke(main, command))
    assert done.exit_code == 0, done.output
    return done.stdout


async def explanation(made: World, message: str) -> str:
    (recipient,) = json.loads(await explained(made, message, "--json"))["recipients"]
    return str(recipient["explanation"])
