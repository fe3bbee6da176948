"""What administrators do: accounts, their credits, and the queue; and that no other user may."""

import uuid
from typing import Any

import pytest

from appliance.model.accounts import Role
from appliance.store.pools import EVERY
from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, bearer, change, error, eventually, message, owner, waiting
from tests.engines import Kind
from tests.running_appliance import add_account

UNKNOWN_ACCOUNT = f"acc_{'0' * 32}"


@pytest.fixture(scope="module")
def admin(running: Any, client: Any) -> Caller:
    account = add_account(running.data_dir, "admin", role=Role.ADMIN)
    caller = Caller(running, account, client, {})
    return owner(caller)


def post(caller: Caller, path: str, body: Any = None) -> Any:
    return caller.request("POST", path, json=body) if body is not None else caller.request("POST", path)


def described(**changes: Any) -> dict[str, Any]:
    name = f"made-{uuid.uuid4().hex[:10]}"
    return {"name": name, "email": f"{name}@example.org", "password": "a long password", **changes}


def test_an_account_is_created_and_works(admin: Caller) -> None:
    """Its user logs in with the password it was given, and has the credits."""
    wanted = described(credits=7)
    made = post(admin, "/v1/admin/accounts", wanted)
    assert made.status_code == 201, made.text
    told = made.json()
    assert (told["name"], told["email"], told["credits"], told["suspended"]) == (
        wanted["name"],
        wanted["email"],
        7,
        False,
    )
    login = admin.client.post("/v1/auth/login", json={"email": wanted["email"], "password": wanted["password"]})
    assert login.json()["account"]["role"] == "customer"
    seen = admin.client.get("/v1/account", headers=bearer(login.json()["token"])).json()
    assert (seen["id"], seen["credits"]) == (told["id"], 7)
    assert admin.get(f"/v1/admin/accounts/{told['id']}").json()["name"] == wanted["name"]


def test_names_and_addresses_are_taken_once(admin: Caller) -> None:
    """A second account of the same name, or with the same login, is a conflict."""
    first = described()
    assert post(admin, "/v1/admin/accounts", first).status_code == 201
    error(post(admin, "/v1/admin/accounts", described(name=first["name"])), 409, "conflict")
    error(post(admin, "/v1/admin/accounts", described(email=first["email"].upper())), 409, "conflict")


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"name": "a b"},
        {"name": "-a"},
        {"name": "x" * 65},
        {"email": "unknown"},
        {"email": "A <a@example.org>"},
        {"password": "short"},
        {"password": "ä" * 513},
        {"credits": -1},
        {"credits": 10**16},
        {"credits": 1.5},
        {"role": "root"},
        {"colour": "red"},
    ],
)
def test_a_strange_account_is_400(admin: Caller, changes: dict[str, Any]) -> None:
    error(post(admin, "/v1/admin/accounts", described(**changes)), 400, "invalid_request")


def test_accounts_are_listed_by_name(admin: Caller) -> None:
    post(admin, "/v1/admin/accounts", described())
    names: list[str] = []
    query: dict[str, Any] = {"limit": 3}
    while True:
        page = admin.get("/v1/admin/accounts", params=query).json()
        names += [each["name"] for each in page["accounts"]]
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert names == sorted(set(names))
    assert {"admin", "demo"} <= set(names)


def test_a_suspended_account_cannot_send(admin: Caller, new_account: NewAccount) -> None:
    """From the next request on, and until it is resumed; reading still works."""
    caller = new_account()
    path = f"/v1/admin/accounts/{caller.account.account_id}"
    sent = caller.send()
    assert post(admin, f"{path}/suspend").json()["suspended"] is True
    error(caller.post(message()), 403, "account_suspended")
    assert caller.read(sent["id"])["id"] == sent["id"]
    assert post(admin, f"{path}/resume").json()["suspended"] is False
    caller.send()


