"""Servers that mean harm: whatever they say, memory and time are bounded and the failure is a temporary one."""

from pathlib import Path

from tests.e2e.delivery.world import World, delays, world
from tests.fakes.mx import Answer, FakeMx, endless, say_and_hang_up

GROWTH = 60 * 2**20  # bytes the process may grow by while it talks to them


def resident(made: World) -> int:
    assert made.running.process is not None
    status = Path(f"/proc/{made.running.process.pid}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


HOSTILE: dict[str, Answer] = {
    "endless": endless(b"250-again and again\r\n" * 100),
    "one-line": endless(b"2" * 65_536),
    "huge": say_and_hang_up(b"250 " + b"x" * 50_000_000 + b"\r\n"),
    "mixed": b"250-fine\r\n550 not fine\r\n",
    "binary": bytes(range(256)) * 40 + b"\r\n",
    "early": b"250 2.1.0 ok\r\n250 2.1.5 ok\r\n354 go\r\n250 2.0.0 queued\r\n",
    "zero": b"000 nothing\r\n",
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


async def test_hostile_replies_are_bounded(tmp_path: Path) -> None:
    """Endless, huge, mixed and binary replies at three points: deferred each, little memory, and others are served."""
    async with world(tmp_path, delays("1h"), fresh=True) as made:
        good = FakeMx()
        await made.domain("good.test", good)
        await made.final(await made.send("ada@good.test"))
        before = resident(made)
        sent = {}
        for point in ("greeting", "EHLO", "MAIL"):
            for name, answer in HOSTILE.items():
                domain = f"{name}-{point.lower()}.test"
                await made.domain(domain, FakeMx(answers={point: answer}))
                sent[domain] = await made.send(f"ada@{domain}")
        await made.tried(*sent.values(), within=30)
        for domain, message in sent.items():
            found = made.recipient(message)
            assert found.status == "deferred", domain
            (attempt,) = made.attempts(message)
            assert len(attempt.response or "") <= 1_000, domain
            assert len(str(attempt.dialogue)) < 64 * 1024, domain
        assert resident(made) - before < GROWTH
        after = await made.send("ada@good.test")
        await made.final(after)
        assert made.complaints() == []
