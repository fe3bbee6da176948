"""What the dashboard's resources say and do of mail that really leaves: the night story, and a first test."""

from pathlib import Path

import trio

from tests.e2e.delivery.world import CREDITS, delays, world
from tests.fakes.dns import zone_text
from tests.fakes.mx import FakeMx

LATER = b"451 4.7.1 <b>Greylisted</b>, come back later\r\n"


async def test_a_deferred_message_is_explained_and_cancelled(tmp_path: Path) -> None:
    """Where is it, why, and what happens next; once it is cancelled the server never sees it again."""
    async with world(tmp_path, delays("10s", "10s")) as made:
        server = FakeMx(answers={"RCPT": LATER})
        await made.domain("grey.test", server)
        message = await made.send("ada@grey.test")
        await made.tried(message)
        told = (await made.ask("GET", f"/v1/emails/{message}")).json()
        (recipient,) = told["recipients"]
        assert recipient["explanation"].startswith("deferred: try 2 of 3 at ")
        assert "mx0.grey.test said 451 4.7.1 <b>Greylisted</b>" in recipient["explanation"]
        (attempt,) = recipient["attempts"]
        assert (attempt["mx_host"], attempt["smtp_code"], attempt["tls"]) == ("mx0.grey.test", 451, None)
        assert attempt["mx_address"].startswith("127.0.")
        assert attempt["decision"].startswith("deferred: attempt 2 of 3 at ")
        said = [(line["speaker"], line["text"]) for line in attempt["dialogue"]]
        assert ("C", "RCPT TO:<ada@grey.test>") in [(who, text[:23]) for who, text in said]
        assert any(who == "S" and "Greylisted" in text for who, text in said)
        found = (await made.ask("GET", "/v1/emails?status=queued&recipient=ada%40grey.test")).json()
        assert [each["id"] for each in found["emails"]] == [message]
        cancelled = await made.ask("POST", f"/v1/emails/{message}/cancel")
        assert cancelled.json()["cancelled"] == 1
        assert made.recipient(message).status == "failed"
        assert (made.events(message), made.credits()) == (["email.failed"], CREDITS)
        sessions = server.sessions
        await trio.sleep(12.5)
        assert (server.sessions, made.recipient(message).attempts) == (sessions, 1)


async def test_a_first_domain_is_proven_and_a_test_arrives(tmp_path: Path) -> None:
    """Add a domain, publish its records, verify, send a test: it arrives signed; what is queued survives a removal."""
    async with world(tmp_path, delays("1s", "1s")) as made:
        server = FakeMx(answers={"RCPT": [b"250 2.1.5 ok\r\n", LATER, b"250 2.1.5 ok\r\n"]})
        await made.domain("mail.test", server)
        records = (await made.ask("POST", "/v1/domains", {"domain": "new.example"})).json()["records"]
        for record in records:
            made.publish(record["name"], TXT=[zone_text(record["value"])])
        made.publish("mail.example.com", A=["192.0.2.1"])
        verified = (await made.ask("POST", "/v1/domains/new.example/verify")).json()
        assert verified["status"] == "verified"
        assert {each["status"] for each in verified["records"]} == {"ok"}
        wanted = {"to": "me@mail.test", "from": "hello@new.example"}
        sent = (await made.ask("POST", "/v1/emails/test", wanted)).json()["id"]
        await made.final(sent)
        told = (await made.ask("GET", f"/v1/emails/{sent}")).json()
        assert (told["status"], told["source"], told["recipients"][0]["simulated"]) == ("delivered", "test", False)
        assert made.credits() == CREDITS
        assert server.messages[0].data.count(b"DKIM-Signature:") == 2
        queued = await made.send("me@mail.test", expect=202, **{"from": "hello@new.example"})
        await made.tried(queued)
        assert (await made.ask("DELETE", "/v1/domains/new.example")).json()["deleted"] is True
        await made.final(queued)
        assert made.recipient(queued).status == "delivered"
        assert server.messages[1].data.count(b"DKIM-Signature:") == 2
        await made.send("me@mail.test", expect=403, **{"from": "hello@new.example"})
