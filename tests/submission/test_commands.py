"""The parameters of RFC 3461: what may be asked for, in which syntax, and what reaches the store of it."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import Code, Refused, StorageUnavailable
from appliance.model.accounts import Caller
from appliance.model.mail import DsnCondition, DsnRequest
from appliance.submission import dialogue
from appliance.submission.content import FindCaller, Phase, PlainAction
from appliance.submission.dialogue import Rejected, dsn_request, mail_path
from appliance.times import DAY, SECOND
from tests.submission.offline_client import CALLER, MESSAGE, NOW, PASSWORD, USERNAME, Talk, credential, logged_in, talk

SUCCESS, FAILURE, DELAY = DsnCondition
FROM, TO = b"MAIL FROM:<a@example.com>", b"RCPT TO:<ada@example.net>"


def asked(mail: bytes, *rcpts: bytes) -> dict[str, DsnRequest] | None:
    made = logged_in()
    assert made.say(FROM + mail) == dialogue.SENDER_OK
    for each in rcpts:
        assert made.say(each) == dialogue.RECIPIENT_OK
    made.say(b"DATA")
    made.send(MESSAGE + b".\r\n")
    dsn = made.submitted().dsn
    return None if dsn is None else dict(dsn)


def test_it_is_offered() -> None:
    assert b"250-DSN\r\n" in logged_in().say(b"EHLO client.example.com")


@pytest.mark.parametrize("rcpt", [b"", b" NOTIFY=NEVER", b" notify=never", b" ORCPT=rfc822;ada+40example.net"])
def test_nothing_is_told_unless_asked(rcpt: bytes) -> None:
    assert asked(b" RET=FULL ENVID=QQ314159", TO + rcpt) is None


@pytest.mark.parametrize(
    ("notify", "wanted"),
    [
        (b"SUCCESS", (SUCCESS,)),
        (b"failure", (FAILURE,)),
        (b"DELAY,FAILURE", (FAILURE, DELAY)),
        (b"Success,Failure,Delay", (SUCCESS, FAILURE, DELAY)),
        (b"DELAY,DELAY", (DELAY,)),
    ],
)
def test_what_is_asked_for(notify: bytes, wanted: tuple[DsnCondition, ...]) -> None:
    assert asked(b"", TO + b" NOTIFY=" + notify) == {"ada@example.net": DsnRequest(wanted)}


def test_all_parameters_together() -> None:
    found = asked(
        b" RET=FULL ENVID=a+2Bb+20c",
        b"RCPT TO:<Ada@example.net> ORCPT=rfc822;Ada+2Bx@list.example NOTIFY=SUCCESS",
        b"RCPT TO:<ada@example.net> NOTIFY=DELAY",
        b"RCPT TO:<bob@example.net>",
        b"RCPT TO:<eve@example.net> NOTIFY=FAILURE ORCPT=utf-8;m\\x{FC}@x.example",
    )
    common = {"full": True, "envelope_id": "a+b c"}
    assert found == {
        "ada@example.net": DsnRequest((SUCCESS,), original="rfc822;Ada+x@list.example", **common),  # type: ignore[arg-type]
        "eve@example.net": DsnRequest((FAILURE,), original="utf-8;m\\x{FC}@x.example", **common),  # type: ignore[arg-type]
    }


def test_a_costly_recipient_keeps_its_request() -> None:
    name = "ü" * 50
    found = asked(b" SMTPUTF8", f"RCPT TO:<ada@{name}.example> NOTIFY=DELAY".encode())
    assert found is not None
    assert [each.notify for each in found.values()] == [(DELAY,)]


def test_raw_characters_of_an_original_recipient() -> None:
    """RFC 6533 3: with SMTPUTF8 they may come as they are, and are kept in seven bits."""
    found = asked(b" SMTPUTF8", TO + " NOTIFY=DELAY ORCPT=utf-8;mü@x.example".encode())
    assert found is not None
    assert found["ada@example.net"].original == "utf-8;m\\x{FC}@x.example"


# ---- future release (RFC 4865)


@pytest.mark.parametrize(
    ("parameter", "due"),
    [
        (b"HOLDFOR=1", NOW + SECOND),
        (b"holdfor=2592000", NOW + 30 * DAY),
        (b"HOLDUNTIL=2026-11-15T12:00:00.5Z", NOW + SECOND // 2),
        (b"HOLDUNTIL=2026-12-15T13:00:00+01:00 RET=HDRS", NOW + 30 * DAY),
    ],
)
def test_a_message_is_held(parameter: bytes, due: int) -> None:
    made = logged_in()
    assert b"250-FUTURERELEASE 2592000 2026-12-15T12:00:00Z\r\n" in made.say(b"EHLO client.example.com")
    assert made.say(FROM + b" " + parameter) == dialogue.SENDER_OK
    for line in (TO, b"DATA"):
        made.say(line)
    made.send(MESSAGE + b".\r\n")
    assert made.submitted().hold == due


@pytest.mark.parametrize(
    ("parameter", "reply"),
    [
        (b"HOLDFOR", dialogue.BAD_HOLDFOR),
        (b"HOLDFOR=0", dialogue.BAD_HOLDFOR),
        (b"HOLDFOR=-5", dialogue.BAD_HOLDFOR),
        (b"HOLDFOR=1.5", dialogue.BAD_HOLDFOR),
        (b"HOLDFOR=1234567890", dialogue.BAD_HOLDFOR),
        (b"HOLDUNTIL", dialogue.BAD_HOLDUNTIL),
        (b"HOLDUNTIL=tomorrow", dialogue.BAD_HOLDUNTIL),
        (b"HOLDUNTIL=2026-11-16", dialogue.BAD_HOLDUNTIL),
        (b"HOLDUNTIL=2026-11-16T12:00:00", dialogue.BAD_HOLDUNTIL),
        (b"HOLDUNTIL=2026-11-15T12:00:00Z", dialogue.BAD_HOLDUNTIL),  # now
        (b"HOLDUNTIL=" + b"2" * 200, dialogue.BAD_HOLDUNTIL),
        (b"HOLDFOR=5 HOLDFOR=5", dialogue.SYNTAX_MAIL),
        (b"HOLDFOR=5 HOLDUNTIL=2026-11-16T12:00:00Z", dialogue.HELD_TWICE),
        (b"HOLDFOR=2592001", dialogue.TOO_FAR_AHEAD),
        (b"HOLDFOR=999999999", dialogue.TOO_FAR_AHEAD),
        (b"HOLDUNTIL=2026-12-15T12:00:00.001Z", dialogue.TOO_FAR_AHEAD),
        (b"HOLDUNTIL=9999-12-31T23:59:59-10:00", dialogue.TOO_FAR_AHEAD),
    ],
)
def test_wrong_times_to_hold_until(parameter: bytes, reply: bytes) -> None:
    made = logged_in()
    assert made.say(FROM + b" " + parameter) == reply
    assert made.say(TO) == dialogue.MAIL_FIRST
    made = talk()
    made.say(b"EHLO client.example.com")
    assert made.say(FROM + b" " + parameter) == dialogue.LOGIN_NEEDED


@pytest.mark.parametrize(
    "parameters",
    [
        b"RET",
        b"RET=",
        b"RET=ALL",
        b"RET=FULL,HDRS",
        b"RET=FULL RET=FULL",
        b"RET=FULL RET=HDRS",
        b"ENVID",
        b"ENVID=",
        b"ENVID=a=b",
        b"ENVID=a+",
        b"ENVID=a+4",
        b"ENVID=a+4g",
        b"ENVID=a+4a",  # hexadecimal digits are upper case
        b"ENVID=a+0D+0AX:+20y",
        b"ENVID=a+00",
        b"ENVID=+7F",
        b"ENVID=+80",
        b"ENVID=1 ENVID=1",
        b"ENVID=" + b"a" * 101,
        b"ENVID=" + b"+41" * 34,
        "ENVID=ü".encode(),
    ],
)
def test_hostile_parameters_of_mail(parameters: bytes) -> None:
    made = logged_in()
    assert made.say(FROM + b" " + parameters).startswith(b"501 5.5.4 ")
    assert made.say(TO) == dialogue.MAIL_FIRST


@pytest.mark.parametrize(
    "parameters",
    [
        b"NOTIFY",
        b"NOTIFY=",
        b"NOTIFY=ALWAYS",
        b"NOTIFY=NEVER,FAILURE",
        b"NOTIFY=FAILURE,NEVER",
        b"NOTIFY=NEVER,NEVER",
        b"NOTIFY=FAILURE,",
        b"NOTIFY=,FAILURE",
        b"NOTIFY=FAILURE;DELAY",
        b"NOTIFY=FAILURE,DELAY,SUCCESS,DELAY",
        b"NOTIFY=" + b"DELAY," * 80 + b"DELAY",
        b"NOTIFY=DELAY NOTIFY=DELAY",
        b"NOTIFY=NEVER NOTIFY=DELAY",
        b"ORCPT",
        b"ORCPT=",
        b"ORCPT=a@b.example",
        b"ORCPT=;a@b.example",
        b"ORCPT=rfc822;",
        b"ORCPT=rfc 822;a",
        b"ORCPT=rfc(822;a@b.example",
        b"ORCPT=rfc822;a@b.example ORCPT=rfc822;a@b.example",
        b"ORCPT=rfc822;a+0D+0AFinal-Recipient:+20x",
        b"ORCPT=rfc822;a+0A",
        b"ORCPT=rfc822;a+",
        b"ORCPT=rfc822;a+E9",
        b"ORCPT=rfc822;" + b"a" * 494,
        "ORCPT=utf-8;ü@x.example".encode(),  # without SMTPUTF8
        "ORCPT=rfc822;ü@x.example".encode(),
    ],
)
def test_hostile_parameters_of_rcpt(parameters: bytes) -> None:
    made = logged_in()
    made.say(FROM)
    assert made.say(TO + b" " + parameters).startswith(b"501 5.5.4 ")
    assert made.say(b"DATA") == dialogue.RCPT_FIRST


def test_embedded_characters_count() -> None:
    made = logged_in()
    made.say(FROM + b" SMTPUTF8")
    assert made.say(TO + b" ORCPT=utf-8;" + "ü".encode() * 200).startswith(b"501 5.5.4 ORCPT")


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="="), min_size=1, max_size=200))
def test_any_value_is_read_or_refused(text: str) -> None:
    try:
        _, mail = mail_path(f"FROM:<a@example.com> ENVID={text}", dsn=True)
        found = dsn_request(mail, {"NOTIFY": "DELAY", "ORCPT": f"rfc822;{text}"}, utf8=False)
    except Rejected:
        return
    assert found is not None
    assert found.original == f"rfc822;{found.envelope_id}"
    assert found.envelope_id.isprintable()
    assert 0 < len(found.envelope_id) <= 100


BASE64 = base64.b64encode


# ---- logging in


def test_login_asks_twice() -> None:
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
    made = talk()
    made.say(b"EHLO client.example.com")
    for line in lines:
        answer = made.say(line)
    assert answer.startswith(reply)
    assert made.action is None
    assert made.say(b"NOOP").startswith(b"250 ")


@pytest.mark.parametrize("is_known", [True, False])
def test_a_credential_with_too_many_connections_is_told_so(is_known: bool) -> None:
    made = talk()
    made.backend.has_place, made.backend.is_known = False, is_known
    made.say(b"EHLO client.example.com")
    assert made.say(b"AUTH PLAIN " + credential()).startswith(b"421 4.7.0 Too many connections with this credential")
    assert made.protocol.phase is Phase.OVER


def test_three_wrong_logins_end_the_session() -> None:
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
    made = talk()
    made.say(b"EHLO client.example.com")
    made.send(b"AUTH PLAIN " + credential(password="wrong") + b"\r\n")
    made.protocol.login_failed(too_many=True)
    assert made.replies()[0].startswith(b"421 4.7.0 ")


def test_a_revoked_credential_sends_no_more() -> None:
    made = logged_in()
    made.backend.logins.clear()
    assert made.say(b"MAIL FROM:<a@example.com>").startswith(b"535 5.7.8 ")
    assert made.say(b"MAIL FROM:<a@example.com>").startswith(b"530 5.7.0 ")


@pytest.mark.parametrize("code", [Code.ACCOUNT_SUSPENDED, Code.RATE_LIMITED, Code.TEMPORARY_FAILURE])
def test_what_could_not_be_accepted_is_refused_at_mail(code: Code) -> None:
    made = logged_in()
    made.backend.refusal = Refused(code, "Not now.")
    assert made.say(b"MAIL FROM:<a@example.com>") == f"{code.smtp} Not now.\r\n".encode()
    made.backend.refusal = None
    assert made.say(b"MAIL FROM:<a@example.com>").startswith(b"250 ")


# ---- while the store is asked who a client is

AUTH = b"AUTH PLAIN " + credential() + b"\r\n"
MAIL = b"MAIL FROM:<a@example.com>\r\n"
FROM_ELSEWHERE = b"MAIL FROM:<a@elsewhere.example>\r\n"


def asking(line: bytes) -> tuple[Talk, FindCaller]:
    """A session that waits to be told whose login it is: at AUTH, or at MAIL after it."""
    made = talk() if line == AUTH else logged_in()
    made.say(b"EHLO client.example.com")
    made.finds = made.backend.is_known = False
    assert made.send(line) == []
    assert isinstance(made.action, FindCaller)
    return made, made.action


@pytest.mark.parametrize(
    ("line", "reply"), [(AUTH, b"235 2.7.0 Authentication successful\r\n"), (MAIL, b"250 2.1.0 Sender OK\r\n")]
)
def test_what_follows_waits_for_the_store(line: bytes, reply: bytes) -> None:
    """AUTH and MAIL are not answered, nor what was sent behind them, until the caller is known; then all in order."""
    made, action = asking(line)
    assert made.send(b"NOOP\r\n") == []
    assert made.action is None
    assert made.protocol.phase is Phase.ACTION
    assert made.protocol.caller_found(action, CALLER) is None
    assert made.protocol.proceed() is None
    assert made.replies() == [reply, b"250 2.0.0 OK\r\n"]


def test_a_caller_who_was_found_a_moment_ago_is_not_looked_up() -> None:
    """Every connection, and every message of it, would cost a look into the store; a wrong password always does."""
    made = talk()
    made.finds = False
    made.say(b"EHLO client.example.com")
    assert made.say(AUTH.strip()).startswith(b"235 ")
    assert made.say(MAIL.strip()).startswith(b"250 ")
    wrong = talk()
    wrong.finds = False
    wrong.say(b"EHLO client.example.com")
    assert wrong.send(b"AUTH PLAIN " + credential(password="guessed") + b"\r\n") == []
    assert isinstance(wrong.action, FindCaller)


@pytest.mark.parametrize("line", [AUTH, MAIL])
def test_without_the_store_a_client_may_try_again(line: bytes) -> None:
    """A storage that is away is a 451, and neither a wrong password nor the end of the session or its login."""
    made, action = asking(line)
    assert made.protocol.caller_found(action, StorageUnavailable("Not now.")) is None
    assert made.replies() == [b"451 4.3.0 Not now.\r\n"]
    made.finds = True
    assert made.say(line.strip())[:4] in (b"235 ", b"250 ")


@pytest.mark.parametrize(
    ("line", "refusal", "reply"),
    [
        (FROM_ELSEWHERE, None, b"550 5.7.1 "),
        (b"MAIL FROM:<>\r\n", None, b"550 5.7.1 "),
        (MAIL, Refused(Code.ACCOUNT_SUSPENDED, "Suspended."), b"550 5.7.1 "),
    ],
)
def test_a_sender_is_refused_after_the_store_was_asked_as_before(
    line: bytes, refusal: Refused | None, reply: bytes
) -> None:
    made, action = asking(line)
    made.backend.refusal = refusal
    assert made.protocol.caller_found(action, CALLER) is None
    (answer,) = made.replies()
    assert answer.startswith(reply)
    assert made.protocol.phase is Phase.COMMAND
    made.backend.refusal, made.finds = None, True
    assert made.say(MAIL.strip()).startswith(b"250 ")


@pytest.mark.parametrize("result", [CALLER, StorageUnavailable("Not now."), None])
@pytest.mark.parametrize("line", [AUTH, MAIL])
def test_a_client_that_is_gone_begins_nothing(line: bytes, result: Caller | Refused | None) -> None:
    """A connection lost meanwhile counts for no credential and begins no message; a wrong guess still counts."""
    made, action = asking(line)
    made.backend.asked.clear()
    made.protocol.close()
    following = made.protocol.caller_found(action, result)
    assert following is (PlainAction.WRONG_LOGIN if line == AUTH and result is None else None)
    assert made.replies() == []
    assert made.protocol.phase is Phase.OVER
    assert made.backend.asked == []


# ---- STARTTLS


def test_what_is_injected_before_tls_is_never_read() -> None:
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
