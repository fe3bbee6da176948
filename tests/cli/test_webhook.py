"""`appliance webhook …` where no server runs: what is stored, shown once, and refused."""

import json

import pytest

from tests.cli.shell import Shell, fields
from tests.docs.test_cli import documented

URL = "https://1.1.1.1/hook"  # an address: no DNS is asked


def test_a_webhook_is_set_shown_changed_and_removed(acme: Shell) -> None:
    """The secret is shown when it is made, and never again; what is not said stays as it is."""
    assert acme.json("webhook", "show") == {"account": "acme", "webhook": None}
    assert "appliance webhook set --account acme URL" in acme.text("webhook", "show")
    made = acme.json("webhook", "set", URL)
    assert fields(made) == fields(documented("webhook set"))
    assert made["secret"].startswith("whsec_")
    assert made["webhook"]["events"] == ["email.delivered", "email.bounced", "email.failed"]
    changed = acme.json(
        "webhook", "set", "acme", URL + "/2", "--event", "complained", "--event", "bounced", "--disable"
    )
    assert (changed["secret"], changed["webhook"]["enabled"]) == (None, False)
    again = acme.json("webhook", "set", URL)["webhook"]
    assert (again["events"], again["enabled"]) == (["email.bounced", "email.complained"], False)
    assert acme.json("webhook", "set", URL, "--enable")["webhook"]["enabled"] is True
    sendgrid = acme.json("webhook", "set", URL, "--format", "sendgrid")["webhook"]
    assert acme.json("webhook", "set", URL + "/3")["webhook"]["public_key"] == sendgrid["public_key"]
    assert sendgrid["public_key"] in acme.text("webhook", "set", URL)
    assert (again["format"], sendgrid["format"]) == ("native", "sendgrid")
    acme.json("webhook", "set", URL, "--format", "native")
    shown = acme.json("webhook", "show", "acme")
    assert fields(shown) == fields(documented("webhook show"))
    assert made["secret"].endswith(shown["webhook"]["secret_hint"])
    assert made["secret"] not in acme.text("webhook", "show") + acme.text("webhook", "set", URL)
    assert fields(acme.json("webhook", "remove")) == fields(documented("webhook remove"))
    assert "has no webhook" in acme.refused("webhook", "remove")
    assert "has no webhook" in acme.refused("webhook", "ping")


def test_the_secret_is_shown_to_people_once(acme: Shell) -> None:
    assert "shown only once: whsec_" in acme.text("webhook", "set", URL)


@pytest.mark.parametrize(
    "url",
    [
        "http://1.1.1.1/",
        "https://127.0.0.1/",
        "https://10.0.0.1/",
        "ftp://x",
        "nothing",
        "https://1.1.1.1/" + "x" * 2048,
    ],
)
def test_a_url_that_the_interface_refuses_is_refused(acme: Shell, url: str) -> None:
    assert "Error: url: " in acme.refused("webhook", "set", "acme", url)
    assert acme.json("webhook", "show")["webhook"] is None


def test_a_test_event_waits_for_a_server(acme: Shell) -> None:
    """It says so, with 1 for --wait; the second at once is refused, and so is one of a disabled webhook."""
    acme.json("webhook", "set", URL)
    result = acme.run("webhook", "ping", "--wait", "--json")
    answer = json.loads(result.stdout)
    assert (result.exit_code, fields(answer)) == (1, fields(documented("webhook ping")))
    assert (answer["server_running"], answer["response_status"]) == (False, None)
    assert result.stderr == "Error: the receiver did not return a 2xx status\n"
    assert "Ping it again in" in acme.refused("webhook", "ping")
    acme.json("webhook", "set", URL, "--disable")
    assert "disabled" in acme.refused("webhook", "ping")


def test_a_post_is_repeated(acme: Shell) -> None:
    acme.json("webhook", "set", URL)
    first = acme.json("webhook", "ping")
    again = acme.json("webhook", "replay", first["id"])
    assert fields(again) == fields(documented("webhook replay"))
    assert (again["event_id"], again["id"] == first["id"]) == (first["event_id"], False)
    assert "Error: " in acme.refused("webhook", "replay", "acme", "whd_none")


def test_several_accounts_have_to_be_named(acme: Shell) -> None:
    acme.create("zoo")
    assert "there are several accounts" in acme.refused("webhook", "set", URL)
    acme.json("webhook", "set", "zoo", URL)
    assert acme.json("webhook", "show", "acme")["webhook"] is None
    assert "unexpected extra argument" in acme.misused("webhook", "set", "zoo", URL, "more")
