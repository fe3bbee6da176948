"""One transaction: every reply class to every command, pipelined or not, and which recipients it concerns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.deliver.smtp.protocol import Capabilities, Cause, ReplyReader, ResultKind, Stage, UnsafeArgument
from appliance.deliver.smtp.sending import (
    JOINED_BYTES,
    PIPELINED_COMMANDS,
    LoneLineEnd,
    MailTransaction,
    Sending,
    prepare,
)

PIPELINED = Capabilities(pipelining=True)
STEPWISE = Capabilities()
BODY = b"Subject: x\r\n\r\n.hello\r\n"
WIRE = b"Subject: x\r\n\r\n..hello\r\n.\r\n"
RECIPIENTS = ("a@x.example", "b@x.example", "c@x.example")
MAIL, RCPT, DATA, END = b"250 mail\r\n", b"250 rcpt\r\n", b"354 go\r\n", b"250 queued\r\n"

both = pytest.mark.parametrize("offered", [PIPELINED, STEPWISE], ids=["pipelined", "stepwise"])


def sending(
    offered: Capabilities, recipients: tuple[str, ...] = RECIPIENTS, body: bytes = BODY, *, reset: bool = False
) -> Sending:
    mail = MailTransaction("from@x.example", recipients, prepare(body))
    return Sending(mail, offered, ReplyReader(), lambda: 0.0, reset=reset)


def kinds(mail: Sending) -> list[tuple[ResultKind, Stage]]:
    assert mail.awaiting is None
    assert len(mail.verdicts()) == len(mail._transaction.recipients)
    return [(result.kind, result.stage) for result in mail.verdicts()]


def answer(mail: Sending, *answers: bytes) -> bytes:
    out = b"".join(mail.output())
    for data in answers:
        assert mail.awaiting is not None, f"no reply is awaited: {data!r}"
        mail.receive(data)
        out += b"".join(mail.output())
    return out


COMMANDS = (
    b"MAIL FROM:<from@x.example>\r\nRCPT TO:<a@x.example>\r\nRCPT TO:<b@x.example>\r\nRCPT TO:<c@x.example>\r\nDATA\r\n"
)


def test_with_pipelining_everything_up_to_data_is_one_write() -> None:
    mail = sending(PIPELINED)
    assert mail.output() == [COMMANDS]
    mail.receive(MAIL + RCPT + RCPT + RCPT + DATA)
    assert mail.output() == [WIRE]
    mail.receive(END)
    assert kinds(mail) == [(ResultKind.ACCEPTED, Stage.END_OF_DATA)] * 3
    assert mail.verdict is None
    assert mail.needs_reset is False


def test_without_pipelining_each_command_waits_for_its_answer() -> None:
    mail = sending(STEPWISE)
    for command, reply in zip(COMMANDS.splitlines(keepends=True), [MAIL, RCPT, RCPT, RCPT, DATA], strict=True):
        assert mail.output() == [command]
        mail.receive(reply)
    assert mail.output() == [WIRE]
    mail.receive(END)
    assert kinds(mail) == [(ResultKind.ACCEPTED, Stage.END_OF_DATA)] * 3


@both
@pytest.mark.parametrize(("family", "kind"), [(4, ResultKind.DEFERRED), (5, ResultKind.REJECTED)])
def test_a_refused_mail_concerns_all_recipients(offered: Capabilities, family: int, kind: ResultKind) -> None:
    mail = sending(offered)
    rest = [b"503 MAIL first\r\n"] * 3 + [b"503 RCPT first\r\n"] if offered.pipelining else []
    out = answer(mail, b"%d50 5.7.1 no\r\n" % family, *rest)
    assert kinds(mail) == [(kind, Stage.MAIL)] * 3
    assert b"hello" not in out
    assert mail.needs_reset


@both
def test_each_recipient_has_its_own_answer(offered: Capabilities) -> None:
    """One refused, one deferred, one accepted: the message goes to the third, and each knows why."""
    mail = sending(offered)
    out = answer(mail, MAIL, b"550 5.1.1 unknown\r\n", b"452 4.2.2 full\r\n", b"251 will forward\r\n", DATA, END)
    assert kinds(mail) == [
        (ResultKind.REJECTED, Stage.RCPT),
        (ResultKind.DEFERRED, Stage.RCPT),
        (ResultKind.ACCEPTED, Stage.END_OF_DATA),
    ]
    assert out == COMMANDS + WIRE
    assert [result.enhanced for result in mail.verdicts()] == ["5.1.1", "4.2.2", None]
    assert [result.code for result in mail.verdicts()] == [550, 452, 250]


def test_no_recipient_accepted_and_data_refused_is_over() -> None:
    """Pipelined, all RCPTs refused, DATA refused for it: the RCPT answers stand."""
    mail = sending(PIPELINED)
    out = answer(mail, MAIL, *[b"550 no\r\n"] * 3, b"554 no valid recipients\r\n")
    assert kinds(mail) == [(ResultKind.REJECTED, Stage.RCPT)] * 3
    assert out == COMMANDS
    assert mail.needs_reset


@pytest.mark.parametrize("end", [b"250 queued nothing\r\n", b"554 no recipient\r\n", b"450 later\r\n"])
def test_data_accepted_without_recipients_gets_a_lone_dot(end: bytes) -> None:
    mail = sending(PIPELINED)
    out = answer(mail, MAIL, *[b"550 no\r\n"] * 3, DATA, end)
    assert kinds(mail) == [(ResultKind.REJECTED, Stage.RCPT)] * 3
    assert out == COMMANDS + b".\r\n"
    assert mail.verdict is None


def test_without_pipelining_and_recipients_data_is_not_sent() -> None:
    mail = sending(STEPWISE)
    out = answer(mail, MAIL, *[b"550 no\r\n"] * 3)
    assert kinds(mail) == [(ResultKind.REJECTED, Stage.RCPT)] * 3
    assert b"DATA" not in out
    assert mail.needs_reset


@both
@pytest.mark.parametrize(("family", "kind"), [(4, ResultKind.DEFERRED), (5, ResultKind.REJECTED)])
@pytest.mark.parametrize(("replies", "stage"), [([], Stage.DATA), ([DATA], Stage.END_OF_DATA)])
def test_a_refusal_after_rcpt_concerns_those_accepted(
    offered: Capabilities, family: int, kind: ResultKind, replies: list[bytes], stage: Stage
) -> None:
    mail = sending(offered)
    answer(mail, MAIL, RCPT, b"550 5.1.1 unknown\r\n", RCPT, *replies, b"%d50 no\r\n" % family)
    assert kinds(mail) == [(kind, stage), (ResultKind.REJECTED, Stage.RCPT), (kind, stage)]
    assert mail.verdict is None
    assert mail.needs_reset is (stage is Stage.DATA)


# What leads to each stage.
PATHS: dict[Stage, list[bytes]] = {
    Stage.MAIL: [],
    Stage.RCPT: [MAIL, RCPT],
    Stage.DATA: [MAIL, RCPT, RCPT, RCPT],
    Stage.END_OF_DATA: [MAIL, RCPT, RCPT, RCPT, DATA],
}


@both
@pytest.mark.parametrize("stage", list(PATHS))
def test_421_defers_all_recipients_at_any_point(offered: Capabilities, stage: Stage) -> None:
    """The server closes: no recipient got it, and all have the 421."""
    mail = sending(offered)
    answer(mail, *PATHS[stage], b"421 4.3.2 closing\r\n")
    assert kinds(mail) == [(ResultKind.DEFERRED, stage)] * 3
    assert mail.verdict is not None


@both
@pytest.mark.parametrize("stage", list(PATHS))
@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", Cause.CONNECTION_LOST),
        (b"?\r\n", Cause.PROTOCOL_FAULT),
        (b"250-a\r\n550 b\r\n", Cause.PROTOCOL_FAULT),
        (b"250 " + b"x" * 5_000, Cause.PROTOCOL_FAULT),
    ],
)
def test_no_usable_answer_concerns_all_recipients_at_any_point(
    offered: Capabilities, stage: Stage, data: bytes, cause: Cause
) -> None:
    mail = sending(offered)
    answer(mail, *PATHS[stage], data)
    assert kinds(mail) == [(ResultKind.LOST, stage)] * 3
    assert {result.cause for result in mail.verdicts()} == {cause}
    assert mail.verdict is not None


@both
@pytest.mark.parametrize(
    ("stage", "reply"), [(Stage.MAIL, DATA), (Stage.RCPT, DATA), (Stage.DATA, b"250 ok\r\n"), (Stage.END_OF_DATA, DATA)]
)
def test_an_answer_out_of_place_is_no_answer(offered: Capabilities, stage: Stage, reply: bytes) -> None:
    """354 to MAIL, RCPT or the message, and 250 to DATA: out of step: the session ends, no recipient is accepted."""
    mail = sending(offered)
    answer(mail, *PATHS[stage], reply)
    assert kinds(mail) == [(ResultKind.LOST, stage)] * 3
    assert mail.verdict is not None
    assert mail.verdict.cause is Cause.PROTOCOL_FAULT


def test_who_was_refused_keeps_the_answer_when_the_connection_is_lost() -> None:
    mail = sending(PIPELINED)
    answer(mail, MAIL, b"550 5.1.1 unknown\r\n", b"")
    assert kinds(mail) == [(ResultKind.REJECTED, Stage.RCPT), *[(ResultKind.LOST, Stage.RCPT)] * 2]


@both
def test_an_acceptance_ahead_of_the_message_is_a_fault(offered: Capabilities) -> None:
    """250 behind the 354, before the message was sent, must not count as its acceptance."""
    mail = sending(offered)
    out = answer(mail, MAIL, RCPT, RCPT, RCPT, DATA + END)
    assert kinds(mail) == [(ResultKind.LOST, Stage.DATA)] * 3
    assert b"hello" not in out


def test_answers_ahead_of_their_commands_are_a_fault() -> None:
    mail = sending(STEPWISE)
    answer(mail, MAIL + RCPT)
    assert kinds(mail) == [(ResultKind.LOST, Stage.MAIL)] * 3


@pytest.mark.parametrize(
    ("reply", "kind"), [(b"552 5.3.4 too big\r\n", ResultKind.REJECTED), (b"250 queued\r\n", ResultKind.LOST)]
)
def test_a_write_that_broke_hears_a_refusal_but_no_acceptance(reply: bytes, kind: ResultKind) -> None:
    mail = sending(PIPELINED)
    answer(mail, MAIL, RCPT, RCPT, RCPT, DATA)
    mail.broken("the connection broke: Broken pipe")
    mail.receive(reply)
    assert kinds(mail) == [(kind, Stage.END_OF_DATA)] * 3
    assert ("Broken pipe" in mail.verdicts()[0].text) is (kind is ResultKind.LOST)


def test_an_unfinished_transaction_is_reset_in_the_same_write() -> None:
    mail = sending(PIPELINED, reset=True)
    assert mail.output() == [b"RSET\r\n" + COMMANDS]
    mail.receive(b"250 reset\r\n" + MAIL + RCPT * 3 + DATA)
    mail.receive(END)
    assert kinds(mail) == [(ResultKind.ACCEPTED, Stage.END_OF_DATA)] * 3
    mail = sending(STEPWISE, reset=True)
    assert mail.output() == [b"RSET\r\n"]
    mail.receive(b"502 no RSET here\r\n")
    assert kinds(mail) == [(ResultKind.LOST, Stage.RESET)] * 3


def test_many_recipients_go_in_windows() -> None:
    recipients = tuple(f"r{number}@x.example" for number in range(2 * PIPELINED_COMMANDS))
    mail = sending(PIPELINED, recipients)
    writes = []
    while out := mail.output():
        lines = b"".join(out).count(b"\r\n")
        writes.append(lines)
        if out == [WIRE]:
            break
        mail.receive(b"250 ok\r\n" * (lines - 1) + (b"250 ok\r\n" if len(writes) < 3 else DATA))
    assert writes[:3] == [PIPELINED_COMMANDS, PIPELINED_COMMANDS, 2]
    mail.receive(END)
    assert set(kinds(mail)) == {(ResultKind.ACCEPTED, Stage.END_OF_DATA)}


# ---- extensions


def test_size_body_and_smtputf8_are_said_when_offered() -> None:
    offered = Capabilities(size=True, eight_bit=True, smtputf8=True)
    body = "ü\r\n".encode()
    mail = sending(offered, ("ü@x.example",), body)
    assert mail.output() == [b"MAIL FROM:<from@x.example> SIZE=4 BODY=8BITMIME SMTPUTF8\r\n"]
    mail.receive(MAIL)
    assert mail.output() == ["RCPT TO:<ü@x.example>\r\n".encode()]
    assert sending(offered, ("a@x.example",), b"a\r\n").output() == [b"MAIL FROM:<from@x.example> SIZE=3\r\n"]


def test_a_message_over_the_server_s_size_is_not_tried() -> None:
    mail = sending(Capabilities(size=True, size_limit=10))
    assert mail.output() == []
    assert kinds(mail) == [(ResultKind.LOCAL, Stage.MAIL)] * 3
    verdict = mail.verdicts()[0]
    assert (verdict.reply, verdict.code, verdict.enhanced, verdict.cause) == (None, None, None, Cause.TOO_LARGE)
    assert verdict.text.startswith("local: the message has 22 bytes")
    assert mail.verdict is None
    assert mail.needs_reset is False


def test_only_who_needs_smtputf8_goes_without() -> None:
    mail = sending(PIPELINED, ("a@x.example", "ü@x.example"))
    out = answer(mail, MAIL, RCPT, DATA, END)
    assert kinds(mail) == [(ResultKind.ACCEPTED, Stage.END_OF_DATA), (ResultKind.LOCAL, Stage.MAIL)]
    assert out.count(b"RCPT") == 1
    verdict = mail.verdicts()[1]
    assert (verdict.code, verdict.enhanced, verdict.cause) == (None, None, Cause.NO_SMTPUTF8)
    assert "no SMTPUTF8" in verdict.text


@pytest.mark.parametrize(("sender", "needs"), [("ü@x.example", False), ("a@x.example", True)])
def test_a_sender_or_header_that_needs_smtputf8_concerns_all(sender: str, needs: bool) -> None:
    transaction = MailTransaction(sender, RECIPIENTS, prepare(BODY), needs)
    mail = Sending(transaction, PIPELINED, ReplyReader(), lambda: 0.0)
    assert kinds(mail) == [(ResultKind.LOCAL, Stage.MAIL)] * 3
    assert mail.output() == []


def test_8_bit_text_without_8bitmime_is_not_tried() -> None:
    """What we compose has none; a message that came with some would lose it, and its signature, on the way."""
    mail = sending(PIPELINED, body=b"\xff\r\n")
    assert kinds(mail) == [(ResultKind.LOCAL, Stage.MAIL)] * 3
    assert mail.output() == []


@pytest.mark.parametrize("address", ["a b@x.example", "a\r\nDATA@x.example", "<a@x.example>", "a\0@x.example", ""])
def test_an_unsafe_recipient_stops_everything_before_a_word_is_said(address: str) -> None:
    """An address the one strict parser would have refused raises, and no command is written."""
    with pytest.raises(UnsafeArgument):
        sending(PIPELINED, ("a@x.example", address))


def test_the_transcript_has_commands_and_replies_but_no_message() -> None:
    mail = sending(PIPELINED, ("a@x.example",))
    answer(mail, MAIL, b"550 5.1.1 unknown\r\n", b"554 no\r\n")
    assert [(line.speaker, line.text) for line in mail.transcript.lines(0)] == [
        ("C", "MAIL FROM:<from@x.example>"),
        ("C", "RCPT TO:<a@x.example>"),
        ("C", "DATA"),
        ("S", "250 mail"),
        ("S", "550 5.1.1 unknown"),
        ("S", "554 no"),
    ]
    mail = sending(PIPELINED, ("a@x.example",))
    answer(mail, MAIL, RCPT, DATA, END)
    texts = [line.text for line in mail.transcript.lines(0)]
    assert "message of 22 bytes" in texts
    assert not any("hello" in text for text in texts)


def test_the_dialogue_of_a_recipient_has_no_other_recipient_and_grows_with_none() -> None:
    """A message to fifty stores fifty short dialogues, and every recipient finds its own reply."""
    addresses = tuple(f"a{number}@x.example" for number in range(50))
    mail = sending(PIPELINED, addresses)
    replies = [b"550 5.1.1 no a%d\r\n" % number if number == 30 else RCPT for number in range(50)]
    answer(mail, MAIL, *replies, DATA, END)
    alone = sending(PIPELINED, addresses[:1])
    answer(alone, MAIL, RCPT, DATA, END)
    assert {len(mail.transcript.lines(number)) for number in range(50)} == {len(alone.transcript.lines(0))}
    texts = [line.text for line in mail.transcript.lines(30)]
    assert texts[1:5] == ["RCPT TO:<a30@x.example>", "DATA", "250 mail", "550 5.1.1 no a30"]


# ---- a message's bytes on the wire: dots doubled, no lone line end, one end of data


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (b"a\r\n", b"a\r\n.\r\n"),
        (b"a", b"a\r\n.\r\n"),
        (b"", b"\r\n.\r\n"),
        (b".\r\n", b"..\r\n.\r\n"),
        (b".a\r\n..b\r\nc.\r\n", b"..a\r\n...b\r\nc.\r\n.\r\n"),
        (b"\r\n.\r\n.\r\n", b"\r\n..\r\n..\r\n.\r\n"),
    ],
)
def test_dots_are_doubled_and_the_end_is_marked(message: bytes, wire: bytes) -> None:
    assert b"".join(prepare(message).parts) == wire


@pytest.mark.parametrize(
    "smuggled", [b"\n.\r\n", b"\n.\n", b"\r.\r", b"\r\n.\n", b"\r.\r\n", b"\r", b"\n", b"\n\r", b"\r\r\n"]
)
def test_a_lone_cr_or_lf_never_leaves(smuggled: bytes) -> None:
    with pytest.raises(LoneLineEnd):
        prepare(b"Subject: x\r\n\r\na" + smuggled + b"b\r\n")


def test_size_and_eight_bits_are_those_of_the_message() -> None:
    assert (prepare(b".\r\n").size, prepare(b".\r\n").eight_bit) == (3, False)
    assert prepare("ü\r\n".encode()).eight_bit


LINE = b"x" * 70 + b"\r\n"
BIG = LINE * (JOINED_BYTES // len(LINE) + 1)


def test_a_big_message_without_dots_is_not_copied() -> None:
    assert any(part is BIG for part in prepare(BIG).parts)
    assert any(part is BIG for part in prepare(BIG, b"DKIM-Signature: s\r\n").parts)


@pytest.mark.parametrize("is_checked", [False, True])
@pytest.mark.parametrize("message", [b"a\r\n", b".\r\n", BIG, b"." + BIG, BIG + b".\r\n.", BIG + b"\xff"])
def test_a_signature_goes_before_its_message(message: bytes, is_checked: bool) -> None:
    """Without a copy of a big message, and yet the bytes are those of one that was copied."""
    signature = b"DKIM-Signature: s\r\n"
    payload, copied = prepare(message, signature, is_checked=is_checked), prepare(signature + message)
    end = b"\r\n.\r\n" if not message.endswith(b"\r\n") else b".\r\n"
    assert b"".join(payload.parts) == b"".join(copied.parts) == (signature + message).replace(b"\n.", b"\n..") + end
    assert (
        (payload.size, payload.eight_bit)
        == (copied.size, copied.eight_bit)
        == (len(signature + message), message.endswith(b"\xff"))
    )
    with pytest.raises(LoneLineEnd):
        prepare(message, signature + b"\n", is_checked=is_checked)


@given(st.lists(st.sampled_from([b".", b"..", b"a", b"", b".a", b"\xff"]), max_size=20))
def test_a_receiver_gets_back_what_was_sent(lines: list[bytes]) -> None:
    """Undoing RFC 5321 4.5.2 line by line gives the message, and the end of data occurs once, at the end."""
    message = b"".join(line + b"\r\n" for line in lines) or b"\r\n"
    wire = b"".join(prepare(message).parts)
    assert (b"\r\n" + wire).index(b"\r\n.\r\n") == len(wire) - 3
    received = [line[1:] if line.startswith(b".") else line for line in wire[:-3].split(b"\r\n")]
    assert b"\r\n".join(received) == message


def test_a_payload_does_not_show_the_message() -> None:
    assert repr(prepare(b"Subject: secret\r\n")) == "Payload(size=17, eight_bit=False)"
