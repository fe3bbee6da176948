"""A newsletter through each door: the providers' own clients, a real MX, and unsubscribing from its stream."""

import re
from collections.abc import Callable, Sequence
from email import message_from_bytes
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import trio

from tests.e2e.delivery.test_every_signature_verifies import published
from tests.e2e.delivery.verifier import verifies
from tests.e2e.delivery.world import world
from tests.e2e.doors import test_mailgun, test_sendgrid
from tests.e2e.doors.libraries import node
from tests.fakes.mx import FakeMx

BASE = "https://mail.example.com"
STREAM = "X-Service-Stream"
SENDER = "shop@example.com"
FIELDS = {"from": SENDER, "subject": "News", "text": "Hello"}


def _resend(url: str, key: str, to: str, streams: Sequence[str]) -> Any:
    mails = [FIELDS | {"to": to, "headers": {STREAM: stream}} for stream in streams]
    client = f"new library.Resend('{key}', {{ baseUrl: '{url}/resend' }})"
    return node("resend", client, *(["emails.send", mail] for mail in mails))


def _postmark(url: str, key: str, to: str, streams: Sequence[str]) -> Any:
    host = url.removeprefix("http://")
    client = f"new library.ServerClient('{key}', {{ useHttps: false, requestHost: '{host}/postmark' }})"
    mail = {"From": SENDER, "To": to, "Subject": "News", "TextBody": "Hello"}
    return node("postmark", client, *(["sendEmail", mail | {"MessageStream": stream}] for stream in streams))


def _mailgun(url: str, key: str, to: str, streams: Sequence[str]) -> Any:
    mails = [FIELDS | {"to": to, f"h:{STREAM}": stream} for stream in streams]
    calls = [["messages.create", "example.com", mail] for mail in mails]
    return test_mailgun.in_node(f"{url}/mailgun", key, *calls)


def _sendgrid(url: str, key: str, to: str, streams: Sequence[str]) -> Any:
    mails = [FIELDS | {"to": to, "headers": {STREAM: stream}} for stream in streams]
    return test_sendgrid.in_node(url, key, *(["send", mail] for mail in mails))


DOORS: dict[str, Callable[[str, str, str, Sequence[str]], Any]] = {
    "resend": _resend,
    "postmark": _postmark,
    "mailgun": _mailgun,
    "sendgrid": _sendgrid,
}


async def test_a_newsletter_is_unsubscribed_from_and_other_mail_arrives(tmp_path: Path) -> None:
    async with world(tmp_path, http=f'base_url = "{BASE}"') as made, httpx.AsyncClient(trust_env=False) as client:
        server = FakeMx()
        await made.domain("mx.test", server)

        async def send(door: str, streams: Sequence[str]) -> None:
            where = made.running.url, made.running.account.full_key
            for sent in await trio.to_thread.run_sync(partial(DOORS[door], *where, f"{door}@mx.test", streams)):
                assert "value" in sent, sent
                assert not (isinstance(sent["value"], dict) and sent["value"].get("error")), sent

        async def of_each(*streams: str) -> None:
            count = len(made.rows("SELECT 1 FROM recipients")) + len(DOORS) * len(streams)
            async with trio.open_nursery() as nursery:
                for door in DOORS:
                    nursery.start_soon(send, door, streams)
            await made.until(lambda: len(made.rows("SELECT 1 FROM recipients")) == count and not made.unfinished())

        await of_each("broadcast")
        assert len(server.messages) == 4
        for got in server.messages:
            message = message_from_bytes(got.data)
            assert message[STREAM] is None
            assert message["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
            (path,) = re.findall(rf"<{BASE}(/unsubscribe/[\w-]+)>", message["List-Unsubscribe"])
            assert verifies(got.data, 0, published(made))
            answer = await client.post(f"{made.running.url}{path}", data={"List-Unsubscribe": "One-Click"})
            assert answer.json()["unsubscribed"] is True
        await of_each("broadcast", "transactional")
        assert {message_from_bytes(got.data)["List-Unsubscribe"] for got in server.messages[4:]} == {None}
        assert sorted(message_from_bytes(got.data)["To"] for got in server.messages[4:]) == [
            f"{door}@mx.test" for door in sorted(DOORS)
        ]
        streams = made.rows("SELECT stream, count(*) FROM messages GROUP BY stream ORDER BY stream")
        assert streams == [("broadcast", 8), ("transactional", 4)]
