"""Servers that are slow or silent delay none of the other mail of the account that sends to them."""

import json
from pathlib import Path

import pytest
import trio

from tests.e2e.delivery.slow_servers import Slowness, latencies, send_to_all, slow_domains
from tests.e2e.delivery.telling import explained
from tests.e2e.delivery.world import world
from tests.fakes.mx import FakeMx

GOOD = 15  # domains with a server that answers; each gets two messages
LATE = 10.0  # seconds: ten times the target, for a busy machine; it was 75 while slow sessions kept other mail waiting


@pytest.mark.parametrize(
    ("slowness", "servers", "copies", "sessions"),
    [
        (Slowness.DRIPPING, 200, 2, 500),  # the further sessions to slow servers leave room
        (Slowness.SILENT, 500, 1, 100),  # more servers than sessions: some of these end for other mail
        (Slowness.BLACK_HOLE, 200, 1, 100),
    ],
)
async def test_mail_to_healthy_servers_does_not_wait(
    tmp_path: Path, slowness: Slowness, servers: int, copies: int, sessions: int
) -> None:
    """A message to a healthy server, known or new, goes at once, and no message to a slow one loses an attempt."""
    settings = f"sessions = {sessions}"
    async with world(tmp_path, settings) as made, slow_domains(made, slowness, servers) as (slow, tarpit):
        good = [f"good{number}.test" for number in range(GOOD)]
        for domain in good:
            await made.domain(domain, FakeMx())
        for _ in range(copies):
            await send_to_all(made, slow)
        await made.send(f"bob@{slow[-1]}")
        await trio.sleep(2)
        new, known = await latencies(made, good), await latencies(made, good)
        print(f"{slowness}, {servers}: to new servers p50 {new[GOOD // 2]:.3f}, worst {new[-1]:.3f} s;", end=" ")
        print(f"to known ones p50 {known[GOOD // 2]:.3f}, worst {known[-1]:.3f} s; {tarpit.open} slow sessions")
        assert max(new[-1], known[-1]) < LATE
        assert made.rows("SELECT count(*) FROM attempts WHERE mx_host LIKE 'mx.slow%'") == [(0,)]
        # Mail to a slow server gives the true reason, also without a session.
        messages = made.rows("SELECT DISTINCT message_id FROM recipients WHERE domain LIKE 'slow%'")
        told = [json.loads(await explained(made, str(message), "--json"))["recipients"] for (message,) in messages]
        words = [recipient["explanation"] for recipients in told for recipient in recipients]
        # How many have a session, or are about to get one, depends on the speed of the machine. The whole sentence for
        # mail without a session is in tests/deliver/test_in_flight.py.
        reasons = ("is under way", "takes it next", "waiting for slow servers")
        wrong = [text for text in words if not any(reason in text for reason in reasons)]
        wrong += [text for text in words if " sessions, " in text and f" of {sessions} sessions, " not in text]
        assert len(wrong) < len(words) / 10, wrong  # a few change while they are read
