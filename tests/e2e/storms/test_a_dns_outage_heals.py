"""A resolver that is down for a while (threats.md 26): mail waits, and goes on by itself, without a burst."""

from pathlib import Path

import pytest

from tests.e2e.delivery.world import CREDITS, delays, world
from tests.e2e.storms.crowd import Crowd
from tests.fakes.dns import Trouble
from tests.fakes.mx import FakeMx

SLOTS = 3  # of every pool
DOMAINS = 5
MESSAGES = 30
POOLS = f"[delivery.pools.default]\nconcurrency = {SLOTS}"


@pytest.mark.parametrize("outage", [Trouble.SERVFAIL, Trouble.SILENCE])
async def test_mail_waits_for_the_resolver(tmp_path: Path, outage: Trouble) -> None:
    """All of it is accepted, none bounces, each domain is asked for now and then, and then all is delivered, once."""
    crowd = Crowd()
    server = FakeMx(answers={".": crowd})
    names = [f"domain{number}.test" for number in range(DOMAINS)]
    async with world(tmp_path, delays("2s", "2s", "2s", "2s", "2s"), POOLS) as made:
        await made.host("mx.test", server.serve)
        for name in names:
            made.publish(name, MX=["10 mx.test."])
        made.dns.outage = outage
        sent = [await made.send(f"user{number}@{names[number % DOMAINS]}") for number in range(MESSAGES)]
        await made.until(lambda: sum(made.dns.count(name, "MX") for name in names) >= DOMAINS)
        assert {each.status for message in sent for each in made.recipients(message).values()} <= {"queued", "deferred"}
        asked_before = max(made.dns.count(name, "MX") for name in names)
        assert asked_before < MESSAGES
        made.dns.outage = None
        await made.final(*sent)
        assert {made.status(message) for message in sent} == {"delivered"}
        assert sum(command == "DATA" for command in server.commands) == MESSAGES
        assert max(made.dns.count(name, "MX") for name in names) - asked_before < MESSAGES / DOMAINS
        assert crowd.most <= SLOTS
        assert made.credits() == CREDITS - MESSAGES
