"""`kill -9` after the 250 of bounces, some read and some not: each counts once, after however many kills."""

import threading
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.e2e.delivery.world import world
from tests.e2e.feedback.feedback import LISTENS, return_path, server
from tests.fakes.mx import FakeMx
from tests.inbound.bounces import bounce
from tests.running_appliance import Running

MESSAGES = 20  # of two recipients each
KILLS = 4


def send_all(running: Running, bounces: list[tuple[str, str]], acknowledged: set[str]) -> None:
    """Send bounces over one connection until it breaks; the addresses whose mail got its 250."""
    try:
        with server(running) as client:
            for address, path in bounces:
                client.sendmail("", [path], bounce(address))
                acknowledged.add(path)
    except OSError:  # smtplib's exceptions are
        return


@pytest.mark.both_engines
async def test_kill_9_between_250_and_the_record(tmp_path: Path) -> None:
    """Every bounce that was taken is recorded, with one event and one returned credit, and none of them twice."""
    async with world(tmp_path, LISTENS) as made:
        await made.domain("example.net", FakeMx())
        sent = [await made.send(f"a{number}@example.net", f"b{number}@example.net") for number in range(MESSAGES)]
        await made.final(*sent)
        paid = made.credits()
        rows = made.rows("SELECT id, address FROM recipients ORDER BY id")
        paths = {address: return_path(made.running, each) for each, address in rows}
        waiting, acknowledged = dict(paths), set[str]()
        for kill in range(KILLS):
            bounces = list(waiting.items())
            threads = [
                threading.Thread(target=send_all, args=(made.running, bounces[part::3], acknowledged))
                for part in range(3)
            ]
            for thread in threads:
                thread.start()
            enough = len(paths) * (kill + 1) // (KILLS + 1)
            await made.until(lambda enough=enough: len(acknowledged) >= enough)  # type: ignore[misc]
            await trio.to_thread.run_sync(made.running.kill)
            for thread in threads:
                await trio.to_thread.run_sync(thread.join)
            waiting = {address: path for address, path in paths.items() if path not in acknowledged}
            await made.start()
        await trio.to_thread.run_sync(partial(send_all, made.running, list(waiting.items()), acknowledged))
        assert acknowledged == set(paths.values())
        await made.until(lambda: made.rows("SELECT count(*) FROM feedback_mail") == [(0,)])
        assert made.rows("SELECT count(*) FROM recipients WHERE late_bounce IS NULL") == [(0,)]
        of_each = "SELECT count(*), count(DISTINCT recipient_id) FROM"
        expected = [(len(paths), len(paths))]
        assert made.rows(f"{of_each} events WHERE type = 'email.late_bounced'") == expected
        assert made.rows(f"{of_each} credit_ledger WHERE kind = 'release'") == expected
        assert made.credits() == paid + len(paths)
