"""The send request: every field, its type, and the rules between the fields."""

import base64
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, change, error, message, new_key
from tests.running_appliance import appliance

FILE = {"filename": "a.txt", "content": base64.b64encode(b"hello").decode()}

STRINGS = ("from", "reply_to", "subject", "text", "html", "template")
LISTS = ("to", "cc", "bcc", "tags")
OBJECTS = ("variables", "headers")
NOT_STRINGS: tuple[Any, ...] = (1, 1.5, True, None, {}, ["a@example.net"])
NOT_TEXTS: tuple[Any, ...] = (1, True, None, [], {})
NOT_LISTS: tuple[Any, ...] = (1, 1.5, False, None, {}, [1], [None], [["a@example.net"]], [{}])
NOT_OBJECTS: tuple[Any, ...] = (1, True, None, "a", ["a"])
NOT_FILES: tuple[Any, ...] = (1, True, None, "a", {}, ["a"], [1], [None], [[]])
NULL_ALLOWED = ("content_type", "content_id")  # of an attachment
WRONG_TYPES: list[tuple[str, Any]] = [
    *((name, value) for name in STRINGS for value in NOT_STRINGS if value is not None or name == "from"),
    *((name, value) for name in LISTS for value in NOT_LISTS if value is not None or name == "to"),
    *((name, value) for name in OBJECTS for value in NOT_OBJECTS if value is not None),
    *(("attachments", value) for value in NOT_FILES if value is not None),
    *(("headers", {"X-A": value}) for value in NOT_TEXTS),
    *(
        ("attachments", [FILE | {name: value}])
        for name in (*FILE, *NULL_ALLOWED)
        for value in NOT_TEXTS
        if value is not None or name not in NULL_ALLOWED
    ),
]

RESERVED = [
    "From",
    "Sender",
    "Reply-To",
    "To",
    "Cc",
    "Bcc",
    "Subject",
    "Date",
    "Message-ID",
    "MIME-Version",
    "Content-Type",
    "Content-Disposition",
    "Content-Anything",
    "Return-Path",
    "Received",
    "Received-SPF",
    "Delivered-To",
    "Errors-To",
    "DKIM-Signature",
    "DomainKey-Signature",
    "ARC-Seal",
    "ARC-Message-Signature",
    "ARC-Authentication-Results",
    "Authentication-Results",
    "Resent-To",
    "Resent-Bcc",
    "Resent-Message-ID",
    "TLS-Required",
    "X-Originating-IP",
    "X-Service-Tag",
    "X-Service-Anything",
]


def parsed(caller: Caller, **changes: Any) -> EmailMessage:
    """The message made of a request, as the standard library reads it."""
    built = message_from_bytes(caller.mime(caller.send(**changes)["id"]), policy=policy.default)
    assert isinstance(built, EmailMessage)
    assert not built.defects
    return built


# ---- which fields there are


@pytest.mark.parametrize("name", ["from", "to", "subject"])
def test_a_required_field_must_be_there(caller: Caller, name: str) -> None:
    """Without from, to or subject a request is refused by a sentence that names the field."""
    body = message()
    del body[name]
    assert error(caller.post(body), 400, "invalid_request").startswith(f"{name}:")


@pytest.mark.parametrize(("name", "value"), WRONG_TYPES)
def test_a_wrong_type_is_refused_by_name(caller: Caller, name: str, value: Any) -> None:
    """Whatever has another type than the interface says is refused by a sentence that begins with its field."""
    assert error(caller.post(message() | {name: value}), 400, "invalid_request").startswith(name)


@pytest.mark.parametrize("name", ["From", "priority", "to_", "send_at", "__proto__", ""])
def test_an_unknown_field_is_refused_by_name(caller: Caller, name: str) -> None:
    """Fields the interface does not know are refused, not ignored."""
    assert caller.post(message() | {name: "x"}).json()["error"].startswith(f"{name}:")


def test_an_unknown_field_of_an_attachment_is_refused_by_name(caller: Caller) -> None:
    """The same holds inside an attachment."""
    assert caller.refused(attachments=[FILE | {"size": 5}]).startswith("attachments[0].size:")


OPTIONAL = ("cc", "bcc", "reply_to", "html", "template", "variables", "headers", "tags", "attachments")


def test_null_for_an_optional_field_is_the_same_as_leaving_it_out(caller: Caller) -> None:
    """It is accepted, and a retry that leaves the fields out is a retry of the same."""
    key = new_key()
    first = caller.post(message(**dict.fromkeys(OPTIONAL)), key=key)
    assert first.status_code == 202, first.text
    again = caller.post(message(), key=key)
    assert (again.status_code, again.headers["Idempotent-Replayed"]) == (202, "true")
    assert again.json()["id"] == first.json()["id"]


