"""An independent peer: Debian's smtp-sink takes our messages, many on one connection."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from appliance.deliver.smtp.connection import DeadlineWatch, SmtpConnection
from appliance.deliver.smtp.protocol import ResultKind
from appliance.deliver.smtp.sending import MailTransaction, prepare
from tests.ports import free_port
from tests.programs import find, needs

SMTP_SINK = find("smtp-sink")
BODY = b"From: a@x.example\r\nSubject: sink\r\n\r\n" + b".dots\r\n" * 300

pytestmark = needs("smtp-sink")


@contextmanager
def sink(*options: str) -> Iterator[int]:
    port = free_port()
    unprivileged = ["-u", "nobody"] if os.geteuid() == 0 else []  # it will not run as root
    command = [str(SMTP_SINK), *unprivileged, *options, f"127.0.0.1:{port}", "10"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            with trio.fail_after(60):
                yield port
        finally:
            process.kill()


async def dial(port: int) -> trio.SocketStream:
    with trio.fail_after(10):
        while True:
            try:
                return await trio.open_tcp_stream("127.0.0.1", port)
            except OSError:
                await trio.sleep(0.02)


@pytest.mark.parametrize("options", [[], ["-p"], ["-e"]], ids=["pipelining", "no pipelining", "no EHLO"])
async def test_smtp_sink_takes_what_we_send(options: list[str]) -> None:
    with sink(*options) as port:
        connection = await SmtpConnection.open(await dial(port), "me.example", watch=DeadlineWatch())
        assert connection.capabilities.pipelining is (options == [])
        mail = MailTransaction("from@x.example", ("a@x.example", "b@x.example"), prepare(BODY))
        for _ in range(100):
            result = await connection.send(mail)
            assert [each.kind for each in result.verdicts] == [ResultKind.ACCEPTED] * 2
        await connection.quit()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (["-f", "RCPT"], ResultKind.REJECTED),
        (["-r", "RCPT"], ResultKind.DEFERRED),
        (["-f", "."], ResultKind.REJECTED),
        (["-r", "DATA"], ResultKind.DEFERRED),
        (["-q", "."], ResultKind.LOST),
    ],
)
async def test_smtp_sink_s_refusals_are_heard(options: list[str], kind: ResultKind) -> None:
    with sink(*options) as port:
        connection = await SmtpConnection.open(await dial(port), "me.example", watch=DeadlineWatch())
        mail = MailTransaction("from@x.example", ("a@x.example",), prepare(BODY))
        assert (await connection.send(mail)).verdicts[0].kind is kind
        await connection.quit()
