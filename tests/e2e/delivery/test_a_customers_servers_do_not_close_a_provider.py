"""A customer whose MX records name a provider's hosts cannot close, hold or fill that provider's pool for others."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx
import pytest
import trio

from tests import engines
from tests.e2e.delivery.test_tls_is_used_and_recorded import context, trusted
from tests.e2e.delivery.world import CREDITS, SENDER, World, delays, world
from tests.fakes.mx import FakeMx, silence
from tests.running_appliance import NO_TLS, Provisioned, add_account

HONEST = 40
REFUSED = b"550 5.7.1 Your address is on our list\r\n"
GOOGLE = "aspmx.l.google.com"


@dataclass
class Installation:
    """A running program with an honest account and another one, in a world with Google in it."""

    world: World
    google: FakeMx
    script: dict[str, bytes]  # what Google answers
    honest: Provisioned
    other: Provisioned
    keys: "count[int]" = field(default_factory=count)

    async def send(self, sender: Provisioned, domain: str, most: int) -> list[str]:
        """So many messages of an account to a domain; their ids."""
        ids = []
        url = self.world.running.url
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30, verify=NO_TLS) as client:
            for number in range(most):
                to = [f"user{number}@{domain}"]
                body = {"from": SENDER, "to": to, "subject": "On its way", "text": "Hello.\n"}
                headers = {**sender.bearer, "Idempotency-Key": f"key {next(self.keys)}"}
                answer = await client.post("/emails", json=body, headers=headers)
                assert answer.status_code == 202, answer.text
                ids.append(str(answer.json()["id"]))
        return ids

    async def attack(self, serve: FakeMx, *, refused: int) -> None:
        """Mail to a domain with a silent Google host before its own, until that has refused so much."""
        await self.world.host("alt4.aspmx.l.google.com", None)
        await self.world.host("mx.evil.test", serve.serve)
        self.world.publish("evil.test", MX=["10 alt4.aspmx.l.google.com.", "20 mx.evil.test."])
        await self.send(self.other, "evil.test", 30)
        query = "SELECT count(*) FROM attempts WHERE mx_host = 'mx.evil.test'"
        await self.world.until(lambda: self.world.rows(query)[0][0] >= refused)

    def pools_of(self, *messages: str) -> set[str | None]:
        """The pools that the attempts at these messages count for."""
        return {attempt.pool for message in messages for attempt in self.world.attempts(message)}


@asynccontextmanager
async def installation(directory: Path, *, certificate: bool = True) -> AsyncIterator[Installation]:
    """Google's server has a certificate for its name, or no TLS."""
    authority, ca_file = trusted(directory)
    script: dict[str, bytes] = {}
    server = FakeMx(answers=script, tls=context(authority, GOOGLE) if certificate else None)
    async with world(directory, ca_file, delays("1h")) as made:
        other = await trio.to_thread.run_sync(lambda: add_account(made.running.data_dir, "other", credit=CREDITS))
        await made.host(GOOGLE, server.serve)
        for domain in ("gmail.test", "shop.test"):
            made.publish(domain, MX=[f"10 {GOOGLE}."])
        yield Installation(made, server, script, made.running.account, other)


@pytest.mark.parametrize("certificate", [True, False], ids=["certificate", "no TLS"])
@pytest.mark.parametrize("answer", [b"421 4.7.0 Slow down\r\n", REFUSED], ids=["421", "550"])
async def test_the_verdicts_of_a_customers_server_are_its_own(tmp_path: Path, answer: bytes, certificate: bool) -> None:
    """MX 10 at a Google host name where nothing listens, MX 20 his own server: 40 of 40 others' messages arrive."""
    async with installation(tmp_path, certificate=certificate) as made:
        await made.world.final(*await made.send(made.honest, "gmail.test", 1))
        await made.attack(FakeMx(answers={"RCPT": answer}), refused=1 if answer.startswith(b"421") else 10)
        honest = await made.send(made.honest, "gmail.test", HONEST)
        await made.world.final(*honest)
        assert len(made.google.messages) == 1 + HONEST
        assert made.pools_of(*honest) == {"google"}
        assert made.world.rows("SELECT DISTINCT pool FROM attempts WHERE mx_host = 'mx.evil.test'") == [("evil.test",)]
        assert made.world.rows(f"SELECT pool FROM {engines.automatic_holds()} WHERE pool = 'google'") == []


async def test_dead_hosts_take_no_slots(tmp_path: Path) -> None:
    """Thirty hosts named like Google's that accept and never greet, three hundred messages to them: 40 of 40 arrive."""
    async with installation(tmp_path) as made:
        await made.world.final(*await made.send(made.honest, "gmail.test", 1))
        dead = FakeMx(answers={"greeting": silence})
        for number in range(30):
            await made.world.host(f"alt{number}.aspmx.l.google.com", dead.serve)
            made.world.publish(f"evil{number}.test", MX=[f"10 alt{number}.aspmx.l.google.com."])
            await made.send(made.other, f"evil{number}.test", 10)
        await made.world.until(lambda: dead.sessions >= 60)
        honest = await made.send(made.honest, "gmail.test", HONEST)
        await made.world.final(*honest, within=5)
        assert len(made.google.messages) == 1 + HONEST
        assert dead.sessions == 60  # two at each, and not one more


async def test_refusals_count_as_far_as_they_reach(tmp_path: Path) -> None:
    """Google's own refusals of one account hold nothing; those of two hold the pool, until a probe is delivered."""
    holds = engines.automatic_holds()
    async with installation(tmp_path) as made:
        await made.world.final(*await made.send(made.honest, "gmail.test", 1))
        made.script["RCPT"] = REFUSED
        refused = await made.send(made.other, "shop.test", 10)
        await made.world.final(*refused)
        await trio.sleep(1)
        assert made.world.rows(f"SELECT * FROM {holds}") == []
        await made.world.final(*await made.send(made.honest, "gmail.test", 5))
        await made.world.until(lambda: made.world.rows(f"SELECT pool FROM {holds}") == [("google",)])
        made.script.clear()
        waiting = await made.send(made.honest, "gmail.test", 5)
        await trio.sleep(2.5)  # long enough for mail that does not heed the hold
        assert {made.world.recipient(message).status for message in waiting} == {"queued"}
        assert made.world.rows(f"UPDATE {holds} SET probe_at = 1 RETURNING pool") == [("google",)]  # time passes
        await made.world.final(*waiting)
        assert {made.world.recipient(message).status for message in waiting} == {"delivered"}
        assert made.world.rows(f"SELECT * FROM {holds}") == []
