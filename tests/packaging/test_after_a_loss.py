"""docs/backup.md, "After a loss": the commands as they stand there, on a new machine with the Debian package."""

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.docs.documents import BLOCKS
from tests.packaging.built_binary import package
from tests.packaging.own_machine import OwnMachine, own_machine

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can boot a machine of its own")

BACKUP = "2026-11-15.tar"


@pytest.fixture
def machine() -> Iterator[OwnMachine]:
    """One with systemd and `sudo`, that has lost its mail: package, settings and backup are in root's home."""
    deb = package()
    with own_machine(systemd=True) as booted:
        sudo = booted.file("/usr/local/bin/sudo")
        sudo.write_text('#!/bin/sh\nexec "$@"\n')
        sudo.chmod(0o755)
        shutil.copy(deb, booted.file(f"/root/{deb.name}"))
        booted.run("apt-get install -y ./mail-appliance_*.deb")
        booted.run("echo 'a long password' | appliance account create acme --email a@acme.example --password-stdin")
        booted.run("appliance domain add acme acme.example")
        booted.run("sed 's/^hostname = .*/hostname = \"mail.acme.example\"/' /etc/appliance/config.toml >config.toml")
        booted.run(f"appliance backup /var/backups/appliance/{BACKUP} && mv /var/backups/appliance/{BACKUP} .")
        booted.run("apt-get purge -y mail-appliance && rm -rf /var/backups/appliance")
        assert not booted.file("/var/lib/appliance").exists()
        yield booted


def refused(machine: OwnMachine, command: str) -> str:
    """The one line of a command that must fail."""
    process = machine.start(command)
    output, _ = process.communicate(timeout=120)
    assert (process.returncode, output.count("\n")) == (1, 1), output
    return output


def test_the_documented_commands_bring_everything_back(machine: OwnMachine) -> None:
    """The account is there, the service runs as its own user, and sends nothing until it may."""
    (block,) = [block for block in BLOCKS if block.document == "backup.md" and "appliance restore" in block.text]
    shown = machine.run(f"set -e\n{block.text}")
    assert "All delivery is paused" in shown
    assert "acme" in machine.run("appliance account list")
    assert machine.look("systemctl", "is-active", "appliance").stdout == "active\n"
    owners = machine.look("find", "/var/lib/appliance", "-not", "-user", "appliance").stdout
    assert owners == ""
    assert "mail.acme.example" in machine.run("appliance config show")
    machine.run("sudo appliance resume")
    assert "paused" not in machine.run("appliance queue")


def test_each_refusal_names_the_next_step(machine: OwnMachine) -> None:
    """A running server is to be stopped, the database of its first start to be put aside."""
    machine.run("apt-get install -y ./mail-appliance_*.deb")
    assert "systemctl stop appliance" in refused(machine, f"appliance restore {BACKUP}")
    machine.run("systemctl stop appliance")
    assert "--force" in refused(machine, f"appliance restore {BACKUP}")
    machine.run(f"head -c 1000 {BACKUP} >half.tar")
    assert "earlier backup" in refused(machine, "appliance restore half.tar --force")
    machine.run(f"appliance restore {BACKUP} --force")
