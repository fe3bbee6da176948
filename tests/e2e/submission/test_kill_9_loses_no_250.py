"""`kill -9` again and again during submission: each 250 is in the store, and nothing else that is not whole."""

import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from tests import engines
from tests.e2e.submission.client import Raw
from tests.restarted_appliance import often_started
from tests.running_appliance import Running, appliance

ROUNDS = 30
SENDERS = 6
SEEDS = (11, 12)
LONGEST = 0.6  # seconds of load before a kill


@dataclass
class Senders:
    """What they have sent, what was acknowledged (message id by number), and what else they were told."""

    acknowledged: dict[int, str] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)  # numbers of messages whose end was sent
    wrong: list[bytes] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)

    def send_until_killed(self, running: Running) -> None:
        """One sender's work in a round."""
        try:
            with Raw(running) as client:
                client.log_in()
                while True:
                    self._send(client, next(self._numbers))
        except (OSError, AssertionError):
            return

    def _send(self, client: Raw, number: int) -> None:
        self.ended.add(number)
        message = f"From: shop@example.com\r\nSubject: number {number}\r\n\r\n<{number}>\r\n".encode()
        reply = client.transact(message)
        match = re.fullmatch(rb"250 2\.0\.0 queued as (msg_\w+)\r\n", reply)
        if match:
            self.acknowledged[number] = match[1].decode()
        elif reply:
            self.wrong.append(reply)
        else:
            raise ConnectionError


def check(running: Running, senders: Senders) -> None:
    """What the database holds, while no server has it open."""
    engines.check(running.data_dir)
    engines.await_end_of_sessions(running.data_dir)
    query = "SELECT m.id, m.recipient_count, b.mime FROM messages m LEFT JOIN message_bodies b ON b.message_id = m.id"
    rows = engines.rows(running.data_dir, query)
    found = {message_id: (recipients, bytes(mime)) for message_id, recipients, mime in rows}
    counted = "SELECT message_id, count(*) FROM recipients GROUP BY message_id"
    listed: dict[str, int] = dict(engines.rows(running.data_dir, counted))
    numbers = {}
    for message_id, (recipients, mime) in found.items():
        match = re.search(rb"<(\d+)>\r\n$", mime)
        assert match, mime
        numbers[int(match[1])] = message_id
        assert recipients == listed[message_id] == 1
    assert len(numbers) == len(found), "a message is there twice"
    assert set(numbers) <= senders.ended
    for number, message_id in senders.acknowledged.items():
        assert numbers[number] == message_id


def one_round(running: Running, senders: Senders, seconds: float) -> None:
    """A start, some load, a kill, and a look at the database."""
    running.start()
    threads = [threading.Thread(target=senders.send_until_killed, args=(running,)) for _ in range(SENDERS)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    running.kill()
    for thread in threads:
        thread.join()
    assert senders.wrong == []
    check(running, senders)


def kill_again_and_again(directory: Path, seed: int, rounds: int) -> int:
    """Rounds of load and a kill, with a look at the database after each; how many messages were acknowledged."""
    choose, senders = random.Random(seed), Senders()
    with appliance(directory, smtp="allow_plaintext_auth = true") as running:
        running.kill()
        with often_started(running) as again:
            for _ in range(rounds):
                one_round(again, senders, choose.uniform(0.1, LONGEST))
    return len(senders.acknowledged)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kill_9_loses_no_250(tmp_path: Path) -> None:
    """After each kill every message that was acknowledged is there, and whatever is there is a whole one.

    Most of the time goes into starting the program again, so two servers take half of the rounds each.
    """
    directories = [tmp_path / "one", tmp_path / "two"]
    for directory in directories:
        directory.mkdir()
    with ThreadPoolExecutor() as pool:
        acknowledged = list(pool.map(kill_again_and_again, directories, SEEDS, [ROUNDS // 2] * 2))
    print(f"{ROUNDS} kills; acknowledged: {acknowledged}")
    least = 10 if engines.in_use() is engines.Kind.SQLITE else 3  # in a round: a transaction there takes longer
    assert sum(acknowledged) > least * ROUNDS
