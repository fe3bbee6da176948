"""Nodes on one PostgreSQL: any of them serves any request, and what one leaves behind the others deliver, once."""

import json
import shutil
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from appliance.keys.keyfile import KEY_FILE
from appliance.store.postgresql.nodes import LEASE, STEADY
from tests.e2e.delivery.world import CREDITS, delays
from tests.e2e.nodes.cluster import Cluster, cluster
from tests.fakes.mx import FakeMx
from tests.running_appliance import Running, command, ran

LATER = b"450 4.2.1 busy\r\n"  # of the mailbox, so that its pool does not pause
OK = b"250 2.1.5 ok\r\n"
TAKEN_OVER_WITHIN = 20.0  # seconds
SUSPENDED = 15.0  # seconds


def grey_addresses(count: int) -> list[str]:
    """Each at a domain of its own, so that no answer holds back the mail of another."""
    return [f"grey@g{number}.test" for number in range(count)]


async def greylisting(made: Cluster, addresses: list[str]) -> FakeMx:
    server = FakeMx(answers={f"RCPT {address}": [LATER, OK] for address in addresses})
    for address in addresses:
        await made.domain(address.partition("@")[2], server)
    return server


def arrivals(*servers: FakeMx) -> Counter[str]:
    return Counter(address for server in servers for message in server.messages for address in message.recipients)


async def test_any_node_serves_any_request(tmp_path: Path, url: str) -> None:
    """Reads, replays, logins and cancellations on nodes that did not accept the message; and one that is drained."""
    grey, server = grey_addresses(5), FakeMx(answers={"RCPT cancelled@a.test": LATER})
    async with cluster(tmp_path, url, ("a", "b", "c"), delays("4s", "4s")) as made:
        await made.domain("a.test", server)
        later = await greylisting(made, grey)
        await _mail_is_everywhere(made)
        await _a_key_counts_on_all_nodes(made)
        token = await _a_login_counts_on_all_nodes(made)
        await _a_message_is_cancelled_from_another_node(made, token)
        await _two_nodes_of_one_name(made, tmp_path / "another")
        await _a_node_is_drained(made, grey)
        expected = Counter({f"{name}@a.test": 1 for name in "abc"} | {"key@a.test": 1} | dict.fromkeys(grey, 1))
        assert arrivals(server, later) == expected
        assert made.credits() == CREDITS - expected.total()
        assert made.all_complaints() == []


async def _mail_is_everywhere(made: Cluster) -> None:
    sent = [await made.send_to(name, f"{name}@a.test") for name in made.nodes]
    await made.final(*sent)
    for node in made.nodes:
        for message_id in sent:
            told = await made.request(node, "GET", f"/emails/{message_id}")
            assert (told.status_code, told.json()["status"]) == (200, "delivered")


async def _a_key_counts_on_all_nodes(made: Cluster) -> None:
    ids = {await made.send_to(node, "key@a.test", key="once") for node in made.nodes}
    assert len(ids) == 1
    await made.final(*ids)


async def _a_login_counts_on_all_nodes(made: Cluster) -> dict[str, str]:
    token = await trio.to_thread.run_sync(made.nodes["a"].login)
    for node in made.nodes:
        answer = await made.request(node, "GET", "/v1/emails", headers=token)
        assert answer.status_code == 200
        assert len(answer.json()["emails"]) == 4
    return token


async def _a_message_is_cancelled_from_another_node(made: Cluster, token: dict[str, str]) -> None:
    message_id = await made.send_to("a", "cancelled@a.test")
    await made.tried(message_id)
    answer = await made.request("b", "POST", f"/v1/emails/{message_id}/cancel", headers=token)
    assert (answer.status_code, answer.json()["cancelled"]) == (200, 1)
    assert made.recipient(message_id).status == "failed"
    again = await made.request("c", "POST", f"/v1/emails/{message_id}/cancel", headers=token)
    assert again.status_code == 409


async def _two_nodes_of_one_name(made: Cluster, directory: Path) -> None:
    second = _copied(made.nodes["a"], directory)
    assert await trio.to_thread.run_sync(second.wait) == 1
    told = second.log_file.read_text().strip()
    assert len(told.splitlines()) == 1
    assert "another node is named 'a'" in told


def _copied(node: Running, directory: Path) -> Running:
    """The same configuration and key on another data directory, started."""
    (directory / "data").mkdir(mode=0o700, parents=True)
    config = directory / "config.toml"
    config.write_text(node.config_file.read_text().replace(str(node.data_dir), str(directory / "data")))
    shutil.copy(node.data_dir / KEY_FILE, directory / "data" / KEY_FILE)
    second = Running(directory, config, directory / "data", node.account, directory / "log")
    with second.log_file.open("ab") as log:
        second.spawn(log)
    return second


async def _a_node_is_drained(made: Cluster, grey: list[str]) -> None:
    """It ends with 0, and what waited there goes on elsewhere."""
    sent = [await made.send_to("c", address) for address in grey]
    await made.tried(*sent)
    listed = await _listed(made, "a")
    assert {each["name"]: each["state"] for each in listed} == dict.fromkeys("abc", "running")
    assert {each["name"]: each["waiting"] for each in listed} == {"a": 0, "b": 0, "c": len(grey)}
    assert all(0 < each["lease_seconds"] <= LEASE for each in listed)
    drain = partial(command, made.nodes["a"].config_file, "nodes", "drain", "c")
    assert await trio.to_thread.run_sync(drain) == {"node": "c", "draining": True}
    assert await trio.to_thread.run_sync(made.nodes["c"].wait) == 0
    await made.final(*sent)
    assert {each["name"]: each["state"] for each in await _listed(made, "b")} == {
        "a": "running",
        "b": "running",
        "c": "ended",
    }


