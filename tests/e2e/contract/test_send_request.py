"""The send request: every field, its type, and the rules between the fields."""

import base64
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.contract.service import Caller, error, message
from tests.running_appliance import appliance

FILE = {"filename": "a.txt", "content": base64.b64encode(b"hello").decode()}


def parsed(caller: Caller, **changes: Any) -> EmailMessage:
    """The message made of a request, as the standard library reads it."""
    built = message_from_bytes(caller.mime(caller.send(**changes)["id"]), policy=policy.default)
    assert isinstance(built, EmailMessage)
    assert not built.defects
    return built


# ---- which fields there are


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


# ---- addresses


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
    assert error(caller.post(message(from_=sender)), 403, "forbidden").startswith("from:")


# ---- the content


def test_html_alone_stays_alone_where_the_operator_wants_it(tmp_path: Path) -> None:
    """With http.text_from_html = false the message is the html that was given, and nothing beside it."""
    with appliance(tmp_path, http="text_from_html = false") as running, running.client() as client:
        alone = Caller(running, running.account, client, running.account.bearer)
        built = parsed(alone, text=..., html="<p>Hello</p>")
    assert (built.get_content_type(), built.get_content().strip()) == ("text/html", "<p>Hello</p>")


# ---- headers


# ---- tags


# ---- attachments


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
    text = error(caller.post(message(), headers={"Content-Type": content_type}), 400, "invalid_request")
    assert "Content-Type" in text


def test_the_content_type_must_be_there(caller: Caller) -> None:
    headers = {"Idempotency-Key": "no-content-type"}
    error(caller.request("POST", "/emails", content=b"{}", headers=headers), 400, "invalid_request")
