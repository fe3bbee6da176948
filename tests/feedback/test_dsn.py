"""What bounces and other answers say, by a corpus of the shapes in which mail servers write them."""

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.feedback.dsn import WORDS_CHARACTERS, Notice, NoticeKind, read_notice

CORPUS = Path(__file__).parent / "corpus" / "dsn"
ADDRESS = "rcpt@example.net"
with (CORPUS / "expected.tsv").open(newline="") as table:
    EXPECTED = {row["file"]: row for row in csv.DictReader(table, delimiter="\t")}


def as_row(notice: Notice) -> dict[str, str]:
    """A notice as the table has it."""
    return {
        "kind": notice.kind.value,
        "code": str(notice.code or ""),
        "status": notice.status or "",
        "class": notice.bounce_class.value if notice.bounce_class else "",
        "recipient_fault": "yes" if notice.recipient_fault else "no",
    }


def test_the_corpus_is_whole() -> None:
    assert set(EXPECTED) == {path.stem for path in CORPUS.glob("*.eml")}
    assert len(EXPECTED) >= 60
    assert {row["kind"] for row in EXPECTED.values()} == {kind.value for kind in NoticeKind}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_a_message_says(name: str) -> None:
    """Kind, code, status, class, fault and server, as the table has them; words are there and bounded."""
    notice = read_notice((CORPUS / f"{name}.eml").read_bytes(), ADDRESS)
    assert {"file": name, **as_row(notice)} == EXPECTED[name], notice.words
    assert 0 < len(notice.words) <= WORDS_CHARACTERS
    assert notice.words.isprintable()


WORDS = {
    "postfix-unknown-user": "550 5.1.1 <rcpt@example.net>: Recipient address rejected: User unknown in virtual"
    " mailbox table",
    "qmail-no-mailbox": "Sorry, no mailbox here by that name. (#5.1.1)",
    "exim-unrouteable": "Unrouteable address",
    "exim-text-550": "550 5.1.1 <rcpt@example.net>: Recipient address rejected: User unknown",
    "sendmail-5-without-report": "<<< 550 <rcpt@example.net>... User unknown 550 <rcpt@example.net>... User unknown",
    "domino-not-listed": "User rcpt (rcpt@example.net) not listed in Domino Directory",
    "imail-unknown-user": "Unknown user: rcpt@example.net",
    "exchange-online-html-only": "Remote Server returned '550 5.4.1 Recipient address rejected: Access denied'",
    "opensmtpd-text": "rcpt@example.net: 550 Invalid recipient: <rcpt@example.net>",
    "mailenable-domain": "Reason: The domain name (nowhere.example) does not appear to be registered.",
    "vacation-german": "Abwesenheitsnotiz: Grüße",
}


@pytest.mark.parametrize("name", WORDS)
def test_the_words(name: str) -> None:
    assert read_notice((CORPUS / f"{name}.eml").read_bytes(), ADDRESS).words == WORDS[name]


def report(*groups: str, head: str = "") -> bytes:
    fields = "\r\n\r\n".join(("Reporting-MTA: dns; a.example", *groups))
    return f"{head}From: mailer-daemon@a.example\r\nContent-Type: message/delivery-status\r\n\r\n{fields}\r\n".encode()


FAILED = "Final-Recipient: rfc822; first@example.org\r\nAction: failed\r\nStatus: 5.1.1"
RELAYED = "Final-Recipient: rfc822; second@example.org\r\nAction: relayed\r\nStatus: 2.0.0"
ALIAS = "Original-Recipient: rfc822;RCPT@example.net\r\n"


def test_our_group_counts() -> None:
    assert read_notice(report(FAILED, RELAYED), "second@example.org").kind is NoticeKind.DELIVERED
    assert read_notice(report(FAILED, RELAYED), "First@Example.org").kind is NoticeKind.FAILED
    assert read_notice(report(ALIAS + FAILED, RELAYED), ADDRESS).kind is NoticeKind.FAILED
    assert read_notice(report(FAILED, ALIAS + RELAYED), ADDRESS).kind is NoticeKind.DELIVERED


def test_without_ours_all_must_agree() -> None:
    for address in (ADDRESS, "", None):
        assert read_notice(report(FAILED), address).kind is NoticeKind.FAILED
        assert read_notice(report(FAILED, FAILED), address).recipient_fault
        assert read_notice(report(FAILED, RELAYED), address).kind is NoticeKind.UNKNOWN


def test_the_text_speaks_for_one_recipient_only() -> None:
    head = "From: mailer-daemon@a.example\r\nContent-Type: multipart/report; boundary=b\r\n\r\n"
    head += "--b\r\n\r\n550 user unknown\r\n"
    group = "Final-Recipient: rfc822; {}\r\nAction: failed\r\nStatus: 5.0.0\r\n\r\n"
    for others, fault in ("", True), (group.format("other@example.org"), False):
        fields = f"--b\r\nContent-Type: message/delivery-status\r\n\r\n{group.format(ADDRESS)}{others}--b--"
        assert read_notice((head + fields).encode(), ADDRESS).recipient_fault is fault


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ("Action: FAILED", NoticeKind.FAILED),
        ("Action: failed (bad address)", NoticeKind.FAILED),
        ("Action: delayed", NoticeKind.DELAYED),
        ("Action: delivered", NoticeKind.DELIVERED),
        ("Action: nonsense\r\nStatus: 5.1.1", NoticeKind.FAILED),
        ("Status: 4.4.1", NoticeKind.DELAYED),
        ("Status: 2.1.5", NoticeKind.DELIVERED),
        ("Diagnostic-Code: smtp; 550 no", NoticeKind.FAILED),
        ("Action: failed\r\nStatus: 4.4.7", NoticeKind.FAILED),
        ("Action: nonsense", NoticeKind.UNKNOWN),
        ("Status: five", NoticeKind.UNKNOWN),
    ],
)
def test_the_kind_of_a_group(fields: str, kind: NoticeKind) -> None:
    assert read_notice(report(fields)).kind is kind