def test_credits_are_changed(admin: Caller, new_account: NewAccount) -> None:
    """Added, taken, set, lifted; never below zero, and each with its entry in the ledger."""
    caller = new_account(credit=10)
    path = f"/v1/admin/accounts/{caller.account.account_id}/credits"
    assert post(admin, path, {"change": 5}).json()["credits"] == 15
    assert post(admin, path, {"change": -15}).json()["credits"] == 0
    error(post(admin, path, {"change": -1}), 409, "conflict")
    error(caller.post(message()), 402, "insufficient_credits")
    assert post(admin, path, {"balance": 3}).json()["credits"] == 3
    caller.send()
    assert post(admin, path, {"balance": None}).json()["credits"] is None
    error(post(admin, path, {"change": 5}), 409, "conflict")
    customer = owner(caller)
    amounts = [(each["kind"], each["amount"]) for each in customer.get("/v1/credits").json()["entries"]]
    assert amounts == [("adjust", -2), ("reserve", -1), ("grant", 3), ("adjust", -15), ("grant", 5), ("grant", 10)]


@pytest.mark.parametrize(
    "body", [{}, {"change": 1, "balance": 1}, {"change": None}, {"change": "1"}, {"change": 1.5}, {"balance": -1}]
)
def test_a_strange_change_of_credits_is_400(admin: Caller, new_account: NewAccount, body: dict[str, Any]) -> None:
    caller = new_account(credit=10)
    error(post(admin, f"/v1/admin/accounts/{caller.account.account_id}/credits", body), 400, "invalid_request")
    assert caller.credits() == 10


@pytest.mark.parametrize("method", ["GET", "suspend", "resume", "credits"])
@pytest.mark.parametrize("account_id", [UNKNOWN_ACCOUNT, "x", "%00", "' OR 1=1 --"])
def test_an_unknown_account_is_404(admin: Caller, method: str, account_id: str) -> None:
    path = f"/v1/admin/accounts/{account_id}"
    if method == "GET":
        error(admin.get(path), 404, "not_found")
    else:
        error(post(admin, f"{path}/{method}", {"change": 1} if method == "credits" else None), 404, "not_found")


def test_the_queue_is_told_and_steered(admin: Caller, new_account: NewAccount) -> None:
    """Waiting mail by pool; a pool is held with a reason, which stays, and let go again."""
    caller = new_account()
    pool = f"pool-{uuid.uuid4().hex[:8]}"
    domain = f"{pool}.example"
    waiting(caller, f"a@{domain}", pools={domain: pool})

    def seen() -> Any:
        return next((each for each in admin.get("/v1/admin/queue").json()["pools"] if each["pool"] == pool), None)

    found = seen()
    assert (found["waiting"], found["deferred"], found["held_because"]) == (0, 1, None)
    assert [each["domain"] for each in found["destinations"]] == [domain]
    held = post(admin, f"/v1/admin/queue/{pool}/pause", {"reason": "<b>they move</b>"}).json()
    assert (held["held"], held["reason"]) == (True, "<b>they move</b>")
    assert post(admin, f"/v1/admin/queue/{pool}/pause", {"reason": "other"}).json()["reason"] == "<b>they move</b>"
    assert seen()["held_because"] == "<b>they move</b>"
    assert post(admin, f"/v1/admin/queue/{pool}/resume").json()["held"] is False
    error(post(admin, f"/v1/admin/queue/{pool}/resume"), 404, "not_found")
    assert seen()["held_because"] is None


