"""Domains in their owner's hands: added, proven by DNS, used, removed."""

import uuid
from typing import Any

import pytest

from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, error, message, owner
from tests.fakes.dns import DnsServer, Trouble, zone_text


def new_domain() -> str:
    return f"d{uuid.uuid4().hex[:10]}.example"


def add(customer: Caller, domain: str) -> dict[str, Any]:
    """Add a domain, which must work."""
    response = customer.request("POST", "/v1/domains", json={"domain": domain})
    assert response.status_code == 201, response.text
    told: dict[str, Any] = response.json()
    return told


def publish(names: DnsServer, *records: dict[str, Any]) -> None:
    for record in records:
        names.zone[record["name"]] = {record["type"]: [zone_text(record["value"])]}


def send_from(caller: Caller, domain: str) -> int:
    return caller.using(caller.account.bearer).post(message(from_=f"a@{domain}")).status_code


def test_the_whole_way(new_account: NewAccount, names: DnsServer) -> None:
    """Add, publish, verify, send: pending and 403 before DNS proves it, verified and 202 at once afterwards."""
    caller = owner(new_account())
    domain = new_domain()
    added = add(caller, domain)
    assert (added["name"], added["status"], added["verified_at"]) == (domain, "pending", None)
    assert [each["status"] for each in added["records"]] == ["unknown"] * 4
    assert send_from(caller, domain) == 403
    missing = caller.get(f"/v1/domains/{domain}").json()
    assert {each["status"] for each in missing["records"]} == {"missing"}
    still = caller.request("POST", f"/v1/domains/{domain}/verify").json()
    assert still["status"] == "pending"
    publish(names, *added["records"])
    verified = caller.request("POST", f"/v1/domains/{domain}/verify").json()
    assert verified["status"] == "verified"
    assert verified["verified_at"] is not None
    assert {each["status"] for each in verified["records"]} == {"ok"}
    assert send_from(caller, domain) == 202
    assert caller.get(f"/v1/domains/{domain}").json()["status"] == "verified"


def test_what_dns_showed_is_listed(new_account: NewAccount, names: DnsServer) -> None:
    """By kind, with the time of the check; it comes by itself, and with each look at the domain."""
    customer, domain = owner(new_account()), new_domain()
    added = add(customer, domain)
    assert added["dns"] is None
    publish(names, *added["records"][1:])
    shown = customer.get(f"/v1/domains/{domain}").json()["dns"]
    assert {**shown, "checked_at": "…"} == {
        "checked_at": "…",
        "spf": "ok",
        "dkim": "missing",
        "dmarc": "ok",
        "return_path": None,
    }
    listed = {each["name"]: each["dns"] for each in customer.get("/v1/domains").json()["domains"]}
    assert listed[domain] == shown
    publish(names, *added["records"])
    checked = customer.request("POST", f"/v1/domains/{domain}/verify").json()["dns"]
    assert checked["dkim"] == "ok"
    assert checked["checked_at"] > shown["checked_at"]


def test_one_key_of_its_own_proves_it(new_account: NewAccount, names: DnsServer) -> None:
    """The records say which of them prove the domain; one of those is enough, all others are not."""
    customer, domain = owner(new_account()), new_domain()
    records = add(customer, domain)["records"]
    assert [each["proves"] for each in records] == [True, True, False, False]
    publish(names, *records[2:])
    assert customer.request("POST", f"/v1/domains/{domain}/verify").json()["status"] == "pending"
    publish(names, records[1])
    assert customer.request("POST", f"/v1/domains/{domain}/verify").json()["status"] == "verified"


def test_another_accounts_proof_is_none(new_account: NewAccount, names: DnsServer) -> None:
    """Two accounts may claim a domain; each has keys of its own, and only the one whose key is published gets it."""
    first, second, domain = owner(new_account()), owner(new_account()), new_domain()
    theirs, ours = add(first, domain)["records"], add(second, domain)["records"]
    assert not {each["name"] for each in theirs[:2]} & {each["name"] for each in ours[:2]}
    publish(names, *theirs)
    assert second.request("POST", f"/v1/domains/{domain}/verify").json()["status"] == "pending"
    assert first.request("POST", f"/v1/domains/{domain}/verify").json()["status"] == "verified"
    assert send_from(second, domain) == 403


