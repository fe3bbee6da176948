"""Messages in seven bits: a reader sees the same, ASCII keeps its bytes, and hostile mail does no more than fail."""

import email
import email.policy
from email.header import decode_header, make_header
from email.message import EmailMessage

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.message.characters import has_lone_line_end, number_of_long_line
from appliance.message.limits import DEPTH
from appliance.message.seven_bit import MALFORMED, SIGNED_BY_SENDER, CannotEncode, seven_bit
from tests.message.submissions import message

TEXT = "Grüße an 漢字 €"


def parsed(data: bytes) -> EmailMessage:
    """A message as the standard library reads it."""
    read = email.message_from_bytes(data, policy=email.policy.default)
    assert isinstance(read, EmailMessage)
    return read


def contents(data: bytes) -> list[tuple[str, bytes]]:
    """The type and the decoded content of each part, without line breaks at its end."""
    found = []
    for part in email.message_from_bytes(data).walk():
        content = None if part.is_multipart() else part.get_payload(decode=True)
        if isinstance(content, bytes):
            found.append((part.get_content_type(), content.rstrip(b"\r\n")))
    return found


def encoded(data: bytes) -> bytes:
    made = seven_bit(data)
    assert made.isascii()
    assert not has_lone_line_end(made)
    assert number_of_long_line(made) is None
    assert made.endswith(b"\r\n")
    return made


# ---- fields


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (f"Subject: {TEXT}", TEXT),
        (f"Subject: {'ä' * 400}", "ä" * 400),
        (f"Subject: a =?utf-8?q?=C3=BC?= {TEXT}", f"a ü {TEXT}"),
        (f"Subject: {TEXT}\r\n {TEXT}", f"{TEXT} {TEXT}"),
        (f"X-Note: {TEXT}", TEXT),
        (f"Comments:{TEXT}", TEXT),
    ],
)
def test_text_becomes_encoded_words(line: str, shown: str) -> None:
    name = line.partition(":")[0]
    made = encoded(message(line.encode(), without=[name.encode()]))
    assert parsed(made)[name] == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("Jürgen <a@b.example>", [("Jürgen", "a@b.example")]),
        ('Jürgen "Größe" Müller <a@b.example>', [("Jürgen Größe Müller", "a@b.example")]),
        ('"Müller, \\"J\\"" <a@b.example>', [('Müller, "J"', "a@b.example")]),
        ("Zoë <ada@bücher.example>", [("Zoë", "ada@xn--bcher-kva.example")]),
        ("ada@bücher.example", [("", "ada@xn--bcher-kva.example")]),
        (
            "a@b.example, Ö <c@d.example>,\r\n e@f.example",
            [("", "a@b.example"), ("Ö", "c@d.example"), ("", "e@f.example")],
        ),
        ("a@b.example (Grüße), Plain Name <c@d.example>", [("", "a@b.example"), ("Plain Name", "c@d.example")]),
        ("Grüppe: a@b.example, Ö <c@d.example>;", [("", "a@b.example"), ("Ö", "c@d.example")]),
        ('"plain, quoted" <a@b.example>, Ö <c@d.example>', [("plain, quoted", "a@b.example"), ("Ö", "c@d.example")]),
    ],
)
def test_names_are_encoded_and_addresses_are_not(value: str, shown: list[tuple[str, str]]) -> None:
    made = encoded(message(f"Cc: {value}".encode()))
    assert [(each.display_name, each.addr_spec) for each in parsed(made)["Cc"].addresses] == shown


