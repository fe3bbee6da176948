"""A newer version takes the place of the running one, node by node, under load; and goes back while it still can.

The newer version is this one with another name for a table. Its first step makes a view of the new name and a column;
its second one, after which this version cannot work, renames the table.
"""

import json
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import trio

import appliance
from appliance import __version__
from appliance.store.postgresql.migrate import migrations
from tests.e2e.delivery.world import CREDITS
from tests.e2e.nodes.cluster import Cluster, cluster
from tests.e2e.nodes.customers import DOMAINS, Balancer, Load
from tests.fakes.mx import FakeMx
from tests.fork_client import ROOT, other_version
from tests.running_appliance import Running

CLIENTS, PAUSE = 4, 0.06
NEW_VERSION = "99.0.0"
KNOWN = migrations()
OLD, EXPANDED, CONTRACTED = (KNOWN[-1].number + number for number in range(3))
EXPAND = f"""-- compatible since: {max(step.since for step in KNOWN)}
ALTER TABLE recipients ADD COLUMN note TEXT;
CREATE VIEW failed_logins AS SELECT * FROM login_failures;
"""
CONTRACT = f"""-- compatible since: {EXPANDED}
DROP VIEW failed_logins;
ALTER TABLE login_failures RENAME TO failed_logins;
"""
STATE = """SELECT (SELECT max(number) FROM migrations), name, version, schema FROM nodes
    WHERE adopted_by IS NULL ORDER BY name"""
LAST_OLD_RUN = f"SELECT max(lease_until) FROM nodes WHERE schema = {OLD}"  # a run that ends gives its lease up


def newer_version(directory: Path) -> Path:
    """A copy of the program with two more steps; where it is imported from."""
    package = directory / "appliance"
    shutil.copytree(Path(appliance.__file__).parent, package)
    _change(package / "__init__.py", __version__, NEW_VERSION)
    _change(package / "store" / "postgresql" / "nodes.py", "login_failures", "failed_logins")
    steps = package / "store" / "postgresql" / "migrations"
    (steps / f"{EXPANDED:04}_expand.sql").write_text(EXPAND)
    (steps / f"{CONTRACTED:04}_contract.sql").write_text(CONTRACT)
    return directory


def _change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


class Upgrade:
    """The nodes of a cluster, each of which can be started as either version."""

    def __init__(self, made: Cluster, newer: Path) -> None:
        self.made, self.newer = made, newer

    async def stop(self, name: str) -> None:
        node = self.made.nodes[name]
        assert await trio.to_thread.run_sync(node.terminate) == 0
        node.url = ""

    async def start(self, name: str, *, new: bool) -> None:
        """Start it, and let it serve something that both versions store under names of their own."""
        node = self._as(name, new=new)
        await trio.to_thread.run_sync(node.start)
        wrong = {"email": node.account.email, "password": "wrong"}
        answer = await self.made.request(name, "POST", "/v1/auth/login", json=wrong)
        assert answer.status_code == 401

    async def refused(self, name: str) -> str:
        node = self._as(name, new=False)
        begin = node.log_file.stat().st_size
        with node.log_file.open("ab") as log:
            node.spawn(log)
        assert await trio.to_thread.run_sync(node.wait) == 1
        (told,) = node.log_lines(begin)
        return told.decode()

    def _as(self, name: str, *, new: bool) -> Running:
        node = self.made.nodes[name]
        node.code = self.newer if new else ROOT
        return node

    def state(self) -> tuple[int, dict[str, str]]:
        found = self.made.rows(STATE)
        assert all(schema == (OLD if version == __version__ else CONTRACTED) for _, _, version, schema in found)
        return found[0][0], {name: version for _, name, version, _ in found}

    def events(self, said: str) -> list[Any]:
        lines = [json.loads(line) for node in self.made.nodes.values() for line in node.log_lines() if b"{" in line]
        return [line for line in lines if line["event"] == said]


