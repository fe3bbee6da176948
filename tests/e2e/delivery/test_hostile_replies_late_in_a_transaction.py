"""Servers that behave until a message is on its way: whatever they say then is bounded, and a 250 once given counts."""

from pathlib import Path

from tests.e2e.delivery.test_hostile_replies_are_bounded import GROWTH, HOSTILE, resident
from tests.e2e.delivery.world import delays, world
from tests.fakes.mx import FakeMx

POINTS = {"RCPT": "rcpt", "DATA": "data", ".": "dot", "QUIT": "quit"}


def expected(point: str, name: str) -> str:
    """What becomes of a recipient: after its 250 nothing can take that back, before it nothing but a 250 counts."""
    return "delivered" if point == "QUIT" or (point, name) == (".", "early") else "deferred"


async def test_hostile_replies_late_in_a_transaction(tmp_path: Path) -> None:
    """Endless, huge, mixed and binary replies to RCPT, DATA, the message or QUIT: little memory, and all is decided."""
    one_each = "[delivery.pools.default]\nmessages_per_connection = 1"  # so that QUIT is said at once
    async with world(tmp_path, delays("1h"), one_each) as made:
        good = FakeMx()
        await made.domain("good.test", good)
        await made.final(await made.send("ada@good.test"))
        before, sent = resident(made), {}
        for point, label in POINTS.items():
            for name, answer in HOSTILE.items():
                domain = f"{name}-{label}.test"
                server = FakeMx(answers={point: answer})
                await made.domain(domain, server)
                sent[point, name] = (await made.send(f"ada@{domain}"), server)
        await made.tried(*(message for message, _ in sent.values()), within=40)
        await made.until(
            lambda: all("QUIT" in server.commands for (at, _), (_, server) in sent.items() if at == "QUIT")
        )
        for (point, name), (message, _) in sent.items():
            found = made.recipient(message)
            assert (found.status, found.attempts) == (expected(point, name), 1), f"{name} at {point}: {found}"
            assert len(found.response or "") <= 1_000, f"{name} at {point}"
        assert resident(made) - before < GROWTH
        await made.final(await made.send("ada@good.test"))
        assert len(good.messages) == 2
        assert made.complaints() == []
