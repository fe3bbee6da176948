"""A recipient unsubscribes by mail: what the header of a message says, what is taken, and what it does."""

import re
from pathlib import Path

import pytest
import trio

from appliance.environment import Environment
from appliance.feedback.return_path import LIFETIME, ReturnPaths
from appliance.keys.keyfile import KEY_FILE
from tests.e2e.delivery.test_every_signature_verifies import published
from tests.e2e.delivery.test_mail_leaves_with_its_return_path import records, verified
from tests.e2e.delivery.verifier import signatures, verifies
from tests.e2e.delivery.world import World, world
from tests.e2e.feedback.feedback import LISTENS, NAME, server
from tests.fakes.dns import zone_text
from tests.fakes.mx import FakeMx

HOST = "mail.example.com"
FIELD = re.compile(
    rb"\nList-Unsubscribe: <https://mail\.example\.com(/[^>]+)>,\r\n <mailto:(u\+[^?>]+)\?subject=unsubscribe>\r\n"
)
ONLY_LINK = re.compile(rb"\nList-Unsubscribe: <https://[^>]+>\r\n\S")


async def choose_tag(made: World) -> None:
    (await made.ask("PUT", "/v1/unsubscribe-tags", {"tags": ["news"]})).raise_for_status()


async def use_return_path(made: World) -> None:
    made.publish(HOST, A=["192.0.2.25"])
    wanted = {(record["name"], record["type"]): record["value"] for record in await records(made)}
    made.publish(NAME, MX=[wanted[NAME, "MX"]], TXT=[zone_text(wanted[NAME, "TXT"])])
    assert (await verified(made))["return_path_at"] is not None


async def arrived(made: World, mx: FakeMx, address: str, *, at_least: re.Pattern[bytes]) -> re.Match[bytes]:
    """The field of a message that was sent to an address, once messages get such a one: settings take a second."""
    with trio.fail_after(30):
        while True:
            mx.messages.clear()
            await made.final(await made.send(address, tags=["other", "news"]))
            if (found := at_least.search(mx.messages[-1].data)) is not None:
                return found


def replies(made: World, *addresses: str) -> list[int]:
    with server(made.running) as client:
        client.ehlo()
        client.mail("ada@reader.test")
        return [client.rcpt(address)[0] for address in addresses]


@pytest.mark.both_engines
async def test_recipients_unsubscribe_by_mail(tmp_path: Path) -> None:
    """Signed, in whatever case the address comes, for that tag only, once; the token alone decides."""
    async with world(tmp_path, LISTENS, http=f'base_url = "https://{HOST}"') as made:
        mx = FakeMx()
        await made.domain("reader.test", mx)
        await choose_tag(made)
        await arrived(made, mx, "ada@reader.test", at_least=ONLY_LINK)
        await use_return_path(made)
        address = (await arrived(made, mx, "ada@reader.test", at_least=FIELD))[2].decode()
        (got,) = mx.messages
        assert b"\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n" in got.data
        assert signatures(got.data) == 2
        keys = published(made)
        assert [verifies(got.data, number, keys) for number in range(2)] == [True, True]
        changed = got.data.replace(b"<mailto:u+", b"<mailto:u-")
        assert [verifies(changed, number, keys) for number in range(2)] == [False, False]

        paths = ReturnPaths((made.running.data_dir / KEY_FILE).read_bytes())
        old = Environment(now=lambda: Environment().now() - LIFETIME - 60_000_000).identifier("rcp")
        forged = address[: -len(NAME) - 2] + ("a" if address[-len(NAME) - 2] != "a" else "b") + f"@{NAME}"
        refused = [
            forged,
            "u+a" + paths.address(old, NAME).removeprefix("b+"),
            paths.unsubscribe_address(old, NAME, 0),
            address.replace("example.com", "example.org"),
            "b+" + address[3:],
        ]
        assert await trio.to_thread.run_sync(replies, made, *refused) == [550] * len(refused)
        assert made.rows("SELECT count(*) FROM unsubscriptions") == [(0,)]

        def leave() -> None:
            with server(made.running) as client:
                client.sendmail("ada@reader.test", address.upper(), b"Subject: unsubscribe\r\n\r\n\r\n")

        for _ in range(2):
            await trio.to_thread.run_sync(leave)
        await made.until(lambda: made.rows("SELECT count(*) FROM feedback_mail") == [(0,)])
        assert made.rows("SELECT address, list FROM unsubscriptions") == [("ada@reader.test", "tag:news")]
        assert '"list": "tag:news"' in await made.logged('"event": "unsubscribed"')
        news = await made.send("ada@reader.test", tags=["news"])
        assert (made.recipient(news).status, made.attempts(news)) == ("bounced", [])
        for tags in (["other"], []):
            other = await made.send("ada@reader.test", tags=tags)
            await made.final(other)
            assert made.recipient(other).status == "delivered"
