"""A customer sends a message with metadata and receives the answer: the API links both; its links need no login."""

import smtplib
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

from tests.e2e.receiving.receiving import DOMAIN, arrived, listener, receiving
from tests.running_appliance import NO_TLS


@pytest.mark.both_engines
async def test_a_reply_is_linked(tmp_path: Path) -> None:
    async with receiving(tmp_path) as made:
        sent = await made.send("ada@example.net", metadata={"ticket": "7"})
        mail = (
            "From: Ada <ada@example.net>\r\nTo: support@in.example.com\r\nSubject: Re: On its way\r\n"
            f"In-Reply-To: <{sent.removeprefix('msg_')}@example.com>\r\nAuto-Submitted: auto-replied\r\n"
            'MIME-Version: 1.0\r\nContent-Type: application/pdf; name="a.pdf"\r\n'
            "Content-Transfer-Encoding: base64\r\n\r\naGVsbG8=\r\n"
        ).encode()

        def reply() -> None:
            host, port = listener(made)
            with smtplib.SMTP(host, port, local_hostname="mx.example.net", timeout=30) as client:
                assert client.sendmail("", [f"support@{DOMAIN}"], mail) == {}

        await trio.to_thread.run_sync(reply)
        (email,) = await arrived(made)
        assert email["in_reply_to_email"] == {"id": sent, "metadata": {"ticket": "7"}}
        assert email["auto_submitted"] is True
        links = {email["raw_url"]: mail, email["attachments"][0]["url"]: b"hello"}
        async with httpx.AsyncClient(trust_env=False, timeout=30, verify=NO_TLS) as client:
            for link, content in links.items():
                path = httpx.URL(link).path
                answer = await client.get(made.running.url + path)
                assert (answer.status_code, answer.content[-len(content) :]) == (200, content)
                assert answer.headers["content-disposition"].startswith("attachment")
                assert (await client.get(made.running.url + path[:-3] + "AAA")).status_code == 404
        listed = await made.ask("GET", "/v1/inbound", None)
        assert [item["auto_submitted"] for item in listed.json()["emails"]] == [True]
        search = partial(made.ask, "GET")
        assert [len((await search(f"/v1/inbound?q={word}")).json()["emails"]) for word in ("ada", "bob")] == [1, 0]
