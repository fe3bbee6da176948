"""A body that takes longer than a second: what was revoked meanwhile sends nothing and changes nothing."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from appliance.store import Store
from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, message, new_key, owner
from tests.e2e.raw import Answer, Client

LONGER_THAN_A_SECOND = 1.2


def slowly(caller: Caller, method: str, path: str, body: dict[str, Any], meanwhile: Callable[[], object]) -> Answer:
    """The answer to a request whose body comes in two parts, with something in between."""
    content = json.dumps(body).encode()
    headers = {**caller.authorization, "Content-Type": "application/json", "Idempotency-Key": new_key()}
    lines = [f"{method} {path} HTTP/1.1", "Host: mail.example.com", f"Content-Length: {len(content)}"]
    head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""])
    with Client(caller.running.url) as client:
        client.send(head.encode() + content[:10])
        time.sleep(LONGER_THAN_A_SECOND / 2)
        meanwhile()
        time.sleep(LONGER_THAN_A_SECOND / 2)
        client.send(content[10:])
        return client.answer()


async def remove_domain(account_id: str, store: Store) -> None:
    await store.domains.remove(account_id, "example.com")


def test_a_body_may_take_its_time(new_account: NewAccount) -> None:
    assert slowly(new_account(), "POST", "/emails", message(), lambda: None).status == 202


@pytest.mark.parametrize("way", ["key", "session", "domain", "suspension"])
def test_what_ended_meanwhile_sends_nothing(new_account: NewAccount, way: str) -> None:
    """A revoked key and an ended session are 401, a removed domain and a suspended account 403."""
    account = new_account()
    customer, account_id = owner(account), account.account.account_id
    sender = customer if way == "session" else account
    ends: dict[str, Callable[[], object]] = {
        "key": lambda: account.stored(lambda store: store.access.revoke_key(account.account.full_key)),
        "session": lambda: customer.request("POST", "/v1/auth/logout"),
        "domain": lambda: account.stored(partial(remove_domain, account_id)),
        "suspension": lambda: account.stored(lambda store: store.accounts.set_suspended(account_id, True)),
    }
    answer = slowly(sender, "POST", "/emails", message(), ends[way])
    assert answer.status == (401 if way in ("key", "session") else 403)
    assert account.rows("SELECT 1 FROM messages WHERE account_id = :account_id", account_id=account_id) == []


def test_a_key_revoked_meanwhile_moves_no_message(new_account: NewAccount) -> None:
    account = new_account()
    due, later = [(datetime.now(UTC) + timedelta(hours=hours)).isoformat() for hours in (1, 2)]
    sent = account.send(scheduled_at=due)

    def end() -> None:
        account.stored(lambda store: store.access.revoke_key(account.account.full_key))

    assert slowly(account, "PATCH", f"/emails/{sent['id']}", {"scheduled_at": later}, end).status == 401
    read = owner(account).get(f"/v1/emails/{sent['id']}").json()
    assert read["scheduled_at"] == sent["scheduled_at"]


@pytest.mark.parametrize("way", ["key", "session"])
def test_what_ended_meanwhile_changes_nothing(new_account: NewAccount, way: str) -> None:
    account = new_account()
    customer = owner(account)
    made = customer.request("POST", "/v1/api-keys", json={"scope": "manage"}).json()
    caller = customer if way == "session" else customer.using({"Authorization": f"Bearer {made['key']}"})

    def end() -> None:
        if way == "session":
            customer.request("POST", "/v1/auth/logout")
        else:
            account.stored(lambda store: store.access.revoke_key(made["id"]))

    assert slowly(caller, "PUT", "/v1/templates/late", {"subject": "x", "text": "x"}, end).status == 401
    assert account.rows("SELECT 1 FROM templates WHERE account_id = :id", id=account.account.account_id) == []
