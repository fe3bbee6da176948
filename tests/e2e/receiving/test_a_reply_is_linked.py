"""A customer sends a message with metadata and receives the answer: the API links both; its links need no login.

The answer is forwarded, exported and listed in the audit log.
"""

import csv
import io
import smtplib
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

from tests.e2e.delivery.world import SENDER, World
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
        await _forward(made, email["id"], sent)


async def _forward(made: World, inbound_id: str, answered: str) -> None:
    key = {"Idempotency-Key": "forward", **await trio.to_thread.run_sync(made.running.login)}
    async with httpx.AsyncClient(base_url=made.running.url, trust_env=False, timeout=30, verify=NO_TLS) as client:
        path, body = f"/v1/inbound/{inbound_id}/forward", {"from": SENDER, "to": "grace@example.net"}
        answers = [await client.post(path, json=body, headers=key) for _ in range(2)]
        exported = await client.get("/v1/inbound", params={"format": "csv", "q": "ada"}, headers=key)
    assert [answer.status_code for answer in answers] == [202, 202]
    (forward,) = {answer.json()["id"] for answer in answers}
    assert (await made.ask("GET", f"/v1/inbound/{inbound_id}")).json()["forwarded_as"] == [forward]
    assert (await made.ask("GET", f"/v1/emails/{forward}")).json()["metadata"] == {"forwards": inbound_id}
    (line,) = csv.DictReader(io.StringIO(exported.text))
    shown = line["inbound_id"], line["envelope_to"], line["auto_submitted"], line["in_reply_to_email"]
    assert shown == (inbound_id, f"support@{DOMAIN}", "yes", answered)
    lines = (await made.ask("GET", "/v1/audit?action=inbound")).json()["audit"]
    assert [(line["action"], line["object"]) for line in lines][-1] == ("inbound.added", DOMAIN)
    assert {(line["action"], line["object"], line["details"]["to"]) for line in lines[:-1]} == {
        ("inbound.forwarded", inbound_id, "grace@example.net")
    }
