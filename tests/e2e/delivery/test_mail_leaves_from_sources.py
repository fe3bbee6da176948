"""Each stream, and each account, sends from its own addresses, under their own names."""

from collections import defaultdict
from pathlib import Path

import trio

from appliance.model.accounts import Role
from tests.e2e.delivery.world import World, delays, world
from tests.fakes.mx import FakeMx
from tests.running_appliance import add_account, command, ran

SOURCES = """
[delivery.sources.mail]
ipv4 = "127.0.0.2"
hostname = "mail2.example.com"
[delivery.sources.news]
ipv4 = "127.0.0.3"
ipv6 = "::1"
hostname = "news.example.com"
[delivery.sources.gone]
ipv4 = "192.0.2.77"
[delivery.streams.transactional]
sources = ["mail"]
[delivery.streams.digest]
sources = ["news"]
[delivery.streams.other]
sources = ["gone"]
"""
BOTH = 'allow_networks = ["127.0.0.0/8", "::1/128"]'


class Visitors:
    """A server that notes the address and the EHLO name of each session."""

    def __init__(self) -> None:
        self.sessions: dict[str, list[FakeMx]] = defaultdict(list)

    async def serve(self, stream: trio.SocketStream) -> None:
        session = FakeMx()
        self.sessions[stream.socket.getpeername()[0]].append(session)
        await session.serve(stream)

    def names(self) -> dict[str, set[str]]:
        return {
            peer: {line.partition(" ")[2] for session in sessions for line in session.commands if "EHLO" in line}
            for peer, sessions in self.sessions.items()
        }


async def visited(made: World, name: str, *addresses: str) -> Visitors:
    """The visitors of a domain whose server listens at these addresses."""
    visitors = Visitors()
    for address in addresses:
        listeners = await trio.open_tcp_listeners(made.mx_port, host=address)
        made.nursery.start_soon(trio.serve_listeners, visitors.serve, listeners)
    made.publish(name, MX=[f"10 mx.{name}."])
    four, six = [one for one in addresses if "." in one], [one for one in addresses if ":" in one]
    made.publish(f"mx.{name}", **({"A": four} if four else {}), **({"AAAA": six} if six else {}))
    return visitors


async def delivered(made: World, address: str) -> str:
    sent = await made.send(address)
    await made.final(sent)
    return sent


def used(made: World) -> dict[str, str | None]:
    """The source of each message that was tried."""
    return dict(made.rows("SELECT r.message_id, a.source FROM attempts a JOIN recipients r ON r.id = a.recipient_id"))


async def test_streams_and_accounts_leave_from_their_own_addresses(tmp_path: Path) -> None:
    async with world(tmp_path, delays("1h"), SOURCES, allowed=BOTH) as made:
        config = made.running.config_file
        four, six = await visited(made, "four.test", "127.0.1.4"), await visited(made, "six.test", "::1")
        first = await delivered(made, "ada@four.test")
        second = [await made.send(f"ada@{name}.test", stream="digest") for name in ("four", "six")]
        await made.final(*second)
        waiting = await made.send("ada@four.test", stream="other")
        own = await trio.to_thread.run_sync(
            command, config, "account", "sources", "demo", "--stream", "transactional", "--sources", "news"
        )
        assert own == {"name": "demo", "sources": {"transactional": ["news"]}}
        third = await delivered(made, "bob@four.test")
        while used(made)[third] != "news":  # a running server sees the change within a second
            third = await delivered(made, "bob@four.test")
        code, _, error = await trio.to_thread.run_sync(
            ran, config, "account", "sources", "demo", "--stream", "transactional", "--sources", "mial"
        )
        assert (code, error) == (1, "Error: sources: there is no source 'mial'; expected mail or news or gone\n")

        # The state, and the results, are published every second.
        administrator = await trio.to_thread.run_sync(
            lambda: add_account(made.running.data_dir, "boss", role=Role.ADMIN, domain="boss.example")
        )
        await made.until(lambda: bool(made.rows("SELECT 1 FROM source_days WHERE source = 'mail'")))
        listed = (await made.ask("GET", "/v1/admin/sources", account=administrator)).json()["sources"]
        by_name = {source["name"]: source for source in listed}
        assert by_name["mail"]["hostname"] == "mail2.example.com"
        assert [by_name[name]["state"] for name in ("mail", "news", "gone")] == ["in_use", "in_use", "taken_out"]
        assert by_name["gone"]["reason"] == "192.0.2.77 is not on this machine"
        assert by_name["mail"]["providers"][0]["provider"] == "other"
        assert (await made.ask("GET", "/v1/admin/sources")).status_code == 403

        answer = await made.ask("GET", f"/v1/emails/{first}")
        (recipient,) = answer.json()["recipients"]
        assert recipient["attempts"][0]["source"] == "mail"
        assert answer.json()["source"] == "api"
        assert [used(made)[message] for message in (first, *second, third)] == ["mail", "news", "news", "news"]
        assert made.recipient(waiting)[1:4] == ("queued", "reserved", 0)
        log = await made.logged("source taken out")
        assert "192.0.2.77 is not on this machine" in log
        assert four.names() == {"127.0.0.2": {"mail2.example.com"}, "127.0.0.3": {"news.example.com"}}
        assert six.names() == {"::1": {"news.example.com"}}
