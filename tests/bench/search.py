"""Measures the search by words: what its index costs senders, and how long queries take over a long history.

    python -m tests.bench.search [--messages 1000000] [--directory DIR]

Messages are accepted by the store itself, without HTTP, once while the indexer works through a history and once without
it, in turns: the ratio is what the index costs while it has something to do, of what accepting alone can do.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import trio
from msgspec.structs import replace

from appliance.environment import Environment
from appliance.message.search_words import query_words
from appliance.model.dashboard import MailFilter
from appliance.model.mail import RecipientOutcome
from appliance.store import Store, open_store
from tests.bench.listing import fill, timed
from tests.store.samples import Messages

SENDERS = 64
TURN = 3.0  # seconds
TURNS = 6  # of each kind
QUERIES = (
    "order",  # every message
    "user1",  # an eighth of the messages, each with a word of its own
    "u",
    "order user",
    "d7.example.net",
    "user77@d77.example.net",  # one message, of the oldest
    "queued 4711 order user7",
    "number 12345",
    "nothing",
    "order nothing",
    "u o d n 4 2 y s",
)


async def _accepted(store: Store, messages: Messages, *, indexing: bool) -> float:
    count = 0

    async def send() -> None:
        nonlocal count
        while True:
            await store.messages.accept(messages.new("ada@example.net", size=2_048))
            count += 1

    async def index() -> None:
        while True:
            await store.search_index.index_some()

    began = time.perf_counter()
    with trio.move_on_after(TURN):
        async with trio.open_nursery() as nursery:
            for _ in range(SENDERS):
                nursery.start_soon(send)
            if indexing:
                nursery.start_soon(index)
    return count / (time.perf_counter() - began)


async def run(data_dir: Path, count: int) -> None:
    env = Environment()
    async with open_store(data_dir, env) as store:
        account = await store.accounts.create("demo", "demo@example.org", "hash")
        sender = await store.accounts.create("sender", "sender@example.org", "hash")
    fill(data_dir, account.id, count)
    async with open_store(data_dir, env) as store:
        messages, rates = Messages(env, sender.id), {True: list[float](), False: list[float]()}
        await _accepted(store, messages, indexing=False)
        for _ in range(TURNS):
            for indexing in (False, True):
                rates[indexing].append(await _accepted(store, messages, indexing=indexing))
        without, beside = median(rates[False]), median(rates[True])
        print(f"accepted a second: {without:.0f} without, {beside:.0f} beside the indexer: {beside / without:.3f}")
        store.search_index = replace(store.search_index, share=1.0)
        began = time.process_time()
        while await store.search_index.index_some():
            pass
        print(f"indexed with {1e6 * (time.process_time() - began) / count:.0f} µs of CPU a message")
        wanted = {query: MailFilter(words=query_words(query)) for query in QUERIES}
        wanted["outcome=bounced (none)"] = MailFilter(outcome=RecipientOutcome.BOUNCED)
        wanted["recipient, the oldest"] = MailFilter(recipient="user1@d1.example.net")
        for what, each in wanted.items():

            async def first_page(each: MailFilter = each) -> str:
                page = await store.mail_log.page(account.id, each, None, 50)
                return f"{len(page.messages)} found" + (", goes on" if page.next else "")

            await timed(what, first_page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--directory", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as directory:
        trio.run(run, Path(directory), given.messages)


if __name__ == "__main__":
    main()
