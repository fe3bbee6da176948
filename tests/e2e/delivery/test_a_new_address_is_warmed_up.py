"""A new address sends little at first: what goes beyond waits without an attempt, and dashboard and shell say why."""

import re
from functools import partial
from pathlib import Path

import trio

from appliance.model.accounts import Role
from tests.e2e.delivery.telling import explanation
from tests.e2e.delivery.test_the_shell_steers_a_running_server import shell
from tests.e2e.delivery.world import World, world
from tests.fakes.mx import FakeMx
from tests.running_appliance import add_account

WARMUP = ("[warmup]", "enabled = true", "first_hour = 12", "days = 7")
WAITS = re.compile(
    r"waiting: warm-up of pool new\.test from 127\.0\.0\.1: 12 an hour on day 1, 1 used; next at [0-9 :-]+"
)

WAITS_FOR_CUSTOMERS = re.compile(
    r"waiting: warm-up of pool new\.test from a new sending address: 12 an hour on day 1; next at [0-9 :-]+"
)


async def told(made: World, waiting: str) -> None:
    """By explain and queue on the server, on the message's page to its owner, and to administrators."""
    assert WAITS.fullmatch(await explanation(made, waiting))
    (warmup,) = (each for each in (await shell(made, "queue"))["warmups"] if each["pool"] == "new.test")
    assert (warmup["address"], warmup["day"], warmup["days"]) == ("127.0.0.1", 1, 7)
    assert (warmup["per_hour"], warmup["used"]) == (12, 1)
    page = (await made.ask("GET", f"/v1/emails/{waiting}")).json()
    assert WAITS_FOR_CUSTOMERS.fullmatch(page["recipients"][0]["explanation"])
    add = partial(add_account, made.running.data_dir, "operator", role=Role.ADMIN)
    queue = await made.ask("GET", "/v1/admin/queue", account=await trio.to_thread.run_sync(add))
    assert warmup in queue.json()["warmups"]


async def test_a_new_address_is_warmed_up(tmp_path: Path) -> None:
    """One goes, the others wait: no attempt, no event, other pools go on; a kill -9 changes nothing of that."""
    async with world(tmp_path, *WARMUP) as made:
        new, other = FakeMx(), FakeMx()
        await made.domain("new.test", new)
        await made.domain("other.test", other)
        sent = [await made.send(f"user{number}@new.test") for number in range(4)]
        await made.until(lambda: bool(made.rows("SELECT 1 FROM warmups WHERE pool = 'new.test' AND used = 1")))
        await made.final(await made.send("ada@other.test"))
        assert (len(new.messages), len(other.messages)) == (1, 1)
        await made.until(lambda: bool(made.rows("SELECT 1 FROM pool_states WHERE pool = 'new.test' AND in_use = 0")))
        await told(made, next(each for each in sent if made.recipient(each).status == "queued"))

        made.running.kill()
        await made.start()
        await trio.sleep(1.5)
        found = sorted((each.status, each.attempts) for each in map(made.recipient, sent))
        assert found == [("delivered", 1), ("queued", 0), ("queued", 0), ("queued", 0)]
        assert sum(len(made.events(message)) for message in sent) == 1
        assert len(new.messages) == 1
