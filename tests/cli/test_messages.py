"""`appliance messages` and `appliance explain ADDRESS`: what is found, in which order, and what is said of it."""

import re

import pytest

from appliance.model.mail import SuppressionOrigin
from appliance.store import Store
from appliance.store.request_log import packed
from appliance.times import DAY, HOUR, rfc3339
from tests import stored_mail
from tests.cli.shell import Shell, fields
from tests.cli.test_queue import OUTSIDE, accept, changed, deferred
from tests.docs.test_cli import documented
from tests.store.test_request_log import logged


def ids(shell: Shell, *options: str) -> list[str]:
    return [each["id"] for each in shell.json("messages", *options)["messages"]]


def of_zoo(shell: Shell, address: str) -> str:
    shell.create("zoo")

    async def accepted(store: Store) -> str:
        account = await store.accounts.named("zoo")
        return (await stored_mail.accept(store, OUTSIDE, account.id, address)).id

    made: str = shell.stored(accepted)
    return made


# ---- messages


def test_requests_are_listed_newest_first_of_all_accounts(acme: Shell) -> None:
    async def log(store: Store) -> None:
        for name, request in (("acme", logged(1)), ("acme", logged(2, status=403, error="not yours", message_id=None))):
            await store.request_pages.add([((await store.accounts.named(name)).id, packed([request]))])

    acme.stored(log)
    answer = acme.json("requests")
    assert fields(answer) == fields(documented("request list"))
    assert [(each["account"], each["status"]) for each in answer["requests"]] == [("acme", 403), ("acme", 202)]
    assert len(acme.json("request", "list", "--account", "acme", "--text", "ADA1@")["requests"]) == 1
    assert len(acme.json("requests", "--status", "refused")["requests"]) == 1
    assert len(acme.json("requests", "--status", "202", "--key", "key_1", "--limit", "1")["requests"]) == 1
    assert "not yours" in acme.text("requests")


def test_messages_are_found_by_words(acme: Shell) -> None:
    """Of all accounts, beside the options; a query that cannot be searched is one line."""
    first, second = accept(acme, "Ada.Lovelace@example.net").id, of_zoo(acme, "cy@example.com")
    assert ids(acme, "example") == [second, first]
    assert ids(acme, "LOVELACE", "ada@") == ids(acme, "lovelace", "--outcome", "queued") == [first]
    assert ids(acme, "ada", "--account", "zoo") == ids(acme, "ada", "--outcome", "bounced") == ids(acme, "velace") == []
    assert ids(acme, second[:-2]) == [second]
    assert "q" in acme.refused("messages", *"abcdefghi")


def test_messages_are_listed_newest_first_of_all_accounts(acme: Shell) -> None:
    first, second = accept(acme, "Ada@Example.NET", "bob@example.net").id, of_zoo(acme, "cy@example.com")
    answer = acme.json("messages")
    assert fields(answer) == fields(documented("message list"))
    assert [(each["id"], each["account"]) for each in answer["messages"]] == [(second, "zoo"), (first, "acme")]
    assert ids(acme, "--account", "acme") == [first]
    assert ids(acme, "--limit", "1") == [second]
    text = acme.text("messages")
    assert text.index(second) < text.index(first)
    assert "Ada@Example.NET and 1 more" in text
    assert "no account named" in acme.refused("messages", "--account", "nobody")


def test_messages_are_found_by_what_options_say(acme: Shell) -> None:
    """By recipient and sender in any spelling, by domain, and by status."""
    first, second = accept(acme, "Ada@example.net").id, accept(acme, "bob@xn--bcher-kva.example").id
    assert ids(acme, "--to", "ADA@example.NET") == ids(acme, "--to", "example.net") == [first]
    assert ids(acme, "--to", "bücher.example") == [second]
    assert ids(acme, "--from", "shop@EXAMPLE.com") == ids(acme, "--from", "example.com") == [second, first]
    assert ids(acme, "--status", "queued", "--to", "example.net") == [first]
    assert ids(acme, "--status", "failed") == ids(acme, "--from", "x@example.com") == []
    assert acme.text("messages", "--status", "failed") == "No message matches.\n"