def test_a_long_name_is_several_words() -> None:
    """Read by RFC 2047 6.2; the parser above takes the space between two words of a name for text."""
    made = encoded(message(f"Cc: {'ä' * 200} <a@b.example>".encode()))
    assert str(make_header(decode_header(email.message_from_bytes(made)["Cc"]))) == f"{'ä' * 200} <a@b.example>"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("Cc: jürgen@b.example", "an address in its Cc has no other form"),
        ("Reply-To: J <jürgen@b.example>", "an address in its Reply-To has no other form"),
        ("Cc: ü a@b.example", "its Cc cannot be read"),
        ('Cc: "ü"@b.example', "its Cc cannot be read"),
        ('Cc: "ü', "its Cc cannot be read"),
        ("Cc: ü <a@b.example", "its Cc cannot be read"),
        ("Cc: ü ((a)) <a@b.example>", "its Cc cannot be read"),
        ("In-Reply-To: <ü@b.example>", "its In-Reply-To has no other form"),
        ("List-Unsubscribe: <https://b.example/ü>", "its List-Unsubscribe has no other form"),
        ("Content-ID: <ü@b.example>", "its Content-ID has no other form"),
        ("Content-Type: text/ü", MALFORMED),
        ('Content-Type: text/plain; na me="ü"', MALFORMED),
        ("Content-Type: text/plain; a=ü" + "\r\n ;b=c" * 201, MALFORMED),
        ("DKIM-Signature: v=1\r\nSubject: ü", SIGNED_BY_SENDER),
        ("DomainKey-Signature: a=rsa-sha1\r\nSubject: ü", SIGNED_BY_SENDER),
    ],
)
def test_what_has_no_form_in_ascii(line: str, words: str) -> None:
    with pytest.raises(CannotEncode) as cannot:
        seven_bit(message(line.encode(), without=[b"Subject"]))
    assert str(cannot.value) == words


def test_file_names_are_written_by_rfc_2231() -> None:
    kind = 'Content-Type: multipart/mixed; boundary="b"'
    part = "--b\r\nContent-Type: application/x; x=y\r\nContent-Disposition: attachment; {}\r\n\r\nx\r\n--b--\r\n"
    for given_name, shown in (
        ('filename="Grüße, März.pdf"', "Grüße, März.pdf"),
        (f'filename="{"ü" * 100}.pdf"; size=3', f"{'ü' * 100}.pdf"),
        ('filename="Grüße\r\n März.pdf"', "Grüße März.pdf"),
        ("filename*=utf-8''a%0D%0AX-Evil:%20b; x=\"ü\"", "a\r\nX-Evil: b"),
    ):
        made = encoded(message(kind.encode(), body=part.format(given_name).encode()))
        file = list(email.message_from_bytes(made).walk())[1]
        assert file.get_filename() == shown
        assert file["X-Evil"] is None
        assert (file.get_content_type(), file.get_param("x")) == ("application/x", "y")


# ---- bodies

LATIN = "Grüße\r\n".encode("latin-1")
MIXED = b'Content-Type: multipart/mixed; boundary="b"'
HTML = b"Content-Type: text/html; charset=utf-8"
BINARY = b"Content-Transfer-Encoding: binary"


def nested(depth: int, inner: bytes) -> bytes:
    for level in range(depth):
        head = b"Content-Type: multipart/mixed; boundary=l%d" % level
        inner = b"%b\r\n\r\n--l%d\r\n%b\r\n--l%d--" % (head, level, inner, level)
    return inner


BODIES = {
    "undeclared": message(body=TEXT.encode() + b"\r\n"),
    "not UTF-8": message(body=LATIN),
    "latin-1": message(b"MIME-Version: 1.0", b"Content-Type: text/plain; charset=iso-8859-1", body=LATIN),
    "declared": message(HTML, b"Content-Transfer-Encoding: 8bit", body=TEXT.encode()),
    "mostly ASCII": message(body=b"word \r\n.\r\nFrom \t\r\n" * 5_000 + "ü".encode() + b"\r\n\r\n"),
    "binary": message(b"Content-Type: application/x", BINARY, body=bytes(range(128, 256))),
    "parts": message(
        MIXED,
        body=b"preamble\r\n--b\r\n\r\n\xc3\xbc\r\n--b\r\nContent-Type: image/png\r\n\r\n\xff\xfe"
        b"\r\n--b\r\n\r\nplain\r\n--b--\r\nend",
    ),
    "an attached message": message(
        MIXED, body="--b\r\nContent-Type: message/rfc822\r\n\r\nSubject: ü\r\n\r\nGrüße\r\n--b--\r\n".encode()
    ),
    "a digest": message(
        b"Content-Type: multipart/digest; boundary=b", body="--b\r\n\r\nSubject: ü\r\n\r\nGrüße\r\n--b--\r\n".encode()
    ),
    "deep": b"From: a@example.com\r\n" + nested(DEPTH - 1, b"Content-Type: text/plain\r\n\r\n\xc3\xbc") + b"\r\n",
}


