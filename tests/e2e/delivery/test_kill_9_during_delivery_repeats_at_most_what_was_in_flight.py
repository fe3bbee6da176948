"""Thirty times `kill -9` amid deliveries: nothing is lost, and sent again is only what was in flight at a kill.

In flight is a message that the server has taken and of which the database of the dead program does not say so. For
each of the pool's sessions that is the transaction it carries, and at most one more: the commit of the one before it.
"""

import json
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from tests.e2e.delivery.witness import Taken, Witness
from tests.e2e.delivery.world import CREDITS, SENDER, World, delays, world
from tests.e2e.raw import Answer, Client, bearer, request, sending
from tests.restarted_appliance import often_started

WORLDS = 2  # side by side, since a restart keeps one processor busy
ROUNDS = 15  # in each
CONCURRENCY = 4  # SMTP sessions of the pool
FASTEST, SLOWEST = 0.02, 0.12  # seconds in which the server answers a message
PAUSE = 0.015  # seconds between two requests: somewhat more mail than the server can take
LONGEST = 0.8  # seconds of delivery before a kill
FINAL_WITHIN = 40.0  # seconds for what is left after the last restart


@dataclass(frozen=True)
class Wanted:
    """A message that its sender wants to get through, however often it has to ask."""

    key: str
    recipients: tuple[str, ...]


@dataclass
class Customer:
    """Who sends: what was accepted (its id by key), and what has no answer."""

    made: World
    choose: random.Random
    all: dict[str, Wanted] = field(default_factory=dict)
    accepted: dict[str, str] = field(default_factory=dict)
    unknown: list[Wanted] = field(default_factory=list)

    def new(self) -> Wanted:
        """A message not sent yet, for one or two recipients."""
        number = len(self.all)
        count = self.choose.choice((1, 1, 1, 2))
        wanted = Wanted(f"key {number}", tuple(f"user{number}.{each}@slow.test" for each in range(count)))
        self.all[wanted.key] = wanted
        return wanted

    def send(self, client: Client, wanted: Wanted) -> None:
        """Send it; raises when the program is gone."""
        body = {"from": SENDER, "to": wanted.recipients, "subject": wanted.key, "text": f".\n<{wanted.key}>\n.\n"}
        wire = request("POST", "/emails", *sending(self.made.running, wanted.key), body=json.dumps(body).encode())
        try:
            client.send(wire)
            answer = client.answer()
        except OSError:
            self.unknown.append(wanted)
            raise
        assert answer.status == 202, answer.body
        assert self.accepted.setdefault(wanted.key, answer.json()["id"]) == answer.json()["id"], "accepted twice"

    def send_until_killed(self) -> None:
        """What happens in a round, in a thread of its own."""
        try:
            with Client(self.made.running.url) as client:
                while True:
                    self.send(client, self.new())
                    time.sleep(PAUSE)
        except OSError:
            return

    def retry(self) -> None:
        """Ask again, under the same keys, for what has no answer."""
        waiting, self.unknown = self.unknown, []
        with Client(self.made.running.url) as client:
            for wanted in waiting:
                self.send(client, wanted)

    def poll(self) -> dict[str, Answer]:
        """What is said of every message, by key."""
        told, running = {}, self.made.running
        with Client(running.url) as client:
            for key, message_id in self.accepted.items():
                client.send(request("GET", f"/emails/{message_id}", bearer(running)))
                told[key] = client.answer()
        return told


@dataclass(frozen=True)
class Killed:
    """A kill, as the server and the database saw it."""

    transactions: int  # begun until then
    in_flight: frozenset[Taken]  # what may have to be sent again


async def one_round(customer: Customer, server: Witness, choose: random.Random, before: int) -> Killed:
    """Send and deliver for a while, and kill it while something is under way; so many were begun before its start."""
    made, begun = customer.made, len(server.transactions)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, customer.send_until_killed)
        await made.until(lambda: len(server.transactions) > begun)
        await trio.sleep(choose.uniform(0.0, LONGEST))
        await made.until(lambda: bool(server.open))
        made.running.kill()
    await made.until(lambda: not server.sessions)  # what it has got it takes, though its answer is lost
    taken = [each for each in server.transactions[before:] if each.data]
    recorded = {address for (address,) in made.rows("SELECT address FROM recipients WHERE status = 'delivered'")}
    return Killed(
        len(server.transactions), frozenset(each for each in taken if not recorded.issuperset(each.recipients))
    )


