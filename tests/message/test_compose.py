"""The bytes of a message, read back by the standard library: what went in comes out, and nothing else."""

import base64
import json
import re
import tracemalloc
from email.header import decode_header, make_header
from email.message import EmailMessage, Message
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from appliance.errors import Code, Refused
from appliance.message import header_lines
from appliance.message.addresses import parse
from appliance.message.compose import compose, draft
from appliance.message.header_lines import custom, disposition, encoded_length, mailboxes, subject
from appliance.message.limits import MESSAGE_SIZE
from appliance.message.request import decode, fingerprint
from tests.message.samples import (
    MESSAGE_ID,
    NOON,
    body,
    body_text,
    composed,
    content,
    drafted,
    hostile_text,
    line_text,
    read,
)

STANDARD = ["Date", "From", "To", "Subject", "Message-ID", "MIME-Version", "Content-Type", "Content-Transfer-Encoding"]


def names(data: bytes) -> list[str]:
    head = data.partition(b"\r\n\r\n")[0]
    return [line.split(b":")[0].decode() for line in head.split(b"\r\n") if not line.startswith(b" ")]


def value_of(line: str) -> str:
    """A header line's value with folding undone and encoded words decoded, by the standard library's other parser."""
    return str(make_header(decode_header(unfolded(line)))) if "=?" in line else unfolded(line)


def unfolded(line: str) -> str:
    """A header line's value with folding undone, RFC 5322 2.2.3."""
    return re.sub(r"\r\n(?=[ \t])", "", line.partition(":")[2]).removesuffix("\r\n").removeprefix(" ")


def check_wire(data: bytes) -> None:
    """What must hold for every message: CRLF only, 7-bit, lines that fit, no blank header line, a final CRLF."""
    assert not re.search(rb"\r(?!\n)|(?<!\r)\n", data)
    assert data.isascii()
    assert b"\x00" not in data
    assert max(map(len, data.split(b"\r\n"))) <= 998
    assert data.endswith(b"\r\n")
    head = data.partition(b"\r\n\r\n")[0]
    assert not re.search(rb"\r\n[ \t]+(\r\n|\Z)", head)


def only(message: EmailMessage) -> Any:
    (part,) = [part for part in message.walk() if part.get_filename() is not None]
    return part


def shape(part: Message) -> Any:
    kind = part.get_content_subtype()
    return (
        (kind, [shape(each) for each in part.iter_parts()])
        if isinstance(part, EmailMessage) and part.is_multipart()
        else kind
    )


# --- Headers ---


def test_whole_message() -> None:
    assert composed(**{"from": "Shop <shop@example.com>"}, cc="c@x.test", tags=["a", "b"], headers={"X-A": "1"}) == (
        b"Date: Tue, 14 Nov 2023 22:13:20 +0000\r\n"
        b"From: Shop <shop@example.com>\r\n"
        b"To: ada@example.net\r\n"
        b"Cc: c@x.test\r\n"
        b"Subject: Hello\r\n"
        b"Message-ID: <0197@example.com>\r\n"
        b"X-A: 1\r\n"
        b"X-Service-Tag: a, b\r\n"
        b"MIME-Version: 1.0\r\n"
        b"Content-Type: text/plain; charset=utf-8\r\n"
        b"Content-Transfer-Encoding: 7bit\r\n"
        b"\r\n"
        b"Hi\r\n"
    )


def test_bcc_is_nowhere() -> None:
    data = composed(bcc=["Secret <secret@example.org>", "hidden@example.org"], cc="c@x.test", reply_to="r@x.test")
    assert b"secret" not in data.lower()
    assert b"hidden" not in data
    assert b"bcc" not in data.lower()
    assert names(data) == ["Date", "From", "To", "Cc", "Reply-To", *STANDARD[3:]]


def test_message_id_with_brackets() -> None:
    made = drafted()
    assert compose(made, message_id="<a@b>", date_seconds=0) == compose(made, message_id="a@b", date_seconds=0)
    for bad in ("", "a", "a@b\r\nX: y", "a b@c", "é@b", "a@b>"):
        with pytest.raises(ValueError, match="Message-ID"):
            compose(made, message_id=f"{bad} ", date_seconds=0)


