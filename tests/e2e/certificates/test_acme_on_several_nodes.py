"""Nodes on one PostgreSQL behind a load balancer have one certificate, whichever of them the authority asks."""

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from appliance.acme.messages import names_of
from appliance.keys.keyfile import KEY_FILE, load_or_create
from appliance.store.postgresql.connection import connect, run
from tests.e2e.certificates.clients import anything, events, shown, trusted, wait_until
from tests.e2e.certificates.test_acme_goes_on_without_the_authority import doctor
from tests.fakes.pebble import Pebble, needs_pebble, pebble
from tests.ports import free_port
from tests.postgresql_server import postgresql
from tests.programs import needs
from tests.running_appliance import CONFIG, Provisioned, Running

SITE = "mail.example.com"  # leads to the balancer, and so do the names of the nodes
NODES = ("mail1", "mail2")
LISTENERS = ("https", "smtp", "smtps")
NO_ACCOUNT = Provisioned(*[""] * 9)


@dataclass
class Balancer:
    """Passes each TCP connection on to the port that `choose` returns, in a thread of its own."""

    port: int
    choose: Callable[[], int] = lambda: 0
    passed: list[int] = field(default_factory=list)  # the ports

    def serve(self, listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            port = self.choose()
            self.passed.append(port)
            with socket.create_connection(("127.0.0.1", port), timeout=10) as node:
                node.sendall(client.recv(65536))
                while piece := node.recv(65536):
                    client.sendall(piece)


@contextmanager
def balanced(port: int) -> Iterator[Balancer]:
    with socket.create_server(("127.0.0.1", port)) as listening:
        made = Balancer(port)
        thread = threading.Thread(target=made.serve, args=(listening,))
        thread.start()
        try:
            yield made
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@dataclass
class Stage:
    """Two nodes, their database, an authority, and what is between them."""

    authority: Pebble
    balancer: Balancer
    url: str
    nodes: dict[str, Running]
    ports: dict[str, int]  # where each node answers challenges

    def start(self) -> None:
        """Start the nodes at once: the first certificate is then for both."""
        with ThreadPoolExecutor() as threads:
            list(threads.map(Running.start, self.nodes.values()))

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(connect(self.url, "test")) as connection:
            return run(connection, query)

    def orders(self) -> str:
        ((name,),) = self.rows("SELECT n.name FROM chores c JOIN nodes n ON n.owner = c.owner WHERE c.name = 'acme'")
        return str(name)

    def other(self, name: str) -> str:
        (other,) = set(NODES) - {name}
        return other


def _node(directory: Path, name: str, url: str, authority: Pebble, port: int) -> Running:
    (directory / name / "data").mkdir(mode=0o700, parents=True)
    shutil.copy(directory / KEY_FILE, directory / name / "data" / KEY_FILE)
    http = f"""base_url = "https://{SITE}"
[acme]
enabled = true
directory = "{authority.url}"
ca_file = "{authority.ca_file}"
bind = ["127.0.0.1:{port}"]"""
    text = CONFIG.format(
        data_dir=directory / name / "data",
        server=f'node = "{name}"',
        http=http,
        smtp="",
        smtp_bind='["127.0.0.1:0"]',
        webhooks="",
        retention="",
        dashboard="",
        dns=authority.dns,
        requests_per_second=0,
        disk='min_free_disk = "0"',
        store=f'[store]\nurl = "{url}"',
    )
    config = directory / name / "config.toml"
    config.write_text(text.replace('hostname = "mail.example.com"', f'hostname = "{name}.example.com"'))
    home = directory / name
    return Running(home, config, home / "data", NO_ACCOUNT, home / "appliance.log")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        url = stack.enter_context(postgresql()).new_database()
        authority = stack.enter_context(pebble(tmp_path, SITE, *(f"{name}.example.com" for name in NODES)))
        balancer = stack.enter_context(balanced(authority.http_port))
        load_or_create(tmp_path)
        ports = {name: free_port() for name in NODES}
        nodes = {name: _node(tmp_path, name, url, authority, ports[name]) for name in NODES}
        for node in nodes.values():
            stack.callback(node.kill)
        yield Stage(authority, balancer, url, nodes, ports)


@needs_pebble
@needs("postgresql")
@pytest.mark.timeout(180)
def test_any_node_answers_for_the_one_that_asked(stage: Stage) -> None:
    """All challenges come to the other node, all listeners of both show the one certificate, for all names."""
    stage.balancer.choose = lambda: stage.ports[stage.other(stage.orders())]
    stage.start()
    root = stage.authority.root()
    for name, node in stage.nodes.items():
        for listener in LISTENERS:
            wait_until(lambda: trusted(node, listener, root, f"{name}.example.com"), node)  # noqa: B023
    found = {shown(node, listener, root, SITE) for node in stage.nodes.values() for listener in LISTENERS}
    assert len(found) == 1
    names = names_of(x509.load_der_x509_certificate(found.copy().pop()))
    assert names == {SITE, "mail1.example.com", "mail2.example.com"}
    ordered = stage.orders()
    assert set(stage.balancer.passed) == {stage.ports[stage.other(ordered)]}
    issued = [
        line["node"] for node in stage.nodes.values() for line in events(node) if line["event"] == "certificate issued"
    ]
    assert issued == [ordered]
    assert stage.rows("SELECT * FROM acme_challenges") == []
    assert not any(b"PRIVATE" in bytes(sealed) for (sealed,) in stage.rows("SELECT sealed FROM acme_records"))
    _a_new_machine_shows_it_at_once(stage, stage.nodes[stage.other(ordered)], found)
    assert {line["level"] for node in stage.nodes.values() for line in events(node)} == {"info"}


def _a_new_machine_shows_it_at_once(stage: Stage, node: Running, certificates: set[bytes]) -> None:
    """Without the authority; and what its doctor says is of that certificate."""
    stage.authority.stop()
    assert node.terminate() == 0
    shutil.rmtree(node.data_dir / "acme")
    node.start()
    assert {shown(node, listener, anything()) for listener in LISTENERS} == certificates
    assert f"for {node.directory.name}.example.com, {SITE} until" in doctor(node)
