"""A machine of the tests' own: this Debian's files under an overlay, in namespaces, with systemd as its first process.

What is installed there is gone with it, and its network is none but its own loopback: on it are the world's DNS and
mail servers (outside_world.py). Addresses of `WORLD` are routed to loopback, and any address may be bound there, so
that the appliance takes none of them for its own. Where systemd cannot be booted the first process only sleeps.
A machine may also lend no more than its network: commands then see the files of this one.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).parents[2]
BOOT_TIMEOUT = 120.0  # seconds
COMMAND_TIMEOUT = 600  # seconds; of apt, too
WORLD = "93.184.216.0/24"  # public, so that mail is sent there
MX_ADDRESS, OWN_ADDRESS, DNS_ADDRESS = "93.184.216.34", "93.184.216.35", "93.184.216.36"
ALL_SPACES = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Runs in new namespaces, with the directory of the overlay and the first process.
BOOT = """
set -eu
base=$1; shift
mount --make-rprivate /
mount -t tmpfs tmpfs "$base"
mkdir "$base/new" "$base/work" "$base/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$base/new,workdir=$base/work" "$base/root"
cd "$base/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
for place in dev run tmp; do mount -t tmpfs -o mode=755 tmpfs $place; done
chmod 1777 tmp
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
while read -r name number; do mknod -m 666 "dev/$name" c 1 "$number"; done <<.
null 3
zero 5
full 7
random 8
urandom 9
.
mknod -m 666 dev/tty c 5 0
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ip link set lo up
ip route add local {world} dev lo
echo 1 >proc/sys/net/ipv4/ip_nonlocal_bind
# A new machine: none of this one's services, its own resolver and name, and no rule that forbids to start services.
rm -rf etc/systemd/system/*.wants etc/systemd/system/*.requires etc/rc?.d usr/sbin/policy-rc.d etc/machine-id
rm -rf etc/appliance var/lib/appliance var/log/journal etc/resolv.conf
rm -f var/lib/dpkg/updates/*  # of an installation that runs on this one just now
touch etc/machine-id
printf 'nameserver {dns}\\n' >etc/resolv.conf
printf 'bare\\n' >etc/hostname
printf '127.0.0.1 localhost\\n' >etc/hosts
hostname bare
mkdir -p "$base/root/mnt"
pivot_root . mnt
umount -l /mnt
exec env -i container=other PATH={path} "$@"
"""


@dataclass(slots=True)
class OwnMachine:
    """A machine that runs, and what was typed there so far."""

    directory: Path
    first: int  # the process id of its first process
    has_systemd: bool
    commands: int = 0
    spaces: tuple[str, ...] = ALL_SPACES  # the namespaces that its commands run in

    def start(self, command: str) -> subprocess.Popen[str]:
        self.commands += 1
        return subprocess.Popen(
            self.inside("/bin/sh", "-c", f"cd /root && {command}"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str) -> str:
        process = self.start(command)
        output, _ = process.communicate(timeout=COMMAND_TIMEOUT)
        assert process.returncode == 0, f"{command}\n{output}"
        return output

    def look(self, *command: str) -> subprocess.CompletedProcess[str]:
        ran = self.inside(*command)
        return subprocess.run(ran, capture_output=True, text=True, timeout=COMMAND_TIMEOUT, check=False)

    def inside(self, *command: str) -> list[str]:
        entered = ["nsenter", "--target", str(self.first), *self.spaces, "--"]
        entered += ["env", "-i", f"PATH={PATH}", "HOME=/root"]
        return [*entered, "TERM=dumb", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", *command]

    def file(self, path: str) -> Path:
        return Path(f"/proc/{self.first}/root{path}")


@contextmanager
def own_machine(*, systemd: bool) -> Iterator[OwnMachine]:
    """One that is up; skips the test where this system does not let us have it, and says why."""
    with TemporaryDirectory(prefix="own-machine-") as name, _own_cgroup() as enter:
        directory = Path(name)
        console = directory / "console"
        (directory / "base").mkdir()
        script = BOOT.format(world=WORLD, path=PATH, dns=DNS_ADDRESS)
        init = ["/lib/systemd/systemd", "--log-target=console"] if systemd else ["/bin/sleep", "infinity"]
        spaces = [*ALL_SPACES, "--fork", "--kill-child"]
        boot = ["/bin/sh", "-ec", script, "sh", str(directory / "base"), *init]
        with console.open("wb") as log:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f'{enter}exec "$@"', "sh", "unshare", *spaces, *boot],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            first = _first_process(process, console)
            machine = OwnMachine(directory, first, systemd)
            _await_boot(machine, process, console)
            yield machine
        finally:
            process.kill()  # and the first process with it, which ends all others
            process.wait()


def _first_process(process: subprocess.Popen[bytes], console: Path) -> int:
    deadline = time.monotonic() + BOOT_TIMEOUT
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while time.monotonic() < deadline and process.poll() is None:
        found = children.read_text().split()
        if found and Path(f"/proc/{found[0]}/root/etc/hostname").exists():
            name = Path(f"/proc/{found[0]}/comm").read_text().strip()
            if name in ("systemd", "sleep"):
                return int(found[0])
        time.sleep(0.05)
    pytest.skip(f"no machine of its own can be booted here: {console.read_text(errors='replace')[-300:]}")


def _await_boot(machine: OwnMachine, process: subprocess.Popen[bytes], console: Path) -> None:
    deadline, state = time.monotonic() + BOOT_TIMEOUT, ""
    while machine.has_systemd and state not in ("running", "degraded"):
        if time.monotonic() > deadline or process.poll() is not None:
            pytest.skip(f"systemd cannot be booted here ({state}): {console.read_text(errors='replace')[-300:]}")
        time.sleep(0.2)
        state = machine.look("systemctl", "is-system-running").stdout.strip()


@contextmanager
def _own_cgroup() -> Iterator[str]:
    """What a shell does to be in a control group of its own, which systemd then takes for the root of all."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    places = [Path(words[1]) for words in mounts if words[2] == "cgroup2"]
    if not places:
        pytest.skip("no machine of its own can be booted here: there is no cgroup2")
    group = places[0] / f"own-machine-{os.getpid()}"
    group.mkdir()
    try:
        yield f"echo $$ >{group}/cgroup.procs; "
    finally:
        deadline = time.monotonic() + 20
        while group.exists() and time.monotonic() < deadline:
            for each in sorted(group.rglob("*"), reverse=True):
                if each.is_dir():
                    _remove(each)
            _remove(group)
            time.sleep(0.05)


def _remove(group: Path) -> None:
    try:
        group.rmdir()
    except OSError:
        return  # its processes are about to end


@dataclass(slots=True)
class OutsideWorld:
    """What DNS shows there, and what its mail server has."""

    directory: Path
    zone: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def publish(self, *lines: str) -> None:
        for name, kind, value in (line.split(" ", 2) for line in lines):
            at = self.zone.setdefault(name.rstrip("."), {})
            at[kind] = [*at.get(kind, []), value]
        unfinished = self.directory / "zone.new"
        unfinished.write_text(json.dumps(self.zone))
        unfinished.rename(self.directory / "zone.json")

    def messages(self) -> list[bytes]:
        deadline = time.monotonic() + 60
        while not (found := sorted(self.directory.glob("*.eml"))) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [path.read_bytes() for path in found]

    def commands(self) -> list[str]:
        """What was said to its mail server, up to the last of the messages at least."""
        return (self.directory / "commands").read_text().splitlines()


@contextmanager
def outside_world(machine: OwnMachine) -> Iterator[OutsideWorld]:
    directory = machine.directory / "world"
    directory.mkdir()
    world = OutsideWorld(directory)
    world.publish()
    command = ["nsenter", "--target", str(machine.first), "--net", "--"]
    command += [sys.executable, "-P", "-m", "tests.packaging.outside_world", str(directory), DNS_ADDRESS, MX_ADDRESS]
    log = directory / "log"
    with log.open("wb") as written:
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=written, stdout=written)
    try:
        deadline = time.monotonic() + 60
        while not (directory / "ready").exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield world
    finally:
        process.kill()
        process.wait()
        shutil.copy(log, machine.directory / "world.log")
