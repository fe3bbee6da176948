"""The limits of an API key hold for every route and every verb: its domain, its scope, and that it is a test key.

`LIMITED` has one line per operation that an API key may use. An operation without a line fails the test: its author
decides what a key that is limited to a domain may do with it.
"""

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest

from appliance.model.accounts import Permission
from appliance.store import Store
from appliance.web.app import route_classes
from appliance.web.openapi import document
from appliance.web.operations import Operation, operations_of
from tests.e2e.contract.service import Caller, accepted, bearer, error, message, new_key, owner
from tests.running_appliance import Running, add_account

OPERATIONS = {operation.name: operation for routes in route_classes() for _, operation in operations_of(routes)}
FOR_KEYS = [
    operation
    for operation in OPERATIONS.values()
    if operation.permission in (Permission.VIEW, Permission.DEVELOP) and not operation.people_only
]
OTHER = "other.example"
RESEND = {"headers": {"Idempotency-Key": "a"}, "json": {}}

# What a key limited to example.com is answered when it asks for the account's things, or for those of other.example.
LIMITED: dict[str, tuple[int, dict[str, Any]]] = {
    "GET /v1/users": (403, {}),
    "GET /v1/account": (200, {}),
    "GET /v1/attention": (403, {}),
    "GET /v1/credits": (403, {}),
    "GET /v1/stats": (403, {}),
    "GET /v1/problems": (403, {}),
    "GET /v1/streams": (403, {}),
    "GET /v1/deliverability": (403, {}),
    "GET /v1/feedback": (403, {}),
    "GET /v1/feedback/inbox": (403, {}),
    "GET /v1/feedback/inbox/{id}": (403, {}),
    "GET /v1/audit": (403, {}),
    "GET /v1/requests": (403, {}),
    "GET /v1/domains": (200, {}),
    "POST /v1/domains": (403, {"json": {"domain": "third.example"}}),
    "GET /v1/domains/{domain}": (403, {}),
    "POST /v1/domains/{domain}/verify": (403, {}),
    "DELETE /v1/domains/{domain}": (403, {}),
    "GET /v1/smtp-credentials": (403, {}),
    "POST /v1/smtp-credentials": (403, {"json": {}}),
    "DELETE /v1/smtp-credentials/{username}": (403, {}),
    "GET /v1/api-keys": (200, {}),
    "POST /v1/api-keys": (403, {"json": {"domain": OTHER}}),
    "POST /v1/api-keys/{id}/roll": (403, {}),
    "DELETE /v1/api-keys/{id}": (403, {}),
    "GET /v1/emails": (200, {}),
    "GET /v1/emails/count": (200, {}),
    "GET /v1/emails/{id:not_test}": (404, {}),
    "GET /v1/emails/{id:not_test}/body": (404, {}),
    "POST /v1/emails/{id:not_test}/retry": (404, {}),
    "POST /v1/emails/{id:not_test}/cancel": (404, {}),
    "GET /v1/emails/{id:not_test}/raw": (404, {}),
    "GET /v1/emails/{id:not_test}/attachments/{number}": (404, {}),
    "POST /v1/emails/{id:not_test}/resend": (404, RESEND),
    "POST /v1/emails/test": (403, {"json": {"to": "ada@example.net", "from": f"a@{OTHER}"}}),
    "GET /v1/templates": (200, {}),
    "GET /v1/templates/{alias}": (200, {}),
    "PUT /v1/templates/{alias}": (403, {"json": {"subject": "x", "text": "x"}}),
    "DELETE /v1/templates/{alias}": (403, {}),
    "GET /v1/templates/{alias}/versions": (200, {}),
    "GET /v1/suppressions": (403, {}),
    "POST /v1/suppressions": (403, {"json": {"address": "ada@example.net"}}),
    "POST /v1/suppressions/import": (403, {"json": {"csv": "ada@example.net"}}),
    "DELETE /v1/suppressions/{address:rest}": (403, {}),
    "GET /v1/inbound/addresses": (403, {}),
    "POST /v1/inbound/addresses": (403, {"json": {"address": f"a@{OTHER}"}}),
    "GET /v1/inbound/addresses/{address}": (403, {}),
    "DELETE /v1/inbound/addresses/{address}": (403, {}),
    "GET /v1/inbound": (403, {}),
    "GET /v1/inbound/{id}": (403, {}),
    "POST /v1/inbound/{id}/forward": (
        403,
        {"headers": RESEND["headers"], "json": {"from": f"a@{OTHER}", "to": "a@b.example"}},
    ),
    "GET /v1/inbound/{id}/raw": (403, {}),
    "GET /v1/inbound/{id}/attachments/{number}": (403, {}),
    "GET /v1/unsubscribe-tags": (403, {}),
    "PUT /v1/unsubscribe-tags": (403, {"json": {"tags": []}}),
    "GET /v1/webhook": (403, {}),
    "PUT /v1/webhook": (403, {"json": {"url": "https://example.net/x"}}),
    "DELETE /v1/webhook": (403, {}),
    "POST /v1/webhook/rotate-secret": (403, {}),
    "POST /v1/webhook/ping": (403, {}),
    "POST /v1/webhook/test": (403, {"json": {"type": "email.bounced"}}),
    "GET /v1/webhook/statistics": (403, {}),
    "GET /v1/webhook/deliveries": (403, {}),
    "POST /v1/webhook/deliveries/{id}/replay": (403, {}),
}
# Answered in front of the routes; what each credential gets there is tested below.
AT_THE_EDGE = {f"POST /emails{path}" for path in ("", "/batch", "/{id}/cancel")}
AT_THE_EDGE |= {f"{method} /emails/{{id}}" for method in ("GET", "PATCH")}
OPEN = {"POST /v1/auth/login", "POST /v1/auth/refresh", "POST /v1/auth/invitation", "POST /v1/auth/forgotten-password"}
OPEN |= {"GET /healthz", "GET /readyz"}


