"""While its PostgreSQL is away a node says so, to load balancers and to Prometheus, and goes on when it is back."""

import re
from pathlib import Path

import httpx
import pytest
import trio

from appliance.environment import Environment
from appliance.store import open_store
from tests.postgresql_server import postgresql
from tests.programs import needs
from tests.running_appliance import NO_TLS, Provisioned, Running, appliance, provision
from tests.waiting import wait_until

SECTIONS = """
[store]
url = "{url}"
[metrics]
bind = ["127.0.0.1:0"]
"""


def metric(running: Running, name: str) -> float:
    address = running.await_event("ready")["metrics"][0]
    page = httpx.get(f"http://{address}/metrics", timeout=10, trust_env=False, verify=NO_TLS).text
    found = re.search(rf"^{name} (\S+)$", page, re.MULTILINE)
    assert found, page
    return float(found[1])


@pytest.mark.sqlite_only  # it has a PostgreSQL of its own
@needs("postgresql")
def test_a_database_that_is_away_is_told(tmp_path: Path) -> None:
    """`readyz` is 503 with the reason, `healthz` stays 200, the metric is 0; afterwards all is as before."""
    with postgresql() as cluster:
        url = cluster.new_database()

        async def add() -> Provisioned:
            async with open_store(tmp_path / "data", Environment(), url=url, inline=True) as store:
                return await provision(store, "demo")

        account = trio.run(add)
        with appliance(tmp_path, retention=SECTIONS.format(url=url), account=account) as running:
            with running.client() as client:
                assert client.get("/readyz").status_code == 200
                assert metric(running, "appliance_store_reachable") == 1
                cluster.stop("immediate")
                answer = client.get("/readyz")
                assert answer.status_code == 503
                assert "The database cannot be reached right now." in answer.text
                assert "Retry-After" in answer.headers
                assert client.get("/healthz").status_code == 200
                wait_until(lambda: metric(running, "appliance_store_reachable") == 0)
                cluster.start()
                wait_until(lambda: client.get("/readyz").status_code == 200)
                wait_until(lambda: metric(running, "appliance_store_reachable") == 1)
                assert metric(running, "appliance_store_reconnects_total") >= 1
                wanted = {"from": "a@example.com", "to": ["b@example.net"], "subject": "again", "text": "here"}
                answer = client.post("/emails", json=wanted, headers={"Idempotency-Key": "again"})
                assert answer.status_code == 202
            assert running.terminate() == 0
