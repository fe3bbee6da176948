"""The return path of a domain: shown as records, in use once DNS shows them, with a token for every recipient."""

import json
from pathlib import Path
from typing import Any

import trio

from appliance.environment import Environment
from appliance.feedback.return_path import RecipientIds, ReturnPaths, read_address
from appliance.keys.keyfile import load
from tests.e2e.delivery.verifier import signatures
from tests.e2e.delivery.world import World, delays, lines, world
from tests.fakes.dns import zone_text
from tests.fakes.mx import FakeMx, Received
from tests.running_appliance import command

INBOUND = '[inbound]\nbind = ["127.0.0.1:0"]'
NAME, HOST = "bounces.example.com", "mail.example.com"


async def records(made: World) -> list[dict[str, str]]:
    account, config = made.running.account, made.running.config_file
    answer = await trio.to_thread.run_sync(command, config, "domain", "records", account.name, account.domain)
    found: list[dict[str, str]] = answer["records"]
    return found


async def verified(made: World) -> dict[str, Any]:
    answer = await made.ask("POST", f"/v1/domains/{made.running.account.domain}/verify")
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def sender(received: Received) -> str:
    return received.mail.partition(">")[0].removeprefix("<")


def recipient_of(made: World, address: str) -> str:
    """The recipient that the token of an address leads to, by the program's key file and database."""
    read = read_address(address)
    assert read is not None, address
    assert (read.domain, read.report) == (NAME, None)
    tokens = ReturnPaths(load(made.running.data_dir))
    ids = tokens.check(read.token or "", read.domain, Environment().now())
    assert isinstance(ids, RecipientIds), ids
    ((found,),) = made.rows("SELECT address FROM recipients WHERE id BETWEEN ? AND ?", ids.first, ids.last)
    return str(found)


async def test_mail_leaves_with_its_return_path(tmp_path: Path) -> None:
    """First from the sender of the message; once DNS shows MX and SPF, with a token for each recipient and retry."""
    async with world(tmp_path, delays("1s"), server=INBOUND) as made:
        server, strict = FakeMx(), FakeMx(answers={"RCPT": [b"451 4.3.0 later\r\n", b"250 ok\r\n"]})
        await made.domain("a.test", server)
        await made.domain("strict.test", strict)
        made.publish(HOST, A=["192.0.2.25"])

        await made.final(await made.send("ada@a.test", "grace@a.test"))
        assert [(sender(each), len(each.recipients)) for each in server.messages] == [("shop@example.com", 2)]
        server.messages.clear()

        wanted = {(record["name"], record["type"]): record["value"] for record in await records(made)}
        assert wanted[NAME, "MX"] == f"10 {HOST}."
        assert (await verified(made))["return_path_at"] is None
        made.publish(NAME, MX=[wanted[NAME, "MX"]], TXT=[zone_text(wanted[NAME, "TXT"])])
        found = await verified(made)
        assert found["return_path"] == NAME
        assert found["return_path_at"] is not None
        await made.logged("return path in use: published in DNS")

        async def in_use() -> bool:
            await made.final(await made.send("probe@a.test"))
            return sender(server.messages[-1]) != "shop@example.com"

        with trio.fail_after(20):
            while not await in_use():  # within a second
                pass
        server.messages.clear()

        # Several recipients: a transaction and a token for each, one signed message.
        addresses = {f"{name}@a.test" for name in ("ada", "grace", "linus")}
        sent = await made.send(*addresses)
        await made.final(sent)
        assert {each.recipients for each in server.messages} == {(address,) for address in addresses}
        assert all(recipient_of(made, sender(each)) == each.recipients[0] for each in server.messages)
        assert len({each.data for each in server.messages}) == 1
        assert signatures(server.messages[0].data) == 2
        assert made.rows("SELECT envelope_from FROM messages WHERE id = ?", sent) == [("shop@example.com",)]
        (body, *_) = made.rows("SELECT body FROM events WHERE message_id = ?", sent)
        assert json.loads(bytes(body[0]))["data"]["from"] == "shop@example.com"
        said = [line for attempt in made.attempts(sent) for line in lines(attempt, "C") if line.startswith("MAIL")]
        # The account reads the sessions: with a token it could tell its own mail as bounced.
        assert {line.partition("<")[2].partition(">")[0] for line in said} == {f"b+…@{NAME}"}
        line = next(
            json.loads(each) for each in (await made.logged('"mail_from"')).splitlines() if '"mail_from"' in each
        )
        assert line["envelope_from"] == "shop@example.com"

        # A retry has the same token.
        await made.final(await made.send("ada@strict.test"))
        tried = [each.split(" ")[1] for each in strict.commands if each.startswith("MAIL FROM:")]
        assert len(tried) == 2
        assert len(set(tried)) == 1
        assert recipient_of(made, sender(strict.messages[0])) == "ada@strict.test"

        # A sender of the client's own: replaced on the domain of From, kept on another one.
        config, account = made.running.config_file, made.running.account.name
        await trio.to_thread.run_sync(command, config, "domain", "add", account, "other.test")
        server.messages.clear()
        await trio.sleep(0.6)  # what a credential may do is remembered for half a second
        submitted = b"From: shop@example.com\r\nSubject: s\r\n\r\nHello.\r\n"
        await made.submit("ada@a.test", submitted, "bounces@other.test")
        await made.submit("grace@a.test", submitted, "news+1@example.com")
        await made.until(lambda: len(server.messages) == 2)
        found_senders = {each.recipients[0]: sender(each) for each in server.messages}
        assert found_senders["ada@a.test"] == "bounces@other.test"
        assert recipient_of(made, found_senders["grace@a.test"]) == "grace@a.test"
        ((stored,),) = made.rows("SELECT envelope_from FROM messages WHERE envelope_from LIKE 'news%'")
        assert stored == "news+1@example.com"
        log = await made.logged("news+1@example.com")
        assert '"bounces@other.test"' not in log
