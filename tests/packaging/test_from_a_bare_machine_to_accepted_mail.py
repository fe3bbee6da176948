"""From nothing to a message that a mail server accepted, in at most five commands and by what these print alone.

On a Debian with systemd where one can be booted, and without: there a person starts the server. The person reads what
`setup` prints, publishes it, and does nothing else.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator

import pytest

from tests.packaging.built_binary import binary, package
from tests.packaging.own_machine import MX_ADDRESS, OWN_ADDRESS, OutsideWorld, OwnMachine, outside_world, own_machine

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can boot a machine of its own")

MOST_COMMANDS = 5
HOST, RECIPIENT = "mail.shop.example", "user@good.test"
SETUP = f"appliance setup --hostname {HOST} --domain shop.example --email ada@shop.example"


@pytest.fixture(params=[True, False], ids=["systemd", "plain"])
def machine(request: pytest.FixtureRequest) -> Iterator[OwnMachine]:
    """One of each kind; what is not built skips a test sooner than a boot."""
    assert binary()
    assert package()
    with own_machine(systemd=request.param) as booted:
        yield booted


@pytest.fixture
def world(machine: OwnMachine) -> Iterator[OutsideWorld]:
    """A mail server for the recipient, and for the large providers that the check of port 25 asks."""
    with outside_world(machine) as made:
        domains = ("good.test", "gmail.com", "outlook.com", "yahoo.com")
        made.publish(*(f"{domain}. MX 10 mx.good.test." for domain in domains), f"mx.good.test. A {MX_ADDRESS}")
        yield made


def set_up(machine: OwnMachine, world: OutsideWorld, command: str) -> str:
    """What `setup` prints until its end; what is to be published is published as soon as all of that is there."""
    shown: list[str] = []
    with machine.start(f"{command} --to {RECIPIENT} --wait --timeout 300") as process:
        assert process.stdout is not None
        for line in process.stdout:
            shown.append(line)
            if line.startswith("Looking in DNS until"):
                publish(shown, world)
    log = machine.file("/root/serve.log")
    assert process.returncode == 0, "".join(shown) + (log.read_text() if log.exists() else "")
    return "".join(shown)


def publish(shown: list[str], world: OutsideWorld) -> None:
    """Paste the zone file, with the machine's address, and order the PTR."""
    begin = next(number for number, line in enumerate(shown) if line.startswith("To publish in DNS"))
    for line in map(str.strip, shown[begin + 1 :]):
        found = re.search(r"(?:^|machine: )(\S+\. (?:A|AAAA|PTR|TXT|MX|CNAME) .+)$", line)
        if found is not None and (not line.startswith(";") or "of this machine" in line):
            world.publish(found[1].replace(" A ADDRESS", f" A {OWN_ADDRESS}"))


def check_arrived(machine: OwnMachine, world: OutsideWorld, shown: str) -> None:
    """The message is at its server, signed by the domain, and `setup` says so."""
    assert RECIPIENT in shown
    assert "delivered" in shown
    (message,) = world.messages()
    assert message.count(b"d=shop.example;") == 2
    assert machine.commands <= MOST_COMMANDS
    assert "Traceback" not in shown


def check_journal(machine: OwnMachine) -> None:
    """Under systemd the service runs, and each of its lines in the journal is JSON with its priority."""
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
