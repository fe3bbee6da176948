"""Nothing that a stranger sends makes a reader raise what it does not declare, or take longer than its size allows."""

import gzip
import time
import zlib
from collections.abc import Callable
from contextlib import suppress

import pytest

from appliance.feedback.arf import read_complaint
from appliance.feedback.dmarc import dmarc_counts, parse_dmarc_report
from appliance.feedback.dsn import read_notice
from appliance.feedback.mime import UnreadableReport, expanded
from appliance.feedback.reply_rules import judge_reply, parse_reply
from appliance.feedback.return_path import read_address
from appliance.feedback.tls_report import parse_tls_report, tls_counts
from tests.cpu_time import longest_hold
from tests.feedback.mutated_mail import GROWTH as GROWTH_OF_MEMORY
from tests.feedback.mutated_mail import LONGEST, made, read_all, run
from tests.message.hostile_mail import HOSTILE

MUTATIONS = 1_000  # try a change to a reader with 100,000


def test_mutated_messages_are_read() -> None:
    found = run(MUTATIONS)
    assert found.failures == []
    assert found.slowest < LONGEST, found.slowest_is
    assert found.growth < GROWTH_OF_MEMORY


def test_mutated_messages_can_be_made_again() -> None:
    """By seed and number, which change them; some are still read, so that the depths of the readers are reached."""
    assert [made(number, 7) for number in range(30)] == [made(number, 7) for number in range(30)]
    assert made(5, 7) != made(5, 8)
    documents = [parsed(made(number)[1]) for number in range(600)]
    assert documents.count("dmarc") > 20
    assert documents.count("tls") > 20


def parsed(data: bytes) -> str:
    with suppress(UnreadableReport):
        dmarc_counts(data)
        return "dmarc"
    with suppress(UnreadableReport):
        tls_counts(data)
        return "tls"
    return ""


# ---- growth


def _bounce(text: bytes) -> bytes:
    return b"From: mailer-daemon@example.net\r\nSubject: failure notice\r\n\r\n" + text


def _status(fields: bytes) -> bytes:
    head = (
        b"From: mailer-daemon@example.net\r\nContent-Type: message/delivery-status\r\n\r\nReporting-MTA: dns; a\r\n\r\n"
    )
    return head + fields


def _status_and_text(fields: bytes) -> bytes:
    head = b"Content-Type: multipart/report; boundary=b\r\n\r\n--b\r\n\r\n" + b"550 user unknown, host \r\n" * 2_000
    return head + b"\r\n--b\r\nContent-Type: message/delivery-status\r\n\r\n" + fields


def _complaint(fields: bytes) -> bytes:
    return b"Content-Type: message/feedback-report\r\n\r\nFeedback-Type: abuse\r\n" + fields


def _dmarc(inside: bytes) -> bytes:
    return b"<feedback>" + inside + b"</feedback>"


def notice(data: bytes) -> None:
    read_notice(data, "rcpt@example.net")


def complaint(data: bytes) -> None:
    read_complaint(data, attached=True)


def xml(data: bytes) -> None:
    with suppress(UnreadableReport):
        parse_dmarc_report(data)


def json(data: bytes) -> None:
    with suppress(UnreadableReport):
        parse_tls_report(data)


def words(data: bytes) -> None:
    text = data.decode("latin-1")
    judge_reply(550, None, text)
    parse_reply(text)


def rcpt(data: bytes) -> None:
    read_address(data.decode("latin-1"))


def unpacked(data: bytes) -> None:
    with suppress(UnreadableReport):
        expanded(data)


GROWING: list[tuple[Callable[[bytes], None], Callable[[bytes], bytes], bytes]] = [
    (notice, _bounce, b"550 "),
    (notice, _bounce, b"550 5.1.1 user unknown\n"),
    (notice, _bounce, b"delivery a "),
    (notice, _bounce, b"user does not "),
    (notice, _bounce, b"a"),
    (notice, _bounce, b" "),
    (notice, _bounce, b"\n"),
    (notice, _bounce, b"- \n"),
    (notice, _bounce, b"host a.b.c.d.e.f.g "),
    (notice, _bounce, b"host aaaaaaaaaaaa-"),
    (notice, _bounce, b"1.2.3."),
    (notice, _bounce, b"5.1.1"),
    (notice, _bounce, b"a@"),
    (notice, _bounce, b"please click the link "),
    (notice, _bounce, b"Final-Recipient: a\n\nAction: failed\n\n"),
    (notice, _status, b"Final-Recipient: rfc822; a@b.c\r\nAction: failed\r\nStatus: 5.1.1\r\n\r\n"),
    (notice, _status, b"Action: failed\r\nDiagnostic-Code: smtp; 550 5.1.1 a\r\n\r\n"),
    (notice, _status_and_text, b"Action: failed\r\n\r\n"),
    (notice, _status, b"Diagnostic-Code: 550 \r\n"),
    (notice, _status, b" folded\r\n"),
    (notice, _status, b"Action: failed\r\n\r\n"),
    (notice, lambda text: b"Subject: " + text + b"\r\nFrom: mailer-daemon\r\n\r\nx", b"delivery "),
    (notice, lambda text: b"From: " + text + b"\r\n\r\nx", b"mailer-daemo "),
    (notice, lambda text: b"Content-Type: text/html\r\nFrom: mailer-daemon\r\n\r\n" + text, b"<p>550 "),
    (notice, lambda text: b"Content-Type: text/html\r\nFrom: mailer-daemon\r\n\r\n" + text, b"<a href='"),
    (complaint, _complaint, b"b+"),
    (complaint, _complaint, b"Original-Rcpt-To: <a@b.c>\r\n"),
    (complaint, _complaint, b"X: b+aaaaaaaaaaaaaaaaaaaaaaaa@a\r\n"),
    (complaint, lambda text: b"Content-Type: message/rfc822\r\n\r\n" + text, b"X: <"),
    (complaint, lambda text: b"Content-Type: message/rfc822\r\n\r\n" + text, b"From \n"),
    (xml, _dmarc, b"<a/>"),
    (xml, _dmarc, b"a"),
    (xml, _dmarc, b"&lt;"),
    (xml, _dmarc, b"<!-- a -->"),
    (xml, lambda text: b"<feedback><record " + text + b"/></feedback>", b"a='1' "),
    (xml, lambda text: b"<feedback " + text, b"a "),
    (xml, lambda text: b"<feedback a='" + text, b"a"),
    (xml, lambda text: b"<?xml " + text, b"encoding='"),
    (xml, _dmarc, b"<record><row><source_ip>192.0.2.1</source_ip><count>1</count></row></record>"),
    (json, lambda text: b'{"policies":[' + text, b"{},"),
    (json, lambda text: b'{"a":' + text, b"["),
    (json, lambda text: b'{"a":"' + text, b"\\u0041"),
    (words, lambda text: text, b"mailbox "),
    (words, lambda text: text, b"user a "),
    (words, lambda text: text, b"exceed "),
    (rcpt, lambda text: b"b+" + text, b"a"),
    (unpacked, lambda text: b"PK\x03\x04" + text, b"PK\x05\x06"),
    (unpacked, lambda text: b"\x1f\x8b" + text, b"\x1f\x8b\x08\0"),
    (unpacked, gzip.compress, b"\0"),
]
SIZE, GROWTH, BOUND = 32 * 1024, 8, 24.0  # octets; times as many; times as long: 8 when linear, 64 when quadratic


