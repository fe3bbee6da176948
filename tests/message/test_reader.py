"""Reading stored messages back for the dashboard: what was written is shown, and nothing makes it fail or take long."""

import tracemalloc
from email.message import EmailMessage
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.message.limits import DEPTH, FIELDS, PARTS, TEXT_BYTES
from appliance.message.reader import MessageView, MimeReader, read_message
from tests.cpu_time import cpu_seconds
from tests.message.hostile_mail import HOSTILE
from tests.message.samples import body_text, composed, line_text
from tests.message.stdlib_view import stdlib_view

HEAD = b"From: a@example.com\r\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n"


def test_a_plain_message() -> None:
    opened = read_message(HEAD + b"X-Long: a\r\n b\r\n\r\nHello")
    assert opened.headers == [("From", "a@example.com"), ("Subject", "Grüße"), ("X-Long", "a b")]
    assert (opened.text, opened.html, opened.attachments) == ("Hello", None, [])


def test_parts_are_told_apart() -> None:
    mime = (
        HEAD
        + b'Content-Type: multipart/mixed; boundary="b"\r\n\r\n'
        + b"--b\r\nContent-Type: text/plain; charset=iso-8859-1\r\n\r\nH\xe4llo\r\n"
        + b"--b\r\nContent-Type: text/html\r\nContent-Transfer-Encoding: base64\r\n\r\nPHA+SGk8L3A+\r\n"
        + b"--b\r\nContent-Type: text/plain\r\nContent-Disposition: attachment; filename=a.txt\r\n\r\nfile\r\n"
        + b"--b\r\nContent-Type: image/png\r\nContent-ID: <logo>\r\n\r\npng\r\n--b--\r\n"
    )
    opened = read_message(mime)
    assert (opened.text, opened.html) == ("Hällo", "<p>Hi</p>")
    assert [(each.filename, each.content_type, each.size, each.content_id) for each in opened.attachments] == [
        ("a.txt", "text/plain", 4, None),
        ("", "image/png", 3, "logo"),
    ]


def test_utf8_in_a_header_is_read() -> None:
    assert read_message("Subject: Grüße\r\n\r\n".encode()).headers == [("Subject", "Grüße")]


def test_a_long_text_is_cut() -> None:
    opened = read_message(HEAD + b"\r\n" + b"x" * (TEXT_BYTES + 1))
    assert opened.text is not None
    assert (len(opened.text), opened.truncated) == (TEXT_BYTES, True)


@pytest.mark.parametrize(
    "mime",
    [
        b"",
        b"\xff\xfe",
        b"Subject: =?nonsense?q?x?=\r\n\r\n",
        b"Subject: =?utf-8?b?!!!?=\r\n\r\n",
        b"Content-Type: text/plain; charset=nonsense\r\n\r\nx",
        b"Content-Type: text/plain; charset=\x00\r\n\r\nx",
        b"Content-Type: text/plain; charset=rot13\r\n\r\nx",
        b"Content-Type: multipart/mixed\r\n\r\nx",
        b'Content-Type: multipart/mixed; boundary="b"\r\n\r\n--b\r\n--b\r\n',
        b"Content-Transfer-Encoding: base64\r\n\r\n!!!",
        b"Content-Disposition: attachment; filename*=utf-8''%ff%fe\r\n\r\nx",
        b"Content-Type: message/rfc822\r\n\r\nSubject: inner\r\n\r\nx",
    ],
)
def test_what_is_strange_is_shown_as_it_is(mime: bytes) -> None:
    opened = read_message(mime)
    for text in (opened.text or "", opened.html or "", *(value for _, value in opened.headers)):
        text.encode("utf-8")


PIECES = (
    b"Content-Type: multipart/mixed; boundary=b\r\n", b"Content-Type: multipart/digest; boundary=b\r\n", b"--b",
    b"--b--",
    b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b"=", b"=?utf-8?q?", b"?=", b"=?utf-8?b?", b";", b'"', b"\\", b"*0*=",
    b"filename", b"Content-Disposition: attachment; filename", b"Content-Transfer-Encoding: base64\r\n", b"QUJD",
    b"Content-Transfer-Encoding: quoted-printable\r\n", b"=41", b"Content-Type: text/plain; charset=", b"iso-2022-jp",
    b"utf-8''%e9%ff", b"\x1b$B", b"\xff", b"\xed\xa0\x80", b"text/html", b"message/rfc822", b"Content-ID: <a>\r\n",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=60).map(b"".join))
def test_whatever_is_put_together_is_shown(mime: bytes) -> None:
    """Pieces of MIME in any order: nothing raises, and all of the answer can be written as JSON."""
    assert msgspec.json.encode(read_message(mime))


@given(st.binary(max_size=400))
def test_any_bytes_can_be_opened(mime: bytes) -> None:
    for name, value in read_message(mime).headers:
        (name + value).encode("utf-8")


# ---- the standard library as an oracle, on ordinary messages


def as_stdlib(view: MessageView) -> tuple[Any, ...]:
    files = [(each.filename, each.content_type, each.size, each.content_id) for each in view.attachments]
    return view.text, view.html, files


letters = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=80)
filenames = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Zl", "Zp"], exclude_characters="/\\=\"?%'"),
    min_size=1,
    max_size=90,
).map(lambda name: " ".join(name.split()) or "a")


