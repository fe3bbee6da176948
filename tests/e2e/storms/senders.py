"""All clients that send while the machine is in trouble: what each was told, and whether it is there in the end."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from tests import engines
from tests.e2e.raw import Answer, Client, request, sending
from tests.e2e.submission.client import Raw
from tests.running_appliance import Running
from tests.waiting import wait_until

SIZE = 40_000  # bytes of a message
LINE = "x" * 78 + "\r\n"
RETRIES = 3  # refusals in a row after which a sender knows


@dataclass
class Senders:
    """What was acknowledged, by the message's id, and how the rest was refused."""

    size: int = SIZE
    acknowledged: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # as a status and a code, or an SMTP reply
    _numbers: Iterator[int] = field(default_factory=count)

    def send_until_refused(self, running: Running, *, web: int = 3, smtp: int = 2) -> None:
        """So many at once, by HTTP and by SMTP, until each of them knows that there is no room."""
        works = [self._over_http] * web + [self._over_smtp] * smtp
        _at_once([partial(work, running) for work in works])

    def post(self, running: Running) -> Answer:
        """One message by HTTP, on a connection of its own: one that is refused unread is closed."""
        number = next(self._numbers)
        text = LINE * (self.size // len(LINE))
        message = {"from": "a@example.com", "to": f"ada{number}@example.net", "subject": str(number), "text": text}
        with Client(running.url) as client:
            body = json.dumps(message).encode()
            client.send(request("POST", "/emails", *sending(running, f"key {number}"), body=body))
            answer = client.answer()
        if answer.status == 202:
            self.acknowledged.append(answer.json()["id"])
        else:
            wait = "to be retried" if int(answer.headers.get("retry-after", "0")) > 0 else "for good"
            self.refused.append(f"{answer.status} {answer.json()['code']} {wait}")
        return answer

    def _over_http(self, running: Running) -> None:
        refusals = 0
        while refusals < RETRIES:
            refusals = 0 if self.post(running).status == 202 else refusals + 1

    def _over_smtp(self, running: Running) -> None:
        head = "From: a@example.com\r\nTo: ada@example.net\r\nSubject: by SMTP\r\n\r\n"
        message = (head + LINE * (self.size // len(LINE))).encode()
        refusals = 0
        with Raw(running, "smtps") as client:
            client.log_in()
            while refusals < RETRIES:
                reply = client.transact(message).decode()
                if reply.startswith("250 2.0.0 queued as "):
                    self.acknowledged.append(reply.split()[-1])
                    refusals = 0
                else:
                    self.refused.append(reply[:9])
                    refusals += 1

    def accepted_again_within(self, running: Running) -> float:
        began = time.monotonic()
        while self.post(running).status != 202:
            assert time.monotonic() < began + 30
            time.sleep(0.05)
        return time.monotonic() - began

    def send_until_gone(self, running: Running, *, web: int = 4) -> None:
        """So many at once by HTTP until the program is gone; what is cut off in the middle was not acknowledged."""

        def work() -> None:
            with suppress(OSError):
                while True:
                    self.post(running)

        _at_once([work] * web)

    def check_all_are_there(self, running: Running) -> None:
        """While no server runs: every acknowledged message is in the database, and that is whole."""
        engines.check(running.data_dir)
        stored = {message for (message,) in engines.rows(running.data_dir, "SELECT id FROM messages")}
        assert set(self.acknowledged) <= stored

    def check_all_are_delivered(self, running: Running, credit: int) -> None:
        """Every acknowledged message is there, and is delivered; the rest is not; and the accounts add up."""
        wait_until(lambda: not waiting(running))
        engines.check(running.data_dir)
        stored: dict[str, str] = dict(engines.rows(running.data_dir, "SELECT id, status FROM messages"))
        assert stored == dict.fromkeys(self.acknowledged, "delivered")
        assert engines.rows(running.data_dir, "SELECT credits FROM accounts") == [(credit - len(stored),)]
        ledger = "SELECT sum(amount), count(*) FROM credit_ledger WHERE kind = 'reserve'"
        assert engines.rows(running.data_dir, ledger) == [(-len(stored), len(stored))]


def _at_once(works: Sequence[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def waiting(running: Running) -> list[object]:
    query = "SELECT address FROM recipients WHERE next_attempt_at IS NOT NULL LIMIT 5"
    return list(engines.rows(running.data_dir, query))
