"""The parameters of RFC 3461: what may be asked for, in which syntax, and what reaches the store of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.model.mail import DsnCondition, DsnRequest
from appliance.submission import replies
from appliance.submission.commands import dsn_request, mail_path
from appliance.submission.replies import Rejected
from tests.submission.offline_client import MESSAGE, logged_in

SUCCESS, FAILURE, DELAY = DsnCondition
FROM, TO = b"MAIL FROM:<a@example.com>", b"RCPT TO:<ada@example.net>"


def asked(mail: bytes, *rcpts: bytes) -> dict[str, DsnRequest] | None:
    made = logged_in()
    assert made.say(FROM + mail) == replies.SENDER_OK
    for each in rcpts:
        assert made.say(each) == replies.RECIPIENT_OK
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
    assert made.say(TO) == replies.MAIL_FIRST


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
    assert made.say(b"DATA") == replies.RCPT_FIRST


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