def test_encoded_word_in_the_subject_is_text() -> None:
    """Text that looks like an encoded word with a newline in it comes out as that text, and no header appears."""
    trick = "=?utf-8?q?a=0ABcc:_x?="
    data = composed(subject=trick, **{"from": f"{trick} <a@x.test>"}, headers={"X-A": trick}, tags=[trick])
    message = read(data)
    assert names(data) == [*STANDARD[:5], "X-A", "X-Service-Tag", *STANDARD[5:]]
    assert message["Subject"] == message["X-A"] == message["X-Service-Tag"] == trick
    assert message["From"].addresses[0].display_name == trick


def test_long_unsubscribe_link_survives() -> None:
    link = f"<https://example.com/u?t={'a' * 700}&x=?y?=>"
    mail = f"<mailto:{'b' * 200}@example.com>"
    line = custom("List-Unsubscribe", f"{link}, {mail}")
    assert line == f"List-Unsubscribe: {link},\r\n {mail}\r\n"


@pytest.mark.parametrize("length", [60, 70, 78, 900, 976, 990, 995, 996, 997, 998])
@pytest.mark.parametrize("name", ["X", "List-Unsubscribe", "X" * 76])
def test_one_long_word(name: str, length: int) -> None:
    line = custom(name, "a" * length)
    assert max(map(len, line.split("\r\n"))) <= 998
    assert value_of(line).strip() == "a" * length


def test_runs_of_spaces_are_folded_safely() -> None:
    value = f"a{' ' * 300}b  c{' ' * 80}d"
    line = custom("X-A", value)
    assert value_of(line) == value
    assert all(part.strip() for part in line.split("\r\n")[:-1])


@pytest.mark.parametrize(
    "text",
    [
        "Grüße",
        "é" * 500,
        "漢" * 500,
        "😀" * 125 + "x",
        "a" * 300 + "é",
        " outer ",
        " ",
        "=?",
        "x" * 500,
        "a  b",
        "\u0301",
    ],
)
def test_subjects(text: str) -> None:
    """Subjects of all kinds come back as they were, in lines of at most 78 octets where they can be folded."""
    data = composed(subject=text)
    check_wire(data)
    assert read(data)["Subject"] == text
    if not text.isascii():
        assert all(len(line) <= 76 for line in subject(text).split("\r\n"))
        assert all(len(word) <= 75 for word in subject(text).split()[1:])


def test_each_encoded_word_holds_whole_characters() -> None:
    """No character is split between two encoded words (RFC 2047 5)."""
    for text in ("é" * 400, "漢字" * 200, "a😀" * 150):
        for charset, encoding, data in re.findall(r"=\?(.*?)\?(.)\?(.*?)\?=", subject(text)):
            word = str(make_header(decode_header(f"=?{charset}?{encoding}?{data}?=")))
            assert "\ufffd" not in word
            assert set(word) <= set(text)


def test_international_domain_and_local_part() -> None:
    assert b"To: a@xn--mller-kva.example\r\n" in composed(to="a@müller.example")
    data = composed(to="Jürgen <jürgen@müller.example>")
    assert "<jürgen@xn--mller-kva.example>\r\n".encode() in data
    assert len([octet for octet in data if octet > 127]) == len("ü".encode())
    assert composed(bcc="jürgen@example.com").isascii()


def test_fifty_recipients_are_folded() -> None:
    people = [f"Person Number {i} <person{i}@example.net>" for i in range(50)]
    data = composed(to=people)
    check_wire(data)
    assert all(len(line) <= 78 for line in data.split(b"\r\n"))
    assert [str(address) for address in read(data)["To"].addresses] == people


