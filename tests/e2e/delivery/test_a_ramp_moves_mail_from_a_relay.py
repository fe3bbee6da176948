"""The ramp: a share of the mail goes to the MX and the rest by the relay, as the operator's shell says."""

from pathlib import Path

import trio

from appliance.cli.ramp import RAMP_COLUMNS
from appliance.model.accounts import Role
from appliance.model.ramp import bucket_of
from tests.e2e.delivery.telling import explained
from tests.e2e.delivery.world import World, delays, world
from tests.fakes.mx import FakeMx
from tests.ports import free_port
from tests.running_appliance import add_account, command, ran

NAMES = [f"user{number}@a.test" for number in range(20)]


async def shell(made: World, *words: str) -> object:
    return await trio.to_thread.run_sync(lambda: command(made.running.config_file, *words))


async def routes(made: World, message: str) -> dict[str, str]:
    shown = (await made.ask("GET", f"/v1/emails/{message}")).json()
    return {to["email"]: attempt["route"] for to in shown["recipients"] for attempt in to["attempts"]}


async def test_a_ramp_moves_mail_from_a_relay(tmp_path: Path) -> None:
    """Started, raised and ended in the shell; attempts, `explain` and the comparison tell the route."""
    mx, relay, port = FakeMx(), FakeMx(), free_port()
    settings = f'relay_host = "127.0.0.1"\nrelay_port = {port}\nrelay_tls = "off"'
    async with world(tmp_path, delays("1h"), settings, mode="relay") as made:
        made.nursery.start_soon(
            trio.serve_listeners, relay.serve, await trio.open_tcp_listeners(port, host="127.0.0.1")
        )
        await made.domain("a.test", mx)
        await made.final(before := await made.send(NAMES[0]))
        assert await routes(made, before) == {NAMES[0]: "relay"}
        assert await shell(made, "ramp") == {"percent": None, "providers": {}}

        assert await shell(made, "ramp", "set", "40") == {"percent": 40, "providers": {}}
        await trio.sleep(1)  # that a server may take to see it
        await made.final(sent := await made.send(*NAMES))
        expected = {name: "direct" if bucket_of(name) < 40 else "relay" for name in NAMES}
        assert await routes(made, sent) == expected
        assert {to for mail in mx.messages for to in mail.recipients} == {
            name for name in NAMES if expected[name] == "direct"
        }
        told = await explained(made, sent)
        assert ", direct: mx0.a.test" in told
        assert ", by the relay: 127.0.0.1" in told

        boss = await trio.to_thread.run_sync(lambda: add_account(made.running.data_dir, "boss", role=Role.ADMIN))
        compared = (await made.ask("GET", "/v1/admin/ramp", account=boss)).json()
        figures = {(row["provider"], row["route"]): row["delivered"] for row in compared["figures"]}
        direct = list(expected.values()).count("direct")
        assert figures == {
            (provider, route): count
            for provider in (None, "other")
            for route, count in (("direct", direct), ("relay", len(NAMES) - direct))
        }
        assert compared["suggestions"][0]["action"] == "hold"
        assert (await made.ask("GET", "/v1/admin/ramp")).status_code == 403
        _, text, _ = await trio.to_thread.run_sync(lambda: ran(made.running.config_file, "ramp"))
        assert all(heading in text for heading in RAMP_COLUMNS.values())
        assert "Suggestion for all providers" in text

        await made.terminate()
        await made.start()  # what is stored holds
        assert await shell(made, "ramp") == {"percent": 40, "providers": {}}
        assert await shell(made, "ramp", "reset") == {"percent": None, "providers": {}}
        assert made.complaints() == []
