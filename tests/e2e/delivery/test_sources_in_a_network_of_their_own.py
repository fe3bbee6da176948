"""Sources on a machine with several real addresses: NAT, IPv6 without a reverse name, one family, an address that goes.

The test runs itself again in a network namespace: there the program has the addresses, and a link to a second
namespace with the mail servers. So the kernel decides which addresses can be used, not a fake.
"""

import ctypes
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from tests.e2e.delivery.test_mail_leaves_from_sources import Visitors, delivered, used
from tests.e2e.delivery.world import World, delays, world
from tests.fakes.mx import FakeMx
from tests.running_appliance import command

INSIDE = "APPLIANCE_OWN_NETWORK"  # set in the namespace
OWN = "203.0.113"  # documentation, RFC 5737
MX_FOUR, MX_SIX = "198.51.100.1", "2001:db8:1::1"
SOURCES = f"""
[delivery.sources.one]
ipv4 = "{OWN}.10"
hostname = "one.example.com"
[delivery.sources.two]
ipv4 = "{OWN}.11"
hostname = "two.example.com"
[delivery.sources.nat]
ipv4 = "10.9.9.9"
hostname = "nat.example.com"
[delivery.sources.six]
ipv6 = "2001:db8::10"
hostname = "six.example.com"
[delivery.streams.transactional]
sources = ["one"]
[delivery.streams.alerts]
sources = ["one", "two"]
[delivery.streams.behind]
sources = ["nat"]
[delivery.streams.mixed]
sources = ["six", "two"]
[delivery.streams.six]
sources = ["six"]
"""
ALLOWED = 'allow_networks = ["127.0.0.0/8", "198.51.100.0/24", "2001:db8::/32"]'
MACHINE = f"""
set -e
ip link set lo up
ip link add here type veth peer name there
ip link set there netns $1
ip link set here up
for last in 10 11 12; do ip addr add {OWN}.$last/32 dev here; done
ip addr add 10.9.9.9/32 dev here
ip -6 addr add 2001:db8::10/64 dev here nodad
ip route add 198.51.100.0/24 dev here src {OWN}.12
ip -6 route add 2001:db8:1::/64 dev here
iptables -t nat -A POSTROUTING -s 10.9.9.9 -o here -j SNAT --to-source {OWN}.12
"""
OUTSIDE = f"""
set -e
ip link set lo up
ip link set there up
ip addr add {MX_FOUR}/32 dev there
ip -6 addr add {MX_SIX}/128 dev there nodad
ip route add {OWN}.0/24 dev there
ip -6 route add 2001:db8::/64 dev there
"""
NO_PTR = b"550 5.7.25 The IP address 2001:db8::10 sending this message does not have a PTR record\r\n"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def outside() -> Iterator[int]:
    """The second namespace, linked to this one; the id of a process in it."""
    with subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep 600"], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            pid = str(process.pid)
            subprocess.run(["sh", "-c", MACHINE, "sh", pid], check=True)
            subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", "sh", "-c", OUTSIDE], check=True)
            yield process.pid
        finally:
            process.kill()


