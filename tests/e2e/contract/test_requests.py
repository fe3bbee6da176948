"""The request log of an account: submissions by HTTP and SMTP, accepted and refused, without secrets."""

import json
import smtplib
import ssl
from typing import Any

import pytest

from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, accepted, error, message, owner
from tests.running_appliance import command
from tests.waiting import wait_until

UNVERIFIED = ssl.create_default_context()
UNVERIFIED.check_hostname, UNVERIFIED.verify_mode = False, ssl.CERT_NONE
FIELDS = {"request_id", "at", "source", "route", "key", "client", "status", "code", "error", "message_id", "size"}


def logged(customer: Caller, count: int, **filters: Any) -> list[dict[str, Any]]:
    """The requests of an account, once this many are written."""

    def requests() -> list[dict[str, Any]]:
        return list(customer.get("/v1/requests", params=filters).json()["requests"])

    wait_until(lambda: len(requests()) >= count)
    assert len(requests()) == count
    return requests()


def test_accepted_and_refused_requests_are_listed(new_account: NewAccount) -> None:
    caller = new_account()
    first = accepted(caller.post(message(variables=..., text="Hi"), key="k"))
    again = caller.post(message(text="Hi"), key="k")
    refused = caller.post(message(from_="a@other.example", headers={"X-Secret-Token": "hunter2"}))
    broken = caller.post(None, content=b'{"to": "a')
    customer = owner(caller)
    requests = logged(customer, 4)
    assert {*requests[0]} == FIELDS | {"body"}
    assert [each["status"] for each in requests] == [400, 403, 202, 202]
    assert [each["request_id"] for each in requests] == [
        response.headers["X-Request-ID"] for response in (broken, refused, again)
    ] + [first["request_id"]]
    assert [each["message_id"] for each in requests] == [None, None, first["id"], first["id"]]
    assert [each["code"] for each in requests] == ["invalid_request", "forbidden", None, None]
    assert requests[1]["error"] == refused.json()["error"]
    assert json.loads(requests[1]["body"])["headers"] == {"X-Secret-Token": "[removed]"}
    assert (requests[0]["body"], requests[0]["size"]) == ('{"to": "a', 9)
    assert {(each["source"], each["route"], each["client"]) for each in requests} == {
        ("api", "POST /emails", "127.0.0.1")
    }
    (key,) = {each["key"] for each in requests}
    assert key in {each["id"] for each in customer.get("/v1/api-keys").json()["api_keys"]}
    # Filters and pages.
    assert logged(customer, 1, status=403) == [requests[1]]
    assert logged(customer, 2, status="accepted", key=key) == requests[2:]
    assert logged(customer, 1, q=refused.headers["X-Request-ID"]) == [requests[1]]
    assert logged(customer, 0, key="key_none") == []
    page = customer.get("/v1/requests", params={"limit": 3}).json()
    rest = customer.get("/v1/requests", params={"before": page["next"]}).json()
    assert (page["requests"] + rest["requests"], rest["next"]) == (requests, None)
    shown = command(caller.running.config_file, "requests", "--account", caller.account.name, "--status", "refused")
    assert [each["request_id"] for each in shown["requests"]] == [each["request_id"] for each in requests[:2]]


def test_smtp_transactions_are_listed(new_account: NewAccount) -> None:
    caller = new_account()
    (port,) = [int(url.rpartition(":")[2]) for url in caller.running.smtp if url.startswith("smtps://")]
    with smtplib.SMTP_SSL("127.0.0.1", port, context=UNVERIFIED) as client:
        client.login(caller.account.username, caller.account.password)
        client.sendmail("a@example.com", ["ada@example.net"], "From: a@example.com\r\nSubject: x\r\n\r\nHi")
        with pytest.raises(smtplib.SMTPSenderRefused):
            client.sendmail("a@other.example", ["ada@example.net"], "Subject: x\r\n\r\nHi")
        with pytest.raises(smtplib.SMTPDataError):
            client.sendmail("a@example.com", ["ada@example.net"], "From: b@other.example\r\nSubject: x\r\n\r\nHi")
    content, sender, done = logged(owner(caller), 3)
    assert (done["status"], done["source"], done["route"]) == (250, "smtp", "DATA")
    assert done["key"] == caller.account.username
    assert json.loads(done["body"]) == {"mail_from": "a@example.com", "rcpt_to": ["ada@example.net"]}
    assert caller.read(done["message_id"])["source"] == "smtp"
    assert (sender["status"], sender["code"], sender["route"]) == (550, "forbidden", "MAIL FROM")
    assert (content["status"], content["code"], content["route"]) == (550, "forbidden", "DATA")
    assert "other.example" in content["error"]


@pytest.mark.parametrize(
    ("parameter", "value"), [("status", "ok"), ("limit", "0"), ("before", "x"), ("q", ""), ("key", "k" * 201)]
)
def test_wrong_parameters_are_refused(customer: Caller, parameter: str, value: str) -> None:
    assert error(customer.get("/v1/requests", params={parameter: value}), 400, "invalid_request").startswith(parameter)
