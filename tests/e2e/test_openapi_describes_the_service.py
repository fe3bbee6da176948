"""/openapi.json is true: whatever schemathesis makes of it, the running service answers as it says."""

import json
import re
import smtplib
import time
import uuid
from base64 import b32decode
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.config import SchemathesisConfig

from appliance.errors import Code
from appliance.keys.secrets import code_of
from appliance.model.accounts import Role
from appliance.model.feedback import FeedbackRecipient
from appliance.model.mail import MessageLabels
from appliance.model.webhooks import PING_TYPE, DuePost, EventType, Lane, Trigger, envelope, example_envelope
from appliance.store.pools import EVERY
from appliance.web.openapi import document
from appliance.webhook.post import USER_AGENT_HEADER
from appliance.webhook.signatures import sign
from tests import engines
from tests.e2e.contract.service import Caller, change, eventually, waiting
from tests.e2e.feedback.feedback import LISTENS
from tests.fakes.dns import DnsServer
from tests.fakes.dns_thread import served
from tests.running_appliance import PASSWORD, Running, add_account, appliance

EXAMPLES = 12  # for each operation, beside the cases that cover its schema
CONFIG = SchemathesisConfig.from_dict(
    {
        "generation": {"deterministic": True, "max-examples": EXAMPLES, "with-security-parameters": False},
        "phases": {"stateful": {"enabled": False}},
        # Wrong credentials are refused slowly, by design; tests/e2e/contract/test_authentication.py has them all.
        "checks": {
            "ignored_auth": {"enabled": False},
            # 409: it is there already. 429: a test message every 15 seconds.
            "positive_data_acceptance": {"expected-statuses": ["2xx", "404", "409", "429"]},
        },
    }
)
HTTPS = 'base_url = "https://mail.example.com"'  # so that there can be links to unsubscribe
NOTIFICATIONS = '[notifications]\nfrom = "alerts@example.com"'  # behind the settings of the dashboard
DASHBOARD = f"{NOTIFICATIONS}\n{LISTENS}"
NO_RECEIVER = 'allow_networks = ["127.0.0.0/8"]\nports = [9]'
WEBHOOK = {"url": "https://127.0.0.2:9/"}
KEPT_MAIL = """INSERT INTO feedback_inbox VALUES (?, 'fbl', 'fbm_1', 'fbl@bounces.example.com', 'a@b.example', 's',
    'not_understood', 1, 4, ?)"""