def listener(pid: int, address: str, port: int) -> trio.SocketListener:
    """A listening socket in the network of a process. A thread of its own enters that network, and ends there."""
    made: list[socket.socket] = []

    def listen() -> None:
        with Path(f"/proc/{pid}/ns/net").open() as network:
            assert ctypes.CDLL(None, use_errno=True).setns(network.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
        opened = socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
        made.append(opened)

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    made[0].setblocking(False)
    return trio.SocketListener(trio.socket.from_stdlib_socket(made[0]))


class Servers(Visitors):
    """Mail servers outside, where IPv6 without a reverse name is refused."""

    async def serve(self, stream: trio.SocketStream) -> None:
        peer = stream.socket.getpeername()[0]
        session = FakeMx(answers={"MAIL": NO_PTR} if ":" in peer and self.demands_ptr else {})
        self.sessions[peer].append(session)
        await session.serve(stream)

    demands_ptr = True


@pytest.mark.slow
async def test_sources_on_a_machine_with_several_addresses(tmp_path: Path) -> None:
    if INSIDE not in os.environ:
        await trio.to_thread.run_sync(run_inside, tmp_path)
        return
    with outside() as pid:
        async with world(tmp_path, delays("2s", "2s", "2s", "1h"), SOURCES, allowed=ALLOWED, fresh=True) as made:
            servers = Servers()
            for address in (MX_FOUR, MX_SIX):
                made.nursery.start_soon(trio.serve_listeners, servers.serve, [listener(pid, address, made.mx_port)])
            for name, records in {
                "four": {"A": [MX_FOUR]}, "six": {"AAAA": [MX_SIX]}, "both": {"A": [MX_FOUR], "AAAA": [MX_SIX]},
            }.items():  # fmt: skip
                made.publish(f"{name}.test", MX=[f"10 mx.{name}.test."])
                made.publish(f"mx.{name}.test", **records)
            await check(made, servers)


async def check(made: World, servers: Servers) -> None:
    # The source's address, not the one of the route (.12).
    first = await delivered(made, "ada@four.test")
    assert used(made)[first] == "one"
    assert servers.names() == {f"{OWN}.10": {"one.example.com"}}

    # Behind NAT: bound to the private address, seen by the public one, which SPF finds by the source's name.
    behind = await made.send("bob@four.test", stream="behind")
    await made.final(behind)
    assert servers.names()[f"{OWN}.12"] == {"nat.example.com"}
    records = await trio.to_thread.run_sync(command, made.running.config_file, "domain", "records", "example.com")
    assert "a:nat.example.com" in str(records)

    # IPv6 without a reverse name: after the refusal the stream's other source takes the mail, and nothing bounces.
    mixed = [await made.send(f"user{number}@both.test", stream="mixed") for number in range(12)]
    await made.final(*mixed)
    assert {made.status(message) for message in mixed} == {"delivered"}
    assert {used(made)[message] for message in mixed} >= {"two"}
    assert "2001:db8::10" in servers.sessions
    assert servers.names()[f"{OWN}.11"] == {"two.example.com"}

    # One family only: a server of the other family is out of reach, and no other address is tried.
    lonely = await made.send("ada@six.test")
    await made.tried(lonely)
    text = "4.4.4 no source address has the address family of the mail servers of six.test"
    assert made.recipient(lonely).response == text

    # An address that goes: its mail leaves by the stream's other source, and by the first again once it is back.
    ip("addr", "del", f"{OWN}.10/32", "dev", "here")
    await made.logged(f"{OWN}.10 is not on this machine")
    waiting = await made.send("ada@four.test")  # its stream has no other source
    alerts = [await made.send(f"user{number}@four.test", stream="alerts") for number in range(10)]
    await made.final(*alerts)
    assert {used(made)[message] for message in alerts} == {"two"}
    assert made.recipient(waiting)[1:4] == ("queued", "reserved", 0)
    ip("addr", "add", f"{OWN}.10/32", "dev", "here")
    await made.final(waiting)
    assert used(made)[waiting] == "one"
    assert set(servers.sessions) == {f"{OWN}.10", f"{OWN}.11", f"{OWN}.12", "2001:db8::10"}


def run_inside(directory: Path) -> None:
    words = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    if subprocess.run([*words, "sh", "-c", "iptables -t nat -L"], capture_output=True).returncode != 0:
        pytest.skip("this user may have no network of its own, or iptables is missing")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    pytest_words = ["-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:randomly"]
    inside = subprocess.run(
        [*words, sys.executable, *pytest_words, f"--basetemp={directory / 'inside'}", __file__],
        capture_output=True,
        text=True,
        env=environment | {INSIDE: "yes"},
    )
    assert inside.returncode == 0, inside.stdout + inside.stderr
    assert "1 passed" in inside.stdout
