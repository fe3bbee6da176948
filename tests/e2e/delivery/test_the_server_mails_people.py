"""The server mails people itself: problems once, invitations, and links for forgotten passwords; free, and signed."""

import re
from pathlib import Path
from urllib.parse import unquote

import httpx
import pytest
import trio

from appliance.feedback.mime import open_mail
from tests.e2e.delivery.test_every_signature_verifies import published
from tests.e2e.delivery.verifier import verifies
from tests.e2e.delivery.world import CREDITS, World, world
from tests.engines import no_writes
from tests.fakes.mx import FakeMx, Received
from tests.running_appliance import NO_TLS, PASSWORD, command

NOTIFICATIONS = '[notifications]\nfrom = "alerts@example.com"'
TWO_CHECKS = 180.0  # seconds, on a busy machine
NEW_PASSWORD = "a password that is new"


def subjects(server: FakeMx) -> list[str]:
    return [open_mail(mail.data).header("subject") for mail in server.messages]


def token_in(mail: Received) -> str:
    text = mail.data.decode().replace("=\r\n", "").replace("=3D", "=")
    match = re.search(r"/dashboard/invitation#token=([\w%-]+)", text)
    assert match is not None, text
    return unquote(match[1])


async def open_to_all(made: World, path: str, body: dict[str, str]) -> httpx.Response:
    async with httpx.AsyncClient(base_url=made.running.url, trust_env=False, timeout=30, verify=NO_TLS) as client:
        return await client.post(path, json=body)


@pytest.mark.slow
@pytest.mark.both_engines
async def test_a_problem_is_told_once(tmp_path: Path) -> None:
    """Broken DNS and few credits: shown by API and command, and mailed once; a restart mails nothing again."""
    async with world(tmp_path, NOTIFICATIONS) as made:
        mx = FakeMx()
        await made.domain("example.org", mx)
        await made.ask("GET", "/v1/domains/example.com")  # DNS has none of its records
        status, items = await attention(made)
        assert status == 200
        assert [(item["kind"], item["severity"], item["link"]) for item in items] == [
            ("domain_broken", "critical", "/dashboard/domains/example.com")
        ]
        assert set(items[0]) == {"kind", "severity", "title", "detail", "link", "since"}
        listed = await trio.to_thread.run_sync(command, made.running.config_file, "attention")
        assert [(item["kind"], item["account"]) for item in listed["items"]] == [("domain_broken", "demo")]

        await made.until(lambda: len(mx.messages) == 1, TWO_CHECKS)
        (mail,) = mx.messages
        assert (mail.mail.partition(" ")[0], mail.recipients) == ("<>", ("demo@example.org",))
        assert "DNS of example.com is broken" in subjects(mx)[0]
        assert open_mail(mail.data).header("auto-submitted") == "auto-generated"
        assert [verifies(mail.data, number, published(made)) for number in range(2)] == [True, True]
        await made.until(lambda: made.unfinished() == [])
        assert made.credits() == CREDITS
        assert made.rows("SELECT count(*) FROM events") == [(0,)]

        made.running.terminate()
        await made.start()
        await trio.to_thread.run_sync(command, made.running.config_file, "account", "credit", "demo", str(50 - CREDITS))
        await made.until(lambda: len(mx.messages) == 2, TWO_CHECKS)
        assert "Credits are low: 50 left" in subjects(mx)[1]
        assert "DNS of example.com" not in mx.messages[1].data.decode()


async def attention(made: World) -> tuple[int, list[dict[str, str]]]:
    answer = await made.ask("GET", "/v1/attention")
    return answer.status_code, answer.json()["items"]


async def test_invitations_and_forgotten_passwords_are_mailed(tmp_path: Path) -> None:
    async with world(tmp_path, NOTIFICATIONS) as made:
        mx = FakeMx()
        await made.domain("example.org", mx)
        invited = await made.ask("POST", "/v1/users", {"email": "ann@example.org", "role": "viewer"})
        assert invited.json()["mailed"] is True
        await made.until(lambda: len(mx.messages) == 1)
        assert mx.messages[0].recipients == ("ann@example.org",)
        token = token_in(mx.messages[0])
        assert token in invited.json()["link"]
        accepted = await open_to_all(made, "/v1/auth/invitation", {"token": token, "password": PASSWORD})
        assert accepted.json()["email"] == "ann@example.org"

        forgotten = "/v1/auth/forgotten-password"
        answers = [await open_to_all(made, forgotten, {"email": f"{name}@example.org"}) for name in ("ann", "stranger")]
        assert [(answer.status_code, answer.json()["accepted"]) for answer in answers] == [(202, True)] * 2
        times = [answer.elapsed.total_seconds() for answer in answers]
        assert min(times) >= 1
        await made.until(lambda: len(mx.messages) == 2)
        token = token_in(mx.messages[1])
        assert made.rows("SELECT count(*) FROM password_links WHERE expires_at - created_at = 3600000000") == [(1,)]
        body = {"token": token, "password": NEW_PASSWORD}
        statuses = [(await open_to_all(made, "/v1/auth/invitation", body)).status_code for _ in range(2)]
        assert statuses == [200, 401]
        entered = await open_to_all(made, "/v1/auth/login", {"email": "ann@example.org", "password": NEW_PASSWORD})
        assert entered.status_code == 200

        with no_writes(made.running.data_dir):  # storage that does not write reveals nothing either
            for email in ("ann@example.org", "stranger@example.org"):
                answer = await open_to_all(made, forgotten, {"email": email})
                assert (answer.status_code, answer.elapsed.total_seconds() < 2) == (202, True)
        await made.until(lambda: len(mx.messages) == 3)
        assert (await open_to_all(made, forgotten, {"email": "stranger@example.org"})).status_code == 202
        refused = await open_to_all(made, forgotten, {"email": "Stranger@example.org"})
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        await unread(made)


async def test_one_stranger_gets_few_invitations(tmp_path: Path) -> None:
    async with world(tmp_path, NOTIFICATIONS) as made:
        await made.domain("example.org", FakeMx())
        mailed = []
        for name in ("ann", "ann+1", "ann+2", "Ann", "bob"):
            body = {"email": f"{name}@example.org", "role": "viewer"}
            answer = (await made.ask("POST", "/v1/users", body)).json()
            assert "#token=" in answer["link"]
            mailed.append(answer["mailed"])
        assert mailed == [True, True, True, False, True]


async def unread(made: World) -> None:
    """The owner of the sending domain sees that mail went out, but not its links."""
    emails = (await made.ask("GET", "/v1/emails")).json()["emails"]
    assert len(emails) == 3
    for email in emails:
        for part in ("body", "raw"):
            assert (await made.ask("GET", f"/v1/emails/{email['id']}/{part}")).status_code == 404


async def test_without_a_sender_links_are_shown_only(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        invited = await made.ask("POST", "/v1/users", {"email": "ann@example.org", "role": "viewer"})
        assert (invited.json()["mailed"], "#token=" in invited.json()["link"]) == (False, True)
        answer = await open_to_all(made, "/v1/auth/forgotten-password", {"email": "demo@example.org"})
        assert (answer.status_code, answer.json()["error"].partition(".")[0]) == (409, "This server sends no mail")
        words = (made.running.config_file, "user", "reset-password", "demo@example.org")
        assert (await trio.to_thread.run_sync(command, *words))["mailed"] is False