DOCUMENT = document("http://127.0.0.1")
# Schemathesis writes into what it is given, so it gets a copy.
schema = schemathesis.openapi.from_dict(json.loads(json.dumps(DOCUMENT)), config=CONFIG)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for all, with a template to send, and a webhook that can be saved but not reached."""
    directory = tmp_path_factory.mktemp("openapi")
    with (
        served(DnsServer({})) as dns,
        appliance(
            directory,
            credit=None,
            dns=str(dns),
            webhooks=NO_RECEIVER,
            http=HTTPS,
            dashboard=DASHBOARD,
        ) as started,
    ):
        template = {"subject": "s", "text": "t"}
        url = f"{started.url}/v1/templates/order-shipped"
        httpx.put(url, json=template, headers=started.login(), trust_env=False).raise_for_status()
        yield started
    assert '"level": "error"' not in started.log_file.read_text()


@pytest.fixture(scope="module")
def customer(running: Running) -> dict[str, str]:
    """A token for all of /v1 but what ends tokens."""
    return running.login()


@pytest.fixture(scope="module")
def fickle(running: Running) -> Running:
    """The same server, for another user, who changes passwords and logs out all the time."""
    return replace(running, account=add_account(running.data_dir, "fickle"))


@pytest.fixture(scope="module")
def admin(running: Running) -> dict[str, str]:
    """A token for /v1/admin."""
    return replace(running, account=add_account(running.data_dir, "admin", role=Role.ADMIN)).login()


# ---- against the running service


def made_acceptable(case: schemathesis.Case[Any], running: Running) -> None:
    """Put into a case what no schema can know: an unused key, addresses that are real, what this account has."""
    body: Any = case.body
    if case.path == "/emails/{id}":
        body["scheduled_at"] = in_an_hour()
    elif case.path in ("/emails", "/emails/batch"):
        case.headers["Idempotency-Key"] = uuid.uuid4().hex
        for email in body["emails"] if case.path == "/emails/batch" else [body]:
            make_sendable(email)
    elif case.path == "/v1/auth/login":
        body |= {"email": running.account.email, "password": PASSWORD}
    elif case.path == "/v1/auth/password":
        body |= {"current_password": PASSWORD, "new_password": PASSWORD}
    elif case.path == "/v1/users":
        body["email"] = f"{uuid.uuid4().hex}@example.org"
    elif case.path == "/v1/auth/invitation":
        body["token"] = new_link(running)
    elif case.path == "/v1/account/totp/confirm":
        body["code"] = "123456"  # of a user for whom none was begun: 409
    elif case.path == "/v1/smtp-credentials":
        body["stream"] = "broadcast"
    elif case.path == "/v1/templates/{alias}":
        body |= {"text": body.get("text", "t"), "stream": "transactional"}
        body.pop("replaces", None)  # 1.0 is whole for a schema but not for us
    elif case.path == "/v1/suppressions":
        body["address"] = f"{uuid.uuid4().hex}@example.net"
        if body.get("stream") is not None:
            case.body = {"address": body["address"], "stream": "broadcast"}
    elif case.path == "/v1/inbound/addresses":
        body["address"] = "openapi@example.com"
    elif case.path == "/v1/webhook":
        body |= WEBHOOK
    elif case.path == "/v1/domains":
        body["domain"] = "openapi.example"  # always the same: making keys takes its time
        if body.get("return_path") is not None:
            body["return_path"] = "bounces.openapi.example"
    elif case.path == "/v1/api-keys":
        body |= {"domain": "example.com", "expires_at": None, "test": False, "stream": None}
    elif case.path == "/v1/emails/test":
        case.body = {"to": "ada@example.net"}
    elif case.path == "/v1/admin/accounts":
        name = f"made-{uuid.uuid4().hex}"
        body |= {"name": name, "email": f"{name}@example.org", "credits": 1}
    elif case.path == "/v1/admin/accounts/{id}/credits":
        case.body = {"change": 1}  # not 1.0, which is whole for a schema but not for us
    elif case.path == "/v1/admin/accounts/{id}/daily-cap":
        case.body = {"recipients": 1}


def in_an_hour() -> str:
    return (datetime.now(UTC) + timedelta(hours=1)).isoformat()


def make_sendable(email: dict[str, Any]) -> None:
    if email.get("scheduled_at") is not None:
        email["scheduled_at"] = in_an_hour()
    if email.get("stream") is not None:
        email["stream"] = "transactional"
    email["from"] = "Shop <orders@example.com>"
    for name in ("to", "cc", "bcc", "reply_to"):
        if name in email:
            email[name] = real_addresses(name, email[name])
    for index, file in enumerate(email.get("attachments") or ()):
        if file.get("content_id"):
            file["content_id"] = f"{index}-{file['content_id']}"[:128]
    keep_the_rules_between_fields(email)


def keep_the_rules_between_fields(body: dict[str, Any]) -> None:
    """Change a send request as little as the rules demand that the description has in words."""
    if body.get("template") is not None:
        body["template"] = "order-shipped"
        body.pop("text", None)
        body.pop("html", None)
        return
    body.pop("variables", None)
    if body.get("subject") is None:
        body["subject"] = "s"
    if body.get("text") is None and body.get("html") is None and not body.get("attachments"):
        body["text"] = "t"


def real_addresses(name: str, value: Any) -> Any:
    """As many addresses as there were, up to a third of what a message may have."""
    if isinstance(value, str | None):
        return value and f"{name}@example.net"
    return [f"{name}{index}@example.net" for index in range(min(16, len(value)))]


@schema.parametrize()
@settings(
    deadline=None, max_examples=10, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@pytest.mark.slow
def test_every_answer_is_described(
    case: schemathesis.Case[Any], running: Running, fickle: Running, customer: dict[str, str], admin: dict[str, str]
) -> None:
    """For data that fits the description and data that does not: no 5xx, and no undescribed status, header or body."""
    if case.path in ("/v1/auth/logout", "/v1/auth/password", "/v1/auth/sessions", "/v1/account/totp"):
        headers = fickle.login()
    elif case.path.startswith("/v1/admin"):
        headers = admin
    else:
        headers = running.account.bearer if case.path.startswith("/emails") else customer
    if case.path == "/v1/domains/{domain}" and case.method == "DELETE":
        case.path_parameters["domain"] = "openapi.example"  # not the one that the others send from
    if case.meta is not None and case.meta.generation.mode.is_positive:
        if isinstance(case.body, dict):
            made_acceptable(case, running)
        for name in [name for name in ("domain", "by", "template", "stream", "source") if name in case.query][1:]:
            if case.path in ("/v1/deliverability", "/v1/stats"):  # only one of them
                del case.query[name]
        if "after" in case.query:
            case.query.pop("before", None)
    try:
        case.call_and_validate(base_url=running.url, headers=headers)
    finally:
        if case.path == "/v1/admin/queue/pause":  # the mail of other tests goes on
            change(running.data_dir, lambda store: store.pools.release(EVERY))


def test_every_success_is_described(
    running: Running, fickle: Running, customer: dict[str, str], admin: dict[str, str]
) -> None:
    """One success of every operation, and a retry, have exactly the status, headers and fields that are described."""
    sent = check(running, "POST", "/emails", running.account.bearer, SEND, {"Idempotency-Key": "success"})
    again = check(running, "POST", "/emails", running.account.bearer, SEND, {"Idempotency-Key": "success"})
    assert again.headers["idempotent-replayed"] == "true"
    check(running, "GET", f"/emails/{sent.json()['id']}", running.account.bearer)
    later, key = in_an_hour(), {"Idempotency-Key": "scheduled"}
    waits = check(running, "POST", "/emails", running.account.bearer, SEND | {"scheduled_at": later}, key).json()["id"]
    check(running, "PATCH", f"/emails/{waits}", running.account.basic, {"scheduled_at": later})
    check(running, "POST", f"/emails/{waits}/cancel", running.account.basic)
    batch = {"emails": [SEND, SEND | {"to": "nobody"}], "on_error": "skip"}
    check(running, "POST", "/emails/batch", running.account.bearer, batch, {"Idempotency-Key": "batch"})
    check(running, "POST", "/v1/auth/login", {}, {"email": running.account.email, "password": PASSWORD})
    check(running, "POST", "/v1/auth/refresh", customer)
    check(running, "POST", "/v1/auth/logout", fickle.login())
    passwords = {"current_password": PASSWORD, "new_password": PASSWORD}
    check(running, "POST", "/v1/auth/password", fickle.login(), passwords)
    check_people(running, fickle, customer, admin)
    check(running, "PUT", "/v1/templates/a", customer, {"text": "t"})
    check(running, "GET", "/v1/templates/a", customer)
    check(running, "GET", "/v1/templates/a/versions", customer)
    check(running, "GET", "/v1/templates", customer)
    check(running, "DELETE", "/v1/templates/a", customer)
    check(running, "POST", "/v1/suppressions", customer, {"address": "a@example.net"})
    check(running, "GET", "/v1/suppressions", customer)
    check(running, "POST", "/v1/suppressions/import", customer, {"csv": "b@example.net\nno address"})
    check(running, "DELETE", "/v1/suppressions/a@example.net", customer)
    check(running, "PUT", "/v1/unsubscribe-tags", customer, {"tags": ["news"]})
    check(running, "GET", "/v1/unsubscribe-tags", customer)
    check(running, "PUT", "/v1/webhook", customer, WEBHOOK)
    check(running, "GET", "/v1/webhook", customer)
    check(running, "POST", "/v1/webhook/rotate-secret", customer)
    hooked, tested = (account_with_a_webhook(running, name) for name in ("hooked", "tested"))
    ping = check(running, "POST", "/v1/webhook/ping", hooked).json()["delivery"]["id"]
    check(running, "GET", "/v1/webhook/deliveries", hooked)
    check(running, "POST", f"/v1/webhook/deliveries/{ping}/replay", hooked)
    check(running, "POST", "/v1/webhook/test", tested, {"type": "email.delivered"})
    check(running, "GET", "/v1/webhook/statistics", hooked)
    check(running, "DELETE", "/v1/webhook", customer)
    check_the_dashboard(running, fickle, customer)
    check_receiving(running, customer)
    check_administration(running, admin)
    check(running, "GET", "/healthz", {})
    check(running, "GET", "/readyz", {})
    assert {(method.upper(), path) for path, method, _ in operations()} == CHECKED | OF_NODES


OF_NODES = {("POST", "/v1/admin/nodes/{name}/drain")}  # which an embedded database has none of


def account_with_a_webhook(running: Running, name: str) -> dict[str, str]:
    authorization = replace(running, account=add_account(running.data_dir, name)).login()
    with running.client(headers=authorization) as client:
        client.put("/v1/webhook", json=WEBHOOK).raise_for_status()
    return authorization


def new_link(running: Running) -> str:
    with running.client(headers=running.login()) as client:
        wanted = {"email": f"{uuid.uuid4().hex}@example.org", "role": "viewer"}
        made = client.post("/v1/users", json=wanted)
    return str(dict(parse_qsl(urlsplit(made.raise_for_status().json()["link"]).fragment))["token"])


def check_people(running: Running, fickle: Running, customer: dict[str, str], admin: dict[str, str]) -> None:
    made = check(running, "POST", "/v1/users", customer, {"email": "ann@example.org", "role": "viewer"}).json()
    token = dict(parse_qsl(urlsplit(made["link"]).fragment))["token"]
    check(running, "POST", "/v1/auth/invitation", {}, {"token": token, "password": PASSWORD})
    users = check(running, "GET", "/v1/users", customer).json()["users"]
    ann = next(user["id"] for user in users if user["email"] == "ann@example.org")
    check(running, "POST", f"/v1/users/{ann}/role", customer, {"role": "developer"})
    check(running, "GET", f"/v1/admin/accounts/{running.account.account_id}/users", admin)
    check(running, "POST", f"/v1/admin/users/{ann}/role", admin, {"role": "viewer"})
    check(running, "POST", f"/v1/admin/users/{ann}/password-reset", admin)
    check(running, "DELETE", f"/v1/users/{ann}", customer)
    mine = fickle.login()
    (user,) = check(running, "GET", "/v1/users", mine).json()["users"]
    for remove in (f"/v1/admin/users/{user['id']}/totp", "/v1/account/totp"):
        secret = check(running, "POST", "/v1/account/totp", mine).json()["secret"]
        code = code_of(b32decode(secret), int(time.time()) // 30)
        given = {"password": PASSWORD, "code": code}
        codes = check(running, "POST", "/v1/account/totp/confirm", mine, given).json()["recovery_codes"]
        check(running, "GET", "/v1/account/totp", mine)
        if "admin" in remove:
            check(running, "DELETE", remove, admin)
        else:
            check(running, "DELETE", remove, mine, {"password": PASSWORD, "code": codes[0]})


def check_the_dashboard(running: Running, fickle: Running, customer: dict[str, str]) -> None:
    sessions = check(running, "GET", "/v1/auth/sessions", fickle.login()).json()["sessions"]
    check(running, "DELETE", f"/v1/auth/sessions/{sessions[0]['id']}", fickle.login())
    check(running, "DELETE", "/v1/auth/sessions", fickle.login())
    check(running, "GET", "/v1/account", customer)
    check(running, "GET", "/v1/credits", customer)
    check(running, "GET", "/v1/audit", customer)
    engines.rows(running.data_dir, KEPT_MAIL, running.account.account_id, b"mail")
    (kept,) = check(running, "GET", "/v1/feedback/inbox", customer).json()["mails"]
    check(running, "GET", f"/v1/feedback/inbox/{kept['id']}", customer)
    check(running, "POST", "/v1/domains", customer, {"domain": "success.example"})
    check(running, "GET", "/v1/domains", customer)
    check(running, "GET", "/v1/domains/success.example", customer)
    check(running, "POST", "/v1/domains/success.example/verify", customer)
    check(running, "DELETE", "/v1/domains/success.example", customer)
    made = check(running, "POST", "/v1/smtp-credentials", customer, {"name": "n"}).json()
    check(running, "GET", "/v1/smtp-credentials", customer)
    check(running, "DELETE", f"/v1/smtp-credentials/{made['username']}", customer)
    made = check(running, "POST", "/v1/api-keys", customer, {"name": "n"}).json()
    check(running, "GET", "/v1/api-keys", customer)
    check(running, "POST", f"/v1/api-keys/{made['id']}/roll", customer, {"overlap": 60})
    check(running, "DELETE", f"/v1/api-keys/{made['id']}", customer)
    sent = check(running, "POST", "/v1/emails/test", fickle.login(), {"to": "fail@example.net"}).json()["id"]
    check(running, "GET", f"/v1/emails/{sent}", fickle.login())
    check(running, "GET", f"/v1/emails/{sent}/body", fickle.login())
    check(running, "GET", f"/v1/emails/{sent}/raw", fickle.login())
    check(running, "GET", "/v1/emails", fickle.login())
    whole = check(running, "GET", "/v1/emails?tag=of-this-test", customer).json()["emails"][-1]["id"]
    check(running, "GET", f"/v1/emails/{whole}/attachments/0", customer)
    (refused,) = (
        each["id"]
        for each in check(running, "GET", f"/v1/emails/{whole}", customer).json()["recipients"]
        if each["email"] == "bounce@example.net" and each["status"] == "bounced"
    )
    key = {"Idempotency-Key": "again"}
    check(running, "POST", f"/v1/emails/{whole}/resend", customer, {"recipients": [refused]}, key)
    waits = waiting(Caller(fickle, fickle.account, httpx.Client(), {}))
    check(running, "POST", f"/v1/emails/{waits}/retry", fickle.login())
    waits = waiting(Caller(fickle, fickle.account, httpx.Client(), {}))
    check(running, "POST", f"/v1/emails/{waits}/cancel", fickle.login())
    check(running, "GET", "/v1/emails/count", customer)
    view = check(running, "POST", "/v1/views", customer, {"name": "n", "filters": {"status": "queued"}}).json()["id"]
    check(running, "GET", "/v1/views", customer)
    check(running, "DELETE", f"/v1/views/{view}", customer)
    check(running, "GET", "/v1/requests", customer)
    check(running, "GET", "/v1/attention", customer)
    check(running, "GET", "/v1/account/notifications", customer)
    check(running, "PUT", "/v1/account/notifications", customer, {"notify": "daily"})
    check(running, "POST", "/v1/auth/forgotten-password", {}, {"email": "absent@example.org"})
    check(running, "GET", "/v1/deliverability", customer)
    check(running, "GET", "/v1/stats", customer)
    check(running, "GET", "/v1/stats?by=provider", customer)
    check(running, "GET", "/v1/streams", customer)
    check(running, "GET", "/v1/problems", customer)
    check(running, "GET", "/v1/feedback?days=3", customer)


def check_administration(running: Running, admin: dict[str, str]) -> None:
    wanted = {"name": "success", "email": "success@example.org", "password": PASSWORD, "credits": 1}
    made = check(running, "POST", "/v1/admin/accounts", admin, wanted).json()["id"]
    check(running, "GET", "/v1/admin/accounts", admin)
    check(running, "GET", f"/v1/admin/accounts/{made}", admin)
    check(running, "POST", f"/v1/admin/accounts/{made}/suspend", admin)
    check(running, "POST", f"/v1/admin/accounts/{made}/resume", admin)
    check(running, "POST", f"/v1/admin/accounts/{made}/credits", admin, {"change": 1})
    check(running, "POST", f"/v1/admin/accounts/{made}/daily-cap", admin, {"recipients": None})
    check(running, "GET", f"/v1/admin/accounts/{made}/usage?days=3", admin)
    mail = f"/v1/admin/accounts/{running.account.account_id}/emails"
    sent = check(running, "GET", f"{mail}?tag=of-this-test", admin).json()["emails"][-1]["id"]
    for below in ("", "/body", "/raw", "/attachments/0"):
        check(running, "GET", f"{mail}/{sent}{below}", admin)
    check(running, "POST", "/v1/admin/queue/pause", admin, {})
    check(running, "POST", "/v1/admin/queue/resume", admin)
    check(running, "POST", "/v1/admin/queue/success/pause", admin, {})
    check(running, "GET", "/v1/admin/queue", admin)
    check(running, "GET", "/v1/admin/stats", admin)
    check(running, "POST", "/v1/admin/queue/success/resume", admin)
    check(running, "GET", "/v1/admin/nodes", admin)
    check(running, "GET", "/v1/admin/sources", admin)
    check(running, "GET", "/v1/admin/ramp", admin)


def check_receiving(running: Running, customer: dict[str, str]) -> None:
    check(running, "POST", "/v1/inbound/addresses", customer, {"address": "in.example.com"})
    check(running, "GET", "/v1/inbound/addresses", customer)
    check(running, "GET", "/v1/inbound/addresses/in.example.com", customer)
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "ada@example.net", "orders@in.example.com", "Re: s"
    message.set_content("A reply.")
    message.add_attachment(b"hi", "application", "octet-stream", filename="a.bin")
    listener = urlsplit(running.inbound[0])
    with smtplib.SMTP(listener.hostname or "", listener.port or 0) as client:
        client.send_message(message)
    (received,) = eventually(lambda: check(running, "GET", "/v1/inbound", customer).json()["emails"], bool, patience=30)
    for below in ("", "/raw", "/attachments/1"):
        check(running, "GET", f"/v1/inbound/{received['id']}{below}", customer)
    forward = {"from": "orders@example.com", "to": "grace@example.net"}
    key = {"Idempotency-Key": "forward"}
    check(running, "POST", f"/v1/inbound/{received['id']}/forward", customer, forward, key)
    check(running, "DELETE", "/v1/inbound/addresses/in.example.com", customer)


SEND = {
    "from": "Shop <orders@example.com>",
    "to": ["ada@example.net", "bounce@example.net", "fail@example.net", "defer@example.net"],
    "reply_to": "help@example.com",
    "subject": "s",
    "text": "t",
    "headers": {"X-A": "b"},
    "tags": "of-this-test",
    "attachments": [{"filename": "a.txt", "content": "aGk=", "content_id": "a"}],
}
CHECKED: set[tuple[str, str]] = set()


def check(
    running: Running,
    method: str,
    path: str,
    authorization: dict[str, str],
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    """Make one request, and hold its answer against the description, in which no field may be missing.

    A node of a shared database has what the test stored only after a while: until then it says 503.
    """
    with running.client(headers=authorization) as client:
        response = eventually(
            lambda: client.request(method, path, json=body, headers=headers),
            lambda found: found.status_code != 503 or engines.in_use() is engines.Kind.SQLITE,
            patience=60,
        )
    template, operation = described(method, path)
    CHECKED.add((method, template))
    answer = operation["responses"][str(response.status_code)]
    assert response.is_success
    assert set(answer["content"]) == {response.headers["content-type"]}
    for name, header in answer["headers"].items():
        assert name in response.headers or not resolved(header).get("required")
    if "application/json" not in answer["content"]:
        return response
    told = response.json()
    jsonschema_rs.validator_for(
        {"components": DOCUMENT["components"], **answer["content"]["application/json"]["schema"]}, validate_formats=True
    ).validate(told)
    name = answer["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert set(told) <= set(DOCUMENT["components"]["schemas"][name]["properties"])
    return response


def resolved(node: dict[str, Any]) -> Any:
    found: Any = DOCUMENT
    for part in node["$ref"].split("/")[1:] if "$ref" in node else ():
        found = found[part]
    return found if "$ref" in node else node


def described(method: str, path: str) -> tuple[str, Any]:
    path = path.partition("?")[0]
    for template, methods in DOCUMENT["paths"].items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path) and method.lower() in methods:
            return template, methods[method.lower()]
    raise AssertionError(f"{method} {path} is not described")


# ---- the document itself


def test_the_service_serves_this_document(running: Running) -> None:
    """/openapi.json is the document that the tests here were made from, but for its server's address."""
    with running.client(headers={}) as client:
        response = client.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    assert response.json() | {"servers": []} == json.loads(json.dumps(DOCUMENT)) | {"servers": []}
    assert response.json()["servers"][0]["url"].startswith("http")


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nodes(inner)