@pytest.mark.parametrize("name", BODIES)
def test_every_part_has_the_same_content(name: str) -> None:
    data = BODIES[name]
    made = encoded(data)
    assert contents(made) == contents(data)
    assert seven_bit(made) == made


def test_undeclared_text_is_declared() -> None:
    read = parsed(encoded(BODIES["undeclared"]))
    assert (read["MIME-Version"], read.get_content().strip()) == ("1.0", TEXT)
    assert b"charset=unknown-8bit" in encoded(BODIES["not UTF-8"])


def test_ascii_keeps_its_bytes() -> None:
    """A message that needs nothing is the same; beside a part that does, the others and all delimiters are."""
    plain = message(MIXED, b"X:  odd \t spaces\r\n\tfolded", body=b"--b\r\n\r\n a \r\n--b--\r\n")
    assert seven_bit(plain) == plain
    made = encoded(BODIES["parts"])
    assert made.startswith(BODIES["parts"].partition(b"\r\n\r\n")[0])
    assert b"\r\n--b\r\n\r\nplain\r\n--b--\r\nend" in made


def test_it_grows_by_little_more_than_a_third() -> None:
    """Whatever the octets: the shorter encoding is taken."""
    for body in (b"\xff" * 500, "漢字".encode() * 100, b"a" * 500 + b"\xff"):
        data = message(body=(body + b"\r\n") * 2_000)
        assert len(seven_bit(data)) < 1.4 * len(data) + 200


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (message(b"DKIM-Signature: v=1", body=LATIN), SIGNED_BY_SENDER),
        (
            message(b"Content-Type: multipart/signed; boundary=b", body=b"--b\r\n\r\n\xff\r\n--b--\r\n"),
            SIGNED_BY_SENDER,
        ),
        (message(b"Content-Type: message/rfc822", body=b"DKIM-Signature: v=1\r\n\r\n\xff\r\n"), SIGNED_BY_SENDER),
        (message(b"Content-Transfer-Encoding: base64", body=LATIN), MALFORMED),
        (message(b"Content-Type: message/partial", body=LATIN), MALFORMED),
        (message(b"Content-Type: multipart/mixed", body=LATIN), MALFORMED),
        (message(MIXED, body=LATIN), MALFORMED),
        (message(MIXED, body=LATIN + b"--b\r\n\r\nx\r\n--b--\r\n"), MALFORMED),
        (message(MIXED, body=b"--b\r\nno field\r\n\r\n\xff\r\n--b--\r\n"), MALFORMED),
        (message(MIXED, body=b"--b\r\nA: \xff\r\n\r\nx\r\n--b--\r\n"), MALFORMED),
        (message(MIXED, body=b"--b\r\nContent-Type: a/b\r\nContent-Type: c/d\r\n\r\n\xff\r\n--b--\r\n"), MALFORMED),
        (b"From: a@b.example\r\n" + nested(DEPTH + 1, b"\r\n\xff") + b"\r\n", MALFORMED),
        (message(MIXED, body=b"--b\r\n\r\nx\r\n" * 1_000 + b"\xff"), MALFORMED),
    ],
)
def test_what_is_signed_or_cannot_be_read_is_left_alone(data: bytes, words: str) -> None:
    with pytest.raises(CannotEncode) as cannot:
        seven_bit(data)
    assert str(cannot.value) == words


FRAGMENTS = [
    b"--b", b"--b--", b"--c", b"", b"\xc3\xbc", b"\xff", b"plain", b"Subject: \xc3\xbc", b" \xc3\xbc", b'"', b"To: (",
    b"Content-Type: multipart/x; boundary=b", b"Content-Type: multipart/x; boundary=c", b"Content-Type: message/rfc822",
    b"Content-Transfer-Encoding: 8bit", b"Content-Type: text/plain; name=\xc3\xbc", b"To: \xc3\xbc <a@b.example>",
    b"X: =?utf-8?q?=0D=0A?= \xc3\xbc",
]  # fmt: skip


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=40))
def test_hostile_mail_is_encoded_or_left_alone(lines: list[bytes]) -> None:
    """Whatever the lines: seven bits that stay the same the second time, or `CannotEncode`."""
    data = b"From: a@b.example\r\n" + b"".join(line + b"\r\n" for line in lines)
    try:
        made = encoded(data)
    except CannotEncode:
        return
    assert seven_bit(made) == made
