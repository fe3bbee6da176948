"""Postfix, Exim, OpenSMTPD and swaks deliver to a receiving domain, with STARTTLS and without."""

import json
import os
import smtplib
import subprocess
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.e2e.delivery.postfix import postfix
from tests.e2e.delivery.world import World
from tests.e2e.feedback.exim import exim
from tests.e2e.receiving.opensmtpd import opensmtpd
from tests.e2e.receiving.receiving import DOMAIN, arrived, listener, receiving
from tests.programs import needs, require

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start these servers")
RECIPIENT = f"support+7@{DOMAIN}"
BODY = "\r\n".join([".", "..two", "Grüße", "x" * 900, *["line"] * 5_000, ""])
MAIL = (
    "From: Ada <ada@example.net>\r\nTo: support@in.example.com\r\nSubject: Hello\r\nMessage-ID: <1@example.net>\r\n"
    "MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\n" + BODY
).encode()


async def check(made: World, *, secure: bool) -> None:
    (email,) = await arrived(made)
    assert (email["subject"], email["message_id"], email["envelope"]["to"]) == ("Hello", "1@example.net", [RECIPIENT])
    assert email["text"] == BODY
    assert email["authentication"]["client"]["tls"] is secure
    raw = (await made.ask("GET", f"/v1/inbound/{email['id']}/raw")).content
    assert raw.endswith(MAIL[MAIL.index(b"\r\n\r\n") :])


async def passed_on(made: World, address: str, server: AbstractAsyncContextManager[Any], *, secure: bool) -> None:
    def send() -> None:
        with smtplib.SMTP(address, made.mx_port, local_hostname="client.example.net", timeout=30) as client:
            assert client.sendmail("ada@example.net", [RECIPIENT], MAIL, ["BODY=8BITMIME"]) == {}

    async with server:
        await trio.to_thread.run_sync(send)
        await check(made, secure=secure)


@only_root
@needs("postfix")
@pytest.mark.parametrize("secure", [True, False])
async def test_postfix(tmp_path: Path, secure: bool) -> None:
    async with receiving(tmp_path) as made:
        address = await made.host("relay.example.net", None)
        relays = {DOMAIN: listener(made)}
        server = postfix(DOMAIN, address, made.mx_port, relays=relays, secure=secure)
        await passed_on(made, address, server, secure=secure)


@only_root
@needs("exim")
@pytest.mark.parametrize("secure", [True, False])
async def test_exim(tmp_path: Path, secure: bool) -> None:
    """It sends in chunks (RFC 3030)."""
    async with receiving(tmp_path) as made:
        address = await made.host("relay.example.net", None)
        server = exim(address, made.mx_port, (DOMAIN, *listener(made)), secure=secure)
        await passed_on(made, address, server, secure=secure)


@only_root
@needs("opensmtpd")
@pytest.mark.parametrize("secure", [True, False])
async def test_opensmtpd(tmp_path: Path, secure: bool) -> None:
    async with receiving(tmp_path) as made:
        address = await made.host("relay.example.net", None)
        server = opensmtpd(address, made.mx_port, listener(made), secure=secure)
        await passed_on(made, address, server, secure=secure)


async def test_swaks_and_the_refusals(tmp_path: Path) -> None:
    """Also with an address that is not ASCII; other addresses get the replies of docs/receiving.md."""

    def swaks(recipient: str, *words: str) -> tuple[int, str]:
        host, port = listener(made)
        command = [require("swaks"), "--server", f"{host}:{port}", "--to", recipient, "--data", "-", *words]
        done = subprocess.run(command, input=MAIL, capture_output=True, timeout=60)
        return done.returncode, done.stdout.decode()

    async with receiving(tmp_path) as made:
        for count, words in enumerate(((), ("--tls",)), 1):
            code, talk = await trio.to_thread.run_sync(partial(swaks, RECIPIENT, "--from", "ada@example.net", *words))
            assert code == 0, talk
            assert (await arrived(made, count))[0]["authentication"]["client"]["tls"] is bool(words)
        for recipient, reply in (("ada@example.net", "550 5.7.1"), ("a@other.example.com", "550 5.7.1")):
            code, talk = await trio.to_thread.run_sync(partial(swaks, recipient, "--from", "ada@example.net"))
            assert code != 0
            assert f"<** {reply}" in talk

        def send_utf8() -> None:
            host, port = listener(made)
            with smtplib.SMTP(host, port, local_hostname="client.example.net", timeout=30) as client:
                client.ehlo()
                assert client.has_extn("smtputf8")
                assert client.has_extn("chunking")
                options = ["SMTPUTF8", "BODY=8BITMIME"]
                assert client.sendmail("ädä@example.net", ["grüße@in.example.com"], MAIL, options) == {}

        await trio.to_thread.run_sync(send_utf8)
        (email, *_) = await arrived(made, 3)
        assert email["envelope"] == {"from": "ädä@example.net", "to": ["grüße@in.example.com"]}
        events = [
            json.loads(bytes(body))["type"] for (body,) in made.rows("SELECT request_body FROM webhook_deliveries")
        ]
        assert events == []  # no webhook
