"""A link to unsubscribe reaches the recipient's server under both signatures, in mail from HTTP and from SMTP."""

import re
import smtplib
import ssl
from email.message import EmailMessage
from pathlib import Path

import httpx
import trio

from tests.e2e.delivery.test_every_signature_verifies import published
from tests.e2e.delivery.verifier import signatures, verifies
from tests.e2e.delivery.world import World, world
from tests.fakes.mx import FakeMx
from tests.running_appliance import NO_TLS

FIELDS = (b"list-unsubscribe", b"list-unsubscribe-post")


def submit(made: World, recipient: str) -> None:
    """Submit a tagged message over SMTP."""
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "shop@example.com", recipient, "News"
    message["X-Service-Tag"] = "news"
    message.set_content("Hello\n")
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    port = int(made.running.smtp[0].rpartition(":")[2])
    with smtplib.SMTP("127.0.0.1", port, timeout=30) as client:
        client.starttls(context=trusting)
        client.login(made.running.account.username, made.running.account.password)
        client.send_message(message)


async def test_unsubscribe_links_arrive_signed(tmp_path: Path) -> None:
    """dkimpy verifies the message, both fields are among the signed ones, and the link works."""
    async with world(tmp_path, http='base_url = "https://mail.example.com"') as made:
        server = FakeMx()
        await made.domain("reader.test", server)
        async with httpx.AsyncClient(base_url=made.running.url, trust_env=False, timeout=30, verify=NO_TLS) as client:
            headers = await trio.to_thread.run_sync(made.running.login)
            answer = await client.put("/v1/unsubscribe-tags", json={"tags": ["news"]}, headers=headers)
            assert answer.status_code == 200, answer.text
            await made.final(await made.send("ada@reader.test", tags=["news"]))
            await trio.to_thread.run_sync(submit, made, "eve@reader.test")
            await made.until(lambda: len(server.messages) == 2)
            records = published(made)
            for got in server.messages:
                assert signatures(got.data) == 2
                assert [verifies(got.data, number, records) for number in range(2)] == [True, True]
                for listed in re.findall(rb"(?s)DKIM-Signature:.*?\sh=([^;]+);", got.data):
                    names = [name.strip().lower() for name in listed.split(b":")]
                    assert [names.count(field) for field in FIELDS] == [2, 2]  # once more than it is there
                link = re.search(rb"\nList-Unsubscribe: <https://mail\.example\.com(/[^>]+)>\r\n", got.data)
                assert link is not None
                assert (await client.post(link[1].decode())).json()["unsubscribed"] is True
            for name in ("ada", "eve"):
                again = await made.send(f"{name}@reader.test", tags=["news"])
                assert made.recipient(again).status == "bounced"
            assert len(server.messages) == 2
