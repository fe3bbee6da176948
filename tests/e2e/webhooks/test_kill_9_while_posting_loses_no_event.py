"""Thirty times `kill -9` while events are posted: every final result is posted, always under the same event id."""

import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import engines
from tests.e2e.contract.service import eventually, new_key
from tests.fakes.webhook_server import Hooks, Post, hooks
from tests.restarted_appliance import often_started
from tests.running_appliance import Running, appliance

ROUNDS = 30
SEED = 5
LONGEST = 0.4  # seconds of work before a kill
DELAYS = 'retry_delays = ["100ms", "100ms", "100ms", "100ms", "100ms", "100ms"]'


def send_until_killed(running: Running, sent: list[str]) -> None:
    """Send messages of three recipients each; note what was accepted."""
    body = {"from": "a@example.com", "to": [], "subject": "s", "text": "t"}
    try:
        with running.client() as client:
            for number in range(10_000):
                to = [f"{kind}{number}@example.net" for kind in ("ada", "bounce", "fail")]
                response = client.post("/emails", json=body | {"to": to}, headers={"Idempotency-Key": new_key()})
                if response.status_code == 202:
                    sent.append(response.json()["id"])
    except httpx.HTTPError:
        return


def moody(choose: random.Random) -> int:
    """A receiver that needs a little, and fails now and then."""
    time.sleep(choose.random() * 0.02)
    return 500 if choose.random() < 0.1 else 200


def rows(running: Running, query: str) -> list[tuple[Any, ...]]:
    """What the database says."""
    return engines.rows(running.data_dir, query)


def events_by_recipient(posts: list[Post]) -> dict[str, set[tuple[str, bytes]]]:
    """Under which id and with which bytes each recipient's result was posted."""
    found: dict[str, set[tuple[str, bytes]]] = {}
    for post in posts:
        event = post.json()
        found.setdefault(event["data"]["recipient_id"], set()).add((event["id"], post.body))
    return found


@pytest.mark.slow
def test_every_result_is_posted(tmp_path: Path) -> None:
    """Whenever it is killed, each final result reaches the receiver at least once, with one id and one body."""
    choose, sent = random.Random(SEED), list[str]()
    with hooks(tmp_path) as receiver:
        receiver.answers["/"] = lambda _: (moody(choose), b"")
        with appliance(tmp_path, webhooks=receiver.settings(tmp_path) + DELAYS) as running:
            url = {"url": receiver.url("/")}
            httpx.put(
                f"{running.url}/v1/webhook", json=url, headers=running.login(), trust_env=False
            ).raise_for_status()
            running.terminate()
            with often_started(running) as again:
                for _ in range(ROUNDS):
                    again.start()
                    kill_after(again, choose.random() * LONGEST, sent)
                again.start()
                finish(again, receiver)
        results = dict(rows(running, "SELECT recipient_id, id FROM events"))
        posted = events_by_recipient(receiver.posts)
    assert len(results) >= 3 * len(sent) > 100
    assert set(posted) == set(results)
    assert all({event_id for event_id, _ in posts} == {results[recipient]} for recipient, posts in posted.items())
    assert all(len(posts) == 1 for posts in posted.values()), "an event was posted with different bytes"
    repeated = Counter(post.json()["id"] for post in receiver.posts)
    assert max(repeated.values()) > 1, "no kill hit a post on its way, so this has shown little"


def kill_after(running: Running, seconds: float, sent: list[str]) -> None:
    """Let it work for a while under load, then kill it."""
    sender = threading.Thread(target=send_until_killed, args=(running, sent))
    sender.start()
    time.sleep(seconds)
    running.kill()
    sender.join()


def finish(running: Running, receiver: Hooks) -> None:
    """Wait until nothing is pending any more."""
    receiver.answers.clear()
    waiting = """SELECT (SELECT count(*) FROM webhook_deliveries WHERE next_attempt_at IS NOT NULL)
        + (SELECT count(*) FROM recipients WHERE next_attempt_at IS NOT NULL)"""
    eventually(lambda: rows(running, waiting), lambda found: found == [(0,)], patience=30)
    assert rows(running, "SELECT count(*) FROM webhook_deliveries WHERE status = 'failed'") == [(0,)]
