"""The rules of a send request, one by one, each with the field its refusal names."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import Code, Refused
from appliance.message.compose import File, draft
from appliance.message.header_lines import RESERVED_HEADER_PREFIXES, RESERVED_HEADERS, is_reserved
from appliance.message.request import decode
from appliance.message.schema import Attachment, SendRequest
from appliance.model.mail import StoredTemplate
from tests.message.samples import body, drafted, hostile_text

WELCOME = StoredTemplate("welcome", 3, "Hi {{name}}", "Hello {{name}}", "<p>{{name}}", 0, 0)


def reason(stored: StoredTemplate | None = None, **fields: Any) -> str:
    with pytest.raises(Refused) as caught:
        drafted(stored, **fields)
    assert caught.value.code is Code.INVALID_REQUEST
    return caught.value.text


def attached(**fields: Any) -> dict[str, Any]:
    """One attachment that is fine, with these fields beside or instead of its own."""
    return {"filename": "a.txt", "content": "QQ==", **fields}


def test_whole_draft() -> None:
    made = drafted(
        None,
        **{"from": "Shop <shop@example.com>"},
        to=["a@x.test", "B <b@x.test>"],
        cc="c@x.test",
        bcc=["d@x.test"],
        reply_to="r@x.test",
        html="<p>",
        headers={"X-A": " b "},
        tags=["one", "two"],
        attachments=[attached(content_id="logo")],
    )
    assert made.sender.name == "Shop"
    assert [address.wire for address in made.recipients] == ["a@x.test", "b@x.test", "c@x.test", "d@x.test"]
    assert [address.wire for address in made.reply_to] == ["r@x.test"]
    assert (made.subject, made.text, made.html) == ("Hello", "Hi", "<p>")
    assert made.headers == (("X-A", "b"),)
    assert made.tags == ("one", "two")
    assert made.files == (File("a.txt", b"A", "text/plain", "logo", 1),)


# --- Recipients ---


def test_duplicates_collapse_to_the_first_spelling() -> None:
    """Within a field the first spelling stays; across fields each field keeps its own, the recipients the first."""
    made = drafted(to=["Ada@X.test", "ada@x.test"], cc=["ADA@x.test", "b@x.test"], bcc="B@x.test")
    assert [address.spelling for address in made.to] == ["Ada@X.test"]
    assert [address.spelling for address in made.cc] == ["ADA@x.test", "b@x.test"]
    assert [address.spelling for address in made.recipients] == ["Ada@X.test", "b@x.test"]


def test_fifty_unique_recipients() -> None:
    fifty = [f"r{i}@x.test" for i in range(50)]
    made = drafted(to=fifty, cc=[address.upper() for address in fifty], bcc=fifty)
    assert len(made.recipients) == 50
    assert reason(to=fifty, bcc="more@x.test").startswith("to: to, cc and bcc together may have at most 50")


def test_empty_lists_of_copies() -> None:
    assert len(drafted(cc=[], bcc=[]).recipients) == 1
    assert reason(to=[]).startswith("to: ")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"from": "x"}, "from"),
        ({"to": "x"}, "to"),
        ({"to": "a@x.test, b@x.test"}, "to"),
        ({"to": ["a@x.test", "x"]}, "to[1]"),
        ({"cc": ["x"]}, "cc[0]"),
        ({"bcc": "x"}, "bcc"),
        ({"reply_to": "a@x.test, b@x.test"}, "reply_to"),
    ],
)
def test_bad_addresses_name_their_field(fields: dict[str, Any], field: str) -> None:
    assert reason(**fields).startswith(f"{field}: ")


# --- Content ---


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"text": None}, "text"),
        ({"text": None, "attachments": []}, "text"),
        ({"variables": {}}, "variables"),
        ({"subject": None}, "subject"),
        ({"template": "welcome"}, "text"),
        ({"template": "welcome", "text": None, "html": ""}, "html"),
        ({"template": "unknown", "text": None}, "template"),
    ],
)
def test_combinations(fields: dict[str, Any], field: str) -> None:
    assert reason(**fields).startswith(f"{field}: ")


def test_an_empty_body_is_a_body() -> None:
    made = drafted(text="", subject="")
    assert (made.subject, made.text, made.html) == ("", "", None)


def test_attachments_alone_are_enough() -> None:
    assert drafted(text=None, attachments=[attached()]).text is None


def test_template() -> None:
    fields: dict[str, Any] = {"text": None, "template": "welcome", "variables": {"name": "<A>", "more": 1}}
    made = drafted(WELCOME, subject=None, **fields)
    assert (made.subject, made.text, made.html) == ("Hi <A>", "Hello <A>", "<p>&lt;A&gt;")
    assert drafted(WELCOME, subject="{{name}}", **fields).subject == "{{name}}"
    assert reason(WELCOME, subject="x", text=None, template="welcome").startswith("variables.name: ")


def test_subject_length() -> None:
    assert drafted(subject="é" * 500).subject == "é" * 500
    assert reason(subject="é" * 501).startswith("subject: ")


@pytest.mark.parametrize("bad", ["\r", "\n", "\r\n", "\t", "\x00", "\x1f", "\x7f", "\x80", "\x9f", "\u2028", "\u2029"])
def test_one_line_fields(bad: str) -> None:
    assert reason(subject=f"a{bad}b").startswith("subject: must not contain a")
    assert reason(headers={"X-A": f"a{bad}b"}).startswith("headers.X-A: must not contain a")
    assert reason(tags=[f"a{bad}b"]).startswith("tags[0]: ")
    assert reason(None, **{"from": f"A{bad} <a@x.test>"}).startswith("from: ")
    assert reason(attachments=[attached(filename=f"a{bad}b")]).startswith("attachments[0].filename: ")
    assert reason(attachments=[attached(content_type=f"a/b{bad}")]).startswith("attachments[0].content_type: ")
    assert reason(attachments=[attached(content_id=f"a{bad}")]).startswith("attachments[0].content_id: ")
    assert reason(headers={f"X{bad}": "a"}).startswith("headers: ")


@pytest.mark.parametrize(
    "bad", ["\r", "a\rb", "\r\r\n", "\n\r", "\x00", "\x0b", "\x0c", "\x1b", "\x7f", "\x80", "\x9f"]
)
@pytest.mark.parametrize("around", ["x", "é", "😀" * 3])
def test_bodies_refuse_controls(bad: str, around: str) -> None:
    assert reason(text=f"{around}{bad}{around}").startswith("text: must not contain a")
    assert reason(html=f"{around}{bad}").startswith("html: must not contain a")


def test_bodies_accept_newlines() -> None:
    text = "a\nb\r\nc\td\u2028é\r\n"
    assert drafted(text=text, html=text).text == text


def test_surrogates_never_pass() -> None:
    for fields in ({"subject": "\ud800"}, {"text": "\ud800"}, {"headers": {"X-A": "\udc00"}}, {"tags": ["\ud800"]}):
        request = SendRequest(**{"sender": "a@x.test", "to": "b@x.test", "subject": "x", "text": "x", **fields})  # type: ignore[arg-type]
        with pytest.raises(Refused):
            draft(request, None)


# --- Headers ---


@pytest.mark.parametrize(
    "name",
    [
        *sorted(RESERVED_HEADERS),
        "Content-Type",
        "content-id",
        "Received",
        "Received-SPF",
        "ARC-Seal",
        "Resent-Bcc",
        "X-Service-Tag",
    ],
)
def test_reserved_headers(name: str) -> None:
    for spelling in (name, name.upper(), name.title()):
        assert reason(headers={spelling: "x"}) == f"headers.{spelling}: this header is reserved"


def test_reserved_list() -> None:
    assert len(RESERVED_HEADERS) == 18
    assert all(name == name.lower() for name in (*RESERVED_HEADERS, *RESERVED_HEADER_PREFIXES))
    for name in ("X-From", "List-Unsubscribe", "List-Unsubscribe-Post", "In-Reply-To", "References", "Precedence"):
        assert not is_reserved(name)


@pytest.mark.parametrize("name", ["", "a b", "X:", "X_A", "é", "x" * 77, "X-A\n", "Bcc ", " Bcc"])
def test_bad_header_names(name: str) -> None:
    assert reason(headers={name: "x"}).startswith("headers: ")


def test_headers_at_their_limits() -> None:
    """76 characters of a name, and 100 headers; one more of either is refused."""
    name = "X-" + "a" * 74
    assert drafted(headers={name: "v"}).headers == ((name, "v"),)
    headers = {f"X-{index}": "v" for index in range(100)}
    assert len(drafted(headers=headers).headers) == 100
    assert reason(headers=headers | {"X-100": "v"}).startswith("headers: ")


def test_headers_twice() -> None:
    assert reason(headers={"X-A": "1", "x-a": "2"}).startswith("headers.x-a: ")


def test_header_value_length() -> None:
    """998 octets after encoding are allowed: ASCII counts as it is, anything else as encoded words."""
    assert drafted(headers={"X-A": "a" * 998}).headers[0][1] == "a" * 998
    assert reason(headers={"X-A": "a" * 999}).startswith("headers.X-A: ")
    assert drafted(headers={"X-A": "é" * 200}).headers[0][1] == "é" * 200
    assert reason(headers={"X-A": "é" * 450}).startswith("headers.X-A: ")
    assert drafted(headers={"X-A": ""}).headers == (("X-A", ""),)


# --- Tags ---


def test_tags() -> None:
    assert drafted(tags="one").tags == ("one",)
    assert drafted(tags=["b", "a", "b", "x y~!"]).tags == ("b", "a", "x y~!")
    assert drafted(tags=[]).tags == ()
    assert len(drafted(tags=[f"t{i}" for i in range(20)]).tags) == 20


@pytest.mark.parametrize("tag", ["", "a,b", "é", " a", "a ", "x" * 65, "a\x7f"])
def test_bad_tags(tag: str) -> None:
    assert reason(tags=["ok", tag]).startswith("tags[1]: ")
    assert reason(tags=tag).startswith("tags: ")


# --- Attachments ---


@pytest.mark.parametrize(
    "filename",
    ["", " ", ".", "..", "/", "a/b", "../../etc/passwd", "..\\x", "C:\\x", "é" * 128, "a" * 256, "a\x00.txt"],
)
def test_bad_filenames(filename: str) -> None:
    assert reason(attachments=[attached(), attached(filename=filename)]).startswith("attachments[1].filename: ")


@pytest.mark.parametrize(
    ("field", "longest"),
    [("filename", "x" * 251 + ".txt"), ("filename", "ä" * 127 + "x"), ("content_type", "text/" + "x" * 250),
     ("content_id", "x" * 128)],
)  # fmt: skip
def test_words_of_a_file_at_their_limits(field: str, longest: str) -> None:
    assert getattr(drafted(attachments=[attached(**{field: longest})]).files[0], field) == longest
    assert reason(attachments=[attached(**{field: f"x{longest}"})]).startswith(f"attachments[0].{field}: ")


@pytest.mark.parametrize(
    "content",
    ["Q", "QQ=", "Q Q=", "QQ==QQ==", "Q-_A", "éé==", "QQ\x00=", "====", "data:,x", "Q$$=", "QUJDR", "Q\n", "QQ\t=="],
)
def test_bad_base64(content: str) -> None:
    assert reason(attachments=[attached(content=content)]).startswith("attachments[0].content: ")


@pytest.mark.parametrize(
    ("content", "file"),
    [("QQ", b"A"), ("QUI", b"AB"), ("QQ==\n", b"A"), ("QU\r\nJD\nRA=\r\n=", b"ABCD"), ("\r\nQUJD\r\n", b"ABC")],
)
def test_base64_in_lines_or_without_padding(content: str, file: bytes) -> None:
    request = decode(json.dumps(body(attachments=[attached(content=content)])).encode())
    assert draft(request, None).files[0].content == file


def test_line_breaks_do_not_count_towards_the_size() -> None:
    content = "QUJD\r\n" * 2_000_000  # 12 MB of text, 6 MB of file
    request = decode(json.dumps(body(attachments=[attached(content=content)])).encode())
    assert len(draft(request, None).files[0].content) == 6_000_000


def test_base64_is_released() -> None:
    request = decode(json.dumps(body(attachments=[attached(content=base64.b64encode(b"abc").decode())])).encode())
    assert draft(request, None).files[0].content == b"abc"
    assert request.attachments == [Attachment("a.txt", "")]


@pytest.mark.parametrize(
    ("filename", "content_type"),
    [
        ("a.pdf", "application/pdf"), ("A.PNG", "image/png"), ("a.tar.gz", "application/gzip"),
        ("a.eml", "application/octet-stream"), ("a.unknown", "application/octet-stream"),
        ("README", "application/octet-stream"), ("pdf", "application/octet-stream"), (".html", "text/html"),
    ],
)  # fmt: skip
def test_content_type_by_extension(filename: str, content_type: str) -> None:
    assert drafted(attachments=[attached(filename=filename)]).files[0].content_type == content_type


@pytest.mark.parametrize(
    "content_type",
    ["image/png", "text/plain; charset=utf-8", "text/plain;charset=utf-8", 'text/csv; header="a b"', "a/vnd.x+y"],
)
def test_given_content_types(content_type: str) -> None:
    assert drafted(attachments=[attached(content_type=content_type)]).files[0].content_type == content_type


@pytest.mark.parametrize(
    "content_type",
    ["", "image", "image/", "/png", "a b/c", "a/b;", "a/b; c", "a/b\r\nX: y", "é/x", "multipart/mixed",
     "message/rfc822", "MULTIPART/x", 'a/b; c="d\\"', "a/" + "b" * 300],
)  # fmt: skip
def test_bad_content_types(content_type: str) -> None:
    assert reason(attachments=[attached(content_type=content_type)]).startswith("attachments[0].content_type: ")


def test_content_ids() -> None:
    assert drafted(attachments=[attached(content_id="logo.1@x")]).files[0].content_id == "logo.1@x"
    for bad in ("", "a b", "<a>", "é", "a" * 129, "a\r\n"):
        assert reason(attachments=[attached(content_id=bad)]).startswith("attachments[0].content_id: ")
    assert reason(attachments=[attached(content_id="a"), attached(content_id="a")]).startswith(
        "attachments[1].content_id: "
    )


def test_number_of_attachments() -> None:
    assert len(drafted(attachments=[attached()] * 20).files) == 20
    assert reason(attachments=[attached()] * 21).startswith("attachments: ")


def test_too_large_before_decoding() -> None:
    with pytest.raises(Refused) as caught:
        drafted(attachments=[attached(content="!" * 6_000_000), attached(content="!" * 6_000_000)])
    assert caught.value.code is Code.PAYLOAD_TOO_LARGE


# --- Everything at once ---


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "from": hostile_text,
            "to": hostile_text | st.lists(hostile_text, max_size=2),
            "subject": hostile_text,
            "text": hostile_text,
            "html": hostile_text,
            "headers": st.dictionaries(hostile_text | st.just("X-A"), hostile_text, max_size=2),
            "tags": hostile_text | st.lists(hostile_text, max_size=2),
            "attachments": st.lists(
                st.fixed_dictionaries(
                    {"filename": hostile_text, "content": hostile_text | st.just("QQ==")},
                    optional={"content_type": hostile_text, "content_id": hostile_text},
                ),
                max_size=1,
            ),
            "template": hostile_text,
            "variables": st.dictionaries(hostile_text, hostile_text, max_size=2),
        },
    )
)
def test_nothing_but_refused(fields: dict[str, Any]) -> None:
    try:
        drafted(WELCOME, **fields)
    except Refused as refusal:
        assert ": " in refusal.text  # noqa: PT017 - either outcome is fine