# --- Bodies ---


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "plain"),
        ({"text": None, "html": "<p>"}, "html"),
        ({"html": "<p>"}, ("alternative", ["plain", "html"])),
        ({"attachments": ["file"]}, ("mixed", ["plain", "pdf"])),
        ({"text": None, "attachments": ["file"]}, ("mixed", ["pdf"])),
        ({"text": None, "html": "<p>", "attachments": ["inline"]}, ("related", ["html", "png"])),
        ({"html": "<p>", "attachments": ["inline"]}, ("alternative", ["plain", ("related", ["html", "png"])])),
        ({"attachments": ["inline"]}, ("mixed", ["plain", "png"])),
        (
            {"html": "<p>", "attachments": ["inline", "file"]},
            ("mixed", [("alternative", ["plain", ("related", ["html", "png"])]), "pdf"]),
        ),
    ],
)
def test_structure(fields: dict[str, Any], expected: Any) -> None:
    kinds = {
        "file": {"filename": "a.pdf", "content": "QQ=="},
        "inline": {"filename": "a.png", "content": "Qg==", "content_id": "logo"},
    }
    if "attachments" in fields:
        fields = {**fields, "attachments": [kinds[kind] for kind in fields["attachments"]]}
    data = composed(**fields)
    check_wire(data)
    assert shape(read(data)) == expected


def with_text(**fields: Any) -> bytes:
    made = drafted(text=None, **fields)
    return compose(made, message_id=MESSAGE_ID, date_seconds=NOON, text_from_html=True)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"html": "<p>Hi"}, ("alternative", ["plain", "html"])),
        ({"html": "<img src='cid:logo'>"}, "html"),
        ({"html": ""}, "html"),
        ({"html": "<p>Hi", "attachments": ["file"]}, ("mixed", [("alternative", ["plain", "html"]), "pdf"])),
        ({"html": "<p>Hi", "attachments": ["inline"]}, ("alternative", ["plain", ("related", ["html", "png"])])),
        ({"attachments": ["file"]}, ("mixed", ["pdf"])),
    ],
)
def test_html_alone_gets_a_text_part(fields: dict[str, Any], expected: Any) -> None:
    """The text stands first, as RFC 2046 5.1.4 has it; HTML without anything to read stays alone."""
    kinds = {
        "file": {"filename": "a.pdf", "content": "QQ=="},
        "inline": {"filename": "a.png", "content": "Qg==", "content_id": "logo"},
    }
    if "attachments" in fields:
        fields = {**fields, "attachments": [kinds[kind] for kind in fields["attachments"]]}
    data = with_text(**fields)
    check_wire(data)
    assert shape(read(data)) == expected


def test_the_text_part_says_what_the_html_says() -> None:
    data = with_text(html="<p>Grüße,<br><a href='https://x.example'>Ada</a></p>")
    plain, markup = read(data).iter_parts()
    assert content(plain).splitlines() == ["Grüße,", "Ada (https://x.example)"]
    assert content(markup).strip() == "<p>Grüße,<br><a href='https://x.example'>Ada</a></p>"


def test_a_text_of_its_own_is_kept() -> None:
    made = drafted(text="", html="<p>Hi")
    data = compose(made, message_id=MESSAGE_ID, date_seconds=NOON, text_from_html=True)
    assert data == compose(made, message_id=MESSAGE_ID, date_seconds=NOON)