def seconds(read: Callable[[bytes], None], data: bytes) -> float:
    taken = []
    for _ in range(2):
        start = time.process_time()
        read(data)
        taken.append(time.process_time() - start)
    return min(taken)


@pytest.mark.parametrize("case", range(len(GROWING)), ids=lambda number: f"{GROWING[number][0].__name__}-{number}")
def test_time_grows_no_faster_than_the_input(case: int) -> None:
    read, framed, unit = GROWING[case]
    small, large = (framed(unit * (size // len(unit))) for size in (SIZE, GROWTH * SIZE))
    taken = seconds(read, large)
    assert taken < 3
    if taken > 0.02:
        assert taken < BOUND * seconds(read, small) + 0.01


# ---- the interpreter lock

MOST = 7 * 1024 * 1024  # octets, as many as a report may expand to
KOI8 = b"<?xml version='1.0' encoding='koi8-r'?><feedback>"
LOCKING: list[tuple[Callable[[bytes], None], bytes, bytes, bytes]] = [
    (xml, b"<feedback><!--", b"a", b"--></feedback>"),
    (xml, b"<!--", b"a>", b"-->"),
    (xml, b"<feedback>", b"<!--" + b"a" * 16_000 + b"-->", b"</feedback>"),
    (xml, b"<feedback><a b='", b"&lt;", b"'/></feedback>"),
    (xml, b"<feedback>", b"<a b='" + b"&lt;" * 4_000 + b"'/>", b"</feedback>"),
    (xml, b"<feedback><a", b" ", b"/></feedback>"),
    (xml, b"<feedback><?a ", b"b", b"?></feedback>"),
    (xml, b"<feedback>", b"a", b"</feedback>"),
    (xml, b"<feedback>", b"\n", b"</feedback>"),
    (xml, KOI8 + b"<!--", b"\xc1", b"--></feedback>"),
    (xml, KOI8, b"<!--" + b"\xc1" * 8_000 + b"-->", b"</feedback>"),
    (xml, b"<feedback>", b"".join(b"<a xmlns:b%d='c'/>" % number for number in range(90_000)), b"</feedback>"),
    (json, b'{"organization-name":"', b"\\u00e9", b'"}'),
    (json, b'{"organization-name":"', b"\\n", b'"}'),
    (json, b'{"policies":[{"policy":{"mx-host":[', b'"a",' * 190_000, b'"a"]}}]}'),
    (notice, _bounce(b""), (b"by a.a.a.a.a.a.a.a." * 50)[:900] + b"\r\n", b""),
    (notice, _bounce(b""), b"host aaaaaaaaaaaaaaaa.", b""),
]


@pytest.mark.parametrize("case", range(len(LOCKING)), ids=lambda number: f"{LOCKING[number][0].__name__}-{number}")
def test_the_interpreter_lock_is_not_kept(case: int) -> None:
    """Readers have a thread of their own, which is of use to the event loop only while that thread lets go of it."""
    read, begins, unit, ends = LOCKING[case]
    data = begins + unit * max(1, MOST // len(unit)) + ends
    assert longest_hold(lambda: read(data)) < 0.006


@pytest.mark.parametrize("name", HOSTILE)
def test_expensive_mail_is_cheap(name: str) -> None:
    start = time.process_time()
    read_all(HOSTILE[name](500_000))
    assert time.process_time() - start < 5


def test_a_bomb_is_not_expanded() -> None:
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(compressor.compress(b"\0" * 2**20) for _ in range(64)) + compressor.flush()
    start = time.process_time()
    with pytest.raises(UnreadableReport, match="expands to more than"):
        expanded(bomb)
    assert time.process_time() - start < 1
