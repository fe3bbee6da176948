"""The way of a message, from the socket it comes in by to the post of its webhook, can be read in a sitting."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.call_watch import calls, program
from tests.e2e.delivery.world import World, world
from tests.fakes.mx import FakeMx
from tests.fakes.webhook_server import hooks

pytestmark = pytest.mark.sqlite_only

MOST = 51  # files in which anything is called for every message, by any task; two of them for the ramp
MESSAGES = 5  # a file that is called for some of them alone is of a task that runs now and then
HOUSEKEEPING = {"store/request_log.py", "store/sqlite/file_care.py"}  # run every second
# Records, units, logs and counters: the trace in docs/architecture.md leaves them out, too.
LEAVES = {"environment.py", "errors.py", "model/accounts.py", "model/mail.py", "model/webhooks.py", "times.py"}
LEAVES |= {"telemetry/log.py", "telemetry/metrics.py"}
LEAVES |= {"intake/request_log.py"}


async def by_http(made: World) -> None:
    await made.send("ada@example.net")


async def by_smtp(made: World) -> None:
    await made.submit("ada@example.net", b"From: a@example.com\r\n\r\nHello.\r\n", "a@example.com")


@pytest.mark.parametrize("send", [by_http, pytest.param(by_smtp, marks=pytest.mark.slow)])
async def test_a_message_passes_few_files(tmp_path: Path, send: Callable[[World], Awaitable[None]]) -> None:
    """Accepted, stored, signed, delivered, recorded and posted: all of it in few files."""
    watch = str(tmp_path / "watch")
    with hooks(tmp_path) as receiver, pytest.MonkeyPatch.context() as patch:
        patch.setenv("WATCH_SOCKET", watch)
        webhooks = f"[webhooks]\n{receiver.settings(tmp_path)}"
        async with world(tmp_path, server=webhooks, program=program()) as made:
            with made.running.client(headers=made.running.login()) as client:
                client.put("/v1/webhook", json={"url": receiver.url("/")}).raise_for_status()
            await made.domain("example.net", FakeMx())
            files: set[str] | None = None
            for number in range(1, MESSAGES + 2):
                await send(made)
                await made.until(lambda number=number: len(receiver.posts) == number)  # type: ignore[misc]  # a default in a lambda
                called = calls(watch).files
                if number > 1:  # what is looked up once for all was looked up for the first
                    files = called if files is None else files & called
    assert files is not None
    files -= HOUSEKEEPING | LEAVES
    assert {"store/sqlite/engine.py", "deliver/scheduler.py", "webhook/post.py"} <= files, files
    assert len(files) <= MOST, "\n".join([str(len(files)), *sorted(files)])


async def test_a_large_message_is_read_and_shortened_off_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = str(tmp_path / "watch")
    monkeypatch.setenv("WATCH_SOCKET", watch)
    decode, shortened = ("message/request.py", "decode"), ("intake/request_log.py", "shortened")
    async with world(tmp_path, program=program()) as made:
        for size, places in ((100, ({decode}, set())), (100_000, (set(), {decode, shortened}))):
            calls(watch)
            await made.send("ada@example.net", text="a" * size)
            assert tuple(called & {decode, shortened} for called in calls(watch)) == places