@pytest.mark.parametrize("charset", ["latin-1", "utf-16", "ISO-8859-1", '"us-ascii"'])
def test_another_charset_is_refused_by_name(caller: Caller, charset: str) -> None:
    """JSON is sent in UTF-8, and a client that says otherwise is told what is wrong."""
    answer = caller.post(message(), headers={"Content-Type": f"application/json; charset={charset}"})
    assert charset.strip('"') in error(answer, 400, "invalid_request")


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip"])
def test_a_compressed_body_is_refused_by_name(caller: Caller, encoding: str) -> None:
    """A body is sent as it is: a small compressed one could become any size."""
    answer = caller.post(message(), headers={"Content-Encoding": encoding})
    assert error(answer, 400, "invalid_request").startswith(f"Content-Encoding: {encoding} ")


@pytest.mark.parametrize("body", [[], "text", 1, None, True, [message()]])
def test_the_body_is_an_object(caller: Caller, body: Any) -> None:
    """Any JSON value but an object is refused."""
    error(caller.post(body), 400, "invalid_request")


@pytest.mark.parametrize("content", [b"", b" ", b"{", b"{}x", b"from=a", b"\xef\xbb\xbf{}", b"{'from': 1}"])
def test_the_body_is_json(caller: Caller, content: bytes) -> None:
    """What is not JSON is refused."""
    error(caller.post(None, content=content), 400, "invalid_request")


# ---- addresses


@pytest.mark.parametrize("name", ["to", "cc", "bcc"])
def test_recipients_are_one_address_or_a_list(caller: Caller, name: str) -> None:
    """A string and a list of one mean the same; a longer list is taken in its order."""
    assert caller.send(**{name: "grace@example.net"})[name] == ["grace@example.net"]
    assert caller.send(**{name: ["grace@example.net"]})[name] == ["grace@example.net"]
    assert caller.send(**{name: ["b@example.net", "a@example.net"]})[name] == ["b@example.net", "a@example.net"]


def test_to_may_not_be_empty(caller: Caller) -> None:
    """An empty list of recipients is refused; empty cc and bcc are as good as none."""
    assert caller.refused(to=[]).startswith("to:")
    assert caller.refused(to="").startswith("to:")
    assert caller.refused(to=[], cc="a@example.net").startswith("to:")
    assert caller.send(cc=[], bcc=[])["recipient_count"] == 1


def test_reply_to_is_a_single_address(caller: Caller) -> None:
    """reply_to is written into the message; a list is refused."""
    assert parsed(caller, reply_to="help@example.org")["Reply-To"] == "help@example.org"
    assert caller.refused(reply_to=["help@example.org"]).startswith("reply_to:")


@pytest.mark.parametrize("name", ["from", "reply_to", "to", "cc", "bcc"])
@pytest.mark.parametrize(
    "address", ["a@example.com", "Ada <a@example.com>", '"Lovelace, Ada" <a@example.com>', "Adä <a@example.com>"]
)
def test_an_address_may_have_a_name(caller: Caller, name: str, address: str) -> None:
    """Every address field takes `a@b.c` and `Name <a@b.c>`."""
    caller.post(message() | {name: address}).raise_for_status()


@pytest.mark.parametrize("name", ["from", "reply_to", "to", "cc", "bcc"])
@pytest.mark.parametrize(
    "address",
    [
        "a@example.com, b@example.com",
        "a@example.com; b@example.com",
        "A <a@example.com>, B <b@example.com>",
        "a",
        "@example.com",
        "a@",
        "a@@example.com",
        "a b@example.com",
        "a@exam ple.com",
        "a@localhost",
        "a@-example.com",
        "a@example..com",
        "a@[127.0.0.1]",
        "Name a@example.com",
        "<a@example.com",
        "a@example.com>",
        "a@example.com\r\nBcc: b@example.com",
        "a\0@example.com",
        "Name\r\nX: y <a@example.com>",
        "Name\n <a@example.com>",
        "N\u2028 <a@example.com>",
        "",
        " ",
        "a@" + "b" * 64 + ".com",
        "a" * 65 + "@example.com",
        "a@" + "b." * 130 + "com",
    ],
)
def test_what_is_no_single_address_is_refused_by_name(caller: Caller, name: str, address: str) -> None:
    """Lists in one string, half addresses, and control characters are refused in every address field."""
    assert error(caller.post(message() | {name: address}), 400, "invalid_request").startswith(f"{name}:")


