"""The fence around hypercorn: one file imports it, and what is overridden, relied upon and run is known by name."""

import ast
import inspect
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import hypercorn
import pytest
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer

from appliance.web import http1, hypercorn_parts, server
from tests.web.test_server_connection import Echo, quick, serving, slow

OVERRIDDEN = {
    (server.HttpConnection, TCPServer): {"__init__", "run", "protocol_send", "_close"},
    (http1.Http1, H11Protocol): {"handle", "stream_send", "_create_stream", "_maybe_recycle"},
    (hypercorn_parts.HttpExchange, HTTPStream): {"app_send", "_send_closed"},
    (http1.InlineTaskGroup, TaskGroup): {"__init__", "spawn_app"},
}
PARAMETERS = {
    TCPServer.__init__: ["app", "config", "context", "state", "stream"],
    H11Protocol.__init__: [
        *("app", "config", "context", "task_group", "connection_state", "ssl", "client", "server", "send")
    ],
    H11Protocol._send_h11_event: ["event"],
    HTTPStream.__init__: [*("app", "config", "context", "task_group", "ssl", "client", "server", "send", "stream_id")],
    HTTPStream.handle: ["event"],
    HTTPStream.app_send: ["message"],
    TaskGroup.spawn_app: ["app", "config", "scope", "send"],
}
# For a connection, for each of its requests, and for an answer in pieces.
RUN = {
    *("TCPServer.__init__", "TrioSingleTask.__init__", "TaskGroup.__init__", "H11Protocol.__init__"),
    *("WorkerContext.__init__", "EventWrapper.__init__", "EventWrapper.is_set", "parse_socket_addr"),
    *("HTTPStream.__init__", "HTTPStream.handle", "Config.root_path", "valid_server_name"),
    *("HTTPStream.app_send", "build_and_validate_headers", "suppress_body", "H11Protocol._send_h11_event"),
}


def test_one_file_imports_hypercorn() -> None:
    package = Path(inspect.getfile(hypercorn_parts)).parent.parent
    found = set()
    for path in package.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "hypercorn" in text else ():
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "hypercorn" for name in names):
                found.add(path.name)
    assert found == {"hypercorn_parts.py"}


@pytest.mark.parametrize(("ours", "theirs"), OVERRIDDEN, ids=lambda each: each.__name__)
def test_what_is_overridden_is_still_there(ours: type, theirs: type) -> None:
    """A method of hypercorn that gets another name, or a new one with a name of ours, is noticed here."""
    same = {name for name, value in vars(ours).items() if name in vars(theirs) and callable(value)}
    assert same == OVERRIDDEN[ours, theirs]


@pytest.mark.parametrize("function", PARAMETERS, ids=lambda each: each.__qualname__)
def test_what_is_called_takes_the_same_arguments(function: Any) -> None:
    assert list(inspect.signature(function).parameters)[1:] == PARAMETERS[function]


class Streaming(Echo):
    """Answers in two pieces."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        headers = [(b"content-length", b"%d" % (2 * len(body)))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for more in (True, False):
            await send({"type": "http.response.body", "body": body, "more_body": more})


async def test_the_functions_of_hypercorn_that_run_are_known() -> None:
    ran: set[str] = set()
    package = str(Path(hypercorn.__file__).parent)

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            ran.add(frame.f_code.co_qualname)

    expecting = slow(b"c").replace(b"Host: h\r\n", b"Host: h\r\nExpect: 100-continue\r\n")
    sys.setprofile(note)
    try:
        async with serving(Echo()) as served:
            await served.client.send_all(quick(b"a") + slow(b"b"))
            assert await served.answers(2) == [b"a", b"b"]
            head, body = expecting.split(b"\r\n\r\n", 1)
            await served.client.send_all(head + b"\r\n\r\n")
            assert (await served.client.receive_some()).startswith(b"HTTP/1.1 100 Continue\r\n")
            await served.client.send_all(body)
            assert await served.answers(1) == [b"c"]
        async with serving(Streaming()) as served:
            await served.client.send_all(slow(b"d"))
            assert await served.answers(1) == [b"dd"]
    finally:
        sys.setprofile(None)
    assert ran == RUN
