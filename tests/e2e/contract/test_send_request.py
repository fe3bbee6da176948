"""The send request: every field, its type, and the rules between the fields."""

import base64
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, change, error, message
from tests.running_appliance import appliance

FILE = {"filename": "a.txt", "content": base64.b64encode(b"hello").decode()}


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


@pytest.mark.parametrize("name", ["From", "priority", "to_", "send_at", "__proto__", ""])
def test_an_unknown_field_is_refused_by_name(caller: Caller, name: str) -> None:
    """Fields the interface does not know are refused, not ignored."""
    assert caller.post(message() | {name: "x"}).json()["error"].startswith(f"{name}:")


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


def test_reply_to_is_a_single_address(caller: Caller) -> None:
    """reply_to is written into the message; a list is refused."""
    assert parsed(caller, reply_to="help@example.org")["Reply-To"] == "help@example.org"
    assert caller.refused(reply_to=["help@example.org"]).startswith("reply_to:")


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


def test_html_alone_stays_alone_where_the_operator_wants_it(tmp_path: Path) -> None:
    """With http.text_from_html = false the message is the html that was given, and nothing beside it."""
    with appliance(tmp_path, http="text_from_html = false") as running, running.client() as client:
        alone = Caller(running, running.account, client, running.account.bearer)
        built = parsed(alone, text=..., html="<p>Hello</p>")
    assert (built.get_content_type(), built.get_content().strip()) == ("text/html", "<p>Hello</p>")


# ---- headers


def test_custom_headers_are_written_and_told(caller: Caller) -> None:
    """Headers of the caller's own stand in the message and in the response as they were given."""
    headers = {"List-Unsubscribe": "<https://example.com/u>", "X-Order": "4711", "x-Note": "für Ada"}
    assert caller.send(headers=headers)["headers"] == headers
    built = parsed(caller, headers=headers)
    assert {name: built[name] for name in headers} == headers


@pytest.mark.parametrize("name", ["", "X A", "X:A", "X_A", "X\r\nBcc", "Xä", "X\0", "X-A:", "x.y"])
def test_a_header_name_has_letters_digits_and_hyphens(caller: Caller, name: str) -> None:
    """Any other character in a header's name is refused."""
    assert caller.refused(headers={name: "x"}).startswith("headers")


# ---- tags


def test_tags_are_one_header(caller: Caller) -> None:
    """A tag or a list of tags becomes the one header X-Service-Tag."""
    assert parsed(caller, tags="order").get_all("X-Service-Tag") == ["order"]
    assert parsed(caller, tags=["order", "Ship 2!"]).get_all("X-Service-Tag") == ["order, Ship 2!"]
    assert parsed(caller).get_all("X-Service-Tag") is None


# ---- attachments


def test_a_file_arrives_as_it_was(caller: Caller) -> None:
    """Every byte of a file is in the message, under its name."""
    data = bytes(range(256)) * 5
    file = {"filename": "Rechnung für Ada.bin", "content": base64.b64encode(data).decode()}
    (part,) = parsed(caller, attachments=[file]).iter_attachments()
    assert part.get_filename() == "Rechnung für Ada.bin"
    assert part.get_content() == data
    assert part.get_content_disposition() == "attachment"


def test_a_file_may_be_empty(caller: Caller) -> None:
    """Nothing, in base64, is a file of 0 bytes."""
    (told,) = caller.send(attachments=[FILE | {"content": ""}])["attachments"]
    assert told["size"] == 0


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
