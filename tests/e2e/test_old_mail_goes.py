"""Old mail goes by itself: first what it says, later its record."""

import time
from pathlib import Path

import trio

from appliance.environment import Environment
from appliance.model.mail import RecipientStatus
from tests import engines
from tests.running_appliance import Provisioned, appliance, provision
from tests.store.samples import DAY, Clock, Messages, outcome
from tests.waiting import wait_until


async def _live_through(data_dir: Path) -> tuple[Provisioned, str, str]:
    """Forty days of an account, and the ids of what was delivered long ago and lately."""
    clock = Clock(time.time_ns() // 1000 - 40 * DAY)
    env = Environment(now=clock)
    async with engines.beside(data_dir, env) as store:
        account = await provision(store, "demo")
        made, ids = Messages(env, account.account_id), list[str]()
        for days in (0, 33):
            clock.now += days * DAY
            new = made.new("ada@example.net", key=f"{days}", simulated=False)
            ids.append(new.id)
            await store.messages.accept(new)
            due = await store.queue.due(simulated=False, most=1)
            await store.queue.record([outcome(each, RecipientStatus.DELIVERED, clock()) for each in due])
    month_old, week_old = ids
    return account, month_old, week_old


def test_old_mail_goes(tmp_path: Path) -> None:
    """After a day the body, with the reason; after a month all but the numbers: the answer is that of an unknown id."""
    account, month_old, week_old = trio.run(_live_through, tmp_path / "data")
    with appliance(tmp_path, account=account) as running:
        wait_until(lambda: '"messages"' in running.log_file.read_text().partition('"cleared"')[2], 120)
        with running.client() as client, running.client(headers=running.login()) as owner:
            for asked, path in ((client, "/emails/"), (owner, "/v1/emails/")):
                gone, never = asked.get(path + month_old), asked.get(path + "msg_" + 32 * "0")
                assert gone.status_code == never.status_code == 404
                assert gone.json() | {"request_id": ""} == never.json() | {"request_id": ""}
            assert sum(day["delivered"] for day in owner.get("/v1/stats?days=60").json()["days"]) == 2
            assert client.get(f"/emails/{week_old}").json()["status"] == "delivered"
            shown = owner.get(f"/v1/emails/{week_old}").json()
            assert (shown["body_kept"], len(shown["recipients"][0]["attempts"])) == (False, 1)
            body = owner.get(f"/v1/emails/{week_old}/body")
            assert (body.status_code, body.json()["error"]) == (404, "The body of this message is no longer stored.")
        assert running.complaints() == []