def operations() -> Iterator[tuple[str, str, Any]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_its_schemas_are_json_schema() -> None:
    """Every schema is a valid schema of JSON Schema 2020-12, and its patterns are regular expressions."""
    for node in nodes([DOCUMENT["paths"], DOCUMENT["webhooks"], DOCUMENT["components"]["headers"]]):
        if isinstance(node.get("schema"), dict):
            jsonschema_rs.meta.validate(node["schema"])
    for schema_of_one in DOCUMENT["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema_of_one)
        jsonschema_rs.validator_for({"components": DOCUMENT["components"], **schema_of_one})
    patterns = {node["pattern"] for node in nodes(DOCUMENT) if isinstance(node.get("pattern"), str)}
    assert len(patterns) > 10
    for pattern in patterns:
        re.compile(pattern)


def test_an_object_is_only_its_properties() -> None:
    """No schema has a choice or a sum beside its properties, and an enum says what its values are."""
    for schema_of_one in DOCUMENT["components"]["schemas"].values():
        assert not {"anyOf", "allOf", "oneOf", "not", "if"} & set(schema_of_one)
    assert all(node.get("type") == "string" for node in nodes(DOCUMENT) if isinstance(node.get("enum"), list))


def test_its_references_lead_somewhere() -> None:
    """Every $ref names a component that is there, every security scheme is declared, and nothing is there unused."""
    parts = {kind: set(named) for kind, named in DOCUMENT["components"].items()}
    schemes = parts.pop("securitySchemes")
    there = {f"#/components/{kind}/{name}" for kind, named in parts.items() for name in named}
    assert {node["$ref"] for node in nodes(DOCUMENT) if "$ref" in node} == there
    assert {name for *_, each in operations() for need in each["security"] for name in need} == schemes


def test_its_operations_have_names_of_their_own() -> None:
    """operationId is unique and in camelCase, a tag is declared, every parameter of a path is declared and required."""
    everything = [*operations(), *((name, "post", event["post"]) for name, event in DOCUMENT["webhooks"].items())]
    ids = [operation["operationId"] for *_, operation in everything]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("[a-z]+([A-Z][a-z]+)+", each) for each in ids)
    assert {"sendEmail", "getEmail", "logIn", "listDomains"} <= set(ids)
    assert {tag for *_, each in everything for tag in each["tags"]} == {each["name"] for each in DOCUMENT["tags"]}
    assert all(each["summary"] and len(each["tags"]) == 1 for *_, each in everything)
    for path, _, operation in operations():
        declared = {
            each["name"] for each in operation.get("parameters", ()) if each["in"] == "path" and each["required"]
        }
        assert declared == set(re.findall(r"\{(\w+)\}", path))


def test_what_needs_no_credential_says_so() -> None:
    """The login and the health checks are public; everything else names its schemes."""
    public = {(path, method) for path, method, operation in operations() if operation["security"] == []}
    people = {(f"/v1/auth/{name}", "post") for name in ("login", "invitation", "forgotten-password")}
    assert public == {*people, ("/healthz", "get"), ("/readyz", "get")}


def test_its_statuses_are_those_of_the_interface() -> None:
    """POST and GET /emails tell of exactly the statuses that the interface lists."""
    send, read = DOCUMENT["paths"]["/emails"]["post"], DOCUMENT["paths"]["/emails/{id}"]["get"]
    assert set(send["responses"]) == {"202", "400", "401", "402", "403", "409", "413", "429", "500", "503"}
    assert set(read["responses"]) == {"200", "401", "404"}


def test_its_examples_fit_their_schemas() -> None:
    shown = 0
    for node in nodes(DOCUMENT):
        schema_of_one = node.get("schema", node)
        examples = node.get("examples", [])
        values = [each["value"] for each in examples.values()] if isinstance(examples, dict) else examples
        for example in values:
            validator = jsonschema_rs.validator_for({"components": DOCUMENT["components"], **schema_of_one})
            validator.validate(example)
            shown += 1
    assert shown > 50
    for path in ("/emails", "/v1/auth/login"):
        operation = DOCUMENT["paths"][path]["post"]
        assert operation["requestBody"]["content"]["application/json"]["examples"]
        assert all(
            resolved(each)["content"]["application/json"]["examples"] for each in operation["responses"].values()
        )


def test_the_examples_of_a_send_are_accepted(running: Running) -> None:
    """A user who sends an example is answered 202, and the link of that answer leads to the message."""
    sending = DOCUMENT["paths"]["/emails"]["post"]
    link = sending["responses"]["202"]["links"]["getEmail"]
    assert link["parameters"] == {"id": "$response.body#/id"}
    (read,) = (path for path, _, operation in operations() if operation["operationId"] == link["operationId"])
    with running.client(headers=running.account.bearer) as client:
        for name, example in sending["requestBody"]["content"]["application/json"]["examples"].items():
            key = {"Idempotency-Key": f"example {name}"}
            sent = client.post("/emails", json=example["value"], headers=key)
            assert sent.status_code == 202, sent.text
            assert client.get(read.replace("{id}", sent.json()["id"])).json()["id"] == sent.json()["id"]


def test_every_error_tells_its_codes() -> None:
    """Errors are one schema; each names the codes that it may have, and every code but `conflict` is told somewhere."""
    told: set[str] = set()
    statuses = {code.value: str(code.status) for code in Code}
    for _, _, operation in operations():
        for status, response in operation["responses"].items():
            codes = set(re.findall(r"`(\w+)`", response["description"])) & set(statuses)
            assert all(statuses[code] == status for code in codes)
            assert bool(codes) == ("$ref" in response) == (status >= "400")
            told |= codes
    assert told >= {code.value for code in Code} - {"conflict"}  # which only further resources of /v1 may need
    for response in DOCUMENT["components"]["responses"].values():
        content = response["content"]["application/json"]
        assert content["schema"] == {"$ref": "#/components/schemas/Error"}
        codes = set(re.findall(r"`(\w+)`", response["description"]))
        assert codes == set(content["examples"]) == {each["value"]["code"] for each in content["examples"].values()}


def test_webhooks_are_what_is_posted() -> None:
    """Every type of event is described with its headers, and the body that is really posted has exactly its fields."""
    assert set(DOCUMENT["webhooks"]) == {*EventType, PING_TYPE}
    addresses = "ada@example.net", "example.net", "orders@example.com"
    recipient = FeedbackRecipient("rcp_1", "msg_1", "acc_1", *addresses, "s", "example.com", ())
    labels = MessageLabels("1@example.com", ("order",), {"order": "10045"}, "broadcast")
    made = envelope("evt_1", EventType.LATE_BOUNCED, 1_750_000_000_123, recipient, labels, 550, "550 no", "other")
    fields: set[str] = set()
    for name, posted in {
        "email.late_bounced": made,
        PING_TYPE: example_envelope("evt_1", None, 1_750_000_000_123),
    }.items():
        operation = DOCUMENT["webhooks"][name]["post"]
        schema_of_one = operation["requestBody"]["content"]["application/json"]["schema"]
        event = json.loads(posted)
        assert event["type"] == name
        jsonschema_rs.validator_for(
            {"components": DOCUMENT["components"], **schema_of_one}, validate_formats=True
        ).validate(event)
        assert set(event) == set(resolved(schema_of_one)["properties"])
        fields |= set(event["data"])
        headers = {each["name"]: each["schema"] for each in operation["parameters"]}
        due = DuePost(Lane("whk_1", Trigger.EVENT), "whd_1", 0, posted, "evt_1")
        for header, value in sign(b"whsec_" + 43 * b"A" + b"=", due, 1_750_000_000).headers:
            assert re.fullmatch(headers[header]["pattern"], value)
        assert headers["User-Agent"]["const"] == dict([USER_AGENT_HEADER])["User-Agent"]
    assert fields == set(DOCUMENT["components"]["schemas"]["WebhookEventData"]["properties"])
