"""A message is sent again as a new one, and what is kept of it is downloaded."""

import base64
from typing import Any

from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, bearer, change, error, new_key, owner, waiting

LOGO = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
OWN = {"order": "10045"}


def resend(customer: Caller, message_id: str, body: Any, key: str) -> Any:
    """One POST /v1/emails/{id}/resend."""
    return customer.request("POST", f"/v1/emails/{message_id}/resend", json=body, headers={"Idempotency-Key": key})


def test_the_failed_recipients_get_it_again(new_account: NewAccount) -> None:
    """A new message with its own id goes to those alone, is charged, says which it repeats; a retry is the same one."""
    caller = new_account(credit=10)
    customer = owner(caller)
    first = caller.delivered(
        to=["fail@example.net", "ada@example.net"], cc="bounce@example.net", tags=["order"], metadata=OWN
    )
    assert first["status"] == "partial"
    before, key = caller.credits(), new_key()
    assert before is not None
    answer = resend(customer, first["id"], {}, key)
    assert answer.status_code == 202, answer.text
    made = answer.json()
    assert (made["repeats"], made["recipient_count"], made["credits_reserved"]) == (first["id"], 2, 2)
    again = resend(customer, first["id"], {}, key).json()
    assert again["id"] == made["id"] != first["id"]
    told = customer.get(f"/v1/emails/{made['id']}").json()
    assert [each["email"] for each in told["recipients"]] == ["fail@example.net", "bounce@example.net"]
    assert (told["subject"], told["tags"], told["source"], told["metadata"]) == ("Hello", ["order"], "api", OWN)
    headers = customer.get(f"/v1/emails/{made['id']}/body").json()["headers"]
    named = {each["name"]: each["value"] for each in headers}
    assert named["X-Service-Repeats"] == first["id"]
    assert (named["To"], named["Cc"]) == ("fail@example.net, ada@example.net", "bounce@example.net")
    assert len([each for each in headers if each["name"] == "Message-ID"]) == 1
    assert first["id"].removeprefix("msg_") not in named["Message-ID"]
    assert b"Hi Ada" in caller.mime(made["id"])
    error(
        resend(customer, first["id"], {"recipients": [first["recipients"][1]["id"]]}, key), 409, "idempotency_conflict"
    )


FAILED_LATER = "UPDATE recipients SET status = 'failed', next_attempt_at = NULL WHERE id = :id"


def test_a_retry_is_one_although_more_have_failed(new_account: NewAccount) -> None:
    """Without named recipients the same key and body mean the first message, whatever has happened since."""
    caller = new_account()
    customer = owner(caller)
    first = caller.delivered(to=["fail@example.net", "ada@example.net"])
    key, other_key = new_key(), new_key()
    made = resend(customer, first["id"], {}, key).json()
    changed = {"id": first["recipients"][1]["id"]}
    change(caller.running.data_dir, lambda store: store.engine.change(FAILED_LATER, changed))
    assert resend(customer, first["id"], {}, key).json()["id"] == made["id"]
    assert resend(customer, first["id"], {}, other_key).json()["recipient_count"] == 2


def test_two_api_keys_may_choose_the_same_idempotency_key(new_account: NewAccount) -> None:
    caller = new_account()
    customer = owner(caller)
    first = caller.delivered(to=["fail@example.net", "bounce@example.net"])
    failed, bounced = ({"recipients": [each["id"]]} for each in first["recipients"])
    keys = [customer.request("POST", "/v1/api-keys", json={"scope": "manage"}).json()["key"] for _ in range(2)]
    same = new_key()
    for secret, body in zip(keys, (failed, bounced), strict=True):
        assert resend(customer.using(bearer(secret)), first["id"], body, same).status_code == 202


def test_one_recipient_gets_it_again(new_account: NewAccount) -> None:
    """Named by its id, also if it was delivered; an id of another message, or of one that waits, is refused."""
    caller = new_account()
    customer = owner(caller)
    first = caller.delivered(to=["ada@example.net", "bob@example.net"])
    chosen = first["recipients"][1]["id"]
    made = resend(customer, first["id"], {"recipients": [chosen]}, new_key()).json()
    assert [each["email"] for each in caller.final(made["id"])["recipients"]] == ["bob@example.net"]
    error(resend(customer, first["id"], {}, new_key()), 409, "conflict")
    error(resend(customer, made["id"], {"recipients": [chosen]}, new_key()), 400, "invalid_request")
    waits = waiting(caller, "a@example.net")
    (recipient,) = customer.get(f"/v1/emails/{waits}").json()["recipients"]
    error(resend(customer, waits, {"recipients": [recipient["id"]]}, new_key()), 409, "conflict")


def test_the_checks_are_those_of_a_send(new_account: NewAccount) -> None:
    """Without a key, without credits, without the domain, or suspended: refused, and nothing is charged."""
    caller = new_account(credit=1)
    customer = owner(caller)
    first = caller.delivered(to="fail@example.net")
    path = f"/v1/emails/{first['id']}/resend"
    assert error(customer.request("POST", path, json={}), 400, "invalid_request").startswith("Idempotency-Key:")
    assert caller.credits() == 0
    error(resend(customer, first["id"], {}, new_key()), 402, "insufficient_credits")
    change(caller.running.data_dir, lambda store: store.accounts.set_suspended(caller.account.account_id, True))
    error(resend(customer, first["id"], {}, new_key()), 403, "account_suspended")
    error(resend(owner(new_account()), first["id"], {}, new_key()), 404, "not_found")


def test_a_message_and_its_files_are_downloaded(new_account: NewAccount) -> None:
    """The bytes as they are stored, and each file decoded, as files: a browser opens none of them."""
    caller = new_account()
    customer = owner(caller)
    files = [
        {"filename": "logo.png", "content": base64.b64encode(LOGO).decode(), "content_id": "logo"},
        {"filename": "a.html", "content": base64.b64encode(b"<script>").decode(), "content_type": "text/html"},
    ]
    sent = caller.send(html='<img src="cid:logo">', attachments=files)["id"]
    raw = customer.get(f"/v1/emails/{sent}/raw")
    assert (raw.status_code, raw.headers["content-type"]) == (200, "message/rfc822")
    assert raw.headers["content-disposition"] == f'attachment; filename="{sent}.eml"'
    assert raw.content == caller.mime(sent)
    listed = customer.get(f"/v1/emails/{sent}/body").json()["attachments"]
    assert [each["filename"] for each in listed] == ["logo.png", "a.html"]
    for number, content in enumerate((LOGO, b"<script>")):
        got = customer.get(f"/v1/emails/{sent}/attachments/{number}")
        assert (got.status_code, got.content) == (200, content)
        assert got.headers["content-type"] == "application/octet-stream"
        assert got.headers["content-disposition"].startswith("attachment;")
        assert got.headers["x-content-type-options"] == "nosniff"
    for missing in ("2", "-1", "x", "0000"):
        error(customer.get(f"/v1/emails/{sent}/attachments/{missing}"), 404, "not_found")
    error(owner(new_account()).get(f"/v1/emails/{sent}/raw"), 404, "not_found")