def test_a_text_part_makes_no_message_too_large() -> None:
    html = "<p>Hello</p>"
    room = MESSAGE_SIZE - len(composed(text=None, html=html, attachments=[file_of(0)]))
    octets = room // 78 * 57
    while len(alone := composed(text=None, html=html, attachments=[file_of(octets)])) <= MESSAGE_SIZE - 4:
        octets += max(3, (MESSAGE_SIZE - len(alone) - 6) // 4 * 3)
    assert MESSAGE_SIZE - 4 < len(alone) <= MESSAGE_SIZE
    assert with_text(html=html, attachments=[file_of(octets)]) == alone
    with pytest.raises(Refused):
        with_text(html=html, attachments=[file_of(octets + 6)])


def file_of(octets: int) -> dict[str, str]:
    return {"filename": "a.bin", "content": base64.b64encode(bytes(octets)).decode()}


def test_inline_image() -> None:
    """An inline image has its Content-ID and is shown inline; without HTML it is an attachment that keeps its id."""
    image = {"filename": "a.png", "content": "Qg==", "content_id": "logo@x"}
    part = only(read(composed(html='<img src="cid:logo@x">', attachments=[image])))
    assert (part["Content-ID"], part.get_content_disposition(), content(part)) == ("<logo@x>", "inline", b"B")
    part = only(read(composed(attachments=[image])))
    assert (part["Content-ID"], part.get_content_disposition()) == ("<logo@x>", "attachment")


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Hi\nthere\n.\nFrom x\n", "7bit"),
        ("x" * 998, "7bit"),
        ("a\n" + "x" * 998 + "\nb", "7bit"),
        ("x" * 999, "quoted-printable"),
        ("a\n" * 600 + "x" * 999 + "\nb", "quoted-printable"),
        ("Grüße, " + "a" * 40, "quoted-printable"),
        ("漢字" * 40, "base64"),
        ("", "7bit"),
    ],
)
def test_transfer_encodings(text: str, encoding: str) -> None:
    message = read(composed(text=text))
    assert message["Content-Transfer-Encoding"] == encoding
    assert content(message).rstrip("\r\n").replace("\r\n", "\n") == text.rstrip("\n")


@pytest.mark.parametrize("text", ["a \n b\t\n.\n..\n=\né", "é \t", "\n\né\n\n", "x" * 75 + "é" * 3, "é" + "y" * 5000])
def test_quoted_printable(text: str) -> None:
    data = composed(text=text, html="<p>")
    check_wire(data)
    first = next(iter(read(data).iter_parts()))
    assert first.get_payload(decode=True) == text.replace("\n", "\r\n").encode()


