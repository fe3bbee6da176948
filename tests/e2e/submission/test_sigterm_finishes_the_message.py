"""SIGTERM during submission: a message on its way is finished, all other clients are told to come back."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests import engines
from tests.e2e.submission.client import MESSAGE, Raw
from tests.e2e.test_sigterm_ends_it_in_order import (
    AT_ONCE,
    LONG,
    are_stored,
    seconds_until_ended,
    stop,
)
from tests.running_appliance import Running, appliance
from tests.waiting import wait_until_read


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with appliance(tmp_path, server=LONG) as started:
        yield started


def begin(client: Raw) -> None:
    """Up to the 354."""
    client.log_in()
    for line in (b"MAIL FROM:<shop@example.com>", b"RCPT TO:<ada@example.net>", b"DATA"):
        assert client.say(line)[:1] in b"23"


def test_data_on_its_way_is_taken(running: Running) -> None:
    """The rest of it may come, 250 is the answer and 421 the last word; nothing new is begun."""
    with Raw(running, "smtps") as client:
        begin(client)
        client.send(MESSAGE[:30])
        wait_until_read(client.socket)
        stop(running)
        with suppress(ConnectionError), Raw(running, greeted=False) as late:
            assert late.reply()[:3] != b"220"
        client.send(MESSAGE[30:] + b".\r\nMAIL FROM:<shop@example.com>\r\n")
        taken, goodbye = client.rest()
        assert taken.startswith(b"250 2.0.0 queued as msg_")
        assert goodbye.startswith(b"421 4.3.2 ")
    assert seconds_until_ended(running) < AT_ONCE
    assert are_stored(running, [taken.split()[-1].decode()])


def test_messages_that_wait_for_the_disk_are_answered(running: Running) -> None:
    """Messages between their end and the commit when the signal comes get their 250, and are stored."""
    with ExitStack() as stack:
        clients = [stack.enter_context(Raw(running, "smtps")) for _ in range(10)]
        for client in clients:
            begin(client)
        with engines.no_writes(running.data_dir):
            for client in clients:
                client.send(MESSAGE + b".\r\n")
                wait_until_read(client.socket)
            stop(running)
            time.sleep(0.3)
        replies = [client.rest() for client in clients]
    assert [[reply[:9] for reply in each] for each in replies] == [[b"250 2.0.0", b"421 4.3.2"]] * 10
    assert seconds_until_ended(running) < AT_ONCE
    assert are_stored(running, [each[0].split()[-1].decode() for each in replies])