async def _listed(made: Cluster, node: str) -> list[dict[str, Any]]:
    words = partial(command, made.nodes[node].config_file, "nodes", "list")
    found: list[dict[str, Any]] = (await trio.to_thread.run_sync(words))["nodes"]
    return found


def slow_data(begun: trio.Event, seconds: float) -> Callable[[trio.abc.Stream], Awaitable[bytes]]:
    """An answer to DATA: the first takes its time, all others come at once."""

    async def act(stream: trio.abc.Stream) -> bytes:
        if not begun.is_set():
            begun.set()
            await trio.sleep(seconds)
        await stream.send_all(b"354 go on\r\n")
        return b"354"

    return act


@pytest.mark.slow
async def test_a_killed_and_a_suspended_node_are_taken_over(tmp_path: Path, url: str) -> None:
    """`kill -9` of one, and SIGSTOP of another between DATA and the final dot: the third delivers, all of it once."""
    grey, begun = grey_addresses(12), trio.Event()
    slow = FakeMx(answers={"DATA": slow_data(begun, 2)})
    async with cluster(tmp_path, url, ("a", "b", "c"), delays("8s", "3s")) as made:
        server = await greylisting(made, grey)
        await made.domain("slow.test", slow)
        await trio.sleep(STEADY + 1)
        sent = [await made.send_to("b" if number % 3 else "a", address) for number, address in enumerate(grey)]
        await made.tried(*sent)
        in_session = await made.send_to("b", "slow@slow.test")
        with trio.fail_after(5):
            await begun.wait()
        suspended = made.nodes["b"]
        assert suspended.process is not None
        suspended.process.send_signal(signal.SIGSTOP)
        made.nodes["a"].kill()
        began = time.monotonic()
        assert made.owners() == {"a", "b"}
        try:
            await made.final(*sent, in_session, within=TAKEN_OVER_WITHIN)
            await trio.sleep(max(0.0, began + SUSPENDED - time.monotonic()))
        finally:
            suspended.process.send_signal(signal.SIGCONT)
        assert await trio.to_thread.run_sync(suspended.wait) == 1
        assert "other nodes have taken over" in suspended.log_file.read_text()
        await trio.sleep(0.5)
        assert arrivals(server, slow) == Counter({**dict.fromkeys(grey, 1), "slow@slow.test": 1})
        assert slow.commands.count("DATA") == 2  # the first without its final dot
        assert made.credits() == CREDITS - len(grey) - 1
        await trio.to_thread.run_sync(suspended.start)
        assert (await made.request("b", "GET", f"/emails/{in_session}")).json()["status"] == "delivered"


async def test_every_node_prints_one_spf_record_that_permits_all_nodes(tmp_path: Path, url: str) -> None:
    """By the API, `domain records` and `doctor`, on either node; a record with one node only is wrong on both."""
    async with cluster(tmp_path, url, ("a", "b"), own_hosts=True) as made:
        for number, name in enumerate(made.nodes, start=1):
            made.dns.zone[f"{name}.example.com"] = {"A": [f"192.0.2.{number}"]}
        made.dns.zone["example.com"] = {"TXT": ['"v=spf1 a:a.example.com -all"']}
        for name, node in made.nodes.items():
            login = await trio.to_thread.run_sync(node.login)
            domain = (await made.request(name, "GET", "/v1/domains/example.com", login)).json()
            printed = await trio.to_thread.run_sync(
                command, node.config_file, "domain", "records", "demo", "example.com"
            )
            for records in (domain["records"], printed["records"]):
                values = [one["value"] for one in records if one["value"].startswith("v=spf1")]
                assert values == ["v=spf1 a:a.example.com a:b.example.com -all"], name
            _, printed, _ = await trio.to_thread.run_sync(ran, node.config_file, "doctor", "--json")
            (advised,) = [one for one in json.loads(printed)["findings"] if one["check"] == "spf"]
            assert [one["value"] for one in advised["records"]] == values, name
            checked = (await made.request(name, "POST", "/v1/domains/example.com/verify", login)).json()
            (spf,) = [one for one in checked["records"] if one["value"].startswith("v=spf1")]
            assert (spf["status"], spf["note"]) == (
                "differs",
                "it does not let b.example.com send: put a:b.example.com into it",
            )


async def test_a_node_that_was_suspended_for_a_moment_goes_on(tmp_path: Path, url: str) -> None:
    """Its lease has not expired, and no other has its mail; one whose lease has, unadopted, goes on too."""
    grey = grey_addresses(4)
    async with cluster(tmp_path, url, ("a",), delays("1s", "1s")) as made:
        server = await greylisting(made, grey)
        node = made.nodes["a"]
        assert node.process is not None
        sent = [await made.send_to("a", address) for address in grey]
        await made.tried(*sent)
        node.process.send_signal(signal.SIGSTOP)
        await trio.sleep(3)
        made.rows("UPDATE nodes SET lease_until = 0")
        node.process.send_signal(signal.SIGCONT)
        await made.final(*sent)
        await trio.sleep(0.5)  # the server notes a message after its answer
        assert arrivals(server) == Counter(dict.fromkeys(grey, 1))
        assert node.is_alive()
