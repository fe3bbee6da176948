"""FUTURERELEASE (RFC 4865) over the real program: a message goes when it is due, and a client's Date stays."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from tests import engines
from tests.e2e.submission.client import MESSAGE, final_status, smtp
from tests.e2e.submission.test_a_client_submits import queued, stored
from tests.e2e.submission.test_an_api_key_logs_in import log_in
from tests.running_appliance import Running, appliance


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, engine: engines.Kind) -> Iterator[Running]:
    with appliance(tmp_path_factory.mktemp("submission")) as started:
        yield started


def submit(running: Running, key: str | None, hold: str, message: bytes = MESSAGE) -> tuple[str, str]:
    """Return the id and the scheduled time."""
    with smtp(running) if key is None else log_in(running, key) as client:
        assert client.mail("shop@example.com", [hold])[0] == 250
        assert client.rcpt("ada@example.net")[0] == 250
        message_id = queued(client.data(message))
    found = read(running, message_id)
    assert {each["status"] for each in found["recipients"]} == {"scheduled"}
    return message_id, found["scheduled_at"]


def read(running: Running, message_id: str) -> Any:
    with running.client() as client:
        return client.get(f"/emails/{message_id}").json()


def date_line(text: str) -> bytes:
    return f"Date: {format_datetime(datetime.fromisoformat(text).replace(microsecond=0))}\r\n".encode()


@pytest.mark.parametrize("way", ["credential", "key", "test key"])
def test_a_held_message_goes_when_it_is_due(running: Running, way: str) -> None:
    account = running.account
    key = {"credential": None, "key": account.send_key, "test key": account.test_key}[way]
    until = datetime.now(UTC) + timedelta(seconds=3)
    began = time.time()
    by_interval, due = submit(running, key, "HOLDFOR=2")
    assert 2 <= datetime.fromisoformat(due).timestamp() - began < 30
    by_time, due = submit(running, key, f"HOLDUNTIL={until.isoformat()}")
    assert due == until.isoformat()[:23] + "Z"
    assert date_line(due) in stored(running, by_time)
    for message_id in (by_interval, by_time):
        assert final_status(running, message_id) == "delivered"
        found = read(running, message_id)
        assert found["recipients"][0]["delivered_at"] >= found["scheduled_at"]


@pytest.mark.parametrize("way", ["credential", "test key"])
def test_the_date_of_the_client_stays(running: Running, way: str) -> None:
    """Only a Date that the server added follows a move, and only once the move is accepted."""
    key = running.account.test_key if way == "test key" else None
    moved_to = (datetime.now(UTC) + timedelta(days=2)).isoformat()
    hold = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    own = date_line(hold)  # as the server would write it
    for message, expected in ((MESSAGE, date_line(moved_to)), (b"X-First: 1\r\n" + own + MESSAGE, own)):
        message_id, _ = submit(running, key, f"HOLDUNTIL={hold}", message)
        with running.client() as client:
            answer: httpx.Response = client.patch(f"/emails/{message_id}", json={"scheduled_at": moved_to})
        assert answer.status_code == 200, answer.text
        mime = stored(running, message_id)
        assert mime.count(b"\r\nDate: ") == 1
        assert expected in mime
