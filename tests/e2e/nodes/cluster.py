"""Several real programs on one real PostgreSQL with one key file, and a small world for them to deliver into."""

import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import trio

from appliance.environment import Environment
from appliance.keys.keyfile import KEY_FILE, load_or_create
from appliance.model.accounts import Role
from appliance.store import open_store
from appliance.store.postgresql.connection import connect, run
from tests.e2e.delivery.world import ALLOWED, CONFIG, CREDITS, SENDER, World
from tests.fakes.dns import DnsServer
from tests.ports import free_port
from tests.running_appliance import NO_TLS, Provisioned, Running, provision
from tests.set_clock import CLOCK_FILE


@dataclass
class Cluster(World):
    """The nodes by their names; `running` is the first."""

    nodes: dict[str, Running] = field(default_factory=dict)
    url: str = ""  # of the database, without whatever is between it and the nodes

    def rows(self, query: str, *bindings: object) -> list[tuple[Any, ...]]:
        with closing(connect(self.url, "test")) as connection:
            return run(connection, query.replace("?", "%s"), bindings)

    async def send_to(self, node: str, *recipients: str, key: str | None = None) -> str:
        body = {"from": SENDER, "to": list(recipients), "subject": "On its way", "text": "Hello,\nAda.\n"}
        headers = {"Idempotency-Key": key or f"key {next(self._keys)}"}
        answer = await self.request(node, "POST", "/emails", json=body, headers=headers)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    async def request(
        self, node: str, method: str, path: str, headers: Mapping[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        """One request to a node, with the API key that may also read unless told otherwise."""
        running = self.nodes[node]
        async with httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=30, verify=NO_TLS) as client:
            return await client.request(method, path, headers={**running.account.bearer, **(headers or {})}, **options)

    def owners(self) -> set[str]:
        found = self.rows(
            """SELECT DISTINCT n.name FROM recipients r JOIN nodes n ON n.owner = r.owner
            WHERE r.next_attempt_at IS NOT NULL"""
        )
        return {name for (name,) in found}

    def all_complaints(self) -> list[str]:
        return [line for node in self.nodes.values() for line in node.complaints()]


def node_config(
    directory: Path, name: str, url: str, dns_port: int, mx_port: int, settings: Sequence[str], more: str = ""
) -> Path:
    directory.mkdir()
    file = directory / "config.toml"
    file.write_text(
        CONFIG.format(
            mode="direct",
            data_dir=directory / "data",
            server=f'node = "{name}"',
            http="",
            dns_port=dns_port,
            mx_port=mx_port,
            delivery="\n".join([ALLOWED, *settings]),
            store=f'[store]\nurl = "{url}"\n{more}',
        )
    )
    return file


async def _account(data_dir: Path, url: str, role: Role) -> Provisioned:
    async with open_store(data_dir, Environment(), url=url) as store:
        return await provision(store, "demo", credit=CREDITS, role=role)


@asynccontextmanager
async def cluster(
    directory: Path,
    url: str,
    names: Sequence[str],
    *settings: str,
    far: Mapping[str, str] | None = None,
    more: str = "",
    own: Mapping[str, str] | None = None,
    role: Role = Role.CUSTOMER,
    clocks: Mapping[str, Path] | None = None,
    own_hosts: bool = False,
) -> AsyncIterator[Cluster]:
    """Running nodes of these names; `settings` are lines of [delivery].

    `own` are lines of [delivery] that one node alone has, `role` is that of the only account. Some nodes reach the
    database elsewhere, or tell the time by clocks that can be set (tests/set_clock.py). `own_hosts` gives each node a
    host name of its own, NODE.example.com.
    """
    dns, mx_port = DnsServer({}, ttl=1, negative_ttl=1), free_port()
    async with trio.open_nursery() as nursery:
        endpoint = await nursery.start(dns.run)
        load_or_create(directory)
        account = await _account(directory, url, role)
        nodes = {}
        for name in names:
            home = directory / name
            lines = [(own or {}).get(name, ""), *settings]
            file = node_config(home, name, (far or {}).get(name, url), endpoint.port, mx_port, lines, more)
            if own_hosts:
                file.write_text(file.read_text().replace('"mail.example.com"', f'"{name}.example.com"'))
            (home / "data").mkdir(mode=0o700)
            shutil.copy(directory / KEY_FILE, home / "data" / KEY_FILE)
            environment = {CLOCK_FILE: str(clocks[name])} if clocks and name in clocks else {}
            nodes[name] = Running(home, file, home / "data", account, home / "appliance.log", environment)
        made = Cluster(nodes[names[0]], dns, mx_port, nursery, nodes=nodes, url=url)
        try:
            async with trio.open_nursery() as starting:
                for node in nodes.values():
                    starting.start_soon(trio.to_thread.run_sync, node.start)
            yield made
        finally:
            for node in nodes.values():
                node.kill()
            nursery.cancel_scope.cancel()
