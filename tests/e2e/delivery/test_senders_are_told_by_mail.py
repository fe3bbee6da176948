"""SMTP clients ask with NOTIFY to be told by mail: the report reaches their own server, signed, once, and no other."""

import email
import email.policy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.feedback.dsn import NoticeKind, read_notice
from tests.e2e.delivery.test_every_signature_verifies import published
from tests.e2e.delivery.verifier import signatures, verifies
from tests.e2e.delivery.world import CREDITS, World, delays, world
from tests.fakes.mx import FakeMx, Received

MESSAGE = b"From: Shop <shop@example.com>\r\nTo: ada@far.test\r\nSubject: Hi\r\n\r\nHello, Ada.\r\n"
UNKNOWN = b"550 5.1.1 No such user\r\n"
EVERYTHING = "NOTIFY=SUCCESS,FAILURE,DELAY"


async def submit(made: World, to: Sequence[str], rcpt: Sequence[str] = (), mail: Sequence[str] = ()) -> None:
    await made.submit(to, MESSAGE, mail_options=mail, rcpt_options=rcpt)


def fields(report: Received) -> tuple[Any, Any, Any]:
    """The fields about the message, those about its one recipient, and what is returned, as Python reads them."""
    read: Any = email.message_from_bytes(report.data, policy=email.policy.default)
    _, status, returned = read.iter_parts()
    about, group = status.get_payload()
    return about, group, returned


@pytest.mark.both_engines
async def test_each_result_is_told(tmp_path: Path) -> None:
    """A bounce with the whole message, a delivery with its header; from <>, signed; free of charge and of events."""
    async with world(tmp_path, delays("1h")) as made:
        home, far = FakeMx(), FakeMx(answers={"RCPT gone@far.test": UNKNOWN})
        await made.domain("example.com", home)
        await made.domain("far.test", far)
        options = ["RET=FULL", "ENVID=order+2B42"]
        await submit(made, ["gone@far.test"], [EVERYTHING, "ORCPT=rfc822;gone+2Bx@list.example"], options)
        await submit(made, ["ada@far.test"], [EVERYTHING], options)
        await submit(made, ["bob@far.test"])
        await submit(made, ["gone@far.test"], ["NOTIFY=NEVER"])
        await made.until(lambda: len(home.messages) == 2)
        await made.until(lambda: made.unfinished() == [])
        assert [each.mail.partition(" ")[0] for each in far.messages] == ["<shop@example.com>"] * 2
        assert not any("NOTIFY" in command for command in far.commands)
        reports = {read_notice(each.data).kind: each for each in home.messages}
        failed, relayed = reports[NoticeKind.FAILED], reports[NoticeKind.DELIVERED]
        about, group, returned = fields(failed)
        assert (about["Original-Envelope-Id"], about["Reporting-MTA"]) == ("order+42", "dns; mail.example.com")
        assert (group["Action"], group["Status"]) == ("failed", "5.1.1")
        assert (group["Final-Recipient"], group["Original-Recipient"]) == (
            "rfc822; gone@far.test",
            "rfc822;gone+x@list.example",
        )
        assert group["Diagnostic-Code"] == "smtp; 550 5.1.1 No such user"
        assert group["Remote-MTA"].startswith("dns; mx")
        assert returned.get_content_type() == "message/rfc822"
        assert returned.get_payload()[0]["Subject"] == "Hi"
        assert read_notice(failed.data, "gone@far.test").recipient_fault
        about, group, returned = fields(relayed)
        assert (group["Action"], group["Status"][:2]) == ("relayed", "2.")
        assert returned.get_content_type() == "text/rfc822-headers"
        records = published(made)
        for report in (failed, relayed):
            assert report.mail.partition(" ")[0] == "<>"
            assert report.recipients == ("shop@example.com",)
            assert signatures(report.data) == 2
            assert [verifies(report.data, number, records) for number in range(2)] == [True, True]
        assert made.rows("SELECT count(*) FROM events") == [(4,)]
        assert made.credits() == CREDITS - 2  # two were delivered; bounces gave theirs back
        assert made.rows("SELECT count(*) FROM messages WHERE envelope_from = ''") == [(2,)]


@pytest.mark.both_engines
async def test_a_credential_asks_for_reports_of_failures(tmp_path: Path) -> None:
    """With `dsn`, a client that never heard of NOTIFY is told; one that gives it decides itself."""
    async with world(tmp_path, delays("1h")) as made:
        home, far = FakeMx(), FakeMx(answers={f"RCPT {name}@far.test": UNKNOWN for name in ("gone", "never", "only")})
        await made.domain("example.com", home)
        await made.domain("far.test", far)
        answer = (await made.ask("POST", "/v1/smtp-credentials", {"name": "CRM", "dsn": "failure"})).json()
        assert answer["dsn"] == "failure"
        login = {"username": answer["username"], "password": answer["password"]}
        made.running.account = replace(made.running.account, **login)
        await submit(made, ["never@far.test"], ["NOTIFY=NEVER"])
        await submit(made, ["only@far.test"], ["NOTIFY=SUCCESS"])
        await submit(made, ["ada@far.test", "gone@far.test"], (), ["RET=FULL", "ENVID=order-42"])
        await made.until(lambda: bool(home.messages) and made.unfinished() == [])
        (report,) = home.messages
        about, group, returned = fields(report)
        assert (group["Action"], group["Final-Recipient"]) == ("failed", "rfc822; gone@far.test")
        assert (about["Original-Envelope-Id"], returned.get_content_type()) == ("order-42", "message/rfc822")
        assert made.rows("SELECT count(*) FROM messages WHERE envelope_from = ''") == [(1,)]


@pytest.mark.both_engines
async def test_a_kill_loses_no_report(tmp_path: Path) -> None:
    """A bounce that is on disk has its report on disk, however the process ends; it is sent after the next start."""
    async with world(tmp_path, delays("1s", "1s", "1h")) as made:
        home = FakeMx(answers={"MAIL": b"451 4.3.0 Not now\r\n"})
        await made.domain("example.com", home)
        await made.domain("far.test", FakeMx(answers={"RCPT": UNKNOWN}))
        for number in range(10):
            await submit(made, [f"gone{number}@far.test"], ["NOTIFY=FAILURE"])
        bounced = "SELECT count(*) FROM recipients WHERE status = 'bounced'"
        reports = "SELECT count(*) FROM messages WHERE envelope_from = ''"
        await made.until(lambda: made.rows(bounced) != [(0,)])
        made.running.kill()
        assert made.rows(bounced) == made.rows(reports)
        home.answers = {}
        await made.start()
        await made.until(lambda: made.unfinished() == [])
        assert made.rows(bounced) == made.rows(reports) == [(10,)]
        await made.until(lambda: len(home.messages) >= 10)
        told = {fields(report)[1]["Final-Recipient"] for report in home.messages}
        assert told == {f"rfc822; gone{number}@far.test" for number in range(10)}