@dataclass(frozen=True)
class Things:
    """An account with mail from two domains, and its keys."""

    customer: Caller
    limited: Caller  # to example.com
    free: Caller
    ids: dict[str, str]
    own_message: str
    foreign_message: str


async def add_domain(account_id: str, name: str, store: Store) -> None:
    await store.access.add_domain(account_id, name, usable=True)


def made_key(customer: Caller, **body: Any) -> dict[str, Any]:
    answer = customer.request("POST", "/v1/api-keys", json=body)
    assert answer.status_code == 201, answer.text
    key: dict[str, Any] = answer.json()
    return key


@pytest.fixture(scope="module")
def things(running: Running, client: httpx.Client) -> Things:
    """One account for all tests of this file: none of them may change it."""
    account = add_account(running.data_dir, "limits-of-keys")
    customer = owner(Caller(running, account, client, account.bearer))
    customer.stored(partial(add_domain, account.account_id, OTHER))
    limited, free = (made_key(customer, scope="manage", **limit) for limit in ({"domain": "example.com"}, {}))
    assert customer.request("PUT", "/v1/templates/hello", json={"subject": "x", "text": "x"}).is_success
    credential = customer.request("POST", "/v1/smtp-credentials", json={}).json()["username"]
    own, foreign = (accepted(customer.post(message(from_=f"a@{name}")))["id"] for name in ("example.com", OTHER))
    ids = {"domain": OTHER, "username": credential, "alias": "hello", "address": "ada@example.net", "number": "0"}
    limited_caller, free_caller = (customer.using(bearer(each["key"])) for each in (limited, free))
    return Things(customer, limited_caller, free_caller, ids | {"key": free["id"]}, own, foreign)


def path_of(operation: Operation, things: Things) -> str:
    name = {"api-keys": "key"}.get(operation.path.split("/")[2], "id")
    ids = things.ids | {"id": things.foreign_message if name == "id" else things.ids["key"]}
    return re.sub(r"{(\w+)}", lambda found: ids[found[1]], operation.path)


def test_every_operation_has_its_rule() -> None:
    """Each of `/openapi.json` is for people only, for everyone, answered at the edge, or has a line in the table."""
    described = document("https://mail.example.com")["paths"]
    every = {f"{method.upper()} {path}" for path, methods in described.items() for method in methods}
    by_path = {f"{operation.method} {operation.path}": operation for operation in OPERATIONS.values()}
    assert every == set(by_path) | AT_THE_EDGE
    assert {operation.name for operation in FOR_KEYS} == set(LIMITED)
    closed = {name for name, each in OPERATIONS.items() if each.people_only or each.permission in _NOT_FOR_KEYS}
    assert set(OPERATIONS) == set(LIMITED) | closed | OPEN


_NOT_FOR_KEYS = (Permission.OWN, Permission.ADMINISTER)