@given(
    text=letters,
    html=st.none() | letters,
    files=st.lists(st.tuples(filenames, st.binary(max_size=300)), max_size=3),
    encoding=st.sampled_from(("base64", "quoted-printable", "8bit")),
    charset=st.sampled_from(("utf-8", "utf-8", "gb18030")),
)
def test_what_the_standard_library_writes_is_read_as_it_reads_it(
    text: str, html: str | None, files: list[tuple[str, bytes]], encoding: str, charset: str
) -> None:
    message = EmailMessage()
    message["Subject"] = "Hello"
    message.set_content(text, cte=encoding, charset=charset)
    if html is not None:
        message.add_alternative(html, subtype="html", cte=encoding, charset=charset)
    for name, content in files:
        message.add_attachment(content, "application", "pdf", filename=name)
    mime = message.as_bytes()
    assert as_stdlib(read_message(mime)) == stdlib_view(mime)


@given(text=st.none() | body_text, html=st.none() | body_text, name=filenames, image=st.booleans(), subject=line_text)
def test_what_we_compose_is_read_as_the_standard_library_reads_it(
    text: str | None, html: str | None, name: str, image: bool, subject: str
) -> None:
    file = {
        "filename": f"{name}.png"[-100:],
        "content": "aGVsbG8gd29ybGQ=",
        **({"content_id": "logo"} if image else {}),
    }
    mime = composed(text=text, html=html, attachments=[file], subject=subject)
    view = read_message(mime)
    assert as_stdlib(view) == stdlib_view(mime)
    assert dict(view.headers)["Subject"] == subject.strip(" ")


@pytest.mark.parametrize("charset", ["iso-8859-15", "windows-1251", "koi8-r", "shift_jis", "euc-jp", "big5", "euc-kr"])
def test_the_charsets_of_the_world_are_read(charset: str) -> None:
    text = {"windows-1251": "Привет", "koi8-r": "Привет", "iso-8859-15": "Grüße €", "euc-kr": "한국"}.get(
        charset, "日本"
    )
    mime = f"Content-Type: text/plain; charset={charset}\r\n\r\n".encode() + text.encode(charset)
    assert read_message(mime).text == text


def test_an_unknown_charset_is_shown_as_ascii() -> None:
    assert read_message(b"Content-Type: text/plain; charset=punycode\r\n\r\na-\xe9").text == "a-\ufffd"


def test_a_file_name_in_pieces_is_put_together() -> None:
    """RFC 2231: numbered pieces in any order, percent-encoded ones in the charset that the first one names."""
    disposition = b"attachment; filename*1=b.txt; filename*0*=iso-8859-1''a%E9-"
    (file,) = read_message(b"Content-Disposition: " + disposition + b"\r\n\r\nx").attachments
    assert file.filename == "aé-b.txt"


def test_an_attached_message_is_a_file() -> None:
    inner = b"Content-Type: message/rfc822\r\n\r\n" * 2_000 + b"Subject: x\r\n\r\ny"
    view = read_message(inner)
    assert view.text is None
    assert [(each.content_type, each.size) for each in view.attachments] == [("message/rfc822", len(inner) - 32)]


def test_an_outer_delimiter_ends_what_is_inside() -> None:
    mime = (
        b"Content-Type: multipart/mixed; boundary=out\r\n\r\n"
        b"--out\r\nContent-Type: multipart/alternative; boundary=in\r\n\r\n"
        b"--in\r\n\r\ntext\r\n"
        b"--out\r\nContent-Type: text/html\r\n\r\nhtml\r\n--out--\r\n"
    )
    view = read_message(mime)
    assert (view.text, view.html) == ("text", "html")


# ---- messages made to be slow


@pytest.mark.parametrize("name", HOSTILE)
def test_reading_takes_time_by_length_and_no_more(name: str) -> None:
    def seconds(size: int, tries: int) -> float:
        mime = HOSTILE[name](size)
        return cpu_seconds(lambda: read_message(mime), tries=tries)

    assert seconds(2048 * 1024, 2) < 8 * max(seconds(512 * 1024, 2), 0.01)
    assert seconds(10 * 1024 * 1024, 1) < 1.0


@pytest.mark.parametrize("name", HOSTILE)
def test_reading_takes_little_memory(name: str) -> None:
    mime = HOSTILE[name](5 * 1024 * 1024)
    tracemalloc.start()
    try:
        view = read_message(mime)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 1024 * 1024
    assert len(view.attachments) <= PARTS
    assert len(view.text or "") <= TEXT_BYTES >= len(view.html or "")
    assert sum(len(each) + len(value) for each, value in view.headers) <= 300 * 1024


def test_depth_and_number_of_parts_are_bounded() -> None:
    deep = read_message(HOSTILE["nested multiparts"](10_000))
    assert [each.content_type for each in deep.attachments] == ["multipart/mixed"]
    assert DEPTH < 20
    many = read_message(HOSTILE["parts"](100_000))
    assert (len(many.attachments), many.truncated) == (PARTS - 2, True)


def test_fields_that_are_not_used_are_not_kept() -> None:
    """Thousands of objects would have the garbage collected, for which every thread waits; the body is found."""
    mime = b"A: b\r\n" * (FIELDS - 1) + b"A: last\r\n kept\r\n" + b"A: b\r\n folded\r\n" * 5_000 + b"\r\nbody"
    fields, body = MimeReader(mime).header(0, len(mime))
    assert (len(fields), fields[FIELDS - 1], mime[body:]) == (FIELDS + 1, ("A", b"last kept"), b"body")
    view = read_message(mime)
    assert (len(view.headers), view.text, view.truncated) == (FIELDS, "body", True)
