"""Mail that a server took comes back later: what the API, the ledger, the webhook and the log say of it."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.e2e.delivery.world import World, world
from tests.e2e.feedback.feedback import LISTENS, NAME, return_path, send_back
from tests.fakes.mx import FakeMx
from tests.inbound.bounces import bounce, complaint, vacation
from tests.running_appliance import add_account


async def back(made: World, mime: bytes, *addresses: str) -> None:
    await trio.to_thread.run_sync(partial(send_back, made.running, mime, *addresses))
    await made.until(lambda: made.rows("SELECT count(*) FROM feedback_mail") == [(0,)])


def ids(made: World, message: str) -> dict[str, str]:
    return dict(made.rows("SELECT address, id FROM recipients WHERE message_id = ?", message))


def shown(made: World, path: str) -> Any:
    with made.running.client() as client:
        answer = client.get(path)
        assert answer.status_code == 200, answer.text
        return {**answer.json(), "request_id": ""}  # of each request its own


@pytest.mark.both_engines
async def test_a_late_bounce_and_a_complaint(tmp_path: Path) -> None:
    """Results stay final; the credit is returned once, the addresses are suppressed, the log has a line for each."""
    async with world(tmp_path, LISTENS) as made:
        await made.domain("example.net", FakeMx())
        message = await made.send("ada@example.net", "bob@example.net", "cyd@example.net")
        await made.final(message)
        before, paid = shown(made, f"/emails/{message}"), made.credits()
        paths = {address: return_path(made.running, each) for address, each in ids(made, message).items()}
        for _ in range(3):
            await back(made, bounce("ada@example.net"), paths["ada@example.net"])
        await back(made, complaint(f"Return-Path: <{paths['bob@example.net']}>"), f"fbl@{NAME}")
        await back(made, vacation(), paths["cyd@example.net"])
        delayed = bounce("cyd@example.net", status="4.4.1", action="delayed", code="451")
        await back(made, delayed, paths["cyd@example.net"])

        assert shown(made, f"/emails/{message}") == before
        assert before["status"] == "delivered"
        assert made.credits() == paid + 1
        releases = made.rows("SELECT recipient_id, amount FROM credit_ledger WHERE kind = 'release'")
        assert releases == [(ids(made, message)["ada@example.net"], 1)]
        listed = made.rows("SELECT address, origin FROM suppressions ORDER BY address")
        assert listed == [("ada@example.net", "late_bounce"), ("bob@example.net", "complaint")]
        assert made.events(message)[3:] == ["email.late_bounced", "email.complained"]
        rows = made.rows("SELECT address, late_bounce FROM recipients WHERE late_bounce IS NOT NULL")
        ((address, late),) = rows
        assert (address, json.loads(late)["code"], json.loads(late)["class"]) == (
            "ada@example.net",
            550,
            "invalid_recipient",
        )
        await made.logged('"event": "late_bounced"')
        assert '"event": "complained"' in await made.logged('"event": "complained"')
        refused = await made.send("ada@example.net")
        await made.final(refused)
        assert (made.recipient(refused).response or "").startswith("suppressed")


async def test_another_accounts_token(tmp_path: Path) -> None:
    """A token of one account's recipient at another account's name is refused; with its own name it is taken."""
    async with world(tmp_path, LISTENS) as made:
        await made.domain("example.net", FakeMx())
        await trio.to_thread.run_sync(partial(add_account, made.running.data_dir, "other", domain="example.org"))
        message = await made.send("ada@example.net")
        await made.final(message)
        (recipient,) = ids(made, message).values()
        own = return_path(made.running, recipient)
        foreign = f"{own.partition('@')[0]}@bounces.example.org"
        # Made with the key of this installation, as a bounce at the wrong account would have it.
        signed = return_path(made.running, recipient, "bounces.example.org")
        await back(made, bounce("ada@example.net"), signed)
        assert made.rows("SELECT late_bounce FROM recipients") == [(None,)]

        def refused() -> bool:
            try:
                send_back(made.running, bounce("ada@example.net"), foreign)
            except Exception as error:
                return "550" in str(error)
            return False

        assert await trio.to_thread.run_sync(refused)
        await back(made, bounce("ada@example.net"), own)
        assert made.rows("SELECT late_bounce FROM recipients") != [(None,)]


async def test_a_server_that_bounces_before_its_own_answer(tmp_path: Path) -> None:
    """The bounce is read while the recipient has no result: it counts once that is written down."""
    async with world(tmp_path, LISTENS) as made:

        async def bounce_first(stream: trio.abc.Stream) -> None:
            ((recipient,),) = made.rows("SELECT id FROM recipients")
            path = return_path(made.running, recipient)
            await trio.to_thread.run_sync(partial(send_back, made.running, bounce("ada@example.net"), path))
            await made.until(lambda: made.rows("SELECT count(*) FROM feedback_mail WHERE tries > 1") == [(1,)])
            await stream.send_all(b"250 2.0.0 taken\r\n")

        await made.domain("example.net", FakeMx(answers={".": bounce_first}))
        message = await made.send("ada@example.net")
        await made.final(message)
        await made.until(lambda: made.rows("SELECT count(*) FROM feedback_mail") == [(0,)])
        assert made.events(message) == ["email.delivered", "email.late_bounced"]
        assert made.rows("SELECT address, origin FROM suppressions") == [("ada@example.net", "late_bounce")]
