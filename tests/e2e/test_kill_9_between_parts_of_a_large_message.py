"""`kill -9` while large messages are being stored: what was acknowledged is whole, what was not leaves nothing."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests import engines
from tests.restarted_appliance import often_started
from tests.running_appliance import Running, appliance
from tests.store.test_body_parts import INCOMPLETE, LOST
from tests.store.test_body_parts_stored_bytes import OF_PARTS
from tests.waiting import wait_until

ROUNDS = 12
SEED = 4
TEXT = "".join(f"{number:070d}\n" for number in range(80_000))  # 5.7 MB, no two lines of it the same
LONGEST = 0.3  # seconds from the first part to the kill
LOOSE = "SELECT message_id FROM loose_parts"


def look(running: Running, query: str) -> list[tuple[object, ...]]:
    return engines.rows(running.data_dir, query)


def send(client: httpx.Client, key: str) -> str:
    """Send a large message; its id. Raises when the server goes away."""
    body = {"from": "a@example.com", "to": ["ok@example.net"], "subject": key, "text": TEXT}
    answer = client.post("/emails", json=body, headers={"Idempotency-Key": key}, timeout=30.0)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def one_round(running: Running, key: str, seconds: float) -> str | None:
    """Send a message and kill the server so long after its first part is stored; its id if it was acknowledged."""
    running.start()
    before = set(look(running, LOOSE))
    with running.client() as client, ThreadPoolExecutor(1) as sender:
        sending = sender.submit(send, client, key)
        while not sending.done() and not set(look(running, LOOSE)) - before:
            pass
        time.sleep(seconds)
        running.kill()
        with suppress(httpx.HTTPError):
            return sending.result()
    return None


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kill_9_between_parts(tmp_path: Path) -> None:
    """No record ever refers to a part that is missing, no part is forgotten, and a restart deletes what is loose."""
    choose, acknowledged, loose = random.Random(SEED), {}, 0
    with appliance(tmp_path, credit=1_000) as running:
        running.kill()
        with often_started(running) as again:
            for number in range(ROUNDS):
                message_id = one_round(again, f"key {number}", choose.uniform(0, LONGEST))
                if message_id is not None:
                    acknowledged[f"key {number}"] = message_id
                assert look(running, LOST) == look(running, INCOMPLETE) == []
                loose += len(look(running, LOOSE))
                for each in acknowledged.values():
                    assert look(running, f"SELECT 1 FROM messages WHERE id = '{each}'") == [(1,)]
        assert loose > 0, "no kill has come between two parts"
        running.start()
        with running.client() as client:
            sent = {f"key {number}": send(client, f"key {number}") for number in range(ROUNDS)}
        assert sent | acknowledged == sent
        if engines.in_use() is engines.Kind.SQLITE:  # on PostgreSQL another node may be writing more (tests/store)
            wait_until(lambda: not look(running, "SELECT 1 FROM loose_parts"))
        assert running.terminate() == 0
        assert running.complaints() == []
    assert look(running, LOST) == look(running, INCOMPLETE) == []
    counted = f"""SELECT stored_bytes = (SELECT sum(1024 + 2048 * m.recipient_count + length(b.mime) + {OF_PARTS}
        + length(b.receipt)) FROM messages m JOIN message_bodies b ON b.message_id = m.id) FROM accounts"""
    assert look(running, counted) == [(1,)]
    wanted = TEXT.replace("\n", "\r\n").encode()
    for message_id in sent.values():
        ((head,),) = look(running, f"SELECT mime FROM message_bodies WHERE message_id = '{message_id}'")
        rest = look(
            running, f"SELECT content FROM message_body_parts WHERE message_id = '{message_id}' ORDER BY number"
        )
        assert wanted in b"".join([head, *(content for (content,) in rest)])  # type: ignore[list-item]