@pytest.mark.parametrize(
    "line", ["é and a line of text \n", "x" * 1000 + "\n", "漢字の行\r\n", "é" + "=" * 90_000 + "\n"]
)
def test_long_texts(line: str) -> None:
    text = line * (300_000 // len(line)) + "the end "
    data = composed(text=text, html="<p>")
    check_wire(data)
    first = next(iter(read(data).iter_parts()))
    assert first.get_payload(decode=True) == text.replace("\r\n", "\n").replace("\n", "\r\n").encode()


def test_newlines_become_crlf() -> None:
    assert composed(text="a\nb\r\nc").endswith(b"\r\n\r\na\r\nb\r\nc\r\n")


def test_boundary_is_not_in_the_text() -> None:
    first = composed(html="<p>")
    found = re.search(rb'boundary="(.*)"', first)
    assert found
    tricky = f"a\n--{found[1].decode()}--\nb"
    message = read(composed(text=tricky, html=tricky))
    assert [content(part).replace("\r\n", "\n") for part in message.iter_parts()] == [tricky, tricky]
    assert first == composed(html="<p>")


# --- Files ---


@pytest.mark.parametrize(
    "filename",
    ["a.pdf", "a b.pdf", 'q"u"ote.txt', "semi;colon=.txt", "Grüße.pdf", "漢字" * 30 + ".txt", "😀.png", "100%.txt",
     "it's", "=?utf-8?q?a=0AX:_y?=", "a" * 255, "é" * 127, "..a", "a'b*c%20.txt", "a  b"],
)  # fmt: skip
def test_filenames(filename: str) -> None:
    """File names of all kinds come back as they were."""
    data = composed(attachments=[{"filename": filename, "content": "QQ=="}])
    check_wire(data)
    assert only(read(data)).get_filename() == filename
    if not filename.isascii():
        assert all(len(line) <= 78 for line in disposition("attachment", filename).split("\r\n"))


@pytest.mark.parametrize("size", [0, 1, 56, 57, 58, 57 * 1024 - 1, 57 * 1024, 57 * 1024 + 1, 200_000])
def test_contents(size: int) -> None:
    """Contents of any size come back as they were, in lines of 76."""
    file = bytes(range(256)) * (size // 256 + 1)
    file = file[:size]
    encoded = base64.b64encode(file).decode()
    data = composed(attachments=[{"filename": "a.bin", "content": encoded}, {"filename": "b", "content": "Qg=="}])
    check_wire(data)
    parts = [part for part in read(data).walk() if part.get_filename()]
    assert [content(part) for part in parts] == [file, b"B"]
    assert all(len(line) <= 78 for line in data.split(b"\r\n"))


def test_exactly_ten_mebibytes() -> None:
    small = len(composed(text="x"))
    lines = "y" * 77 + "\n"
    room = MESSAGE_SIZE - small + 1
    text = lines * (room // 79)
    text += "z" * (room - len(text.replace("\n", "\r\n")))
    assert len(composed(text=text)) == MESSAGE_SIZE
    with pytest.raises(Refused) as caught:
        composed(text=text + "z")
    assert caught.value.code is Code.PAYLOAD_TOO_LARGE


def test_memory_of_a_large_message() -> None:
    whole = body(attachments=[{"filename": "a.bin", "content": base64.b64encode(bytes(7_600_000)).decode()}])
    data = json.dumps(whole).encode()
    del whole
    tracemalloc.start()
    try:
        request = decode(data)
        size = len(data)
        del data  # as the server does; it was made before the count began, so it is added below
        fingerprint(request)
        message = compose(draft(request, None), message_id=MESSAGE_ID, date_seconds=NOON)
        peak = tracemalloc.get_traced_memory()[1] + size
    finally:
        tracemalloc.stop()
    assert len(message) > 10_000_000
    assert peak < 4 * len(message)


# --- Everything at once ---

addresses = st.tuples(line_text, st.sampled_from(["a@x.test", "b.c+d@müller.example", "z@sub.example.com"])).map(
    lambda pair: '"{}" <{}>'.format(re.sub(r'(["\\])', r"\\\1", pair[0].strip()[:60]), pair[1])
)
filenames = line_text.map(lambda text: re.sub(r"[/\\]", "_", text)[:60] + ".txt")
tags = st.from_regex(r"[!-+\--~]{1,20}", fullmatch=True)
messages = st.fixed_dictionaries(
    {"from": addresses, "to": st.lists(addresses, min_size=1, max_size=3), "subject": line_text},
    optional={
        "cc": st.lists(addresses, min_size=1, max_size=2),
        "bcc": st.lists(st.just("secret@example.org"), max_size=1),
        "reply_to": addresses,
        "text": body_text,
        "html": body_text,
        "tags": st.lists(tags, min_size=1, max_size=20),
        "headers": st.dictionaries(st.sampled_from(["X-A", "List-Unsubscribe", "X" * 76]), line_text, max_size=3),
        "attachments": st.lists(
            st.builds(
                lambda name, data: {"filename": name, "content": base64.b64encode(data).decode()},
                filenames,
                st.binary(max_size=200),
            ),
            min_size=1,
            max_size=2,
        ),
    },
)


def header(data: bytes, name: str) -> str:
    head = data.partition(b"\r\n\r\n")[0].decode() + "\r\n"
    (line,) = re.findall(rf"(?m)^{name}:.*\r\n(?:[ ].*\r\n)*", head)
    return str(line)


@given(messages)
def test_what_goes_in_comes_out(fields: dict[str, Any]) -> None:
    try:
        made = drafted(**fields)
    except Refused:
        return
    data = compose(made, message_id=MESSAGE_ID, date_seconds=NOON)
    check_wire(data)
    optional = (["Cc"] if made.cc else []) + (["Reply-To"] if made.reply_to else [])
    own = [name for name, _ in made.headers] + (["X-Service-Tag"] if made.tags else [])
    expected = ["Date", "From", "To", *optional, "Subject", "Message-ID", *own, "MIME-Version", "Content-Type"]
    assert [name for name in names(data) if name != "Content-Transfer-Encoding"] == expected
    assert value_of(header(data, "Subject")) == made.subject
    for name, value in made.headers:
        assert value_of(header(data, name)).strip(" ") == value
    if made.tags:
        assert value_of(header(data, "X-Service-Tag")).split(", ") == list(made.tags)
    message = read(data)
    for name, group in (("From", (made.sender,)), ("To", made.to), ("Cc", made.cc)):
        found = message[name].addresses if group else ()
        assert [address.addr_spec for address in found] == [address.wire for address in group]
    bodies: dict[str, Any] = {
        part.get_content_type(): part.get_payload(decode=True) for part in message.walk() if not part.get_filename()
    }
    for kind, text in (("text/plain", made.text), ("text/html", made.html)):
        if text is not None:
            assert (bodies[kind] or b"").removesuffix(b"\r\n") == text.replace("\n", "\r\n").encode().removesuffix(
                b"\r\n"
            )
    parts = [part for part in message.walk() if part.get_filename() is not None]
    assert [(part.get_filename(), part.get_payload(decode=True)) for part in parts] == [
        (file.filename.strip(), file.content) for file in made.files
    ]
    assert b"secret@" not in data


@given(line_text.map(lambda text: text.strip()[:100]))
@example("a" * 76)
@example('quo"te \\ back')
def test_display_names(name: str) -> None:
    escaped = re.sub(r'(["\\])', r"\\\1", name)
    data = composed(**{"from": f'"{escaped}" <a@x.test>'})
    line = unfolded(header(data, "From")).removesuffix("<a@x.test>").strip(" ")
    if line == "a@x.test":
        line = ""
    if line.startswith('"'):
        line = re.sub(r"\\(.)", r"\1", line[1:-1])
    found = str(make_header(decode_header(line))) if line.startswith("=?") else line
    assert found == name.strip(" ")


@given(
    st.sampled_from(["subject", "name", "tag", "header", "filename", "content_id", "content_type", "text"]),
    hostile_text,
)
def test_hostile_characters(field: str, text: str) -> None:
    """Hostile text in any field is a 400, or it is encoded so that no header appears and no line breaks."""
    attachment = {"filename": "a.txt", "content": "QQ=="}
    choices: dict[str, dict[str, Any]] = {
        "subject": {"subject": text},
        "name": {"from": f"{text} <a@x.test>"},
        "tag": {"tags": [text]},
        "header": {"headers": {"X-A": text}},
        "filename": {"attachments": [{**attachment, "filename": text}]},
        "content_id": {"attachments": [{**attachment, "content_id": text}]},
        "content_type": {"attachments": [{**attachment, "content_type": text}]},
        "text": {"text": text},
    }
    try:
        data = composed(**choices[field])
    except Refused as refusal:
        assert refusal.code.status == 400  # noqa: PT017 - either outcome is fine
        return
    check_wire(data)
    extra = {"tag": ["X-Service-Tag"], "header": ["X-A"]}.get(field, [])
    found = [name for name in names(data) if name not in ("Content-Type", "Content-Transfer-Encoding")]
    assert found == [*STANDARD[:5], *extra, "MIME-Version"]
    message = read(data)
    assert {name.lower() for part in message.walk() for name in part} <= {
        *(name.lower() for name in (*STANDARD, *extra)), "content-disposition", "content-id"
    }  # fmt: skip


@given(line_text)
def test_encoded_length_is_what_is_written(value: str) -> None:
    value = value.strip(" ")
    written = unfolded(custom("X", value))
    assert abs(len(written) - encoded_length(value)) <= 14 if "=?" in written else len(written) == encoded_length(value)


@given(
    st.sampled_from(["From", "To", "Cc", "Reply-To"]),
    st.sampled_from(["a@b.c", "=?utf-8?q?a?=@b.c", f"{'=?' * 32}@{'a' * 60}.example", "jürgen@example.com"])
    | st.emails(),
    st.none() | line_text,
)
def test_a_single_mailbox_is_written_as_several_are(field: str, bare: str, name: str | None) -> None:
    quoted = (name or "")[:100].replace("\\", "\\\\").replace('"', '\\"')
    text = bare if name is None else f'"{quoted}" <{bare}>'
    try:
        address = parse(text, "to")
    except Refused:
        return
    for _ in range(2):  # the second time it may be remembered
        assert mailboxes(field, (address,)) == header_lines._mailboxes(field, (address,))