@pytest.mark.parametrize(
    ("fields", "code", "status"),
    [
        ("Status: 5.0.0\r\nDiagnostic-Code: smtp; 550 5.1.1 no", 550, "5.1.1"),
        ("Status: 5.1.1\r\nDiagnostic-Code: smtp; 550 5.0.0 no", 550, "5.1.1"),
        ("Status: 5.1.1\r\nDiagnostic-Code: smtp; 550 no", 550, "5.1.1"),
        ("Status: 5.1.1\r\nDiagnostic-Code: smtp; 550-5.7.26 a 550 5.7.26 b", 550, "5.7.26"),
        ("Status: 5.1.1", None, "5.1.1"),
        ("Diagnostic-Code: x-unix; no such user", None, None),
        ("Diagnostic-Code: smtp; 550 #5.1.0 Address rejected.", 550, "5.1.0"),
        ("Diagnostic-Code: smtp; 550 192.0.2.5 is listed", 550, None),
        ("Diagnostic-Code: smtp; 550 see 5.1.1.1", 550, None),
        ("Diagnostic-Code: 550 5.1.1", 550, "5.1.1"),
    ],
)
def test_code_and_status(fields: str, code: int | None, status: str | None) -> None:
    """The reply itself says it best, unless it says nothing."""
    notice = read_notice(report(f"Action: failed\r\n{fields}"))
    assert (notice.code, notice.status) == (code, status)


@pytest.mark.parametrize(
    "header",
    [
        "Auto-Submitted: auto-replied", "Auto-Submitted: auto-generated; type=x", "X-Autoreply: 1",
        "X-Autorespond: x", "Precedence: auto_reply", "Subject: Automatic reply: Your order",
        "Subject: AW: Abwesenheit", "Subject: Automatische Antwort: x", "Subject: Respuesta automática: x",
        "Subject: Risposta automatica: x", "Subject: Automatisch antwoord: x", "Subject: Resposta automática: x",
        "Subject: Autosvar: x", "Subject: Odpowiedź automatyczna: x", "Subject: Автоответ: x", "Subject: 自动回复: x",
    ],
)  # fmt: skip
def test_an_automatic_answer_is_no_bounce(header: str) -> None:
    """Whatever it says: a person who has left says that the address does not exist."""
    text = "User unknown. Your message was not delivered. 550 5.1.1"
    mime = f"From: Rcpt <rcpt@example.net>\r\n{header}\r\n\r\n{text}".encode()
    assert read_notice(mime, ADDRESS).kind is NoticeKind.AUTO_REPLY


def test_a_person_writes_no_bounce() -> None:
    text = "\r\n\r\nYour message could not be delivered: 550 5.1.1 user unknown"
    for head in ("From: Rcpt <rcpt@example.net>\r\nSubject: Re: Your order", "From: a@b.c"):
        assert read_notice((head + text).encode(), ADDRESS).kind is NoticeKind.UNKNOWN
    for head in (
        "From: MAILER-DAEMON@b.c",
        "From: a\r\nSubject: Undeliverable: x",
        "From: a\r\nX-Failed-Recipients: x",
    ):
        assert read_notice((head + text).encode(), ADDRESS).recipient_fault


def test_the_returned_message_says_nothing() -> None:
    mime = b"From: mailer-daemon@b.c\r\nSubject: failure notice\r\n\r\nSorry.\r\n\r\n"
    mime += b"--- Below this line is a copy of the message.\r\n"
    notice = read_notice(mime + b"550 5.1.1 user unknown\r\nTHIS IS A WARNING MESSAGE ONLY\r\n")
    assert (notice.kind, notice.code, notice.status, notice.recipient_fault) == (NoticeKind.FAILED, None, None, False)


@given(st.binary(max_size=500), st.none() | st.text(max_size=50))
def test_any_bytes_are_read(data: bytes, address: str | None) -> None:
    """Alone, as a delivery status, as a disposition and as the text of a bounce."""
    for head in (
        b"",
        b"Content-Type: message/delivery-status\r\n\r\n",
        b"Content-Type: message/disposition-notification\r\n\r\n",
        b"From: mailer-daemon\r\nContent-Type: text/html\r\n\r\n",
        b"From: mailer-daemon\r\n\r\n",
    ):
        notice = read_notice(head + data, address)
        assert len(notice.words) <= WORDS_CHARACTERS
        assert notice.recipient_fault <= (notice.kind is NoticeKind.FAILED)
        assert (notice.bounce_class is None) == (notice.kind not in (NoticeKind.FAILED, NoticeKind.DELAYED))
