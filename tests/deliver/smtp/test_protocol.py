"""Commands: what must never be written into one is refused before it is."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.deliver.smtp import protocol
from appliance.deliver.smtp.protocol import (
    CLIENT,
    KEPT_CHARACTERS,
    LINE_CHARACTERS,
    REPLY_LINE_BYTES,
    REPLY_LINES,
    SERVER,
    Capabilities,
    RelayCredentials,
    Reply,
    ReplyFault,
    ReplyReader,
    Transcript,
    TranscriptLine,
    UnsafeArgument,
    capabilities,
)


def read(data: bytes) -> list[Reply]:
    return list(_read([data]))


def _read(chunks: list[bytes]) -> list[Reply]:
    reader = ReplyReader()
    replies = []
    for chunk in chunks:
        reader.feed(chunk)
        while (reply := reader.next_reply()) is not None:
            replies.append(reply)
    return replies


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        (b"250 2.1.0 Ok\r\n", Reply(250, ("2.1.0 Ok",), "2.1.0")),
        (b"250-one\r\n250-\r\n250 two\r\n", Reply(250, ("one", "", "two"))),
        (b"250\r\n", Reply(250, ("",))),
        (b"250OK\r\n", Reply(250, ("OK",))),
        (b"250\tOK\r\n", Reply(250, ("OK",))),
        (b"250-one\r\n250\r\n", Reply(250, ("one", ""))),
        (b"250 Ok\n", Reply(250, ("Ok",))),
        (b"550-5.7.1 a\r\n550 5.7.1 b\r\n", Reply(550, ("5.7.1 a", "5.7.1 b"), "5.7.1")),
        (b"550 5.1.1\r\n", Reply(550, ("5.1.1",), "5.1.1")),
        (b"450 5.1.1 contradicts its code\r\n", Reply(450, ("5.1.1 contradicts its code",))),
        (b"550 5.1.1.1 is an address\r\n", Reply(550, ("5.1.1.1 is an address",))),
        (b"550 5.1.1000 is too long\r\n", Reply(550, ("5.1.1000 is too long",))),
        ("550 gr\u00fc\u00dfe \u90ae\u4ef6\r\n".encode(), Reply(550, ("grüße 邮件",))),
        (b"550 caf\xe9 \x00\x1b[2J\x7f\r\n", Reply(550, ("caf\\xe9 \\x00\\x1b[2J\\x7f",))),
        ("550 \u202eevil\u2028\r\n".encode(), Reply(550, ("\\u202eevil\\u2028",))),
        (b"550 a\rb\r\n", Reply(550, ("a\\rb",))),
    ],
)
def test_each_form_of_a_reply_is_read(data: bytes, reply: Reply) -> None:
    assert read(data) == [reply]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"hello\r\n", "not an SMTP reply: 'hello'"),
        (b"\r\n", "not an SMTP reply"),
        (b"25\r\n", "not an SMTP reply"),
        (b"2500 x\r\n", "not an SMTP reply"),
        (b"199 x\r\n", "not an SMTP reply"),
        (b"600 x\r\n", "not an SMTP reply"),
        ("٢٥٠ x\r\n".encode(), "not an SMTP reply"),
        (b"250-one\r\n550 two\r\n", "both 250 and 550"),
        (b"250-x\r\n" * (REPLY_LINES + 1), f"more than {REPLY_LINES} lines"),
        (b"250 " + b"x" * REPLY_LINE_BYTES + b"\r\n", f"more than {REPLY_LINE_BYTES} bytes"),
        (b"250 " + b"x" * REPLY_LINE_BYTES, f"more than {REPLY_LINE_BYTES} bytes"),
    ],
)
def test_what_is_no_reply_stays_a_fault(data: bytes, reason: str) -> None:
    reader = ReplyReader()
    reader.feed(data)
    with pytest.raises(ReplyFault, match=reason):
        reader.next_reply()
    reader.feed(b"250 fine again\r\n")
    with pytest.raises(ReplyFault, match=reason):
        reader.next_reply()


def test_the_longest_line_and_the_longest_reply_are_read() -> None:
    longest = b"250 " + b"x" * (REPLY_LINE_BYTES - 6) + b"\r\n"
    assert len(longest) == REPLY_LINE_BYTES
    assert read(longest)[0].code == 250
    most = b"250-x\r\n" * (REPLY_LINES - 1) + b"250 x\r\n"
    assert len(read(most)[0].lines) == REPLY_LINES


def test_only_8_kib_of_a_reply_are_kept() -> None:
    line = b"250-" + b"x" * 2_000 + b"\r\n"
    (reply,) = read(line * 99 + b"250 end\r\n")
    assert sum(map(len, reply.lines)) <= KEPT_CHARACTERS
    assert len(reply.shown) > KEPT_CHARACTERS - 100


def test_several_replies_in_one_piece_are_given_one_by_one() -> None:
    reader = ReplyReader()
    reader.feed(b"250 one\r\n250-two\r\n250 two\r\n354 thr")
    codes = []
    while (reply := reader.next_reply()) is not None:
        codes.append(reply.shown)
    assert codes == ["250 one", "250 two two"]
    assert not reader.empty
    reader.feed(b"ee\r\n")
    last = reader.next_reply()
    assert last is not None
    assert last.shown == "354 three"
    assert reader.empty


_LINES = st.sampled_from(
    [b"250 Ok\r\n", b"250-\r\n", b"250-x\n", b"550 5.1.1 no\r\n", b"354\r\n", b"junk\r\n", b"\xff\r\n"]
)
_DATA = st.one_of(st.binary(max_size=300), st.lists(_LINES | st.binary(max_size=5), max_size=130).map(b"".join))


@given(data=_DATA, cuts=st.lists(st.integers(0, 4_000), max_size=20), padding=st.sampled_from([0, 2_000, 2_050]))
def test_any_bytes_in_any_pieces_read_the_same(data: bytes, cuts: list[int], padding: int) -> None:
    """Whatever is sent, and however it is cut up: the same replies, the same fault, bounded memory, printable text."""
    data = data.replace(b"x", b"x" * max(1, padding))
    places = sorted({0, *(cut % (len(data) + 1) for cut in cuts), len(data)})
    pieces = [data[start:end] for start, end in itertools.pairwise(places)]
    assert _outcome(pieces) == _outcome([data]) == _outcome([data[i : i + 1] for i in range(len(data))])


def _outcome(pieces: list[bytes]) -> tuple[list[Reply], str | None]:
    reader = ReplyReader()
    replies: list[Reply] = []
    try:
        for piece in pieces:
            reader.feed(piece)
            while (reply := reader.next_reply()) is not None:
                assert reply.shown.isprintable()
                replies.append(reply)
            assert len(reader._buffer) - reader._position <= REPLY_LINE_BYTES
            assert sum(map(len, reader._lines)) <= KEPT_CHARACTERS
    except ReplyFault as fault:
        return replies, str(fault)
    return replies, None


# ---- what EHLO offers: every extension that matters, in any spelling


def test_all_extensions_are_read_in_any_case() -> None:
    lines = (
        "mx",
        "Pipelining",
        "size 1000",
        "8bitmime",
        "SmtpUtf8",
        "starttls",
        "EnhancedStatusCodes",
        "auth plain Login",
    )
    assert capabilities(Reply(250, lines)) == Capabilities(
        pipelining=True,
        size=True,
        size_limit=1000,
        eight_bit=True,
        smtputf8=True,
        starttls=True,
        auth=frozenset({"PLAIN", "LOGIN"}),
    )


def test_the_first_line_offers_nothing() -> None:
    assert capabilities(Reply(250, ("STARTTLS",))) == Capabilities()


@pytest.mark.parametrize(
    ("line", "limit"),
    [("SIZE", None), ("SIZE 0", None), ("SIZE many", None), ("SIZE -1", None), ("SIZE ²", None), ("SIZE 10", 10)],
)
def test_a_size_without_a_number_is_no_limit(line: str, limit: int | None) -> None:
    assert capabilities(Reply(250, ("mx", line))) == Capabilities(size=True, size_limit=limit)


def test_the_old_spelling_of_auth_is_read() -> None:
    assert capabilities(Reply(250, ("mx", "AUTH=LOGIN PLAIN"))).auth == {"LOGIN", "PLAIN"}
    assert capabilities(Reply(250, ("mx", "AUTH LOGIN", "AUTH=PLAIN"))).auth == {"LOGIN", "PLAIN"}


def test_empty_lines_offer_nothing() -> None:
    assert capabilities(Reply(250, ("mx", "", "PIPELINING"))) == Capabilities(pipelining=True)


def test_lines_have_milliseconds_from_the_beginning() -> None:
    times = iter([100.0, 100.0, 100.25])
    transcript = Transcript(lambda: next(times))
    transcript.add(CLIENT, "MAIL")
    transcript.add(SERVER, "250 ok")
    assert transcript.lines() == (
        TranscriptLine(0, CLIENT, "MAIL"),
        TranscriptLine(250, SERVER, "250 ok"),
    )


def test_a_recipient_sees_the_lines_about_it_and_those_about_everyone() -> None:
    transcript = Transcript(lambda: 0.0)
    transcript.add(CLIENT, "MAIL")
    transcript.add(CLIENT, "RCPT a", 0)
    transcript.add(CLIENT, "RCPT b", 1)
    transcript.add(SERVER, "550 no b", 1)
    transcript.add(SERVER, "250 queued")
    assert [line.text for line in transcript.lines(0)] == ["MAIL", "RCPT a", "250 queued"]
    assert [line.text for line in transcript.lines(1)] == ["MAIL", "RCPT b", "550 no b", "250 queued"]
    assert [line.text for line in transcript.lines()] == ["MAIL", "250 queued"]


def test_a_long_line_is_cut() -> None:
    transcript = Transcript(lambda: 0.0)
    transcript.add(SERVER, "x" * 5_000)
    assert [len(line.text) for line in transcript.lines()] == [LINE_CHARACTERS]


BAD = ["\r", "\n", "\0", " ", "<", ">", "\t", "\x7f", "\x85", "\u2028"]


@pytest.mark.parametrize("bad", BAD)
def test_no_address_ends_its_command(bad: str) -> None:
    with pytest.raises(UnsafeArgument):
        protocol.mail_command(f"a{bad}b@example.com")
    with pytest.raises(UnsafeArgument):
        protocol.rcpt_command(f"a{bad}b@example.com")


@pytest.mark.parametrize("bad", [*BAD, "", "é"])
def test_no_greeting_name_ends_its_command(bad: str) -> None:
    with pytest.raises(UnsafeArgument):
        protocol.hello_command("EHLO", f"{bad}" if not bad else f"a{bad}b")


def test_commands_are_written_as_the_rfc_wants_them() -> None:
    assert protocol.mail_command("") == "MAIL FROM:<>"
    assert protocol.mail_command("a@b.example", " SIZE=1") == "MAIL FROM:<a@b.example> SIZE=1"
    assert protocol.rcpt_command("ü@b.example") == "RCPT TO:<ü@b.example>"
    assert protocol.hello_command("EHLO", "[IPv6:2001:db8::1]") == "EHLO [IPv6:2001:db8::1]"
    with pytest.raises(UnsafeArgument):
        protocol.rcpt_command("")


def test_credentials_do_not_show_or_split() -> None:
    assert "hunter2" not in repr(RelayCredentials("u", "hunter2"))
    assert protocol.plain_secret(RelayCredentials("u", "p")) == "AHUAcA=="
    with pytest.raises(UnsafeArgument):
        protocol.plain_secret(RelayCredentials("u", "p\0q"))
