"""An account's numbers: what was sent, what became of it, how long it took, what waits."""

from typing import Any

from tests.e2e.contract.conftest import NewAccount
from tests.e2e.contract.service import Caller, bearer, error, owner, waiting


def stats(caller: Caller, **query: Any) -> Any:
    response = owner(caller).get("/v1/stats", params=query)
    assert response.status_code == 200, response.text
    return response.json()


def counts(told: dict[str, Any]) -> tuple[int, ...]:
    return tuple(told[kind] for kind in ("sent", "delivered", "bounced", "failed"))


def test_what_was_sent_is_counted_at_once(new_account: NewAccount) -> None:
    """Recipients by hour and day, with their results, a moment after they are final; tests are left out."""
    caller = new_account()
    caller.delivered(to=["ok@example.net", "fine@example.net", "bounce@example.net"])
    caller.delivered(to="fail@example.net")
    test = caller.using(bearer(caller.account.test_key)).send()
    caller.final(test["id"])
    told = stats(caller)
    assert counts(told["totals"]) == (4, 2, 1, 1)
    assert told["totals"]["bounce_rate"] == 0.25
    assert told["bounce_classes"] == [
        {"bounce_class": "invalid_recipient", "bounced": 1, "failed": 0},
        {"bounce_class": "temporary", "bounced": 0, "failed": 1},
    ]
    assert 0 < told["totals"]["median_ms"] <= told["totals"]["p95_ms"] < 60_000
    assert tuple(map(sum, zip(*map(counts, told["days"]), strict=True))) == (4, 2, 1, 1)
    assert tuple(map(sum, zip(*map(counts, told["hours"]), strict=True))) == (4, 2, 1, 1)


def test_an_account_without_mail_has_empty_lines(new_account: NewAccount) -> None:
    """Every day and hour is there, oldest first, and what cannot be said is null."""
    told = stats(new_account(), days=30)
    assert len(told["days"]) == 30
    assert 6 * 24 < len(told["hours"]) <= 7 * 24
    starts = [each["start"] for each in told["days"]]
    assert starts == sorted(starts)
    assert all(start.endswith("T00:00:00.000Z") for start in starts)
    assert told["hours"][0]["start"] == starts[-7]
    assert counts(told["totals"]) == (0, 0, 0, 0)
    totals = told["totals"]
    assert (totals["bounce_rate"], totals["median_ms"], totals["p95_ms"], told["queue"]) == (None, None, None, [])
    assert told["bounce_classes"] == []


def test_deliverability_is_that_of_the_statistics(new_account: NewAccount) -> None:
    """By provider and day, with the replies by cause; a filter that fits no mail leaves no provider."""
    caller = new_account()
    caller.delivered(to=["ok@example.net", "bounce1@example.net", "bounce2@example.net"])
    totals = stats(caller)["totals"]
    (told,) = deliverability(caller)["providers"]
    assert {name: told[name] for name in told.keys() & totals.keys()} == {
        name: totals[name] for name in told.keys() & totals.keys()
    }
    assert (told["provider"], told["sent"], told["deferred"]) == (None, 3, 0)
    assert 1 <= told["median_seconds"] <= told["p95_seconds"] <= 60
    for query in ({}, {"provider": "other"}, {"domain": caller.account.domain.upper()}):
        found = deliverability(caller, days=7, **query)
        assert [day["bounced"] for day in found["days"]] == [0] * 6 + [2]
        (reply,) = found["replies"]
        assert (reply["provider"], reply["bounce_class"], reply["recipients"]) == (None, "invalid_recipient", 2)
    elsewhere = deliverability(caller, template="none", provider="google")
    assert (elsewhere["providers"], elsewhere["replies"], elsewhere["days"][-1]["sent"]) == ([], [], 0)
    refused = owner(caller).get("/v1/deliverability", params={"domain": "a.test", "template": "b"})
    assert error(refused, 400, "invalid_request").startswith("template:")
    assert (elsewhere["sources"], deliverability(caller, source="mail")["providers"]) == ([], [])


def deliverability(caller: Caller, **query: Any) -> Any:
    response = owner(caller).get("/v1/deliverability", params=query)
    assert response.status_code == 200, response.text
    return response.json()


def test_what_waits_is_told_by_pool(new_account: NewAccount) -> None:
    caller, other = new_account(), new_account()
    for each in (caller, other):
        waiting(each, "a@pool.example", "b@pool.example", "c@unknown.example", pools={"pool.example": "the-pool"})
    assert stats(caller)["queue"] == [
        {"pool": "the-pool", "due": 0, "deferred": 2},
        {"pool": None, "due": 0, "deferred": 1},
    ]


# ---- problems


def problems(caller: Caller, **query: Any) -> Any:
    response = owner(caller).get("/v1/problems", params=query)
    assert response.status_code == 200, response.text
    return response.json()["problems"]


def test_the_latest_problems_are_told(new_account: NewAccount) -> None:
    """With what the server said; deliveries are none, and another account sees nothing of them."""
    caller = new_account()
    assert problems(caller) == []
    first = caller.delivered(to=["ok@example.net", "bounce@example.net"], subject="One")["id"]
    second = caller.delivered(to="fail@example.net", subject="Two")["id"]
    found = problems(caller)
    assert [(each["message_id"], each["email"], each["outcome"], each["subject"]) for each in found] == [
        (second, "fail@example.net", "failed", "Two"),
        (first, "bounce@example.net", "bounced", "One"),
    ]
    assert found[1]["last_smtp_code"] == 550
    assert found[1]["last_smtp_response"].startswith("550 5.1.1")
    assert (found[1]["bounce_class"], found[1]["next_attempt_at"]) == ("invalid_recipient", None)
    assert problems(caller, limit=1) == found[:1]
    assert problems(new_account()) == []


# ---- by domain, tag, template and provider


def breakdown(caller: Caller, by: str) -> dict[str | None, tuple[int, ...]]:
    """The numbers by one thing: value to sent, delivered, bounced, failed."""
    return {each["value"]: counts(each) for each in stats(caller, by=by)["breakdown"]}


def test_numbers_are_broken_down(new_account: NewAccount) -> None:
    """By what is asked for, at once, the largest first; without the question there is none."""
    caller = new_account()
    assert stats(caller)["breakdown"] is None
    template = {"subject": "Hi", "text": "Hi"}
    assert owner(caller).request("PUT", "/v1/templates/welcome", json=template).status_code == 200
    caller.delivered(to=["ok@example.net", "bounce@example.net"], tags=["order", "eu"])
    caller.delivered(to="fine@example.net", tags=["reset"])
    caller.delivered(to="good@example.net", template="welcome", subject=..., text=...)
    assert breakdown(caller, "domain") == {"example.com": (4, 3, 1, 0)}
    assert breakdown(caller, "tag") == {"eu": (2, 1, 1, 0), "order": (2, 1, 1, 0), "reset": (1, 1, 0, 0)}
    assert breakdown(caller, "template") == {"welcome": (1, 1, 0, 0)}
    assert breakdown(caller, "provider") == {None: (4, 3, 1, 0)}
    assert stats(caller, by="tag")["breakdown"][0]["bounce_rate"] == 0.5
    told = stats(new_account(), by="tag")
    assert (told["breakdown"], told["breakdown_until"]) == ([], None)


def test_an_unknown_breakdown_is_400(customer: Caller) -> None:
    assert error(customer.get("/v1/stats", params={"by": "moon"}), 400, "invalid_request").startswith("by:")