async def test_a_rolling_upgrade_under_load(tmp_path: Path, url: str) -> None:
    """Nothing that was acknowledged is lost or sent twice, and clients see nothing but what they repeat."""
    newer = await trio.to_thread.run_sync(newer_version, tmp_path / "newer")
    with other_version(newer):
        await _rolled(tmp_path, url, newer)


async def _rolled(directory: Path, url: str, newer: Path) -> None:
    mx = FakeMx()
    async with cluster(directory, url, ("a", "b")) as made, trio.open_nursery() as nursery:
        for number in range(DOMAINS):
            await made.domain(f"d{number}.test", mx)
        upgrade = Upgrade(made, newer)
        listeners = await nursery.start(partial(trio.serve_tcp, Balancer(made.nodes).serve, 0, host="127.0.0.1"))
        load = Load(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}", made.running.account, paused=False)
        for number in range(CLIENTS):
            nursery.start_soon(load.run, number, PAUSE)
        await _forth_and_back(upgrade)
        await _forth(upgrade)
        load.paused = True
        await made.until(lambda: not load.busy)
        await _check(made, upgrade, load, mx)
        nursery.cancel_scope.cancel()


async def _forth_and_back(upgrade: Upgrade) -> None:
    """One node is upgraded and put back: it, and the one that was not, go on with the wider schema."""
    await upgrade.stop("b")
    await upgrade.start("b", new=True)
    assert upgrade.state() == (EXPANDED, {"a": __version__, "b": NEW_VERSION})
    (waits,) = upgrade.events("a change of the schema waits for older nodes")
    assert waits["nodes"] == [f"a ({__version__})"]
    await upgrade.stop("b")
    await upgrade.start("b", new=False)
    assert upgrade.state() == (EXPANDED, dict.fromkeys("ab", __version__))


async def _forth(upgrade: Upgrade) -> None:
    """Both are upgraded; with the last old one the schema changes, and no old one starts again."""
    await upgrade.stop("a")
    await upgrade.start("a", new=True)
    assert upgrade.state() == (EXPANDED, {"a": NEW_VERSION, "b": __version__})
    assert upgrade.events("the schema was changed") == []
    await upgrade.stop("b")
    await upgrade.made.until(lambda: upgrade.state()[0] == CONTRACTED)
    told = f"the database is at schema {CONTRACTED}, this version knows only {OLD}: run the newer appliance"
    assert told in await upgrade.refused("b")
    await upgrade.start("b", new=True)
    assert upgrade.state() == (CONTRACTED, dict.fromkeys("ab", NEW_VERSION))


async def _check(made: Cluster, upgrade: Upgrade, load: Load, mx: FakeMx) -> None:
    assert len(load.acknowledged) > 100
    await made.final(*load.acknowledged.values())
    repeated = {"503", "ReadError", "WriteError", "RemoteProtocolError", "ConnectError", "ReadTimeout"}
    assert load.statuses.keys() - {"202"} <= repeated
    assert dict(made.rows("SELECT key, message_id FROM idempotency_keys")) == load.acknowledged
    assert {status for (status,) in made.rows("SELECT status FROM messages")} == {"delivered"}
    taken = Counter(address.partition("@")[0] for message in mx.messages for address in message.recipients)
    assert taken == Counter(load.acknowledged.keys())
    assert made.credits() == CREDITS - len(load.acknowledged)
    ((changed_at,),) = made.rows("SELECT applied_at FROM migrations WHERE number = ?", CONTRACTED)
    assert made.rows(LAST_OLD_RUN) <= [(changed_at,)]
    assert len(upgrade.events("the schema was changed")) == 1
    await made.until(lambda: made.rows("SELECT count(*) FROM failed_logins") >= [(2,)])  # of those that run to the end
    refusal = [line for line in made.all_complaints() if "knows only" in line]
    assert made.all_complaints() == refusal
    assert len(refusal) == 1
