"""Delivery status notifications as they are written: what Python's email package and our own reader find in them."""

import email
import email.policy
from email.message import EmailMessage
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.feedback.dsn import NoticeKind, read_notice
from appliance.message.addresses import parse
from appliance.message.seven_bit import seven_bit
from appliance.message.system_mail import OriginalMessage, ReportedRecipient, delivery_report
from appliance.model.mail import DsnCondition, DsnRequest

SENDER = parse("shop@example.com", "from")
ORIGINAL = b"From: shop@example.com\r\nSubject: Hi\r\nMessage-ID: <1@example.com>\r\n\r\nHello.\r\n"
NOW = 1_700_000_000_000_000
SUCCESS, FAILURE, DELAY = DsnCondition


def written(
    condition: DsnCondition, *recipients: ReportedRecipient, original: bytes = ORIGINAL, whole: bool = True
) -> bytes:
    return delivery_report(
        "msg_2", SENDER, condition, recipients, OriginalMessage(original, whole), accepted_at=NOW - 5_000_000, now=NOW
    )


def recipient(
    code: int | None = 550,
    response: str = "550 5.1.1 User unknown",
    *,
    address: str = "ada@example.net",
    original: str = "rfc822;ada@list.example",
    full: bool = False,
    host: str | None = "mx.example.net",
    expired: bool = False,
) -> ReportedRecipient:
    request = DsnRequest((SUCCESS, FAILURE, DELAY), original, full, "QQ314159", "mail.example.com")
    return ReportedRecipient(address, request, code, response, host, NOW - 1_000_000, expired)


def parts(data: bytes) -> tuple[EmailMessage, list[Any]]:  # typeshed has no type for the payload of a report
    read = email.message_from_bytes(data, policy=email.policy.default)
    assert isinstance(read, EmailMessage)
    assert not read.defects
    found = list(read.iter_parts())
    assert all(isinstance(each, EmailMessage) and not each.defects for each in found)
    return read, found


def test_a_failure() -> None:
    """All of it: the header, the text, the fields, the header of the message."""
    whole, (text, status, header) = parts(written(FAILURE, recipient()))
    assert whole.get_content_type() == "multipart/report"
    assert whole.get_param("report-type") == "delivery-status"
    assert (whole["From"], whole["To"]) == ("Mail Delivery System <postmaster@example.com>", "shop@example.com")
    assert (whole["Auto-Submitted"], whole["Subject"]) == ("auto-replied", "Undelivered mail")
    assert whole["Message-ID"] == "<2@example.com>"
    assert "mx.example.net said: 550 5.1.1 User unknown" in text.get_content()
    assert status.get_content_type() == "message/delivery-status"
    about, group = status.get_payload()
    assert dict(about.items()) == {
        "Original-Envelope-Id": "QQ314159",
        "Reporting-MTA": "dns; mail.example.com",
        "Arrival-Date": "Tue, 14 Nov 2023 22:13:15 +0000",
    }
    assert dict(group.items()) == {
        "Original-Recipient": "rfc822;ada@list.example",
        "Final-Recipient": "rfc822; ada@example.net",
        "Action": "failed",
        "Status": "5.1.1",
        "Remote-MTA": "dns; mx.example.net",
        "Diagnostic-Code": "smtp; 550 5.1.1 User unknown",
        "Last-Attempt-Date": "Tue, 14 Nov 2023 22:13:19 +0000",
    }
    assert header.get_content_type() == "text/rfc822-headers"
    assert header.get_payload() == "From: shop@example.com\r\nSubject: Hi\r\nMessage-ID: <1@example.com>\r\n"
    notice = read_notice(written(FAILURE, recipient()), "ada@example.net")
    assert (notice.kind, notice.code, notice.status, notice.recipient_fault) == (NoticeKind.FAILED, 550, "5.1.1", True)


