"""A rotation of DKIM keys beside a running server: at every moment DNS shows the keys of what is sent."""

from pathlib import Path
from typing import Any

import trio

from tests.e2e.delivery.verifier import signatures, verifies
from tests.e2e.delivery.world import World, world
from tests.fakes.dns import zone_text
from tests.fakes.mx import FakeMx
from tests.running_appliance import command


async def domain_command(made: World, verb: str) -> list[dict[str, str]]:
    """The records that a command about the sender's domain answers with."""
    account, config = made.running.account, made.running.config_file
    answer = await trio.to_thread.run_sync(command, config, "domain", verb, account.name, account.domain)
    found: list[dict[str, str]] = answer["records"]
    return found


async def verified(made: World) -> list[dict[str, Any]]:
    """The records of the sender's domain after the check of the dashboard."""
    answer = await made.ask("POST", f"/v1/domains/{made.running.account.domain}/verify")
    found: list[dict[str, Any]] = answer.raise_for_status().json()["records"]
    return found


async def test_a_rotation_leaves_no_signature_unverifiable(tmp_path: Path) -> None:
    """Before, during and after it every message verifies by what is published at that moment."""
    async with world(tmp_path) as made:
        server, shown = FakeMx(), dict[bytes, bytes]()
        await made.domain("verifier.test", server)

        def publish(found: list[dict[str, str]]) -> None:
            for record in found:
                made.publish(record["name"], TXT=[zone_text(record["value"])])
                shown[f"{record['name']}.".encode()] = record["value"].encode()

        async def sent() -> bytes:
            await made.final(await made.send("ada@verifier.test"))
            got = server.messages[-1].data
            assert signatures(got) == 2
            assert [verifies(got, number, shown) for number in range(2)] == [True, True]
            return got

        publish(await domain_command(made, "records"))
        first = await sent()
        wanted = await domain_command(made, "rotate")
        selector = wanted[0]["name"].partition(".")[0].encode()
        await trio.sleep(1.5)  # within a second the server reads the keys again
        assert selector not in first + await sent()
        publish(wanted[:1])
        assert [each["pending"] for each in await verified(made)] == [True, True, False, False, False, False]
        assert selector not in await sent()
        publish(wanted)
        found = await verified(made)
        assert [(each["pending"], each["needed"]) for each in found] == [(False, True)] * 4 + [(False, False)] * 2
        await trio.sleep(1.5)
        assert selector in await sent()
