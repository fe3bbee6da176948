"""Templates: storing them, their versions, and filling them in."""

import uuid
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

import httpx
import pytest

from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, bearer, error, message

FIELDS = {
    "alias": str,
    "version": int,
    "subject": str,
    "text": str,
    "html": str,
    "variables": list,
    "unsubscribe": bool,
    "stream": type(None),
    "created_at": str,
    "updated_at": str,
}


def put(caller: Caller, alias: str, **fields: Any) -> httpx.Response:
    return caller.request("PUT", f"/v1/templates/{alias}", json=fields)


def saved(caller: Caller, **fields: Any) -> str:
    alias = f"t-{uuid.uuid4().hex[:12]}"
    assert put(caller, alias, **fields).status_code == 200
    return alias


def filled(caller: Caller, alias: str, **changes: Any) -> EmailMessage:
    """The message made of a template, as the standard library reads it."""
    sent = caller.send(**({"text": ..., "subject": ..., "template": alias} | changes))
    built = message_from_bytes(caller.mime(sent["id"]), policy=policy.default)
    assert isinstance(built, EmailMessage)
    return built


# ---- storing


def test_a_template_is_stored_and_read(customer: Caller) -> None:
    """PUT and GET tell every field, with the names of the placeholders."""
    alias = saved(customer, subject="Hi {{name}}", text="{{ greeting }}, {{name}}", html="<p>{{name}}</p>")
    response = customer.get(f"/v1/templates/{alias}")
    body = response.json()
    assert body.pop("request_id") == response.headers["x-request-id"]
    assert {name: type(value) for name, value in body.items()} == FIELDS
    assert (body["alias"], body["version"]) == (alias, 1)
    assert (body["subject"], body["text"]) == ("Hi {{name}}", "{{ greeting }}, {{name}}")
    assert body["variables"] == ["greeting", "name"]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"subject": "s"},
        {"text": None},
        {"text": 1},
        {"text": "t", "subject": None},
        {"text": "t", "name": "x"},
        {"text": "t", "subject": "x" * 501},
        {"text": "t", "subject": "a\r\nb"},
        {"text": "a\0b"},
        {"html": "a\x1bb"},
    ],
)
def test_what_could_not_be_sent_is_not_stored(customer: Caller, fields: dict[str, Any]) -> None:
    """A template without a body, with unknown fields or wrong types, or with control characters is refused."""
    error(put(customer, "refused", **fields), 400, "invalid_request")
    error(customer.get("/v1/templates/refused"), 404, "not_found")


@pytest.mark.parametrize("alias", ["A", "-a", "_a", "a" * 65, "a.b", "a%20b", "%C3%A4", "a%0A", "a%00"])
def test_an_alias_may_not_be(customer: Caller, alias: str) -> None:
    error(put(customer, alias, text="t"), 400, "invalid_request")
    error(customer.get(f"/v1/templates/{alias}"), 404, "not_found")
    error(customer.request("DELETE", f"/v1/templates/{alias}"), 404, "not_found")


def test_a_put_makes_a_new_version(caller: Caller, customer: Caller) -> None:
    alias = saved(customer, subject="first", text="one")
    assert filled(caller, alias)["Subject"] == "first"
    body = put(customer, alias, subject="second", html="two").json()
    assert (body["version"], body["text"], body["html"]) == (2, None, "two")
    built = filled(caller, alias)
    assert (built["Subject"], built.get_content_type()) == (
        "second",
        "multipart/alternative",
    )  # with a text made from it
    assert [part.get_content().strip() for part in built.iter_parts()] == ["two", "two"]
    assert put(customer, alias, text="three").json()["version"] == 3


def test_versions_are_told_newest_first(customer: Caller) -> None:
    """Whatever was saved can be read again, a page at a time, until the template is deleted."""
    alias = saved(customer, text="one")
    for text in ("two", "three"):
        assert put(customer, alias, text=text, subject="s").status_code == 200
    path = f"/v1/templates/{alias}/versions"
    first = customer.get(path, params={"limit": 2}).json()
    assert [(each["version"], each["text"], each["subject"]) for each in first["versions"]] == [
        (3, "three", "s"),
        (2, "two", "s"),
    ]
    rest = customer.get(path, params={"limit": 2, "before": first["next"]}).json()
    (oldest,) = rest["versions"]
    assert (oldest["version"], oldest["text"], oldest["subject"], oldest["html"]) == (1, "one", None, None)
    assert rest["next"] is None
    error(customer.get(path, params={"before": "x"}), 400, "invalid_request")
    error(customer.get(path, params={"limit": 0}), 400, "invalid_request")
    assert customer.request("DELETE", f"/v1/templates/{alias}").status_code == 200
    error(customer.get(path), 404, "not_found")


def test_a_deleted_template_is_gone(caller: Caller, customer: Caller) -> None:
    """DELETE answers {deleted: true} once, then 404; the template can be neither read, listed nor sent."""
    alias = saved(customer, subject="s", text="t")
    response = customer.request("DELETE", f"/v1/templates/{alias}")
    assert response.json() == {"deleted": True, "request_id": response.headers["x-request-id"]}
    error(customer.request("DELETE", f"/v1/templates/{alias}"), 404, "not_found")
    error(customer.get(f"/v1/templates/{alias}"), 404, "not_found")
    assert alias not in [each["alias"] for each in customer.get("/v1/templates").json()["templates"]]
    assert caller.refused(text=..., template=alias).startswith("template:")


# ---- what is refused, before credits


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"template": "unknown-alias"}, "template"),
        ({"template": "NOT AN ALIAS"}, "template"),
        ({"template": ""}, "template"),
        ({"template": "needs"}, "variables.name"),
        ({"template": "needs", "variables": {"Name": "x"}}, "variables.name"),
        ({"template": "needs", "variables": {"name": "x"}, "text": "t"}, "text"),
        ({"template": "needs", "variables": {"name": "x"}, "html": "h"}, "html"),
        ({"template": "needs", "variables": {"name": "x"}, "html": ""}, "html"),
        ({"variables": {"name": "x"}, "text": "t"}, "variables"),
        ({"variables": {}, "text": "t"}, "variables"),
    ],
)
def test_a_template_that_cannot_be_filled_in_costs_nothing(
    new_account: NewAccount, changes: dict[str, Any], field: str
) -> None:
    """Unknown aliases, missing values, bodies beside a template and variables without one are 400, before credits."""
    caller = new_account(credit=0)
    put(caller.using(bearer(caller.token())), "needs", subject="s", text="{{name}}")
    response = caller.post(message(**({"text": ...} | changes)))
    assert error(response, 400, "invalid_request").startswith(f"{field}:")
