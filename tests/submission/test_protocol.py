"""The protocol by itself: which command gets which reply, and what never happens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import Refused, StorageUnavailable
from appliance.submission import dialogue
from appliance.submission.content import RCPT_COMMANDS, FindCaller, FindRecipient, Phase, PlainAction, Submit
from appliance.submission.dialogue import Rejected, parse_address
from appliance.submission.protocol import COMMANDS_PER_TURN
from tests.submission.offline_client import CALLER, MESSAGE, Talk, credential, logged_in, ready, talk

# ---- who may do what


@pytest.mark.parametrize("line", [b"MAIL FROM:<a@example.com>", b"RCPT TO:<a@b.example>", b"DATA", b"BDAT 0 LAST"])
def test_nothing_is_sent_without_a_login(line: bytes) -> None:
    made = talk()
    made.say(b"EHLO client.example.com")
    assert made.say(line).startswith(b"530 5.7.0 ")


def test_without_a_login_there_is_no_message_to_keep_a_connection_for() -> None:
    """Not even while a chunk is read that is refused; with a login from its first octet until it is answered."""
    made = talk()
    made.say(b"EHLO client.example.com")
    made.protocol.receive(b"BDAT 10\r\nabc")
    assert (made.protocol.phase, made.protocol.has_message) == (Phase.CONTENT, False)
    made, seen = ready(), []
    for data in (b"", b"BDAT 6\r\nA: b\r\nBDAT 5 LAST\r\n", b"\r\nx\r\n"):
        made.send(data)
        seen.append(made.protocol.has_message)
    made.protocol.submitted("msg_1")
    assert [*seen, made.protocol.has_message] == [False, True, True, False]


def test_without_tls_there_is_no_login() -> None:
    made = talk(secure=False)
    assert b"AUTH" not in made.say(b"EHLO client.example.com")
    assert made.say(b"AUTH PLAIN " + credential()).startswith(b"538 5.7.11 ")
    assert made.say(b"MAIL FROM:<a@example.com>") == b"530 5.7.0 Must issue a STARTTLS command first\r\n"


def test_a_login_in_the_clear_if_the_operator_says_so() -> None:
    made = talk(secure=False, plaintext_login=True)
    offered = made.say(b"EHLO client.example.com")
    assert b"250-AUTH PLAIN LOGIN\r\n" in offered
    assert b"250-STARTTLS\r\n" in offered
    assert made.say(b"AUTH PLAIN " + credential()).startswith(b"235 ")


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"MAIL FROM:<>", b"550 5.7.1 "),
        (b"MAIL FROM:<a@elsewhere.example>", b"550 5.7.1 "),
        (b"MAIL FROM:<a@sub.example.com>", b"550 5.7.1 "),
        (b"MAIL FROM:<a@EXAMPLE.com>", b"250 2.1.0 "),
        (b"mail from:<a@example.com>", b"250 2.1.0 "),
        (b"MAIL FROM: <a@example.com>", b"250 2.1.0 "),
        (b"MAIL FROM:<a@example.com>  ", b"250 2.1.0 "),
        (b"MAIL FROM:a@example.com", b"501 5.5.4 "),
        (b"MAIL FROM:<a@example.com", b"501 5.5.4 "),
        (b"MAIL FROM:<a@example.com>>", b"501 5.5.4 "),
        (b"MAIL FROM:<a@example.com>x", b"501 5.5.4 "),
        (b"MAIL FROM <a@example.com>", b"501 5.5.4 "),
        (b"MAIL", b"501 5.5.4 "),
        (b"MAIL TO:<a@example.com>", b"501 5.5.4 "),
        (b"MAIL FROM:< a@example.com>", b"553 5.1.7 "),
        (b"MAIL FROM:<a b@example.com>", b"553 5.1.7 "),
        (b"MAIL FROM:<@relay.example:a@example.com>", b"553 5.1.7 "),
        (b'MAIL FROM:<"a b"@example.com>', b"553 5.1.7 "),
        (b"MAIL FROM:<a@[127.0.0.1]>", b"553 5.1.7 "),
        (b"MAIL FROM:<%s@example.com>" % (b"a" * 65), b"553 5.1.7 "),
        ("MAIL FROM:<ä@example.com>".encode(), b"553 5.6.7 "),
        ("MAIL FROM:<ä@example.com> SMTPUTF8".encode(), b"250 2.1.0 "),
        (b"MAIL FROM:<a@example.com> SMTPUTF8=yes", b"501 5.5.4 "),
        (b"MAIL FROM:<a@example.com> SIZE=10485760", b"250 2.1.0 "),
        (b"MAIL FROM:<a@example.com> SIZE=10485761", b"552 5.3.4 "),
        (b"MAIL FROM:<a@example.com> SIZE=99999999999999999999", b"552 5.3.4 "),
        (b"MAIL FROM:<a@example.com> SIZE=999999999999999999999", b"501 5.5.4 "),
        (b"MAIL FROM:<a@example.com> SIZE=-1", b"501 5.5.4 "),
        (b"MAIL FROM:<a@example.com> SIZE", b"501 5.5.4 "),
        (b"MAIL FROM:<a@example.com> size=1 BODY=8bitmime", b"250 2.1.0 "),
        (b"MAIL FROM:<a@example.com> BODY=7BIT", b"250 2.1.0 "),
        (b"MAIL FROM:<a@example.com> BODY=BINARYMIME", b"501 5.5.4 "),
        (b"MAIL FROM:<a@example.com> SIZE=1 SIZE=2", b"501 5.5.4 "),
        (b"MAIL FROM:<a@example.com> SIZE=1 SIZE", b"501 5.5.4 "),
        (b"MAIL FROM:<a@example.com> body=8bitmime SMTPUTF8 SMTPUTF8 BODY=8BITMIME", b"250 2.1.0 "),
        (b"MAIL FROM:<a@example.com> AUTH=<>", b"250 2.1.0 "),
        (b"MAIL FROM:<a@example.com> NOTIFY=NEVER", b"555 5.5.4 "),
        ("MAIL FROM:<a@example.com> SIZE=²".encode(), b"501 5.5.4 "),
    ],
)
def test_mail(line: bytes, reply: bytes) -> None:
    assert logged_in().say(line).startswith(reply)


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        (b"RCPT TO:<bob@example.net>", b"250 2.1.5 "),
        (b"RCPT TO:<>", b"501 5.5.4 "),
        (b"RCPT TO:<postmaster>", b"553 5.1.3 "),
        (b"RCPT TO:<bob@localhost>", b"553 5.1.3 "),
        (b"RCPT TO:<bob@example.net> RET=HDRS", b"555 5.5.4 "),
        (b"RCPT TO:<bob @example.net>", b"553 5.1.3 "),
        (b'RCPT TO:<"a b"@example.net>', b"553 5.1.3 RCPT TO: a quoted local part "),
        (b'RCPT TO:<"ab"@example.net>', b"553 5.1.3 RCPT TO: a quoted local part "),
        (b"RCPT TO:<bob@example.net,eve@example.net>", b"553 5.1.3 "),
        ("RCPT TO:<bøb@example.net>".encode(), b"553 5.6.7 "),
        (b"RCPT TO:<b\xffb@example.net>", b"500 5.5.2 "),
    ],
)
def test_rcpt(line: bytes, reply: bytes) -> None:
    assert ready().say(line).startswith(reply)


def test_fifty_recipients_and_no_more() -> None:
    made = logged_in()
    made.say(b"MAIL FROM:<a@example.com>")
    for number in range(50):
        assert made.say(b"RCPT TO:<r%d@example.net>" % number).startswith(b"250 2.1.5 ")
    assert made.say(b"RCPT TO:<r50@example.net>").startswith(b"452 4.5.3 ")
    assert made.say(b"RCPT TO:<R7@Example.NET>").startswith(b"250 2.1.5 ")
    made.say(b"DATA")
    made.send(MESSAGE + b".\r\n")
    assert made.submitted().recipients == tuple(f"r{number}@example.net" for number in range(50))


def test_endless_recipients_end_the_session() -> None:
    made = logged_in()
    made.say(b"MAIL FROM:<a@example.com>")
    replies = made.send(b"".join(b"RCPT TO:<r%d@example.net>\r\n" % number for number in range(1_100)))
    assert len(replies) == RCPT_COMMANDS + 1
    assert replies[-1].startswith(b"421 4.7.0 ")


def test_many_commands_at_once_are_read_in_turns() -> None:
    made = logged_in()
    made.say(b"MAIL FROM:<a@example.com>")
    count = 3 * COMMANDS_PER_TURN
    heard = made.send(b"".join(b"RCPT TO:<r%d@example.net>\r\n" % number for number in range(count)))
    assert [reply[:3] for reply in heard] == [b"250"] * 50 + [b"452"] * (count - 50)
    assert made.yields == 2


def test_a_costly_recipient_is_read_elsewhere() -> None:
    """An address outside ASCII is not read on the event loop, and one beyond the fiftieth is not read at all."""
    made = logged_in()
    made.say(b"MAIL FROM:<a@example.com> SMTPUTF8")
    assert made.protocol.receive("RCPT TO:<a@m\u00fcller.example>\r\nNOOP\r\n".encode()) == FindRecipient(
        CALLER.account_id, "a@m\u00fcller.example"
    )
    assert made.replies() == []
    made.protocol.recipient_found(parse_address("a@m\u00fcller.example"))
    assert made.protocol.proceed() is None
    assert made.replies() == [b"250 2.1.5 Recipient OK\r\n", b"250 2.0.0 OK\r\n"]
    made.send(b"".join(b"RCPT TO:<r%d@example.net>\r\n" % number for number in range(49)))
    assert made.protocol.receive("RCPT TO:<b@m\u00fcller.example>\r\n".encode()) is None
    assert made.replies() == [dialogue.TOO_MANY_RECIPIENTS]
    assert made.protocol.receive("RCPT TO:<a@m\u00fcller.example>\r\n".encode()) is None
    assert made.replies() == [b"250 2.1.5 Recipient OK\r\n"]


@pytest.mark.parametrize(
    ("outcome", "reply"),
    [
        (Rejected(dialogue.reply("553 5.1.3", "RCPT TO: no")), b"553 5.1.3 RCPT TO: no\r\n"),
        (StorageUnavailable("Busy."), b"451 4.3.0 Busy.\r\n"),
    ],
)
def test_a_recipient_that_could_not_be_read(outcome: Rejected | Refused, reply: bytes) -> None:
    made = logged_in()
    made.say(b"MAIL FROM:<a@example.com> SMTPUTF8")
    made.protocol.receive("RCPT TO:<a@m\u00fcller.example>\r\n".encode())
    made.protocol.recipient_found(outcome)
    assert made.replies() == [reply]
    assert made.say(b"DATA").startswith(b"503 ")


def test_the_order_of_commands() -> None:
    made = talk()
    assert made.say(b"MAIL FROM:<a@example.com>").startswith(b"503 5.5.1 ")
    assert made.say(b"AUTH PLAIN " + credential()).startswith(b"503 5.5.1 ")
    made = logged_in()
    assert made.say(b"AUTH PLAIN " + credential()).startswith(b"503 5.5.1 ")
    assert made.say(b"RCPT TO:<a@example.net>").startswith(b"503 5.5.1 ")
    assert made.say(b"DATA").startswith(b"503 5.5.1 ")
    made.say(b"MAIL FROM:<a@example.com>")
    assert made.say(b"MAIL FROM:<a@example.com>").startswith(b"503 5.5.1 ")
    assert made.say(b"DATA").startswith(b"503 5.5.1 Send RCPT first")
    assert made.say(b"STARTTLS").startswith(b"503 5.5.1 ")


@pytest.mark.parametrize("line", [b"RSET", b"EHLO again.example.com", b"HELO again.example.com"])
def test_what_forgets_the_transaction(line: bytes) -> None:
    made = ready()
    assert made.say(line).startswith(b"250")
    assert made.say(b"DATA").startswith(b"503 5.5.1 Send MAIL first")
    assert made.say(b"MAIL FROM:<a@example.com>").startswith(b"250 ")


def test_small_commands() -> None:
    made = talk()
    assert made.say(b"NOOP whatever") == b"250 2.0.0 OK\r\n"
    assert made.say(b"HELP").startswith(b"214 2.0.0 ")
    assert made.say(b"VRFY a@example.com").startswith(b"252 2.5.2 ")
    assert made.say(b"EXPN list").startswith(b"502 5.5.1 ")
    assert made.say(b"RSET now").startswith(b"501 5.5.4 ")
    assert made.say(b"EHLO").startswith(b"501 5.5.4 ")
    assert made.say(b"TURN").startswith(b"500 5.5.1 ")
    assert made.say(b"").startswith(b"500 5.5.1 ")
    assert made.say(b"QUIT") == b"221 2.0.0 Bye\r\n"
    assert made.protocol.phase is Phase.OVER


# ---- lines


@pytest.mark.parametrize(
    "line",
    [
        b"EHLO foo\rX: 1", b"EHLO foo\tbar", b"EHLO foo\0", b"NOOP \x7f", b"NOOP \xc2\x85", b"NOOP \x1b[2J",
        b"MAIL FROM:<a\rb@example.com>", b"RCPT TO:<a\0b@example.net>",
    ],
)  # fmt: skip
def test_controls_in_commands_are_refused(line: bytes) -> None:
    answer = logged_in().say(line)
    assert answer == b"500 5.5.2 A command must not contain control characters\r\n"


@pytest.mark.parametrize("data", [b"NOOP\nNOOP\r\n", b"NOOP\n", b"EHLO a\nMAIL FROM:<a@example.com>\r\n", b"\n"])
def test_a_bare_line_feed_ends_the_session(data: bytes) -> None:
    made = logged_in()
    (answer,) = made.send(data)
    assert answer.startswith(b"500 5.5.2 ")
    assert made.protocol.phase is Phase.OVER


@pytest.mark.parametrize(
    ("begin", "longest"),
    [
        (b"NOOP ", 512),
        (b"MAIL FROM:<a@example.com> ", 1214),
        (b"RCPT TO:<a@example.com> ", 1040),
        (b"AUTH PLAIN ", 12_288),
    ],
)
def test_lines_have_a_longest_length(begin: bytes, longest: int) -> None:
    fill = b"=" * (longest - len(begin) - 2)
    assert not logged_in().say(begin + fill).startswith(b"500 5.5.2 Line")
    assert logged_in().say(begin + fill + b"=").startswith(b"500 5.5.2 Line too long")
    made = logged_in()
    for piece in [begin, *[b"="] * (longest - len(begin)), b"=====", b"\r"]:
        assert made.send(piece) == []
    assert made.send(b"\n") == [b"500 5.5.2 Line too long\r\n"]
    assert made.say(b"NOOP").startswith(b"250 ")


def test_an_endless_line_ends_the_session() -> None:
    made = talk()
    replies = []
    for _ in range(20):
        replies += made.send(b"x" * 4_096)
        assert len(made.protocol.input.data) <= 4_096
    assert replies == [b"500 5.5.2 Line too long\r\n"]
    assert made.protocol.phase is Phase.OVER


def test_twenty_errors_end_the_session() -> None:
    replies = talk().send(b"WHAT\r\n" * 30)
    assert len(replies) == 21
    assert replies[-1].startswith(b"421 4.7.0 Too many errors")


@pytest.mark.parametrize("line", [b"NOOP", b"RSET", b"EHLO x", b"VRFY x", b"HELP"])
def test_a_hundred_idle_commands_end_the_session(line: bytes) -> None:
    replies = talk().send((line + b"\r\n") * 200)
    assert len(replies) == 101
    assert replies[-1].startswith(b"421 4.7.0 ")


def test_a_message_clears_the_count() -> None:
    made = logged_in()
    for number in range(100):
        made.send(b"RSET\r\nNOOP\r\nMAIL FROM:<a@example.com>\r\nRCPT TO:<b@example.net>\r\nDATA\r\n")
        made.send(MESSAGE + b".\r\n")
        made.submitted()
        made.protocol.submitted(f"msg_{number}")
        assert made.replies() == [f"250 2.0.0 queued as msg_{number}\r\n".encode()]
        assert made.protocol.phase is Phase.COMMAND


# ---- stopping


def test_an_idle_session_stops_at_once() -> None:
    made = ready()
    made.protocol.stop()
    assert made.replies()[0].startswith(b"421 4.3.2 ")
    assert made.protocol.phase is Phase.OVER


def test_a_message_in_chunks_is_finished_first() -> None:
    made = ready()
    made.send(b"BDAT 6\r\nA: b\r\n")
    made.protocol.stop()
    assert made.send(b"BDAT 5 LAST\r\n\r\nx\r\nMAIL FROM:<a@example.com>\r\n") == []
    assert made.submitted().content() == b"A: b\r\n\r\nx\r\n"
    made.protocol.submitted("msg_1")
    assert made.protocol.proceed() is None
    assert [reply[:9] for reply in made.replies()] == [b"250 2.0.0", b"421 4.3.2"]
    made = ready()
    made.send(b"BDAT 6\r\nA: b\r\n")
    made.protocol.stop()
    assert [reply[:9] for reply in made.send(b"RSET\r\nNOOP\r\n")] == [b"250 2.0.0", b"421 4.3.2"]


def test_a_message_on_its_way_is_finished_first() -> None:
    made = ready()
    made.say(b"DATA")
    made.send(b"a: b\r\n")
    made.protocol.stop()
    assert made.replies() == []
    made.send(b"\r\nc\r\n.\r\nMAIL FROM:<a@example.com>\r\n")
    made.submitted()
    made.protocol.submitted("msg_1")
    assert made.protocol.proceed() is None
    assert [reply[:9] for reply in made.replies()] == [b"250 2.0.0", b"421 4.3.2"]


# ---- in any order, in any pieces

COMMANDS = st.sampled_from(
    [
        b"EHLO x\r\n",
        b"AUTH PLAIN " + credential() + b"\r\n",
        b"AUTH PLAIN\r\n",
        b"AUTH LOGIN\r\n",
        b"MAIL FROM:<a@example.com>\r\n",
        b"RCPT TO:<b@example.net>\r\n",
        b"DATA\r\n",
        b"a: b\r\n\r\nc\r\n.\r\n",
        b"BDAT 5\r\nabcde",
        b"BDAT 3 LAST\r\nab\r\n",
        b"RSET\r\n",
        b"*\r\n",
        b"\xff\r\n",
    ]
)


@given(st.lists(st.one_of(COMMANDS, st.binary(max_size=40)), max_size=30), st.booleans())
def test_pieces_make_no_difference(said: list[bytes], is_known: bool) -> None:
    """Whatever is said is answered the same whether it comes at once or a byte at a time, and every reply is whole."""

    def answers(pieces: list[bytes]) -> list[bytes]:
        made, found = talk(), []
        made.backend.is_known = is_known
        for piece in pieces:
            action = made.protocol.receive(piece)
            while action is not None:
                following = None
                if action is PlainAction.WRONG_LOGIN:
                    made.protocol.login_failed(too_many=False)
                elif isinstance(action, FindCaller):
                    following = made.protocol.caller_found(action, made.backend.caller(action.login))
                else:
                    assert isinstance(action, Submit)
                    made.protocol.submitted("msg_1")
                action = following or made.protocol.proceed()
            found += made.replies()
        return found

    whole = b"".join(said)
    at_once = answers([whole])
    bit_by_bit = answers([whole[place : place + 1] for place in range(len(whole))])
    # Only a client that sends a message unasked is told earlier that way.
    if not any(b"before the 354" in reply for reply in at_once):
        assert at_once == bit_by_bit
    for reply in at_once:
        assert len(reply) <= 512 or reply.startswith(b"250-")


def test_after_its_end_nothing_is_said() -> None:
    made: Talk = talk()
    made.say(b"QUIT")
    assert made.send(b"NOOP\r\n") == []