def test_a_wrong_entry_of_a_list_is_named_by_its_place(caller: Caller) -> None:
    """In a list the sentence says which entry is wrong."""
    assert caller.refused(cc=["a@example.net", "b"]).startswith("cc[1]:")


def test_internationalised_domains_become_a_labels(caller: Caller) -> None:
    """A domain in other letters goes on the wire as A-labels; the answer keeps the caller's spelling."""
    sent = caller.send(to="ada@bücher.example")
    assert sent["to"] == ["ada@bücher.example"]
    assert b"\r\nTo: ada@xn--bcher-kva.example\r\n" in caller.mime(sent["id"])


def test_a_local_part_in_other_letters_is_accepted(caller: Caller) -> None:
    """Whether the next hop can take a non-ASCII local part is for delivery to find out."""
    assert caller.send(to="jörg@example.net")["to"] == ["jörg@example.net"]


def test_each_unique_address_counts_once(caller: Caller) -> None:
    """Unique means equal ignoring case, across to, cc and bcc; the first spelling is used."""
    sent = caller.send(
        to=["Ada@Example.net", "ada@example.net"], cc="ADA@EXAMPLE.NET", bcc=["Ada <ada@example.NET>", "b@example.net"]
    )
    assert (sent["recipient_count"], sent["credits_reserved"]) == (2, 2)
    assert [each["email"] for each in caller.read(sent["id"])["recipients"]] == ["Ada@Example.net", "b@example.net"]


# ---- the sender's domain


@pytest.mark.parametrize(
    "sender", ["a@example.org", "a@mail.example.com", "a@example.com.example.org", "a@xn--exmple-cua.com", "a@com.com"]
)
def test_a_sender_of_a_domain_that_is_not_registered_is_forbidden(caller: Caller, sender: str) -> None:
    """Only a domain the account registered may send; a subdomain is a domain of its own."""
    assert error(caller.post(message(from_=sender)), 403, "forbidden").startswith("from:")


@pytest.mark.parametrize("sender", ["a@EXAMPLE.com", "Shop <A@Example.Com>"])
def test_a_registered_domain_is_known_in_any_spelling(caller: Caller, sender: str) -> None:
    """Domains compare ignoring case."""
    caller.send(from_=sender)


def test_a_registered_domain_must_also_be_usable(new_account: NewAccount) -> None:
    """A domain that a customer added and has not proven yet is forbidden."""
    caller = new_account()
    change(
        caller.running.data_dir,
        lambda store: store.access.add_domain(caller.account.account_id, "unproven.example", usable=False),
    )
    error(caller.post(message(from_="a@unproven.example")), 403, "forbidden")


# ---- the content


@pytest.mark.parametrize("content", [{"text": "t"}, {"html": "<p>"}, {"text": "", "html": ""}, {"attachments": [FILE]}])
def test_one_kind_of_content_is_enough(caller: Caller, content: dict[str, Any]) -> None:
    """text, html or an attachment suffice; an empty string is a body, too."""
    caller.send(**({"text": ...} | content))


@pytest.mark.parametrize("content", [{}, {"attachments": []}])
def test_some_content_must_be_there(caller: Caller, content: dict[str, Any]) -> None:
    """Without text, html, attachments and template a request is refused; an empty list holds no attachment."""
    caller.refused(text=..., **content)


def test_an_empty_subject_is_a_subject(caller: Caller) -> None:
    """A subject may be the empty string."""
    assert caller.send(subject="")["subject"] == ""


def test_both_bodies_become_alternatives(caller: Caller) -> None:
    """text and html stand in the message as they were given, the text first."""
    built = parsed(caller, text="Grüße\nund mehr", html="<p>Grüße</p>")
    assert built.get_content_type() == "multipart/alternative"
    plain, html = built.iter_parts()
    assert (plain.get_content_type(), plain.get_content().splitlines()) == ("text/plain", ["Grüße", "und mehr"])
    assert (html.get_content_type(), html.get_content().rstrip()) == ("text/html", "<p>Grüße</p>")


def test_html_alone_gets_a_text_made_from_it(caller: Caller) -> None:
    """Readers without HTML, and filters that want a text, find one; the html stays as it was given."""
    built = parsed(caller, text=..., html="<p>Your <b>order</b>: <a href='https://shop.example/1'>look</a></p>")
    assert built.get_content_type() == "multipart/alternative"
    plain, html = built.iter_parts()
    assert plain.get_content().strip() == "Your order: look (https://shop.example/1)"
    assert html.get_content().strip() == "<p>Your <b>order</b>: <a href='https://shop.example/1'>look</a></p>"


