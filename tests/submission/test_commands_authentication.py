"""The protocol before a message: who may log in, how, and what STARTTLS forgets."""

import base64

import pytest

from appliance.errors import Code, Refused
from appliance.submission.actions import Phase, PlainAction
from tests.submission.offline_client import PASSWORD, USERNAME, credential, logged_in, talk

BASE64 = base64.b64encode


# ---- logging in


def test_login_asks_twice() -> None:
    """LOGIN asks for a username and a password."""
    made = talk()
    made.say(b"EHLO client.example.com")
    assert made.say(b"AUTH LOGIN") == b"334 VXNlcm5hbWU6\r\n"
    assert made.say(BASE64(USERNAME.encode())) == b"334 UGFzc3dvcmQ6\r\n"
    assert made.say(BASE64(PASSWORD.encode())).startswith(b"235 2.7.0 ")


@pytest.mark.parametrize(
    ("lines", "reply"),
    [
        ([b"AUTH"], b"501 5.5.4 "),
        ([b"AUTH CRAM-MD5"], b"504 5.5.4 "),
        ([b"AUTH PLAIN", b"*"], b"501 5.7.0 "),
        ([b"AUTH PLAIN", b""], b"501 5.5.2 "),
        ([b"AUTH LOGIN", b"*"], b"501 5.7.0 "),
        ([b"AUTH PLAIN !!!"], b"501 5.5.2 "),
        ([b"AUTH PLAIN", b"AGE AGI="], b"501 5.5.2 "),
        ([b"AUTH PLAIN AGE= AGI="], b"501 5.5.4 "),
        ([b"AUTH PLAIN", "ä".encode()], b"500 5.5.2 "),
        ([b"AUTH PLAIN " + BASE64(b"a\0b")], b"501 5.5.2 "),
        ([b"AUTH PLAIN " + BASE64(b"a\0b\0c\0d")], b"501 5.5.2 "),
        ([b"AUTH PLAIN " + BASE64(b"other\0smtp_1\0secret")], b"501 5.5.2 "),
        ([b"AUTH PLAIN " + BASE64(b"\0\xff\0x")], b"501 5.5.2 "),
        ([b"AUTH PLAIN ="], b"501 5.5.2 "),
    ],
)
def test_what_is_no_login(lines: list[bytes], reply: bytes) -> None:
    """Whatever cannot be a username with its password is told from a wrong one, and tried against nothing."""
    made = talk()
    made.say(b"EHLO client.example.com")
    for line in lines:
        answer = made.say(line)
    assert answer.startswith(reply)
    assert made.action is None
    assert made.say(b"NOOP").startswith(b"250 ")


def test_a_credential_with_too_many_connections_is_told_so() -> None:
    """A right login beyond the limit is a 421, and the end of the session."""
    made = talk()
    made.backend.has_place = False
    made.say(b"EHLO client.example.com")
    assert made.say(b"AUTH PLAIN " + credential()).startswith(b"421 4.7.0 Too many connections with this credential")
    assert made.protocol.phase is Phase.OVER


def test_three_wrong_logins_end_the_session() -> None:
    """Each is counted before it is answered; after the third there is no fourth."""
    made = talk()
    made.say(b"EHLO client.example.com")
    for number in range(3):
        assert made.send(b"AUTH PLAIN " + credential(password=f"{number}") + b"\r\nNOOP\r\n") == []
        assert made.action is PlainAction.WRONG_LOGIN
        assert made.protocol.proceed() is None
        made.protocol.login_failed(too_many=False)
        assert made.replies()[0].startswith(b"421 4.7.0 " if number == 2 else b"535 5.7.8 ")
        made.protocol.proceed()
        assert made.replies() == ([] if number == 2 else [b"250 2.0.0 OK\r\n"])
    assert made.protocol.phase is Phase.OVER


def test_an_address_that_failed_too_often_is_sent_away() -> None:
    """What it did on other connections counts."""
    made = talk()
    made.say(b"EHLO client.example.com")
    made.send(b"AUTH PLAIN " + credential(password="wrong") + b"\r\n")
    made.protocol.login_failed(too_many=True)
    assert made.replies()[0].startswith(b"421 4.7.0 ")


def test_a_revoked_credential_sends_no_more() -> None:
    """A session that outlives its credential is asked to log in again."""
    made = logged_in()
    made.backend.logins.clear()
    assert made.say(b"MAIL FROM:<a@example.com>").startswith(b"535 5.7.8 ")
    assert made.say(b"MAIL FROM:<a@example.com>").startswith(b"530 5.7.0 ")


@pytest.mark.parametrize("code", [Code.ACCOUNT_SUSPENDED, Code.RATE_LIMITED, Code.TEMPORARY_FAILURE])
def test_what_could_not_be_accepted_is_refused_at_mail(code: Code) -> None:
    """Suspension, the rate and a full disk are told before a message is sent, by the table of errors."""
    made = logged_in()
    made.backend.refusal = Refused(code, "Not now.")
    assert made.say(b"MAIL FROM:<a@example.com>") == f"{code.smtp} Not now.\r\n".encode()
    made.backend.refusal = None
    assert made.say(b"MAIL FROM:<a@example.com>").startswith(b"250 ")


# ---- STARTTLS


def test_what_is_injected_before_tls_is_never_read() -> None:
    """A command in the same packet as STARTTLS is discarded, and everything said in the clear forgotten."""
    made = talk(secure=False, plaintext_login=True)
    made.say(b"EHLO client.example.com")
    made.say(b"AUTH PLAIN " + credential())
    assert made.send(b"STARTTLS\r\nMAIL FROM:<a@example.com>\r\nNOOP\r\n") == [b"220 2.0.0 Ready to start TLS\r\n"]
    assert made.action is PlainAction.START_TLS
    made.protocol.secured()
    assert made.protocol.proceed() is None
    assert made.replies() == []
    assert made.say(b"MAIL FROM:<a@example.com>").startswith(b"503 5.5.1 Send EHLO first")
    assert b"STARTTLS" not in made.say(b"EHLO client.example.com")
    assert made.say(b"MAIL FROM:<a@example.com>").startswith(b"530 5.7.0 ")


def test_starttls_takes_no_argument() -> None:
    """RFC 3207 4."""
    assert talk(secure=False).say(b"STARTTLS now").startswith(b"501 5.5.4 ")