def test_all_mail_is_paused_and_resumed(admin: Caller) -> None:
    """With a reason, which stays; told in the administrator's log and in the installation's."""
    try:
        made = post(admin, "/v1/admin/queue/pause", {"reason": "<b>we move</b>"}).json()
        assert made["paused"]["reason"] == "<b>we move</b>"
        assert post(admin, "/v1/admin/queue/pause", {}).json()["paused"] == made["paused"]
        assert admin.get("/v1/admin/queue").json()["paused"] == made["paused"]
        error(post(admin, "/v1/admin/queue/pause", {"reason": "a\nb"}), 400, "invalid_request")
        assert post(admin, "/v1/admin/queue/resume").json()["paused"] is None
    finally:
        change(admin.running.data_dir, lambda store: store.pools.release(EVERY))
    assert admin.get("/v1/admin/queue").json()["paused"] is None
    error(post(admin, "/v1/admin/queue/resume"), 404, "not_found")
    told = [each["action"] for each in admin.get("/v1/audit", params={"action": "mail"}).json()["audit"]]
    assert told == ["mail.resumed", "mail.paused", "mail.paused"]
    of_all = admin.stored(lambda store: store.audit.page(None, action="mail"))
    assert [each.action for each in of_all if each.account_id == ""] == told


def test_a_pause_after_a_restore_is_ended_on_the_server(admin: Caller) -> None:
    """What is in a backup may have been sent since: the operator looks first."""
    change(admin.running.data_dir, lambda store: store.pools.hold(EVERY, "restored from a backup of 2026-11-15 UTC"))
    try:
        text = error(post(admin, "/v1/admin/queue/resume"), 409, "conflict")
        assert "appliance resume" in text
        assert admin.get("/v1/admin/queue").json()["paused"] is not None
    finally:
        change(admin.running.data_dir, lambda store: store.pools.release(EVERY))


def test_a_daily_cap_is_set_and_holds(admin: Caller, new_account: NewAccount) -> None:
    """What was sent today counts; without a cap all goes again. Nothing but a number from 1 on, or null, is one."""
    caller = new_account()
    path = f"/v1/admin/accounts/{caller.account.account_id}/daily-cap"
    caller.send()
    assert post(admin, path, {"recipients": 1}).json()["daily_cap"] == 1
    error(caller.post(message()), 429, "warmup_limited")
    for body in ({}, {"recipients": 0}, {"recipients": "5"}, {"recipients": 10**20}, {"recipients": 5, "x": 1}):
        error(post(admin, path, body), 400, "invalid_request")
    assert post(admin, path, {"recipients": None}).json()["daily_cap"] is None
    caller.send()
    error(post(admin, f"/v1/admin/accounts/{UNKNOWN_ACCOUNT}/daily-cap", {"recipients": 1}), 404, "not_found")
    told = owner(caller).get("/v1/audit", params={"action": "account.cap_changed"}).json()["audit"]
    assert [each["details"]["recipients"] for each in told] == ["no cap", "1"]


def test_what_an_account_sends_is_told_with_marks(admin: Caller, new_account: NewAccount) -> None:
    """Its numbers, the bounce rate as it is judged, its domains; of the days asked for."""
    caller = new_account()
    path = f"/v1/admin/accounts/{caller.account.account_id}/usage"
    none = admin.get(path).json()
    assert (none["sent"], none["bounce_rate"], none["bounce_mark"], none["complaint_rate"]) == (
        0,
        None,
        "too_few",
        None,
    )
    assert [(each["name"], each["usable"]) for each in none["domains"]] == [(caller.account.domain, True)]
    caller.delivered(to=["ada@example.net", "bounce@example.net"])
    told = eventually(lambda: admin.get(path).json(), lambda found: found["bounced"] == 1)
    assert (told["sent"], told["sent_today"], told["delivered"], told["complained"]) == (2, 2, 1, 0)
    assert (told["bounce_rate"], told["bounce_mark"], told["complaint_mark"]) == (0.5, "too_few", "too_few")
    error(admin.get(path, params={"days": 91}), 400, "invalid_request")
    error(admin.get(f"/v1/admin/accounts/{UNKNOWN_ACCOUNT}/usage"), 404, "not_found")


