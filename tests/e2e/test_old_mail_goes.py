"""Old mail goes by itself: first what it says, later its record, and the space it took; undelivered mail stays."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from appliance.environment import Environment
from appliance.model.mail import RecipientStatus
from appliance.store import FILE_NAME
from appliance.store.sqlite.file_care import FREE_BYTES
from tests import engines
from tests.running_appliance import Provisioned, Running, appliance, provision
from tests.store.samples import DAY, Clock, Messages, outcome
from tests.waiting import wait_until

LARGE = 4_000_000  # bytes of a body
MANY = 24  # of these are more than may stay free

MONTH_OLD, WEEK_OLD, UNDELIVERED = "month-old", "week-old", "undelivered"


@dataclass(frozen=True)
class Past:
    """What is in the database when the program starts."""

    account: Provisioned
    messages: dict[str, str]  # ids
    balance: int
    size: int  # of the database's file, in bytes


async def _live_through(data_dir: Path) -> Past:
    """Forty days of an account: mail that was delivered long ago and lately, and one that never was."""
    clock = Clock(time.time_ns() // 1000 - 40 * DAY)
    env = Environment(now=clock)
    async with engines.beside(data_dir, env) as store:
        account = await provision(store, "demo")
        made = Messages(env, account.account_id)
        ids = {}
        for name in (UNDELIVERED, MONTH_OLD, WEEK_OLD):
            if name == WEEK_OLD:
                clock.now += 33 * DAY
            new = made.new(f"{name}@example.net", key=name, simulated=False)
            ids[name] = new.id
            await store.messages.accept(new)
            if name != UNDELIVERED:
                for _ in range(MANY if name == MONTH_OLD else 0):
                    await store.messages.accept(made.new(f"{name}@example.net", size=LARGE, simulated=False))
                due = [
                    each for each in await store.queue.due(simulated=False, most=99) if each.address.startswith(name)
                ]
                await store.queue.record([outcome(each, RecipientStatus.DELIVERED, clock()) for each in due])
        (waits,) = await store.queue.due(simulated=False, most=99)
        later = time.time_ns() // 1000 + DAY // 4
        await store.queue.record([outcome(waits, RecipientStatus.DEFERRED, clock(), next_attempt_at=later)])
        balance = (await store.accounts.find(account.account_id)).credits
        assert balance is not None
    file = data_dir / FILE_NAME
    return Past(account, ids, balance, file.stat().st_size if file.exists() else 0)


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Past]:
    directory = tmp_path_factory.mktemp("old")
    return directory, trio.run(_live_through, directory / "data")


@pytest.fixture(scope="module")
def running(past: tuple[Path, Past]) -> Iterator[Running]:
    """The program, started on it; until retention has deleted all that is old."""
    directory, before = past
    with appliance(directory, account=before.account) as started:
        wait_until(lambda: '"messages"' in started.log_file.read_text().partition('"cleared"')[2], 120)
        yield started


def test_after_a_month_a_message_is_unknown(running: Running, past: tuple[Path, Past]) -> None:
    """It is answered like one that never was, by both ways to ask, and its number of deliveries is still told."""
    month_old, unknown = past[1].messages[MONTH_OLD], "msg_" + 32 * "0"
    with running.client() as client, running.client(headers=running.login()) as owner:
        for asked, path in ((client, "/emails/"), (owner, "/v1/emails/")):
            gone, never = asked.get(path + month_old), asked.get(path + unknown)
            assert gone.status_code == never.status_code == 404
            assert gone.json() | {"request_id": ""} == never.json() | {"request_id": ""}
        days = owner.get("/v1/stats?days=60").json()["days"]
        assert sum(day["delivered"] for day in days) == MANY + 2


def test_after_a_day_only_what_it_says_is_gone(running: Running, past: tuple[Path, Past]) -> None:
    """The message and its story are there; its body is answered 404, with the reason."""
    week_old = past[1].messages[WEEK_OLD]
    with running.client() as client, running.client(headers=running.login()) as owner:
        assert client.get(f"/emails/{week_old}").json()["status"] == "delivered"
        shown = owner.get(f"/v1/emails/{week_old}").json()
        assert (shown["body_kept"], shown["status"]) == (False, "delivered")
        assert len(shown["recipients"][0]["attempts"]) == 1
        body = owner.get(f"/v1/emails/{week_old}/body")
        assert (body.status_code, body.json()["error"]) == (404, "The body of this message is no longer stored.")


def test_what_is_undelivered_is_all_there(running: Running, past: tuple[Path, Past]) -> None:
    """After forty days it can still be read, and sent."""
    undelivered = past[1].messages[UNDELIVERED]
    with running.client(headers=running.login()) as owner:
        shown = owner.get(f"/v1/emails/{undelivered}").json()
        assert (shown["status"], shown["body_kept"]) == ("queued", True)
        assert owner.get(f"/v1/emails/{undelivered}/body").status_code == 200


def test_the_ledger_still_adds_up(running: Running, past: tuple[Path, Past]) -> None:
    """The lines of what is gone are one line, and their sum is the balance."""
    with running.client(headers=running.login()) as owner:
        told = owner.get("/v1/credits?limit=100").json()
    assert told["credits"] == past[1].balance == sum(entry["amount"] for entry in told["entries"])
    assert [(entry["amount"], entry["message_id"]) for entry in told["entries"][:-1]] == [
        (-1, past[1].messages[WEEK_OLD]),
        (-MANY - 1, None),
        (-1, past[1].messages[UNDELIVERED]),
    ]


@pytest.mark.sqlite_only
def test_the_disk_has_its_space_again(running: Running, past: tuple[Path, Past]) -> None:
    """The file is shorter by most of what the old mail took, while the program runs."""
    assert past[1].size > FREE_BYTES
    wait_until(lambda: (running.data_dir / FILE_NAME).stat().st_size < past[1].size - 0.8 * MANY * LARGE, 120)
    assert running.complaints() == []
