"""`appliance mcp`: the real program over its pipes, tool by tool; what is refused, and when it may send."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.mcp import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, NOT_FOUND, PARSE_ERROR
from appliance.times import HOUR, rfc3339
from tests.cli.shell import Shell, fields
from tests.docs.test_cli import documented
from tests.fork_client import Piped, piped

MAIL = {"from": "shop@example.com", "to": ["ada@example.net"], "subject": "Hello", "text": "Hi"}


class Session:
    """A program that speaks the protocol, at the other end."""

    def __init__(self, process: Piped) -> None:
        self._to, self._from, self._number = process.stdin, process.stdout, 0

    def told(self, line: str) -> Any:
        self._to.write(line + "\n")
        self._to.flush()
        return json.loads(self._from.readline())

    def ask(self, method: str, **given: Any) -> Any:
        self._number += 1
        answer = self.told(json.dumps({"jsonrpc": "2.0", "id": self._number, "method": method, "params": given}))
        assert (answer["jsonrpc"], answer["id"]) == ("2.0", self._number)
        return answer

    def call(self, tool: str, **arguments: Any) -> Any:
        return self.ask("tools/call", name=tool, arguments=arguments)["result"]

    def found(self, tool: str, **arguments: Any) -> Any:
        """The object that a tool that succeeds answers with, which it also tells as text."""
        result = self.call(tool, **arguments)
        assert not result["isError"], result
        (content,) = result["content"]
        assert json.loads(content["text"]) == result["structuredContent"]
        return result["structuredContent"]

    def refused(self, tool: str, **arguments: Any) -> str:
        result = self.call(tool, **arguments)
        assert result["isError"]
        text: str = result["content"][0]["text"]
        return text

    def fault(self, method: str, **given: Any) -> tuple[int, str]:
        error = self.ask(method, **given)["error"]
        return error["code"], error["message"]


Start = Callable[..., Session]


@pytest.fixture
def start(acme: Shell, tmp_path: Path) -> Iterator[Start]:
    """Starts the program, and sees that it ends cleanly with its input."""
    acme.json("domain", "add", "acme", "example.com")
    running: list[Piped] = []

    def started(*options: str, key: str = "") -> Session:
        words = ("mcp", *options, "--config", str(acme.config))
        process = piped(*words, directory=tmp_path, environment=os.environ | {"APPLIANCE_API_KEY": key})
        running.append(process)
        return Session(process)

    yield started
    for process in running:
        assert process.communicate(60)[0] == ""
        assert process.returncode == 0


def test_it_says_what_it_is(start: Start) -> None:
    """A version of the protocol that it does not know gets its newest; a notification gets no answer."""
    session = start()
    known = session.ask("initialize", protocolVersion="2024-11-05")["result"]
    assert known["protocolVersion"] == "2024-11-05"
    assert known["serverInfo"]["name"] == "mail-appliance"
    assert session.ask("initialize", protocolVersion="1999-01-01")["result"]["protocolVersion"] == "2025-06-18"
    line = '{"jsonrpc": "2.0", "method": "notifications/initialized"}\n\n'
    assert session.told(line + '{"jsonrpc": "2.0", "id": "x", "method": "ping"}')["id"] == "x"


def test_its_tools_answer_as_the_commands_do(start: Start, acme: Shell) -> None:
    session = start(key=acme.json("key", "create", "acme", "--test")["key"])
    tools = {each["name"]: each for each in session.ask("tools/list")["result"]["tools"]}
    sent = session.found("send_email", **MAIL)
    found = session.found("search_messages", to="example.net", limit=5)
    assert [each["id"] for each in found["messages"]] == [sent["id"]]
    assert found == acme.json("messages")
    assert session.found("search_messages", status="failed")["messages"] == []
    assert session.found("search_messages", query="hello ada@ex", outcome="queued") == found
    explained = session.found("explain", what=sent["id"], dialogue=True)
    assert fields(explained) == fields(acme.json("explain", sent["id"]))
    assert session.found("explain", what="ada@example.net")["messages"][0]["id"] == sent["id"]
    records = acme.json("domain", "records", "acme", "example.com")
    assert session.found("domain_records", domain="example.com") == records
    assert session.found("domain_records", account="acme", domain="example.com") == records
    assert session.found("list_domains") == acme.json("domain", "list", "acme")
    assert session.found("list_accounts") == acme.json("account", "list")
    assert session.found("queue") == acme.json("queue")
    assert set(session.found("doctor")) == set(documented("doctor"))
    changing = {"send_email", "reschedule_email", "cancel_email"}
    called = changing | {"search_messages", "explain", "domain_records", "list_domains", "list_accounts", "queue"}
    assert set(tools) == called | {"doctor"}
    assert {name for name, tool in tools.items() if not tool["annotations"]["readOnlyHint"]} == changing


def test_what_is_asked_wrongly_is_told(start: Start) -> None:
    """A request that is none is an error of the protocol; what a command refuses is an answer to read."""
    session = start()
    assert session.told("{")["error"]["code"] == session.told("[" * 100_000)["error"]["code"] == PARSE_ERROR
    assert session.told("[]")["error"]["code"] == session.told('{"id": 1}')["error"]["code"] == INVALID_REQUEST
    assert session.fault("tools/forget")[0] == METHOD_NOT_FOUND
    call = "tools/call"
    assert session.fault(call, name="forget") == (INVALID_PARAMS, "no tool 'forget'")
    assert session.fault(call, name="explain") == (INVALID_PARAMS, "what: required")
    assert session.fault(call, name="explain", arguments={"what": 7})[1] == "what: must be of type string"
    assert session.fault(call, name="queue", arguments={"a": 1})[1] == "a: not an argument of queue"
    assert session.fault(call, name="queue", arguments=[1])[1] == "arguments: must be an object"
    assert "no message '--help'" in session.refused("explain", what="--help")
    assert "no account named '--json'" in session.refused("list_domains", account="--json")
    assert "'nope' is not one of" in session.refused("search_messages", status="nope")


def test_it_moves_and_cancels_as_the_key_may(start: Start, acme: Shell) -> None:
    """Scheduled mail only of the key's own account, and a test key's only if it is simulated."""
    later, latest = (rfc3339(time.time_ns() // 1000 + hours * HOUR) for hours in (1, 2))
    live = acme.json("key", "create", "acme", "--scope", "full")["key"]
    session = start("--allow-send", key=live)
    extra: dict[str, Any] = {"scheduled_at": later, "metadata": {"order": "10045"}}
    sent = session.found("send_email", **MAIL, **extra)
    assert sent["scheduled_at"] == later
    testing = start(key=acme.json("key", "create", "acme", "--test")["key"])
    for stranger, words in ((testing, "No message has this id"), (start(key=live), "--allow-send")):
        assert words in stranger.refused("cancel_email", id=sent["id"])
        assert words in stranger.refused("reschedule_email", id=sent["id"], scheduled_at=latest)
    moved = session.found("reschedule_email", id=sent["id"], scheduled_at=latest)
    assert (moved["scheduled_at"], moved["metadata"]) == (latest, {"order": "10045"})
    assert "scheduled_at: expected an RFC 3339" in session.refused("reschedule_email", id=sent["id"], scheduled_at="2h")
    call = "tools/call"
    expected = "scheduled_at: expected the arguments id and scheduled_at, each a string"
    assert session.fault(call, name="reschedule_email", arguments={"id": "a"}) == (INVALID_PARAMS, expected)
    assert session.fault(call, name="cancel_email", arguments={"id": "a", "b": 1})[1].startswith("b: expected")
    cancelled = session.found("cancel_email", id=sent["id"])
    assert (cancelled["status"], cancelled["recipients"][0]["status"]) == ("failed", "failed")
    assert "left to cancel" in session.refused("cancel_email", id=sent["id"])
    found = {(line["action"], line["object"], line["address"]) for line in acme.json("audit")["audit"]}
    assert {(f"email.{what}", sent["id"], "mcp") for what in ("rescheduled", "cancelled")} <= found


def test_it_sends_only_what_it_may(start: Start, acme: Shell) -> None:
    """Not without a key; by a test key, which simulates; by others only if that was allowed at the start."""
    assert start().fault("tools/call", name="send_email", arguments=MAIL)[1] == "no tool 'send_email'"
    assert "not an API key" in start(key="ma_live_x").refused("send_email", **MAIL)
    reading = acme.json("key", "create", "acme", "--scope", "read")["key"]
    assert "may only read" in start("--allow-send", key=reading).refused("send_email", **MAIL)
    live = acme.json("key", "create", "acme")["key"]
    assert "--allow-send" in start(key=live).refused("send_email", **MAIL)
    assert acme.json("messages")["messages"] == []
    allowed = start("--allow-send", key=live)
    assert "from: " in allowed.refused("send_email", **(MAIL | {"from": "shop@elsewhere.example"}))
    assert allowed.found("send_email", **MAIL)["credits_reserved"] == 1
    (message,) = acme.json("messages")["messages"]
    assert message["source"] == "api"


def test_it_has_the_documentation(start: Start) -> None:
    session, directory = start(), Path(__file__).parents[2] / "docs"
    listed = session.ask("resources/list")["result"]["resources"]
    assert {each["name"] for each in listed} == {str(path.relative_to(directory)) for path in directory.rglob("*.md")}
    (read,) = session.ask("resources/read", uri="appliance:///docs/dns.md")["result"]["contents"]
    assert read["text"] == (directory / "dns.md").read_text()
    for uri in ("appliance:///docs/../README.md", "dns.md", 7):
        assert session.fault("resources/read", uri=uri)[0] == NOT_FOUND