@pytest.mark.parametrize(
    ("condition", "given", "action", "status", "diagnostic"),
    [
        (SUCCESS, recipient(250, "250 2.6.0 Queued"), "relayed", "2.6.0", "smtp; 250 2.6.0 Queued"),
        (SUCCESS, recipient(250, "250 ok"), "relayed", "2.0.0", "smtp; 250 ok"),
        (DELAY, recipient(452, "452 4.2.2 Full"), "delayed", "4.2.2", "smtp; 452 4.2.2 Full"),
        (DELAY, recipient(None, "connection refused"), "delayed", "4.0.0", "x-appliance; connection refused"),
        (FAILURE, recipient(451, "451 4.3.0 Later", expired=True), "failed", "4.4.7", "smtp; 451 4.3.0 Later"),
        (FAILURE, recipient(554, "no"), "failed", "5.0.0", "smtp; 554 no"),
        (FAILURE, recipient(550, "550-5.7.26 no 5.1.1"), "failed", "5.7.26", "smtp; 550-5.7.26 no 5.1.1"),
        (FAILURE, recipient(None, "suppressed: no", host=None), "failed", "5.0.0", "x-appliance; suppressed: no"),
    ],
)
def test_actions(condition: DsnCondition, given: ReportedRecipient, action: str, status: str, diagnostic: str) -> None:
    data = written(condition, given)
    _, (_, fields, _) = parts(data)
    group = fields.get_payload()[1]
    assert (group["Action"], group["Status"], group["Diagnostic-Code"]) == (action, status, diagnostic)
    kinds = {"relayed": NoticeKind.DELIVERED, "delayed": NoticeKind.DELAYED, "failed": NoticeKind.FAILED}
    assert read_notice(data).kind is kinds[action]


@pytest.mark.parametrize(
    ("condition", "full", "whole", "kind"),
    [
        (FAILURE, True, True, "message/rfc822"),
        (FAILURE, True, False, "text/rfc822-headers"),
        (FAILURE, False, True, "text/rfc822-headers"),
        (DELAY, True, True, "text/rfc822-headers"),
        (SUCCESS, True, True, "text/rfc822-headers"),
    ],
)
def test_what_is_returned(condition: DsnCondition, full: bool, whole: bool, kind: str) -> None:
    """The message only if that was asked for, it failed (RFC 3461 4.3), and it is not too large."""
    _, (_, _, returned) = parts(written(condition, recipient(full=full), whole=whole))
    assert returned.get_content_type() == kind
    if kind == "message/rfc822":
        assert returned.get_payload()[0].as_bytes() == ORIGINAL.replace(b"\r\n", b"\n")


def test_a_cut_header_and_none() -> None:
    """Only whole lines of a header that was cut are returned; a message that is not kept any more is left out."""
    _, (_, _, returned) = parts(written(FAILURE, recipient(), original=b"A: b\r\nC: d\r\nE: f", whole=False))
    assert returned.get_payload() == "A: b\r\nC: d\r\n"
    assert len(parts(written(FAILURE, recipient(), original=b""))[1]) == 2


def test_eight_bit_mail_is_declared_and_has_a_seven_bit_form() -> None:
    original = "From: shop@example.com\r\nSubject: Grüße\r\n\r\nGrüße\r\n".encode()
    for full in (True, False):
        data = written(FAILURE, recipient(full=full), original=original)
        whole, (_, _, returned) = parts(data)
        assert (whole["Content-Transfer-Encoding"], returned["Content-Transfer-Encoding"]) == ("8bit", "8bit")
        assert read_notice(seven_bit(data)).kind is NoticeKind.FAILED


def test_addresses_that_are_not_ascii() -> None:
    """RFC 6533 3: in seven bits; people see the address itself."""
    _, (text, fields, _) = parts(written(FAILURE, recipient(address="mü@x.example")))
    assert fields.get_payload()[1]["Final-Recipient"] == "utf-8; m\\x{FC}@x.example"
    assert "<mü@x.example>" in text.get_content()


@given(st.text(max_size=2_000), st.text(max_size=300))
def test_no_text_adds_a_field(response: str, host: str) -> None:
    data = written(FAILURE, recipient(550, response, host=host), recipient(address="bob@example.net"))
    assert max(map(len, data.split(b"\r\n"))) <= 998
    assert b"\n" not in data.replace(b"\r\n", b"")
    assert b"\r" not in data.replace(b"\r\n", b"")
    _, (_, fields, _) = parts(data)
    groups = fields.get_payload()
    assert [each["Final-Recipient"] for each in groups] == [None, "rfc822; ada@example.net", "rfc822; bob@example.net"]
    assert [each["Action"] for each in groups[1:]] == ["failed", "failed"]