@pytest.mark.parametrize("operation", FOR_KEYS, ids=lambda each: each.name)
def test_a_domain_limit_holds_for_every_operation(things: Things, operation: Operation) -> None:
    """A limited key is refused with 403, and 404 for mail, what a key without limit is not refused."""
    status, options = LIMITED[operation.name]
    path = path_of(operation, things)
    answer = things.limited.request(operation.method, path, **options)
    assert answer.status_code == status, answer.text
    if operation.method == "GET":
        assert things.free.get(path).status_code in (200, 404)


def test_lists_show_what_is_of_the_domain(things: Things) -> None:
    """Messages, domains and keys; a filter for another domain finds nothing."""
    emails = things.limited.get("/v1/emails").json()["emails"]
    assert [each["id"] for each in emails] == [things.own_message]
    assert things.limited.get("/v1/emails", params={"from": OTHER}).json()["emails"] == []
    assert things.limited.get("/v1/emails", params={"from": f"a@{OTHER}"}).json()["emails"] == []
    assert len(things.limited.get("/v1/emails", params={"from": "a@example.com"}).json()["emails"]) == 1
    assert len(things.free.get("/v1/emails").json()["emails"]) == 2
    assert things.limited.get("/v1/emails/count").json()["count"] == 1
    exported = things.limited.get("/v1/emails", params={"format": "csv"}).text
    assert things.own_message in exported
    assert things.foreign_message not in exported
    assert [each["name"] for each in things.limited.get("/v1/domains").json()["domains"]] == ["example.com"]
    keys = things.limited.get("/v1/api-keys").json()["api_keys"]
    assert [each["domain"] for each in keys] == ["example.com"]


def test_a_limited_key_manages_its_domain(things: Things) -> None:
    """It reads its own mail, verifies its domain, and makes, rolls and revokes keys like itself."""
    limited = things.limited
    assert limited.get(f"/v1/emails/{things.own_message}").status_code == 200
    assert limited.get(f"/emails/{things.own_message}").status_code == 200
    assert limited.get("/v1/domains/example.com").status_code == 200
    key = made_key(limited, domain="example.com")
    assert limited.request("POST", f"/v1/api-keys/{key['id']}/roll").status_code == 200
    assert limited.request("DELETE", f"/v1/api-keys/{key['id']}").status_code == 200


@pytest.mark.parametrize("scope", ["send", "read", "full", "SMTP credential", ""])
def test_no_other_credential_opens_v1(things: Things, scope: str) -> None:
    """Whatever the operation: no other scope, no test key, no SMTP credential, and nothing at all."""
    headers = [things.customer.account.basic] if scope == "SMTP credential" else [{}]
    if scope in ("send", "read", "full"):
        keys = (made_key(things.customer, scope=scope, test=test)["key"] for test in (False, True))
        headers = [bearer(key) for key in keys]
    for caller in map(things.customer.using, headers):
        for operation in FOR_KEYS:
            _, options = LIMITED[operation.name]
            response = caller.request(operation.method, path_of(operation, things), **options)
            error(response, 401, "unauthorized")
            assert "www-authenticate" in response.headers
        error(caller.get("/dashboard/live"), 401, "unauthorized")


@pytest.mark.parametrize("scope", ["read", "full"])
def test_mail_of_another_domain_is_404(things: Things, scope: str) -> None:
    """`GET /emails/{id}` with a limited key of any scope that reads."""
    key = things.customer.using(bearer(made_key(things.customer, scope=scope, domain="example.com")["key"]))
    assert key.get(f"/emails/{things.own_message}").status_code == 200
    text = error(key.get(f"/emails/{things.foreign_message}"), 404, "not_found")
    assert text == error(key.get("/emails/msg_unknown"), 404, "not_found")


@pytest.mark.parametrize("scope", ["read", "full"])
def test_a_test_key_reads_test_mail_only(things: Things, scope: str) -> None:
    customer = things.customer
    sender = customer.using(bearer(made_key(customer, scope="full", test=True)["key"]))
    key = customer.using(bearer(made_key(customer, scope=scope, test=True)["key"]))
    simulated = accepted(sender.post(message(), key=new_key()))["id"]
    assert key.get(f"/emails/{simulated}").json()["source"] == "test"
    error(key.get(f"/emails/{things.own_message}"), 404, "not_found")
    assert customer.get(f"/emails/{simulated}").status_code == 200


def test_the_live_stream_is_not_for_limited_keys(things: Things) -> None:
    error(things.limited.get("/dashboard/live"), 403, "forbidden")
