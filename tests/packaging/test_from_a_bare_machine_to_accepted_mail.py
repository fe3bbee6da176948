"""From nothing to a message that a mail server accepted, in at most five commands and by what these print alone.

On a Debian with systemd where one can be booted, and without: there a person starts the server; and in a container.
The person reads what `setup` prints, publishes it, and does nothing else.
"""

import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from tests.docs.documents import BLOCKS
from tests.packaging import container_image
from tests.packaging.built_binary import binary, package
from tests.packaging.own_machine import (
    DNS_ADDRESS,
    MX_ADDRESS,
    OWN_ADDRESS,
    OutsideWorld,
    OwnMachine,
    outside_world,
    own_machine,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can boot a machine of its own")

MOST_COMMANDS = 5
START_TIMEOUT = 120.0  # seconds for a server in a container
CONTAINER = f"mail-{os.getpid()}"  # and its volume
HOST, RECIPIENT = "mail.shop.example", "user@good.test"
SENDER = "--domain shop.example --email ada@shop.example"
SETUP = f"appliance setup --hostname {HOST} {SENDER}"


@pytest.fixture(params=[True, False], ids=["systemd", "plain"])
def machine(request: pytest.FixtureRequest) -> Iterator[OwnMachine]:
    assert binary()
    assert package()
    with own_machine(systemd=request.param) as booted:
        yield booted


@pytest.fixture
def world(machine: OwnMachine) -> Iterator[OutsideWorld]:
    with mail_servers(machine) as made:
        yield made


@contextmanager
def mail_servers(machine: OwnMachine) -> Iterator[OutsideWorld]:
    with outside_world(machine) as made:
        domains = ("good.test", "gmail.com", "outlook.com", "yahoo.com")
        made.publish(*(f"{domain}. MX 10 mx.good.test." for domain in domains), f"mx.good.test. A {MX_ADDRESS}")
        yield made


def set_up(machine: OwnMachine, world: OutsideWorld, command: str, pause: Callable[[], None] = lambda: None) -> str:
    shown: list[str] = []
    with machine.start(f"{command} --to {RECIPIENT} --wait --timeout 300") as process:
        assert process.stdout is not None
        for line in process.stdout:
            shown.append(line)
            if line.startswith("Waiting for the DNS records"):
                pause()
                publish(shown, world)
    log = machine.file("/root/serve.log")
    assert process.returncode == 0, "".join(shown) + (log.read_text() if log.exists() else "")
    return "".join(shown)


def publish(shown: list[str], world: OutsideWorld) -> None:
    begin = next(number for number, line in enumerate(shown) if line.startswith("To publish in DNS"))
    for line in map(str.strip, shown[begin + 1 :]):
        found = re.search(r"(?:^|machine: )(\S+\. (?:A|AAAA|PTR|TXT|MX|CNAME) .+)$", line)
        if found is not None and (not line.startswith(";") or "of this machine" in line):
            world.publish(found[1].replace(" A ADDRESS", f" A {OWN_ADDRESS}"))


def check_arrived(machine: OwnMachine, world: OutsideWorld, shown: str) -> None:
    assert RECIPIENT in shown
    assert "delivered" in shown
    (message,) = world.messages()
    assert message.count(b"d=shop.example;") == 2
    assert {line for line in world.commands() if line.startswith("EHLO")} == {f"EHLO {HOST}"}
    assert machine.commands <= MOST_COMMANDS
    assert "Traceback" not in shown


def check_journal(machine: OwnMachine) -> None:
    assert machine.look("systemctl", "is-active", "appliance").stdout == "active\n"
    shown = machine.look("journalctl", "-u", "appliance", "-o", "json", "--no-pager").stdout
    entries = [json.loads(line) for line in shown.splitlines()]
    own = [each for each in entries if each.get("_COMM") != "systemd" and each.get("_PID") != "1"]
    levels = {"debug": "7", "info": "6", "warning": "4", "error": "3"}
    assert own
    for each in own:
        assert each["PRIORITY"] == levels[json.loads(each["MESSAGE"])["level"]]
    events = [json.loads(each["MESSAGE"])["event"] for each in own]
    assert {"ready", "delivered"} <= set(events)


def test_by_the_package(machine: OwnMachine, world: OutsideWorld) -> None:
    """`apt install` and `setup`; without systemd the person also starts the server, once it has its name."""
    told = machine.run(f"apt-get install -y {package()}")
    assert "sudo appliance setup" in told
    if not machine.has_systemd:
        machine.run(f"{SETUP} --no-wait")
        caps = "--inh-caps +net_bind_service --ambient-caps +net_bind_service"  # which the unit gives
        user = f"setpriv --reuid appliance --regid appliance --clear-groups {caps}"
        machine.run(f"{user} appliance serve >serve.log 2>&1 &")
    shown = set_up(machine, world, SETUP)
    check_arrived(machine, world, shown)
    if machine.has_systemd:
        check_journal(machine)


def test_by_the_binary(machine: OwnMachine, world: OutsideWorld) -> None:
    """`install` and `setup`; without systemd `setup` alone, and the person starts the server."""
    shutil.copy(binary(), machine.file("/root/appliance"))
    if machine.has_systemd:
        machine.run(f"./appliance install --hostname {HOST}")
    else:
        machine.run(f"./{SETUP} --no-wait")
        machine.run("./appliance serve >serve.log 2>&1 &")
    shown = set_up(machine, world, SETUP if machine.has_systemd else f"./{SETUP}")
    check_arrived(machine, world, shown)
    if machine.has_systemd:
        check_journal(machine)


# ---- the container


def told(begin: str) -> list[str]:
    (block,) = [each for each in BLOCKS if each.document == "install.md" and begin in each.text]
    (line,) = [each for each in block.text.replace("\\\n", "").splitlines() if each.startswith(begin)]
    own = {"mail.example.com": HOST, "mail-appliance": container_image.TAG}
    own |= {"mail": CONTAINER, "mail:/var/lib/appliance": f"{CONTAINER}:/var/lib/appliance"}
    return [own.get(word, word) for word in shlex.split(line.removeprefix(begin))]


@dataclass(frozen=True, slots=True)
class ContainerHost:
    """A machine with an engine that has the image."""

    machine: OwnMachine
    engine: tuple[str, ...]

    def run(self, *left_out: str) -> None:
        here = ("--dns", DNS_ADDRESS, *container_image.needed_here(self.engine))
        words = [word for word in told("podman run ") if word not in left_out]
        self.machine.run(shlex.join([*self.engine, "run", *here, *words]))

    def setup(self) -> str:
        words = [word for word in told("podman exec ") if word != "-it"]
        return f"{shlex.join([*self.engine, 'exec', *words])} {SENDER}"

    def wait_until_healthy(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while self.machine.look(*self.engine, "exec", CONTAINER, "appliance", "health").returncode != 0:
            assert time.monotonic() < deadline
            time.sleep(0.2)


@pytest.fixture
def container_host() -> Iterator[ContainerHost]:
    engine = container_image.built_image()
    with own_machine(systemd=False) as booted:
        machine = replace(booted, spaces=("--net",))
        probed = machine.look(*container_image.probe(engine))
        if engine[0] != "podman" or probed.returncode != 0:
            reason = f"no container engine with the image {container_image.BASE} makes a network of its own here"
            pytest.skip(f"{reason}: {probed.stderr[-300:]}")
        try:
            yield ContainerHost(machine, engine)
        finally:
            print(machine.look(*engine, "logs", CONTAINER))  # shown if the test failed
            machine.look(*engine, "rm", "--force", "--time", "5", CONTAINER)
            machine.look(*engine, "volume", "rm", "--force", CONTAINER)


def test_by_the_container(container_host: ContainerHost) -> None:
    """`build-all`, `build`, `run` and `setup`, which need not wait for the server; a published port is then open."""
    machine = container_host.machine
    machine.commands += 2  # those that built
    with mail_servers(machine) as world:
        container_host.run()
        shown = set_up(machine, world, container_host.setup(), container_host.wait_until_healthy)
        check_arrived(machine, world, shown)
    assert f"that address must lead to {HOST}." in shown  # which a container cannot know
    greeting = machine.look("timeout", "20", "bash", "-c", f"head -n 1 </dev/tcp/{OWN_ADDRESS}/587").stdout
    assert greeting.startswith(f"220 {HOST} ")


def test_a_container_without_a_name_is_restarted(container_host: ContainerHost) -> None:
    """A server that has not the name that `setup` wrote would be refused: `setup` says so, and sends nothing."""
    machine = container_host.machine
    with mail_servers(machine) as world:
        container_host.run("--hostname", HOST)
        container_host.wait_until_healthy()
        command = f"{container_host.setup()} --hostname {HOST}"
        with machine.start(f"{command} --to {RECIPIENT} --no-wait") as process:
            shown = process.communicate()[0]
        assert process.returncode == 1
        assert "No test message was sent." in shown
        assert "Restart the server or its container" in shown
        machine.run(shlex.join([*container_host.engine, "restart", CONTAINER]))
        check_arrived(machine, world, set_up(machine, world, command, container_host.wait_until_healthy))
