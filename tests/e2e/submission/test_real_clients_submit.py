"""Clients that people use submit over STARTTLS and TLS, and the same bytes come out at an MX."""

import os
import smtplib
import ssl
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from appliance.tls.certificate import CERTIFICATE
from tests.e2e.delivery.world import world
from tests.e2e.submission.client import endpoint
from tests.fakes.mx import FakeMx
from tests.programs import needs
from tests.running_appliance import Running

NODE_PATH = "/usr/share/nodejs"  # where Debian puts packages for node; a node of another origin does not look there
SENDER, RECIPIENT = "shop@example.com", "ada@far.test"
MESSAGE = (
    b"From: Shop <shop@example.com>\r\nTo: Ada <ada@far.test>\r\nSubject: =?utf-8?q?On_its_w=C3=A4y?=\r\n"
    b"Date: Mon, 2 Mar 2026 10:00:00 +0000\r\nMessage-ID: <42@example.com>\r\nMIME-Version: 1.0\r\n"
    b"X-Folded: one\r\n two\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n"
    b"\r\nHello Ada,\r\n\r\n.\r\n..\r\n.dots lead these lines\r\n  spaces end this one  \r\n"
    b"and here is \xc3\xa4\xc3\xb6\xc3\xbc.\r\n"
)


@dataclass(frozen=True)
class Sending:
    host: str
    port: int
    username: str
    password: str
    certificate: Path
    tls_first: bool
    directory: Path

    def run(self, *command: str, given: bytes = b"", **environment: str) -> None:
        """Run a program that submits; it must succeed."""
        ran = subprocess.run(
            command, input=given, capture_output=True, timeout=60, env={**os.environ, **environment}, check=False
        )
        assert ran.returncode == 0, (ran.stdout + ran.stderr).decode()


def with_smtplib(sending: Sending) -> None:
    context = ssl.create_default_context(cafile=str(sending.certificate))
    client: smtplib.SMTP
    if sending.tls_first:
        client = smtplib.SMTP_SSL(sending.host, sending.port, context=context, timeout=20)
    else:
        client = smtplib.SMTP(sending.host, sending.port, timeout=20)
        client.starttls(context=context)
    with client:
        client.login(sending.username, sending.password)
        assert client.sendmail(SENDER, [RECIPIENT], MESSAGE, mail_options=["BODY=8BITMIME"]) == {}


def with_swaks(sending: Sending) -> None:
    """The tester's; its file has bare line feeds, which it turns into CRLF itself."""
    file = sending.directory / "message.eml"
    file.write_bytes(MESSAGE.replace(b"\r\n", b"\n").removesuffix(b"\n"))  # which it adds
    sending.run(
        *("swaks", "--server", sending.host, "--port", str(sending.port), "--from", SENDER, "--to", RECIPIENT),
        *("--auth", "LOGIN", "--auth-user", sending.username, "--auth-password", sending.password),
        *("--tls-on-connect" if sending.tls_first else "--tls", "--data", f"@{file}", "--timeout", "20"),
    )


def with_msmtp(sending: Sending) -> None:
    sending.run(
        *("msmtp", "--file=/dev/null", "--host=localhost", f"--port={sending.port}", f"--from={SENDER}"),
        *("--auth=plain", f"--user={sending.username}", f"--passwordeval=printf %s {sending.password}"),
        *("--tls=on", f"--tls-starttls={'off' if sending.tls_first else 'on'}"),
        *(f"--tls-trust-file={sending.certificate}", "--timeout=20", RECIPIENT),
        given=MESSAGE.replace(b"\r\n", b"\n"),
    )


NODE = """
const nodemailer = require("nodemailer"), fs = require("fs");
const [host, port, secure, user, pass, ca] = process.argv.slice(1);
const transport = nodemailer.createTransport({
  host, port: Number(port), secure: secure === "yes", requireTLS: true, auth: { user, pass },
  tls: { ca: fs.readFileSync(ca), servername: "localhost" },
});
const envelope = { from: "shop@example.com", to: ["ada@far.test"] };
transport.sendMail({ envelope, raw: fs.readFileSync(0) }).catch((e) => { console.error(e); process.exit(1); });
"""


def with_nodemailer(sending: Sending) -> None:
    secure = "yes" if sending.tls_first else "no"
    sending.run(
        *("node", "-e", NODE, sending.host, str(sending.port), secure),
        *(sending.username, sending.password, str(sending.certificate)),
        given=MESSAGE,
        NODE_PATH=NODE_PATH,
    )


CLIENTS = [
    pytest.param(with_smtplib, id="smtplib"),
    pytest.param(with_swaks, id="swaks", marks=needs("swaks")),
    pytest.param(with_msmtp, id="msmtp", marks=needs("msmtp")),
    pytest.param(with_nodemailer, id="nodemailer", marks=[needs("node"), needs("nodemailer")]),
]


def sending_to(running: Running, directory: Path, *, tls_first: bool) -> Sending:
    host, port = endpoint(running, "smtps" if tls_first else "smtp")
    account = running.account
    return Sending(host, port, account.username, account.password, running.data_dir / CERTIFICATE, tls_first, directory)


@pytest.mark.parametrize("submit", CLIENTS)
async def test_real_clients_submit(submit: Callable[[Sending], None], tmp_path: Path) -> None:
    """What was submitted, over STARTTLS and over TLS, arrives byte for byte, behind whatever was added before it."""
    mx = FakeMx()
    async with world(tmp_path) as made:
        await made.domain("far.test", mx)
        for tls_first in (False, True):
            await trio.to_thread.run_sync(submit, sending_to(made.running, tmp_path, tls_first=tls_first))
        await made.until(lambda: len(mx.messages) == 2)
        for received in mx.messages:
            assert [each.strip("<>") for each in received.recipients] == [RECIPIENT]
            assert received.data.endswith(MESSAGE), received.data
        assert made.complaints() == []
