"""What concerns one node of several: servers that refuse it alone, its addresses, its drain by an administrator."""

from functools import partial
from pathlib import Path
from typing import Any

import trio

from appliance.model.accounts import Role
from appliance.store.postgresql.nodes import BEAT
from tests.e2e.dashboard.browser import chromium
from tests.e2e.delivery.world import delays
from tests.e2e.nodes.cluster import Cluster, cluster
from tests.fakes.mx import FakeMx
from tests.running_appliance import Running, command

REFUSED = b"550 5.7.1 Your address is on our list\r\n"
LATER = b"450 4.2.1 busy\r\n"
OK = b"250 2.1.5 ok\r\n"
FAULTS = 10
UNHEEDED = 2.5  # seconds in which mail that does not heed a hold would have gone
BUSY: dict[str, int | None] = {"in_use": None, "allowed": None}  # a pool that becomes idle between two questions
ADDRESS = "192.0.1.5"  # public, of no machine of ours


async def shell(made: Cluster, node: str, *words: str) -> Any:
    return await trio.to_thread.run_sync(partial(command, made.nodes[node].config_file, *words))


def queued(made: Cluster, message_id: str) -> bool:
    found = made.recipient(message_id)
    return (found.status, found.attempts) == ("queued", 0)


async def test_a_node_that_servers_refuse_holds_its_own_mail(tmp_path: Path, url: str) -> None:
    """The other delivers on, and what it takes over; the hold outlives a crash and ends for all by one command."""
    refused = [f"a{number}@hostile.test" for number in range(FAULTS)]
    server = FakeMx(answers={f"RCPT {address}": REFUSED for address in refused})
    settings = (delays("1h"), "[delivery.pools.default]", "concurrency = 1")
    async with cluster(tmp_path, url, ("a", "b"), *settings, role=Role.ADMIN) as made:
        await made.domain("hostile.test", server)
        await made.final(*[await made.send_to("a", address) for address in refused])
        await made.until(lambda: made.rows("SELECT pool, node FROM node_holds") == [("hostile.test", "a")])
        await made.until(lambda: made.rows("SELECT pool FROM destinations") == [("hostile.test",)])  # written later
        held = await made.send_to("a", "held@hostile.test")
        await made.final(await made.send_to("b", "b@hostile.test"))
        await _it_is_told(made, held)
        await trio.to_thread.run_sync(_it_is_shown, made.nodes["b"])
        node = made.nodes["a"]
        node.kill()
        await trio.to_thread.run_sync(node.start)
        await trio.sleep(UNHEEDED)
        assert queued(made, held)
        assert await trio.to_thread.run_sync(node.terminate) == 0  # its mail is the other's now
        await made.final(held)
        await trio.to_thread.run_sync(node.start)
        again = await made.send_to("a", "again@hostile.test")
        await trio.sleep(UNHEEDED)
        assert queued(made, again)
        told = await shell(made, "b", "queue", "resume", "hostile.test")
        assert (told["pool"], told["held"], told["was_held"]) == ("hostile.test", False, True)
        assert {each["kind"] for each in told["lifted"]} == {"hold"}
        await made.final(again)
        delivered = {address for message in server.messages for address in message.recipients}
        assert delivered == {"held@hostile.test", "b@hostile.test", "again@hostile.test"}


async def _it_is_told(made: Cluster, held: str) -> None:
    """By the command line and the API of either node, with the name of the one that holds."""
    admin = await trio.to_thread.run_sync(made.nodes["a"].login)
    for node in made.nodes:
        (pool,) = (await shell(made, node, "queue", "show"))["pools"]
        (answered,) = (await made.request(node, "GET", "/v1/admin/queue", headers=admin)).json()["pools"]
        assert {**answered, **BUSY} == {**pool, **BUSY}
        (hold,) = pool["held_by"]
        assert (hold["node"], hold["held_because"], hold["held_at"]) == ("a", pool["held_because"], pool["held_at"])
        assert pool["waiting"] == 1
        (recipient,) = (await shell(made, node, "explain", held))["recipients"]
        assert "pool hostile.test is held by node a: " in recipient["explanation"]


def _it_is_shown(other: Running) -> None:
    with chromium(other.url) as browser:
        browser.log_in(other.account.email)
        browser.go("Admin")
        row = browser.one("//tbody/tr[contains(., 'hostile.test')]").text
        assert "held" in row
        assert "by node a: " in row
        nodes = browser.one("//section[h2='Nodes']").text
        assert nodes.count("running") == 2


async def test_a_node_is_no_target_and_is_drained_by_an_administrator(tmp_path: Path, url: str) -> None:
    """Mail and events for its address are refused on the other; then it hands over what waits, and ends."""
    grey = [f"grey@g{number}.test" for number in range(4)]
    server = FakeMx(answers={f"RCPT {address}": [LATER, OK] for address in grey})
    own = {"b": f'own_addresses = ["{ADDRESS}"]'}
    async with cluster(tmp_path, url, ("a", "b"), delays("3s", "3s"), own=own, role=Role.ADMIN) as made:
        admin = await trio.to_thread.run_sync(made.nodes["a"].login)
        for address in grey:
            await made.domain(address.partition("@")[2], server)
        await trio.sleep(2 * BEAT + 0.5)
        await _its_address_is_refused(made, admin)
        sent = [await made.send_to("b", address) for address in grey]
        await made.tried(*sent)
        assert made.owners() == {"b"}
        answer = await made.request("a", "POST", "/v1/admin/nodes/b/drain", headers=admin)
        assert (answer.status_code, answer.json()["name"], answer.json()["draining"]) == (202, "b", True)
        assert await trio.to_thread.run_sync(made.nodes["b"].wait) == 0
        await made.final(*sent)
        assert {made.recipient(message).status for message in sent} == {"delivered"}
        listed = (await made.request("a", "GET", "/v1/admin/nodes", headers=admin)).json()["nodes"]
        assert {each["name"]: each["state"] for each in listed} == {"a": "running", "b": "ended"}
        assert made.all_complaints() == []


async def _its_address_is_refused(made: Cluster, token: dict[str, str]) -> None:
    for name in ("loop.test", "hooks.loop.test"):
        made.publish(name, A=[ADDRESS])
    loop = await made.send_to("a", "ada@loop.test")
    await made.final(loop)
    found = made.recipient(loop)
    assert (found.status, found.response) == (
        "bounced",
        "5.4.6 the best mail server of loop.test is this machine: mail would loop",
    )
    answer = await made.request("a", "PUT", "/v1/webhook", headers=token, json={"url": "https://hooks.loop.test/"})
    assert answer.status_code == 400
    assert "one is an address of this machine" in answer.text
