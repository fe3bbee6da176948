"""`appliance setup` beside a running server: it waits for the records, and tells what became of its test message."""

import json
from pathlib import Path
from typing import Any

import trio

from tests.e2e.delivery.world import world
from tests.fakes.dns import zone_text
from tests.fakes.mx import FakeMx
from tests.running_appliance import Running, ran


def set_up(running: Running, *more: str) -> tuple[int, dict[str, Any]]:
    code, output, _ = ran(running.config_file, "setup", "--domain", "shop.example", "--json", *more)
    return code, json.loads(output)


async def test_it_ends_with_a_message_that_arrives(tmp_path: Path) -> None:
    """The records are published while it waits; then DNS is right, and the message is at its server, signed."""
    async with world(tmp_path) as made:
        mx = FakeMx()
        await made.domain("good.test", mx)
        made.publish("mail.example.com", A=["192.0.2.25"])
        code, first = await trio.to_thread.run_sync(set_up, made.running)
        assert (code, first["account"], first["dns_ok"], first["test"]) == (0, "demo", False, None)

        async def publish() -> None:
            await trio.sleep(0.5)
            for each in first["records"]:
                made.publish(each["name"], TXT=[zone_text(each["value"])])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            wanted = ("--wait", "--timeout", "120", "--to", "ada@good.test")
            code, done = await trio.to_thread.run_sync(lambda: set_up(made.running, *wanted))
        assert {each["status"] for each in done["records"]} == {"ok"}
        assert (code, done["dns_ok"], done["test"]["status"]) == (0, True, "delivered")
        (got,) = mx.messages
        assert got.data.count(b"d=shop.example;") == 2
        assert (done["key"], done["zone"]) == (None, first["zone"])
