"""How fast events are posted, against httpx on Trio; and what a dead receiver costs the delivery of mail.

    .venv/bin/python -m tests.bench.webhooks                    # both
    .venv/bin/python -m tests.bench.webhooks --only posts       # to one HTTPS receiver, against httpx on Trio
    .venv/bin/python -m tests.bench.webhooks --only dead        # needs `apt-get install postfix`, for its smtp-sink

Posts: the real program is started with events waiting, and posts them to a receiver in a process of its own, signed and
recorded one by one on disk. The peer posts the same bodies with httpx on kept connections, as many at once, and does
nothing else. Dead: mail is delivered as in `tests.bench.deliver`, once with nothing else to do and once beside another
account's 100,000 events for a receiver where nothing listens. Rounds alternate.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import trio
import trustme

from appliance.webhook.receivers import POSTS_PER_RECEIVER
from tests.bench.deliver import CREDITS, SESSIONS, appliance, measure, resident, send_over_http, sink
from tests.bench.posts import BODY, fill_posts
from tests.bench.receiver import ADDRESS
from tests.ports import free_port
from tests.running_appliance import Running, add_account
from tests.running_appliance import appliance as sandbox

WITHIN = 120.0  # seconds a round may take
PENDING = 100_000


@dataclass
class Receiver:
    """The receiver's process, and how many posts have come there."""

    url: str
    authority: Path
    process: subprocess.Popen[str]
    seen: tuple[int, float] = (0, 0.0)  # how many, and when the last of them came
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def settings(self) -> str:
        port = self.url.rpartition(":")[2].rstrip("/")
        return f'allow_networks = ["127.0.0.0/8"]\nports = [{port}]\nca_file = "{self.authority}"'

    def watch(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            count, at = line.split()
            with self._changed:
                self.seen = int(count), float(at)
                self._changed.notify_all()

    def wait_until(self, count: int) -> tuple[int, float]:
        """Wait for so many posts in all; how many there are then, and when the last of them came."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.seen[0] >= count, WITHIN):
                raise RuntimeError(f"{self.seen[0]} of {count} posts came")
            return self.seen


@contextmanager
def receiver(directory: Path) -> Iterator[Receiver]:
    authority, certificate = trustme.CA(), directory / "receiver.pem"
    authority.cert_pem.write_to_path(directory / "authority.pem")
    authority.issue_cert(ADDRESS).private_key_and_cert_chain_pem.write_to_path(certificate)
    command = [sys.executable, "-m", "tests.bench.receiver", str(certificate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        made = Receiver(f"https://{ADDRESS}:{port}/", directory / "authority.pem", process)
        threading.Thread(target=made.watch, daemon=True).start()
        try:
            yield made
        finally:
            process.kill()


# ---- posts against httpx


def our_posts(there: Receiver, directory: Path, count: int) -> float:
    account = add_account(directory / "data", "demo")
    fill_posts(directory / "data", account.account_id, there.url, count)
    before = there.seen[0]
    with sandbox(directory, webhooks=there.settings(), account=account, fresh=True) as running:
        warm, began = there.wait_until(before + count // 10)
        end, ended = there.wait_until(before + count)
        assert running.complaints() == [], running.complaints()[:3]
    return (end - warm) / (ended - began)


def their_posts(there: Receiver, count: int) -> float:
    before = there.seen[0]

    async def post_all() -> None:
        left = iter(range(count))
        limits = httpx.Limits(max_connections=POSTS_PER_RECEIVER, max_keepalive_connections=POSTS_PER_RECEIVER)
        context = httpx.create_ssl_context(verify=str(there.authority))
        headers = {"Content-Type": "application/json", "User-Agent": "Service-Webhook/1.0"}

        async with httpx.AsyncClient(verify=context, limits=limits, headers=headers, trust_env=False) as client:

            async def post() -> None:
                for _ in left:
                    (await client.post(there.url, content=BODY)).raise_for_status()

            async with trio.open_nursery() as nursery:
                for _ in range(POSTS_PER_RECEIVER):
                    nursery.start_soon(post)

    began = time.perf_counter()
    trio.run(post_all)
    return count / (there.wait_until(before + count)[1] - began)


def compare_posts(rounds: int, count: int) -> None:
    rates: dict[str, list[float]] = {"appliance, signed and recorded": [], "httpx on Trio": []}
    ours, theirs = rates.values()
    with tempfile.TemporaryDirectory() as made, receiver(Path(made)) as there:
        for number in range(rounds):
            print(f"\rposts: round {number + 1} of {rounds}", end="", flush=True)
            with tempfile.TemporaryDirectory() as directory:
                ours.append(our_posts(there, Path(directory), count))
            theirs.append(their_posts(there, count // 4))
    tell(rates, "posts/s")
    print(f"ratio: {statistics.median(ours) / statistics.median(theirs):.2f} (wanted: 2.0)\n")


# ---- a dead receiver


@contextmanager
def mail_server(sink_port: int, directory: Path, pending: int) -> Iterator[Running]:
    """The real program delivering mail, with so many events for a receiver where nothing listens."""
    account = add_account(directory / "data", "demo", credit=CREDITS)
    dead = free_port()
    if pending:
        other = add_account(directory / "data", "other", domain="example.org")
        fill_posts(directory / "data", other.account_id, f"https://{ADDRESS}:{dead}/", pending)
    settings = f'allow_networks = ["127.0.0.0/8"]\nports = [{dead}]'
    with appliance(sink_port, directory, account, webhooks=settings) as running:
        yield running


def cost_of_a_dead_receiver(rounds: int, messages: int) -> None:
    """Alternate delivery with and without the pending posts, and tell what they cost in speed and memory."""
    sides = {"nothing pending": 0, f"{PENDING:,} pending": PENDING}
    rates: dict[str, list[float]] = {side: [] for side in sides}
    memory: dict[str, list[int]] = {side: [] for side in sides}
    with sink() as there:
        for number in range(rounds):
            for side, pending in sides.items():
                print(f"\rdead receiver: round {number + 1} of {rounds}", end="", flush=True)
                with tempfile.TemporaryDirectory() as made, mail_server(there.port, Path(made), pending) as running:
                    send = partial(send_over_http, running)
                    measure(there, send, SESSIONS * 25)
                    rates[side].append(measure(there, send, messages))
                    memory[side].append(resident(running))
    tell(rates, "messages/s")
    without, with_them = (statistics.median(seen) for seen in rates.values())
    more = max(memory[f"{PENDING:,} pending"]) - min(memory["nothing pending"])
    print(f"cost: {100 * (1 - with_them / without):.1f} % (wanted: < 5), {more / 2**20:.0f} MB (wanted: < 50)\n")


def tell(rates: dict[str, list[float]], unit: str) -> None:
    print("\r", end="")
    for side, seen in rates.items():
        spread = f"{min(seen):,.0f} to {max(seen):,.0f}"
        print(f"{side:<34}{statistics.median(seen):>8,.0f} {unit}  ({spread})")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=["posts", "dead"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--posts", type=int, default=10_000, help="in one round")
    parser.add_argument("--messages", type=int, default=3_000, help="in one round, a multiple of 20")
    options = parser.parse_args()
    if options.only != "dead":
        compare_posts(options.rounds, options.posts)
    if options.only != "posts":
        cost_of_a_dead_receiver(options.rounds, options.messages)


if __name__ == "__main__":
    main()