def test_messages_are_found_by_time(acme: Shell) -> None:
    """As a span, a date, or a time of UTC; a time without a zone is UTC."""
    message, now = accept(acme, "ada@example.net"), OUTSIDE.now()
    hour_later = rfc3339(now + HOUR)
    assert ids(acme, "--since", "1h") == ids(acme, "--since", rfc3339(now - DAY)[:10]) == [message.id]
    assert ids(acme, "--until", hour_later) == ids(acme, "--until", hour_later[:16]) == [message.id]
    assert ids(acme, "--until", "1h") == ids(acme, "--since", hour_later) == []
    assert ids(acme, "--since", "0001-01-01") == ids(acme, "--until", "9999-12-31") == [message.id]


@pytest.mark.parametrize("wrong", ["yesterday", "2x", "-1d", "2026-13-01", "1" * 50 + "d"])
def test_a_time_that_is_none_is_wrong_usage(acme: Shell, wrong: str) -> None:
    assert "2026-11-15" in acme.misused("messages", f"--since={wrong}")


def test_without_a_database_there_is_no_message(shell: Shell) -> None:
    assert shell.text("messages") == "No message matches.\n"
    assert not shell.data_dir.exists()


# ---- explain ADDRESS


def test_an_address_is_explained_with_its_messages(acme: Shell) -> None:
    """Each message with this recipient alone, of every account; an address that nothing was sent to is told as such."""
    first, second = deferred(acme, "Ada@example.net", "bob@example.net").id, of_zoo(acme, "ada@EXAMPLE.net")
    answer = acme.json("explain", "ADA@example.net")
    assert [(each["id"], each["account"]) for each in answer["messages"]] == [(second, "zoo"), (first, "acme")]
    assert [each["email"] for message in answer["messages"] for each in message["recipients"]] == [
        "ada@EXAMPLE.net",
        "Ada@example.net",
    ]
    text = acme.text("explain", "ada@example.net")
    assert text.startswith("ada@example.net is not suppressed\n")
    assert "greylisted" in text
    assert "bob@" not in text
    assert "no message to it is known" in acme.text("explain", "cy@example.net")
    assert "address: " in acme.refused("explain", "a@b@c")


def test_ten_messages_of_an_address_are_explained(acme: Shell) -> None:
    made = [accept(acme, "ada@example.net").id for _ in range(12)]
    assert [each["id"] for each in acme.json("explain", "ada@example.net")["messages"]] == made[:1:-1]


@pytest.mark.parametrize("origin", SuppressionOrigin)
def test_a_suppressed_address_is_explained(acme: Shell, origin: SuppressionOrigin) -> None:
    changed(acme, lambda store, account: store.suppressions.add(account, "ada@example.net", "a reason", origin=origin))
    answer = acme.json("explain", "Ada@Example.net")
    (entry,) = answer["suppressions"]
    assert (entry["account"], entry["origin"], entry["reason"], entry["list"]) == ("acme", origin, "a reason", None)
    assert entry["created_at"].endswith("Z")
    assert "appliance suppression remove --account acme ada@example.net" in entry["advice"]
    assert answer["searched_to"] is None
    first, advice = acme.text("explain", "ada@example.net").splitlines()[:2]
    assert re.fullmatch(r"ada@example\.net is suppressed for acme since [0-9:]+ by [a-z ]+: a reason", first)
    assert advice == f"  {entry['advice']}"


def test_who_unsubscribed_from_a_list_is_explained(acme: Shell) -> None:
    changed(acme, lambda store, account: store.unsubscriptions.add(account, "tag:news", "ada@example.net"))
    (entry,) = acme.json("explain", "ada@example.net")["suppressions"]
    assert (entry["list"], entry["origin"]) == ("tag:news", "unsubscribe")
    assert "remove" not in entry["advice"]
    assert "unsubscribed from the tag news" in acme.text("explain", "ada@example.net")