def test_html_alone_stays_alone_where_the_operator_wants_it(tmp_path: Path) -> None:
    """With http.text_from_html = false the message is the html that was given, and nothing beside it."""
    with appliance(tmp_path, http="text_from_html = false") as running, running.client() as client:
        alone = Caller(running, running.account, client, running.account.bearer)
        built = parsed(alone, text=..., html="<p>Hello</p>")
    assert (built.get_content_type(), built.get_content().strip()) == ("text/html", "<p>Hello</p>")


def test_tab_and_newline_are_fine_in_bodies(caller: Caller) -> None:
    """Bodies may hold tabs and newlines, as LF or as CRLF."""
    assert parsed(caller, text="a\tb\nc\r\nd").get_content().splitlines() == ["a\tb", "c", "d"]


# ---- headers


def test_custom_headers_are_written_and_told(caller: Caller) -> None:
    """Headers of the caller's own stand in the message and in the response as they were given."""
    headers = {"List-Unsubscribe": "<https://example.com/u>", "X-Order": "4711", "x-Note": "für Ada"}
    assert caller.send(headers=headers)["headers"] == headers
    built = parsed(caller, headers=headers)
    assert {name: built[name] for name in headers} == headers


@pytest.mark.parametrize("spelling", [str, str.upper, str.lower])
@pytest.mark.parametrize("name", RESERVED)
def test_reserved_headers_are_refused_in_any_spelling(caller: Caller, name: str, spelling: Any) -> None:
    """Headers that the service or other servers write are not the caller's."""
    name = spelling(name)
    assert caller.refused(headers={name: "x"}).startswith(f"headers.{name}:")


@pytest.mark.parametrize("name", ["", "X A", "X:A", "X_A", "X\r\nBcc", "Xä", "X\0", "X-A:", "x.y"])
def test_a_header_name_has_letters_digits_and_hyphens(caller: Caller, name: str) -> None:
    """Any other character in a header's name is refused."""
    assert caller.refused(headers={name: "x"}).startswith("headers")


@pytest.mark.parametrize(
    "value", ["a\r\nBcc: b@example.net", "a\nb", "a\rb", "a\0", "a\tb", "a\x7f", "a\x85b", "a\u2028b"]
)
def test_a_header_value_is_one_line(caller: Caller, value: str) -> None:
    """Control characters and line breaks in a header's value are refused by the header's name."""
    assert caller.refused(headers={"X-A": value}).startswith("headers.X-A:")


def test_one_header_in_two_spellings_is_refused(caller: Caller) -> None:
    """Names compare ignoring case, so the same header cannot come twice."""
    caller.refused(headers={"X-A": "1", "x-a": "2"})


# ---- tags


def test_tags_are_one_header(caller: Caller) -> None:
    """A tag or a list of tags becomes the one header X-Service-Tag."""
    assert parsed(caller, tags="order").get_all("X-Service-Tag") == ["order"]
    assert parsed(caller, tags=["order", "Ship 2!"]).get_all("X-Service-Tag") == ["order, Ship 2!"]
    assert parsed(caller).get_all("X-Service-Tag") is None


@pytest.mark.parametrize("tag", ["", "a,b", "ä", "a\tb", "a\r\nX: y", "a\0", "\x7f", "x" * 65])
def test_a_tag_is_short_printable_ascii_without_comma(caller: Caller, tag: str) -> None:
    """Any other tag is refused, alone and in a list."""
    assert caller.refused(tags=tag).startswith("tags:")
    assert caller.refused(tags=["fine", tag]).startswith("tags[1]:")


# ---- attachments


@pytest.mark.parametrize(
    ("filename", "content_type"),
    [
        ("a.pdf", "application/pdf"),
        ("A.PNG", "image/png"),
        ("a.csv", "text/csv"),
        ("a.unheard-of", "application/octet-stream"),
        ("no extension", "application/octet-stream"),
    ],
)
def test_the_type_of_a_file_follows_from_its_extension(caller: Caller, filename: str, content_type: str) -> None:
    """Without content_type the extension decides, and application/octet-stream is the last resort."""
    (told,) = caller.send(attachments=[FILE | {"filename": filename}])["attachments"]
    assert told["content_type"] == content_type


def test_a_given_type_wins(caller: Caller) -> None:
    """content_type overrides the extension."""
    (told,) = caller.send(attachments=[FILE | {"content_type": "text/x-own; charset=utf-8"}])["attachments"]
    assert told["content_type"] == "text/x-own; charset=utf-8"


