"""Holds docs/smtp.md to the replies and limits that there are."""

import re
from pathlib import Path

from appliance.errors import Code
from appliance.message.limits import MESSAGE_SIZE, RECIPIENTS
from appliance.submission import connection, dialogue, protocol
from appliance.tls.certificate import CERTIFICATE

DOCUMENT = (Path(__file__).parents[2] / "docs" / "smtp.md").read_text()


def test_the_table_of_replies_is_that_of_the_program() -> None:
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| `(\d{3} \d\.\d\.\d)` \|$", DOCUMENT, re.MULTILINE)
    found = {code: reply for codes, reply in rows for code in re.findall(r"`(\w+)`", codes)}
    assert found == {code.value: code.smtp for code in Code}


def test_every_kind_of_refusal_is_named() -> None:
    for reply in (
        dialogue.LOGIN_NEEDED,
        dialogue.LOGIN_NEEDS_TLS,
        dialogue.FOREIGN_SENDER,
        dialogue.TOO_MANY_RECIPIENTS,
        dialogue.TOO_MANY_FAILURES,
        dialogue.TOO_SLOW,
        dialogue.CLOSING,
    ):
        code = " ".join(reply.decode().split(" ")[:2])
        assert f"`{code}`" in DOCUMENT, code


def test_the_limits_are_those_of_the_program() -> None:
    told = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", DOCUMENT, re.MULTILINE))
    assert told["recipients per message"] == str(RECIPIENTS)
    assert told["message size"] == f"{MESSAGE_SIZE // 1024**2} MiB"
    lines = f"{dialogue.COMMAND_LINE} octets; `MAIL` {dialogue.MAIL_LINE:,}; `RCPT` {dialogue.RCPT_LINE:,}; "
    lines += f"`AUTH` and its responses {dialogue.AUTH_LINE:,}"
    assert told["command line"] == lines
    assert told["failed logins per connection"].startswith(f"{protocol.LOGIN_FAILURES},")
    assert told["errors (5xx) since the last accepted message"] == str(protocol.MAX_ERRORS)
    assert told["commands without mail since the last accepted message"] == str(protocol.MAX_JUNK_COMMANDS)
    rate = f"{connection.MIN_CONTENT_RATE} bytes a second, after its first {connection.SLOW_START:.0f} seconds"
    assert told["minimum transfer rate of a message"] == rate
    assert told["TLS handshake"] == f"{connection.TLS_HANDSHAKE:.0f} seconds"
    assert f"`{CERTIFICATE}`" in DOCUMENT