def test_what_dns_shows_instead_is_told(new_account: NewAccount, names: DnsServer) -> None:
    """A wrong record is shown beside the right one, and what is wrong with it."""
    customer, domain = owner(new_account()), new_domain()
    records = add(customer, domain)["records"]
    names.zone[records[0]["name"]] = {"TXT": ['"v=DKIM1; k=rsa; p=AAAA"']}
    names.zone[records[1]["name"]] = {"TXT": Trouble.SERVFAIL}
    seen = customer.get(f"/v1/domains/{domain}").json()["records"]
    assert (seen[0]["status"], seen[0]["found"]) == ("differs", ["v=DKIM1; k=rsa; p=AAAA"])
    assert seen[0]["note"] == "it is another key"
    assert (seen[1]["status"], bool(seen[1]["note"])) == ("unknown", True)


def test_the_operators_domains_are_allowed(customer: Caller) -> None:
    """A domain added on the shell may be used without proof, and says so."""
    listed = {each["name"]: each["status"] for each in customer.get("/v1/domains").json()["domains"]}
    assert listed["example.com"] == "allowed"


def test_a_removed_domain_sends_nothing_more(new_account: NewAccount, names: DnsServer) -> None:
    customer, domain = owner(new_account()), new_domain()
    publish(names, *add(customer, domain)["records"])
    customer.request("POST", f"/v1/domains/{domain}/verify")
    assert send_from(customer, domain) == 202
    assert customer.request("DELETE", f"/v1/domains/{domain}").json()["deleted"] is True
    assert send_from(customer, domain) == 403
    error(customer.get(f"/v1/domains/{domain}"), 404, "not_found")
    error(customer.request("DELETE", f"/v1/domains/{domain}"), 404, "not_found")
    assert domain not in [each["name"] for each in customer.get("/v1/domains").json()["domains"]]
    again = add(customer, domain)
    assert (again["status"], again["verified_at"]) == ("pending", None)
    assert send_from(customer, domain) == 403


def test_adding_twice_is_a_conflict(new_account: NewAccount) -> None:
    """In whatever spelling it comes the second time."""
    customer, domain = owner(new_account()), new_domain()
    add(customer, domain)
    for spelling in (domain, domain.upper(), f"{domain}."):
        error(customer.request("POST", "/v1/domains", json={"domain": spelling}), 409, "conflict")


@pytest.mark.parametrize(
    "domain",
    [
        "",
        "localhost",
        "a b.example",
        "user@example.com",
        "<a@b.example>",
        "-.example",
        "x" * 254,
        "a..example",
        "1.2.3.4",
        7,
        None,
    ],
)
def test_what_is_no_domain_is_400(customer: Caller, domain: object) -> None:
    error(customer.request("POST", "/v1/domains", json={"domain": domain}), 400, "invalid_request")


def test_other_letters_become_a_labels(new_account: NewAccount) -> None:
    """A domain is kept as it goes over the wire, and found by either spelling."""
    customer, name = owner(new_account()), uuid.uuid4().hex[:8]
    added = add(customer, f"bücher-{name}.example")
    assert added["name"].startswith("xn--bcher-")
    assert customer.get(f"/v1/domains/bücher-{name}.example").json()["name"] == added["name"]


def test_a_return_path_is_chosen_or_given(new_account: NewAccount, names: DnsServer) -> None:
    """Below the domain; a name elsewhere is refused, and one removed with its domain is forgotten."""
    customer, domain = owner(new_account()), new_domain()
    for wrong in ("bounces.example.net", domain, f"x{domain}", "no name", f"b.{domain}".rjust(229, "b")):
        refused = customer.request("POST", "/v1/domains", json={"domain": domain, "return_path": wrong})
        assert "return_path" in error(refused, 400, "invalid_request")
    body = {"domain": domain, "return_path": f"RP.{domain.upper()}."}
    chosen = customer.request("POST", "/v1/domains", json=body).json()
    assert (chosen["return_path"], chosen["return_path_at"]) == (f"rp.{domain}", None)
    listed = {each["name"]: each["return_path"] for each in customer.get("/v1/domains").json()["domains"]}
    assert listed[domain] == f"rp.{domain}"
    assert customer.request("DELETE", f"/v1/domains/{domain}").json()["deleted"] is True
    assert add(customer, domain)["return_path"] == f"bounces.{domain}"