def test_a_file_arrives_as_it_was(caller: Caller) -> None:
    """Every byte of a file is in the message, under its name."""
    data = bytes(range(256)) * 5
    file = {"filename": "Rechnung für Ada.bin", "content": base64.b64encode(data).decode()}
    (part,) = parsed(caller, attachments=[file]).iter_attachments()
    assert part.get_filename() == "Rechnung für Ada.bin"
    assert part.get_content() == data
    assert part.get_content_disposition() == "attachment"


def test_an_inline_image_is_found_by_its_id(caller: Caller) -> None:
    """content_id makes a part that the HTML can name as cid:…"""
    image = FILE | {"filename": "logo.png", "content_id": "logo@example"}
    built = parsed(caller, text=..., html='<img src="cid:logo@example">', attachments=[image])
    assert built.get_content_type() == "multipart/related"
    part = list(built.walk())[-1]
    assert (part["Content-ID"], part.get_content_disposition()) == ("<logo@example>", "inline")


@pytest.mark.parametrize("name", ["filename", "content"])
def test_a_file_needs_name_and_content(caller: Caller, name: str) -> None:
    """filename and content are required."""
    file = {key: value for key, value in FILE.items() if key != name}
    assert caller.refused(attachments=[file]).startswith(f"attachments[0].{name}:")


@pytest.mark.parametrize(
    "content", ["*", "aGVsb", "aGVs bG8=", "aGVsbG8==", "aGVsb-8=", "äöü=", "aGVsbG8= ", "====", "="]
)
def test_content_is_base64(caller: Caller, content: str) -> None:
    """What is not standard base64 is refused by name."""
    assert caller.refused(attachments=[FILE | {"content": content}]).startswith("attachments[0].content:")


@pytest.mark.parametrize("content", ["aGVsbG8", "aGVs\nbG8=", "aGVs\r\nbG8=\r\n"])
def test_base64_may_have_lines_and_lack_padding(caller: Caller, content: str) -> None:
    """However its base64 is written, the file is the same."""
    told = caller.send(attachments=[FILE | {"content": content}])
    assert told["attachments"][0]["size"] == len(b"hello")


def test_a_file_may_be_empty(caller: Caller) -> None:
    """Nothing, in base64, is a file of 0 bytes."""
    (told,) = caller.send(attachments=[FILE | {"content": ""}])["attachments"]
    assert told["size"] == 0


@pytest.mark.parametrize(
    "filename",
    [
        "",
        " ",
        "../../etc/passwd",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "C:\\a",
        "..",
        ".",
        "a\r\nb",
        "a\0",
        "a\x1b",
        "a\u2028b",
    ],
)
def test_a_file_name_has_no_path_and_no_control_characters(caller: Caller, filename: str) -> None:
    """Anything that is more than a file's name is refused."""
    assert caller.refused(attachments=[FILE | {"filename": filename}]).startswith("attachments[0].filename:")


@pytest.mark.parametrize(
    "content_type",
    ["", "text", "text/", "/plain", "text/plain\r\nX: y", "text/plain; a", "tëxt/plain", "multipart/mixed"],
)
def test_a_content_type_is_a_media_type(caller: Caller, content_type: str) -> None:
    """Anything else in content_type is refused by name."""
    assert caller.refused(attachments=[FILE | {"content_type": content_type}]).startswith(
        "attachments[0].content_type:"
    )


@pytest.mark.parametrize("content_id", ["", "a b", "a\r\nX: y", "<a>", "ä", "a\0", "a" * 129])
def test_a_content_id_is_plain(caller: Caller, content_id: str) -> None:
    """Anything that could leave its header or its URL is refused by name."""
    assert caller.refused(attachments=[FILE | {"content_id": content_id}]).startswith("attachments[0].content_id:")


# ---- the request's own headers


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"]
)
def test_json_is_the_content_type(caller: Caller, content_type: str) -> None:
    """application/json is accepted, in any spelling, with UTF-8 named or not."""
    assert caller.post(message(), headers={"Content-Type": content_type}).status_code == 202


@pytest.mark.parametrize(
    "content_type",
    ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonx", "application/json; charset=latin1"],
)
def test_any_other_content_type_is_refused(caller: Caller, content_type: str) -> None:
    """Another Content-Type is refused, whatever the body."""
    text = error(caller.post(message(), headers={"Content-Type": content_type}), 400, "invalid_request")
    assert "Content-Type" in text


def test_the_content_type_must_be_there(caller: Caller) -> None:
    """Without a Content-Type a request is refused."""
    headers = {"Idempotency-Key": "no-content-type"}
    error(caller.request("POST", "/emails", content=b"{}", headers=headers), 400, "invalid_request")
