"""Postfix and Exim take a message of ours, and send it back to its return path when they find no such user."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.delivery.postfix import postfix
from tests.e2e.delivery.test_mail_leaves_with_its_return_path import HOST, records, verified
from tests.e2e.delivery.world import World, world
from tests.e2e.feedback.exim import Back, exim
from tests.e2e.feedback.feedback import LISTENS, NAME
from tests.fakes.dns import zone_text
from tests.fakes.mx import FakeMx
from tests.programs import needs

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start these servers")


@asynccontextmanager
async def with_return_path(directory: Path) -> AsyncIterator[World]:
    async with world(directory, LISTENS) as made:
        made.publish(HOST, A=["192.0.2.25"])
        wanted = {(record["name"], record["type"]): record["value"] for record in await records(made)}
        made.publish(NAME, MX=[wanted[NAME, "MX"]], TXT=[zone_text(wanted[NAME, "TXT"])])
        assert (await verified(made))["return_path_at"] is not None
        yield made


async def bounced(made: World, domain: str, server: AbstractAsyncContextManager[Any]) -> dict[str, Any]:
    paid = made.credits()
    async with server:
        message = await made.send(f"ada@{domain}")
        await made.final(message)
        assert made.status(message) == "delivered"
        query = "SELECT late_bounce FROM recipients WHERE message_id = ?"
        await made.until(lambda: made.rows(query, message) != [(None,)])
    assert made.status(message) == "delivered"
    assert made.credits() == paid
    assert made.events(message) == ["email.delivered", "email.late_bounced"]
    assert made.rows("SELECT address, origin FROM suppressions") == [(f"ada@{domain}", "late_bounce")]
    ((late,),) = made.rows(query, message)
    return dict(json.loads(late))


def back_to(made: World) -> Back:
    parts = urlsplit(made.running.inbound[0])
    return NAME, parts.hostname or "", parts.port or 0


@needs("postfix")
async def test_postfix_bounces_later(tmp_path: Path) -> None:
    """A server behind it refuses with 5.1.1: the result stays, the credit is back, the address is suppressed."""
    async with with_return_path(tmp_path) as made:
        address = await made.host("mx0.postfix.test", None)
        made.publish("postfix.test", MX=["10 mx0.postfix.test."])
        behind = FakeMx(answers={"RCPT": b"550 5.1.1 User unknown\r\n"})
        name, host, port = back_to(made)
        relays = {"postfix.test": (await made.host("behind.test", behind.serve), made.mx_port), name: (host, port)}
        late = await bounced(made, "postfix.test", postfix("postfix.test", address, made.mx_port, relays=relays))
        assert late["code"] == 550
        assert late["class"] == "invalid_recipient"
        assert "User unknown" in late["response"]


@needs("exim")
async def test_exim_bounces_later(tmp_path: Path) -> None:
    async with with_return_path(tmp_path) as made:
        address = await made.host("mx0.exim.test", None)
        made.publish("exim.test", MX=["10 mx0.exim.test."])
        late = await bounced(made, "exim.test", exim(address, made.mx_port, back_to(made)))
        assert late["class"] == "invalid_recipient"
        assert "User unknown" in late["response"]
