"""No recipient learns who gets a blind copy: what a server receives holds no Bcc."""

from pathlib import Path

import trio

from tests.e2e.delivery.world import world
from tests.e2e.submission.client import smtp
from tests.fakes.mx import FakeMx
from tests.running_appliance import Running

TOP = b"Bcc: hidden@far.test\r\nFrom: Shop <shop@example.com>\r\nTo: ada@far.test\r\nSubject: Bcc: is no field here\r\n"
HIDDEN = (
    b"Date: Mon, 2 Mar 2026 10:00:00 +0000\r\nMessage-ID: <22@example.com>\r\nbCC: Eve\r\n <hidden@far.test>,\r\n"
    b"\tmallory@hidden.test\r\nResent-Bcc: hidden@far.test\r\nBcc:\r\nReturn-Path: <hidden@far.test>\r\n"
    b"Idempotency-Key: hidden-22\r\n"
)
LAST, BODY = b"X-Last: yes\r\n", b"\r\nBcc: stays where it is text\r\n"
RECIPIENTS = ["ada@far.test", "hidden@far.test"]


def submit(running: Running) -> None:
    """Twice under one key, as a client that has lost its answer does."""
    for _ in range(2):
        with smtp(running) as client:
            assert client.sendmail("shop@example.com", RECIPIENTS, TOP + HIDDEN + LAST + BODY) == {}


async def test_bcc_stays_here(tmp_path: Path) -> None:
    """Every Bcc, Resent-Bcc, Return-Path and Idempotency-Key is gone with all its lines; nothing else is."""
    mx = FakeMx()
    async with world(tmp_path) as made:
        await made.domain("far.test", mx)
        await trio.to_thread.run_sync(submit, made.running)
        await made.until(lambda: sum(len(each.recipients) for each in mx.messages) == len(RECIPIENTS))
        for received in mx.messages:
            assert b"hidden" not in received.data
            assert b"mallory" not in received.data
            kept = b"Date: Mon, 2 Mar 2026 10:00:00 +0000\r\nMessage-ID: <22@example.com>\r\n"
            assert received.data.endswith(TOP.partition(b"\r\n")[2] + kept + LAST + BODY)
        assert {each.strip("<>") for received in mx.messages for each in received.recipients} == set(RECIPIENTS)
        ((messages,),) = made.rows("SELECT count(*) FROM messages")
        assert messages == 1
        assert made.complaints() == []
