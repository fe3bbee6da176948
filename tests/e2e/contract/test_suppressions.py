"""The suppression list: who gets no more mail, and what a message to them looks like."""

from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, bearer, error

FIELDS = {"address", "reason", "origin", "created_at", "tag", "template", "stream"}


def suppress(customer: Caller, address: str, **fields: Any) -> httpx.Response:
    return customer.request("POST", "/v1/suppressions", json={"address": address} | fields)


def release(customer: Caller, address: str) -> httpx.Response:
    return customer.request("DELETE", f"/v1/suppressions/{quote(address, safe='')}")


def pair(caller: Caller) -> tuple[Caller, Caller]:
    return caller, caller.using(bearer(caller.token()))


# ---- the list


def test_an_address_is_added_by_hand(customer: Caller) -> None:
    """POST answers 201 with the entry, in the form that is compared."""
    response = suppress(customer, "Ada <By.Hand@Example.NET>", reason="asked us to stop")
    assert response.status_code == 201
    body = response.json()
    assert body.pop("request_id") == response.headers["x-request-id"]
    assert set(body) == FIELDS
    assert (body["address"], body["reason"]) == ("by.hand@example.net", "asked us to stop")
    assert body["origin"] == "manual"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"address": ""},
        {"address": "x"},
        {"address": "a@example.net, b@example.net"},
        {"address": "a\r\n@example.net"},
        {"address": None},
        {"address": ["a@example.net"]},
        {"address": "a@example.net", "reason": ""},
        {"address": "a@example.net", "reason": "x" * 201},
        {"address": "a@example.net", "reason": "a\nb"},
        {"address": "a@example.net", "reason": None},
        {"address": "a@example.net", "until": "tomorrow"},
        {"address": "a@example.net", "stream": "no such stream"},
        {"address": "a@example.net", "stream": "broadcast", "reason": "by mail"},
        {"address": "a@example.net", "stream": "broadcast", "origin": "bounce"},
    ],
)
def test_what_is_no_entry_is_refused(customer: Caller, body: dict[str, Any]) -> None:
    """A wrong address or reason, a wrong type and an unknown field are 400."""
    error(customer.request("POST", "/v1/suppressions", json=body), 400, "invalid_request")


def test_mail_of_a_stream_alone_is_suppressed(customer: Caller) -> None:
    """The entry names the stream; other mail still goes; it is removed by its stream."""
    address, removal = "reader@example.net", {"params": {"stream": "broadcast"}}
    body = suppress(customer, address, stream="broadcast").json()
    assert (body["address"], body["stream"], body["origin"]) == (address, "broadcast", "unsubscribe")
    assert customer.delivered(to=address)["status"] == "delivered"
    assert release(customer, address).status_code == 404
    assert customer.request("DELETE", f"/v1/suppressions/{address}", **removal).status_code == 200


@pytest.mark.parametrize(
    "address",
    [
        "plain@example.net",
        "with/slash@example.net",
        "/first@example.net",
        "a%41@example.net",
        "a+b?c#d@example.net",
        "jörg@bücher.example",
    ],
)
def test_an_address_is_removed(customer: Caller, address: str) -> None:
    """DELETE answers {deleted: true} for whatever could be added, and 404 when it is gone."""
    assert suppress(customer, address).status_code == 201
    response = release(customer, address.upper() if address.isascii() and "%" not in address else address)
    assert response.json() == {"deleted": True, "request_id": response.headers["x-request-id"]}
    error(release(customer, address), 404, "not_found")


@pytest.mark.parametrize("address", ["unknown@example.net", "x", "%00", "a@b@c", "a b@example.net"])
def test_removing_what_is_not_there_is_404(customer: Caller, address: str) -> None:
    error(release(customer, address), 404, "not_found")


# ---- sending to it


def test_mail_to_a_suppressed_address_bounces_at_once(new_account: NewAccount) -> None:
    """It is accepted like any other, then bounced: no attempt, no code, `suppressed: …`, credit returned."""
    sender, customer = pair(new_account(credit=10))
    suppress(customer, "gone@example.net")
    sent = sender.send(to="Gone@Example.net")
    assert (sent["status"], sent["billing_status"], sent["credits_reserved"]) == ("queued", "reserved", 1)
    found = sender.read(sent["id"])
    assert (found["status"], found["billing_status"], found["credits_reserved"]) == ("failed", "released", 1)
    (recipient,) = found["recipients"]
    assert (recipient["status"], recipient["billing_status"]) == ("bounced", "released")
    assert (recipient["attempt_count"], recipient["last_smtp_code"]) == (0, None)
    assert recipient["last_smtp_response"].startswith("suppressed: ")
    assert recipient["bounced_at"] is not None
    assert recipient["delivered_at"] is None
    assert sender.credits() == 10


def test_a_list_is_imported_and_searched(new_account: NewAccount) -> None:
    """What can be read is listed, once; the rest is told by its line; a search finds it."""
    _, customer = pair(new_account())
    text = "status,reason,email\n550,no such user,ADA@example.net\n550,full,bob@example.net\n550,x,none\n"
    answer = customer.request("POST", "/v1/suppressions/import", json={"csv": text}).json()
    assert (answer["imported"], answer["listed_already"]) == (2, 0)
    assert [each["line"] for each in answer["skipped"]] == [4]
    again = customer.request("POST", "/v1/suppressions/import", json={"csv": text}).json()
    assert (again["imported"], again["listed_already"]) == (0, 2)
    found = customer.get("/v1/suppressions?q=SUCH&origin=import").json()["suppressions"]
    assert [(each["address"], each["reason"]) for each in found] == [("ada@example.net", "no such user")]
    assert customer.get("/v1/suppressions?origin=bounce").json()["suppressions"] == []
    error(customer.get("/v1/suppressions?origin=x"), 400, "invalid_request")
    error(customer.get("/v1/suppressions?q="), 400, "invalid_request")
    many = {"csv": "a@example.net\n" * 1_001}
    error(customer.request("POST", "/v1/suppressions/import", json=many), 400, "invalid_request")
