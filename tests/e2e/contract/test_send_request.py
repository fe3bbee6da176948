"""The send request: every field, its type, and the rules between the fields."""

from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.contract.service import Caller, error, message
from tests.running_appliance import appliance


def parsed(caller: Caller, **changes: Any) -> EmailMessage:
    """The message made of a request, as the standard library reads it."""
    built = message_from_bytes(caller.mime(caller.send(**changes)["id"]), policy=policy.default)
    assert isinstance(built, EmailMessage)
    assert not built.defects
    return built


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


# ---- the request's own headers


def test_the_content_type_must_be_there(caller: Caller) -> None:
    headers = {"Idempotency-Key": "no-content-type"}
    error(caller.request("POST", "/emails", content=b"{}", headers=headers), 400, "invalid_request")
