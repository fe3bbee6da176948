"""How long mail to healthy servers takes while one account has sessions with slow or silent servers, against without.

    .venv/bin/python -m tests.bench.slow_servers                          # 400 and 2,000 sessions with silent servers
    .venv/bin/python -m tests.bench.slow_servers --slowness dripping      # one byte a second; or "black hole"

All mail is of the same account. `delivery.sessions` is a quarter more than the slow sessions, which take four fifths.
A message is sent every so often to a healthy server, by turns one that is known and one that is new. What counts is
the time from the request to the recorded delivery. The slow servers, the DNS and the client are one process of Python
beside the program, so the p99 without slow sessions has their cost in it, too.
"""

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio

from tests.bench.figures import Figure
from tests.e2e.delivery.slow_servers import Slowness, latencies, send_to_all, slow_domains
from tests.e2e.delivery.world import world
from tests.fakes.mx import FakeMx

SLOW_SESSIONS = (400, 2_000)
WANTED = 1.0  # seconds: the p99
WANTED_RATIO = 3.0  # times the p99 without slow sessions
MESSAGES = 100  # of a round
SETTLED = 2.0  # seconds after which sessions with servers that say nothing count as slow


async def p99s(slowness: Slowness, sessions: int, messages: int) -> tuple[float, float, int]:
    """The p99 without and with so many slow sessions, in seconds; and how many the servers have seen."""
    with tempfile.TemporaryDirectory() as directory:
        async with (
            world(Path(directory), f"sessions = {sessions * 5 // 4}", fresh=True) as made,
            slow_domains(made, slowness, sessions) as (slow, tarpit),
        ):
            server, new = FakeMx(), [f"new{number}.test" for number in range(messages)]
            for domain in ("known.test", *new):
                await made.domain(domain, server)
            half = messages // 2
            mixed = [[name for domain in new[at : at + half] for name in (domain, "known.test")] for at in (0, half)]
            alone = await latencies(made, mixed[0])
            await send_to_all(made, slow)
            await trio.sleep(SETTLED)
            beside = await latencies(made, mixed[1])
            return alone[len(alone) * 99 // 100], beside[len(beside) * 99 // 100], tarpit.open


def figures(messages: int, told: Callable[[str], None]) -> list[Figure]:
    """Two for each number of sessions with silent servers: the p99, and its ratio to that without them."""
    rows = []
    for sessions in SLOW_SESSIONS:
        told(f"{sessions:,} sessions with silent servers")
        alone, beside, _ = trio.run(partial(p99s, Slowness.SILENT, sessions, messages))
        name = f"same account's p99 beside {sessions:,} silent servers"
        rows.append(Figure(name, "s", beside, WANTED))
        rows.append(Figure(name, "s", beside, WANTED_RATIO, alone, "without them"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slowness", type=Slowness, choices=list(Slowness), default=Slowness.SILENT)
    parser.add_argument("--sessions", type=int, nargs="*", default=SLOW_SESSIONS, help="slow ones that are wanted")
    parser.add_argument("--messages", type=int, default=MESSAGES, help="of a round")
    options = parser.parse_args()
    for sessions in options.sessions:
        alone, beside, seen = trio.run(partial(p99s, options.slowness, sessions, options.messages))
        print(
            f"{sessions:>6,} {options.slowness} wanted, {seen:,} open: p99 {beside:.3f} s, without {alone:.3f} s,"
            f" x {beside / alone:.1f} (wanted: at most {WANTED:g} s)",
            flush=True,
        )


if __name__ == "__main__":
    main()