@pytest.mark.both_engines
def test_other_accounts_messages_are_read_with_an_audit_line(admin: Caller, new_account: NewAccount) -> None:
    """As the account itself sees them; each reading is in its log, the administrator's and the installation's."""
    caller, other = new_account(), new_account()
    attached = [{"filename": "a.txt", "content": "aGVsbG8=", "content_type": "text/plain"}]
    sent = caller.delivered(subject="Secret plans", attachments=attached)["id"]
    customer, path = owner(caller), f"/v1/admin/accounts/{caller.account.account_id}/emails"
    assert [each["id"] for each in admin.get(path, params={"q": "plans"}).json()["emails"]] == [sent]
    for below in ("", "/body"):
        theirs = customer.get(f"/v1/emails/{sent}{below}").json()
        mine = admin.get(f"{path}/{sent}{below}")
        assert mine.status_code == 200
        assert {**mine.json(), "request_id": ""} == {**theirs, "request_id": ""}
    assert b"Secret plans" in admin.get(f"{path}/{sent}/raw").content
    assert admin.get(f"{path}/{sent}/attachments/0").content == b"hello"
    # Only of the account that is named, and what is not there leaves no line.
    elsewhere = f"/v1/admin/accounts/{other.account.account_id}/emails"
    for below in ("", "/body", "/raw", "/attachments/0"):
        error(admin.get(f"{elsewhere}/{sent}{below}"), 404, "not_found")
    error(admin.get(f"/v1/admin/accounts/{UNKNOWN_ACCOUNT}/emails"), 404, "not_found")

    def told(caller: Caller) -> list[tuple[str, str, str]]:
        lines = caller.get("/v1/audit", params={"action": "email"}).json()["audit"]
        return [(each["action"], each["object"], each["actor"]) for each in lines]

    expected = [("email.file_downloaded", sent), ("email.downloaded", sent), ("email.body_read", sent)]
    expected += [("email.read", sent), ("email.listed", caller.account.name)]
    lines = [(*each, admin.account.email) for each in expected]
    assert told(customer) == lines
    assert told(admin)[:5] == lines
    assert told(owner(other)) == []
    of_all = admin.stored(lambda store: store.audit.page(None, action="email"))
    assert [(each.action, each.object, each.actor) for each in of_all if each.account_id == ""][:5] == lines
    listed = customer.get("/v1/audit", params={"action": "email.listed"}).json()["audit"][0]
    assert listed["details"] == {"account": caller.account.name, "q": "plans"}


def test_a_pause_of_all_mail_is_told_and_is_no_pool(admin: Caller) -> None:
    """It stands by itself, and can neither be made nor ended by the name that it is stored under."""
    data_dir = admin.running.data_dir
    assert admin.get("/v1/admin/queue").json()["paused"] is None
    error(post(admin, "/v1/admin/queue/*/pause", {}), 404, "not_found")
    change(data_dir, lambda store: store.pools.hold(EVERY, "restored"))
    try:
        told = admin.get("/v1/admin/queue").json()
        assert told["paused"]["reason"] == "restored"
        assert EVERY not in [each["pool"] for each in told["pools"]]
        error(post(admin, "/v1/admin/queue/*/resume"), 404, "not_found")
        assert admin.get("/v1/admin/queue").json()["paused"] == told["paused"]
    finally:
        change(data_dir, lambda store: store.pools.release(EVERY))


@pytest.mark.parametrize("body", [{"reason": ""}, {"reason": "a\nb"}, {"reason": "x" * 201}, {"why": "x"}])
def test_a_strange_reason_is_400(admin: Caller, body: dict[str, str]) -> None:
    error(post(admin, "/v1/admin/queue/google/pause", body), 400, "invalid_request")


@pytest.mark.both_engines
def test_nodes_are_listed(admin: Caller, engine: Kind) -> None:
    """Of a shared database each node with its state, of an embedded one none; and none that does not run is drained."""
    listed = admin.get("/v1/admin/nodes").json()["nodes"]
    assert [each["state"] for each in listed if each["state"] != "ended"] == ["running"] * (engine is not Kind.SQLITE)
    for name in ("no-such-node", "%00", "x" * 64):
        error(post(admin, f"/v1/admin/nodes/{name}/drain"), 404, "not_found")
