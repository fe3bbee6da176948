"""`appliance send-test` where no server runs: what is queued, and what is refused."""

import json

import pytest

from tests.cli.shell import Shell, fields
from tests.docs.test_cli import documented


@pytest.fixture
def sender(acme: Shell) -> Shell:
    acme.json("domain", "add", "acme", "zoo.example")
    acme.json("domain", "add", "acme", "acme.example")
    return acme


def test_a_test_is_queued_for_a_later_server(sender: Shell) -> None:
    """The only account need not be named; the first domain sends; it costs nothing; the text says what is missing."""
    answer = sender.json("send-test", "--to", "Ada@example.net")
    assert fields(answer) == fields(documented("send-test"))
    assert (answer["account"], answer["from"], answer["to"]) == ("acme", "test@acme.example", "Ada@example.net")
    assert (answer["status"], answer["server_running"]) == ("queued", False)
    (listed,) = sender.json("messages")["messages"]
    assert (listed["id"], listed["source"], listed["subject"]) == (answer["id"], "test", "A test message")
    assert sender.json("account", "show", "acme")["credits"] == 100
    assert "No server is running" in sender.text(
        "send-test", "acme", "--to", "ada@example.net", "--from", "a@zoo.example"
    )


def test_nothing_is_waited_for_without_a_server(sender: Shell) -> None:
    result = sender.run("send-test", "--to", "ada@example.net", "--wait", "--json")
    assert (result.exit_code, json.loads(result.stdout)["status"]) == (1, "queued")


def test_a_suppressed_address_is_told(sender: Shell) -> None:
    sender.json("suppressions", "add", "acme", "ada@example.net")
    result = sender.run("send-test", "--to", "ada@example.net", "--wait")
    assert result.exit_code == 1
    assert result.stderr.endswith(" is not delivered: it is bounced\n")
    assert "never asked a server" in result.stdout


def test_what_cannot_be_sent_is_refused(sender: Shell) -> None:
    """A foreign sender, no address, a suspended account, no domain, and several accounts without a name."""
    assert "is not registered" in sender.refused("send-test", "--to", "a@x.example", "--from", "a@other.example")
    assert "to: " in sender.refused("send-test", "--to", "nobody")
    sender.json("account", "suspend", "acme")
    assert "suspended" in sender.refused("send-test", "--to", "a@x.example")
    sender.create("zoo")
    assert "no verified domain" in sender.refused("send-test", "zoo", "--to", "a@x.example")
    assert "there are several accounts" in sender.refused("send-test", "--to", "a@x.example")
    assert sender.json("messages")["messages"] == []
