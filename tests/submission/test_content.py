"""A message on its way in: where DATA and BDAT end, what is taken for content, and the memory that may take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import Code, Refused
from appliance.message.submitted import read
from appliance.submission.content import ChunkedContent, DataContent, Phase
from tests.submission.offline_client import MESSAGE, logged_in, ready

PIECES = st.lists(st.sampled_from([b"\r", b"\n", b".", b"\r\n", b"\r\n.", b"..", b"x", b"Hello", b"\0"]), max_size=30)


def received(data: DataContent, wire: bytes, sizes: list[int]) -> tuple[bytes, bytes] | None:
    """The content and what follows it, when the wire is cut into pieces of these sizes."""
    place = 0
    for size in [*sizes, len(wire)]:
        piece, place = wire[place : place + size], place + size
        if piece and (rest := data.receive(piece)) is not None:
            return data.content(), rest + wire[place:]
    return None


@given(PIECES, st.lists(st.integers(1, 5), max_size=60))
def test_the_end_is_found_in_any_pieces(parts: list[bytes], sizes: list[int]) -> None:
    """A message stuffed as RFC 5321 4.5.2 says comes out as it was, with what follows it untouched."""
    message = b"".join(parts) + b"\r\n"
    stuffed = b"\r\n".join(b"." + line if line.startswith(b".") else line for line in message.split(b"\r\n"))
    assert received(DataContent(), stuffed + b".\r\nQUIT\r\n", sizes) == (message, b"QUIT\r\n")


def test_an_empty_message() -> None:
    assert received(DataContent(), b".\r\nNOOP\r\n", []) == (b"", b"NOOP\r\n")


@given(PIECES, st.lists(st.integers(1, 5), max_size=60))
def test_what_is_thrown_away_ends_at_the_same_place(parts: list[bytes], sizes: list[int]) -> None:
    wire = b"".join(parts).replace(b"\r\n.\r\n", b"") + b"\r\n.\r\nQUIT\r\n"
    thrown = DataContent()
    thrown.discard(b"552 5.3.4 Too large\r\n")
    whole, found = received(DataContent(), wire, sizes), received(thrown, wire, sizes)
    assert whole is not None
    assert found is not None
    assert found[1] == whole[1]


def test_a_last_chunk_without_a_line_end_gets_one() -> None:
    chunks = ChunkedContent()
    chunks.expect(3, last=True)
    assert chunks.receive(b"abcd") == b"d"
    assert chunks.content() == b"abc\r\n"


# ---- messages


def test_data_is_unstuffed_and_handed_over() -> None:
    """The message as the client meant it, with its envelope."""
    made = ready()
    assert made.say(b"DATA").startswith(b"354 ")
    assert made.send(b"A: b\r\n\r\n..\r\n.x\r\n...\r\n.\r\nNOOP\r\n") == []
    message = made.submitted()
    assert message.content() == b"A: b\r\n\r\n.\r\nx\r\n..\r\n"
    assert (message.sender, message.recipients) == ("a@example.com", ("ada@example.net",))
    made.protocol.submitted("msg_1")
    assert made.protocol.proceed() is None
    assert made.replies() == [b"250 2.0.0 queued as msg_1\r\n", b"250 2.0.0 OK\r\n"]


@pytest.mark.parametrize("code", list(Code))
def test_a_refused_message(code: Code) -> None:
    made = ready()
    made.say(b"DATA")
    made.send(MESSAGE + b".\r\n")
    made.protocol.submitted(Refused(code, "Because\r\nso ä."))
    assert made.replies() == [f"{code.smtp} Because??so ?.\r\n".encode()]
    assert made.say(b"DATA").startswith(b"503 5.5.1 Send MAIL first")


def test_a_bug_is_told_without_its_text() -> None:
    """451, and the log has the rest."""
    made = ready()
    made.say(b"DATA")
    made.send(MESSAGE + b".\r\n")
    made.protocol.submitted(None)
    assert made.replies() == [b"451 4.3.0 Internal error. The server's log has the details.\r\n"]


@pytest.mark.parametrize("ending", [b"\n.\r\n", b"\n.\n", b"\r.\r", b"\r\n.\n", b"\r\n.\r", b"\n\n.\r\n", b"\r.\r\n"])
@pytest.mark.parametrize("chunked", [False, True])
def test_nothing_is_smuggled(ending: bytes, chunked: bool) -> None:
    """What others might take for the end of data is content, as is all behind it, and the message is refused."""
    inside = b"Subject: x\r\n\r\nbody" + ending + b"MAIL FROM:<evil@example.com>\r\nRCPT TO:<x@example.net>\r\nDATA\r\n"
    made = ready()
    if chunked:
        assert made.send(b"BDAT %d LAST\r\n" % len(inside) + inside) == []
    else:
        made.say(b"DATA")
        assert made.send(inside + b".\r\n") == []
    submitted = made.submitted()
    content = submitted.content()
    assert content.endswith(b"\r\nRCPT TO:<x@example.net>\r\nDATA\r\n")
    assert len(made.protocol.input.data) == 0
    with pytest.raises(Refused) as refused:
        read(submitted.sender, submitted.recipients, content)
    assert refused.value.code is Code.INVALID_REQUEST


LARGEST = 10 * 1024 * 1024


@pytest.mark.parametrize("stuffed", [False, True])
def test_ten_mebibytes_come_whole(stuffed: bool) -> None:
    line = b".\r\n" if stuffed else b"x" * 62 + b"\r\n"
    body = line * (LARGEST // len(line) - 1)
    body += b"y" * (LARGEST - len(body) - 2) + b"\r\n"
    wire = b"".join(b"." + line for line in body.splitlines(keepends=True)) if stuffed else body
    made = ready()
    made.say(b"DATA")
    for begin in range(0, len(wire), 65_536):
        assert made.send(wire[begin : begin + 65_536]) == []
    assert made.send(b".\r\n") == []
    assert made.submitted().content() == body


def test_endless_data_takes_no_memory() -> None:
    made = ready()
    made.say(b"DATA")
    for _ in range(1_600):
        assert made.send(b"x" * 65_536) == []
    content = made.protocol.content
    assert content is not None
    assert content.refusal
    assert len(content._held) < 70_000
    assert made.send(b"\r\n.\r\n")[0].startswith(b"552 5.3.4 ")
    assert made.budget.try_take("acc_2", 32 * 1024 * 1024)


def test_messages_share_their_memory() -> None:
    made = ready(memory=1_000_000)
    assert made.budget.try_take("acc_2", 900_000)
    for _ in range(2):
        made.say(b"DATA")
        made.send(b"x" * 300_000)
        assert made.send(b"\r\n.\r\n") == [b"451 4.3.0 Too many messages are being received; try again later\r\n"]
        made.say(b"MAIL FROM:<a@example.com>")
        made.say(b"RCPT TO:<ada@example.net>")
    made.budget.give_back("acc_2", 900_000)
    made.say(b"DATA")
    made.send(MESSAGE + b".\r\n")
    made.submitted()


def test_a_message_that_is_being_stored_keeps_its_memory() -> None:
    """Also where its client has gone: it is held all the same, and many such would take more than there is."""
    made = ready(memory=1_000_000)
    made.say(b"DATA")
    made.send(b"x" * 600 + b"\r\n" + b"y" * 300_000 + b"\r\n.\r\n")
    made.submitted()
    made.protocol.close()  # the connection is lost
    assert not made.budget.try_take("acc_2", 800_000)
    made.protocol.submitted("msg_1")
    assert made.budget.try_take("acc_2", 1_000_000)


def test_a_message_sent_before_it_was_asked_for() -> None:
    made = logged_in()
    replies = made.send(b"DATA\r\nSubject: x\r\n\r\nQUIT\r\n.\r\n")
    assert [reply[:9] for reply in replies] == [b"503 5.5.1", b"421 4.7.0"]
    assert made.protocol.phase is Phase.OVER


# ---- BDAT


def test_chunks_make_a_message() -> None:
    made = ready()
    assert made.send(b"BDAT 9\r\nA: b\r\n\r\n.") == [b"250 2.0.0 Chunk accepted\r\n"]
    assert made.send(b"BDAT 2\r\n\r\n") == [b"250 2.0.0 Chunk accepted\r\n"]
    assert made.say(b"DATA").startswith(b"503 5.5.1 ")
    assert made.say(b"RCPT TO:<more@example.net>").startswith(b"503 5.5.1 ")
    assert made.send(b"BDAT 0 LAST\r\n") == []
    assert made.submitted().content() == b"A: b\r\n\r\n.\r\n"


def test_large_chunks_are_no_idle_commands() -> None:
    """A message may come in more chunks than idle commands are allowed, unless they bring next to nothing."""
    made = ready()
    for _ in range(200):
        assert made.send(b"BDAT 1024\r\n" + b"x" * 1_022 + b"\r\n") == [b"250 2.0.0 Chunk accepted\r\n"]
    made.send(b"BDAT 0 LAST\r\n")
    assert len(made.submitted().content()) == 200 * 1_024
    made = ready()
    replies = made.send(b"BDAT 1\r\nx" * 150)
    assert replies[-1].startswith(b"421 4.7.0 ")
    assert len(replies) < 102


def test_a_refused_chunk_is_still_read_as_one() -> None:
    made = logged_in()
    assert made.send(b"BDAT 6 LAST\r\nQUIT\r\nNOOP\r\n") == [b"503 5.5.1 Send MAIL first\r\n", b"250 2.0.0 OK\r\n"]


@pytest.mark.parametrize(
    ("line", "reply"),
    [(b"BDAT", b"501 5.5.4 "), (b"BDAT x", b"501 5.5.4 "), (b"BDAT -1", b"501 "), (b"BDAT 99999999999", b"552 5.3.4 ")],
)
def test_a_chunk_of_no_known_length_ends_the_session(line: bytes, reply: bytes) -> None:
    made = ready()
    assert made.say(line).startswith(reply)
    assert made.protocol.phase is Phase.OVER


def test_chunks_beyond_the_limit() -> None:
    made = ready()
    for number in range(11):
        (reply,) = made.send(b"BDAT 1048576\r\n" + (b"x" * 62 + b"\r\n") * 16_384)
        assert reply.startswith(b"250 " if number < 10 else b"552 5.3.4 "), number
