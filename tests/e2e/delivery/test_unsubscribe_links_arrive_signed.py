"""A link to unsubscribe reaches the recipient's server under both signatures, in mail from HTTP and from SMTP."""

import re
from pathlib import Path

import httpx

from tests.e2e.delivery.test_every_signature_verifies import published
from tests.e2e.delivery.verifier import signatures, verifies
from tests.e2e.delivery.world import world
from tests.fakes.mx import FakeMx
from tests.running_appliance import NO_TLS

FIELDS = (b"list-unsubscribe", b"list-unsubscribe-post")


async def test_unsubscribe_links_arrive_signed(tmp_path: Path) -> None:
    """dkimpy verifies the message, both fields are among the signed ones, and the link works."""
    async with world(tmp_path, http='base_url = "https://mail.example.com"') as made:
        server = FakeMx()
        await made.domain("reader.test", server)
        async with httpx.AsyncClient(base_url=made.running.url, trust_env=False, timeout=30, verify=NO_TLS) as client:
            answer = await made.ask("PUT", "/v1/unsubscribe-tags", {"tags": ["news"]})
            assert answer.status_code == 200, answer.text
            await made.final(await made.send("ada@reader.test", tags=["news"]))
            tagged = b"From: shop@example.com\r\nTo: eve@reader.test\r\nX-Service-Tag: news\r\n\r\nHello\r\n"
            await made.submit("eve@reader.test", tagged)
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