def copies(taken: Sequence[Taken]) -> dict[tuple[str, ...], list[Taken]]:
    """What came, by the recipients, which are different for each message; in the order in which it came."""
    found: dict[tuple[str, ...], list[Taken]] = defaultdict(list)
    for each in taken:
        found[tuple(sorted(each.recipients))].append(each)
    return found


def check_each_message(server: Witness, customer: Customer) -> None:
    """Every message is there for exactly its recipients, and all copies of one are the same but for the signatures."""
    found = copies(server.taken)
    assert sorted(found) == sorted(tuple(sorted(wanted.recipients)) for wanted in customer.all.values())
    for wanted in customer.all.values():
        first, *others = found[tuple(sorted(wanted.recipients))]
        assert first.data.endswith(f"\r\n\r\n.\r\n<{wanted.key}>\r\n.\r\n".encode())
        for other in others:
            assert other.message_id == first.message_id
            assert other.unsigned == first.unsigned
    assert len({each.message_id for each in server.taken}) == len(customer.all)


def check_each_repeat(server: Witness, kills: Sequence[Killed]) -> int:
    """Whatever came again had been in flight at a kill between the two, and no kill cost more than that; how many."""
    begun = {each: number for number, each in enumerate(server.transactions)}
    cost = [0] * len(kills)
    for came in copies(server.taken).values():
        for earlier, later in pairwise(came):
            guilty = [
                number
                for number, killed in enumerate(kills)
                if begun[earlier] < killed.transactions <= begun[later] and earlier in killed.in_flight
            ]
            assert guilty, f"{later.recipients} was sent again, though it was not in flight at any kill"
            cost[guilty[0]] += 1
    for repeats, killed in zip(cost, kills, strict=True):
        assert repeats <= len(killed.in_flight) <= 2 * CONCURRENCY
    return sum(cost)


def check_what_is_said(customer: Customer) -> None:
    """Polling says delivered for every message and recipient, and each recipient has cost one credit."""
    for key, answer in customer.poll().items():
        told, recipients = answer.json(), customer.all[key].recipients
        assert (told["status"], told["billing_status"]) == ("delivered", "settled")
        assert sorted(each["email"] for each in told["recipients"]) == sorted(recipients)
        assert {each["status"] for each in told["recipients"]} == {"delivered"}
    assert customer.made.credits() == CREDITS - sum(len(wanted.recipients) for wanted in customer.all.values())


async def rounds(directory: Path, seed: int, repeated: list[int]) -> None:
    """One world's kills, and what must hold after them."""
    choose = random.Random(seed)

    async def think() -> None:
        await trio.sleep(choose.uniform(FASTEST, SLOWEST))

    server = Witness(think)
    pool = f"[delivery.pools.default]\nconcurrency = {CONCURRENCY}"
    async with world(directory, delays("1s", "1s", "1s"), pool) as made:
        await made.host("mx0.slow.test", server.serve)
        made.publish("slow.test", MX=["10 mx0.slow.test."])
        customer, kills = Customer(made, random.Random(seed)), list[Killed]()
        plain = made.running
        plain.kill()
        with often_started(plain) as made.running:
            for _ in range(ROUNDS):
                await made.start()
                await trio.to_thread.run_sync(customer.retry)
                kills.append(await one_round(customer, server, choose, kills[-1].transactions if kills else 0))
        made.running = plain
        await made.start()
        await trio.to_thread.run_sync(customer.retry)
        await made.until(lambda: not made.unfinished(), FINAL_WITHIN)
        await trio.to_thread.run_sync(check_what_is_said, customer)
        assert made.complaints() == []
        assert len(customer.accepted) == len(customer.all) > 5 * ROUNDS
        assert server.most_open <= CONCURRENCY
        check_each_message(server, customer)
        repeated.append(check_each_repeat(server, kills))


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_kill_9_during_delivery_repeats_at_most_what_was_in_flight(tmp_path: Path) -> None:
    """After thirty kills every accepted message has arrived, each repeat was in flight at a kill, credits are exact."""
    repeated: list[int] = []
    directories = [tmp_path / f"world {number}" for number in range(WORLDS)]
    for directory in directories:
        directory.mkdir()
    async with trio.open_nursery() as nursery:
        for seed, directory in enumerate(directories):
            nursery.start_soon(rounds, directory, seed, repeated)
    assert len(repeated) == WORLDS
    assert sum(repeated) > 0  # else the kills came when there was nothing to lose
