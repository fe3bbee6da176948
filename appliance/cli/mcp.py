"""`appliance mcp`: a Model Context Protocol server over stdin and stdout, for assistants and editors.

Each line is one JSON-RPC 2.0 message. A tool runs a command of this program with --json, so both return the same. All
tools only read, except those of `_KEYED`: they need an API key, and `--allow-send` if that key sends real mail.
"""

import io
import json
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from appliance import __version__
from appliance.cli import database
from appliance.cli.options import Command, config_option, flag, named_config
from appliance.environment import Environment
from appliance.errors import Code, Refused

if TYPE_CHECKING:
    from appliance.config.settings import Config
    from appliance.model.accounts import Caller
    from appliance.store import Store

Json = dict[str, Any]

_PROTOCOLS = ("2025-06-18", "2025-03-26", "2024-11-05")  # versions of the protocol, newest first
_LINE_BYTES = 4 * 1024 * 1024
_KEY_VARIABLE = "APPLIANCE_API_KEY"
_DOCUMENT_URI = "appliance:///docs/"
PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
NOT_FOUND = -32002  # of a resource
_INSTRUCTIONS = (
    "A self-hosted mail server. `explain` says why a message is queued or bounced, or reports on an address; "
    "`search_messages` finds messages; `doctor` finds faults that prevent delivery. Times are UTC."
)


class _Fault(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


class _Argument(NamedTuple):
    """A parameter of a tool: an option of the command, or without `option` an argument."""

    name: str
    schema: Json
    option: str = ""
    required: bool = False


class _Tool(NamedTuple):
    name: str
    command: tuple[str, ...]
    description: str
    arguments: tuple[_Argument, ...] = ()

    def described(self) -> Json:
        schema = _schema({argument.name: argument.schema for argument in self.arguments})
        schema["required"] = [argument.name for argument in self.arguments if argument.required]
        hints = {"readOnlyHint": True, "openWorldHint": False}
        return {"name": self.name, "description": self.description, "inputSchema": schema, "annotations": hints}

    def words(self, values: Json) -> list[str]:
        """Return the command line. No value is in a place where click could read it as an option."""
        options, words = list[str](), list[str]()
        for argument in self.arguments:
            value = values.pop(argument.name, None)
            if value is None:
                if argument.required:
                    raise _Fault(INVALID_PARAMS, f"{argument.name}: required")
                continue
            if type(value) is not _KINDS[argument.schema["type"]]:
                raise _Fault(INVALID_PARAMS, f"{argument.name}: must be of type {argument.schema['type']}")
            if value is True:
                options.append(argument.option)
            elif argument.option and value is not False:
                options.append(f"{argument.option}={value}")
            elif not argument.option:
                words.append(str(value))
        if values:
            raise _Fault(INVALID_PARAMS, f"{next(iter(values))}: not an argument of {self.name}")
        return [*self.command, *options, "--json", "--", *words]


def _schema(properties: Json) -> Json:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _text(description: str) -> Json:
    return {"type": "string", "description": description}


_KINDS: dict[str, type] = {"string": str, "boolean": bool, "integer": int}
_ACCOUNT = _Argument("account", _text("Name of the account; optional if there is only one."))
_DOMAIN = _Argument("domain", _text("A sending domain of the account."), required=True)
_MESSAGE = _text("The message's id (msg_…).")
_AHEAD = "RFC 3339 with an offset, up to 30 days ahead, such as 2026-11-15T13:00:00+01:00."
_CHANGES = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}
_MOMENT = "A span before now (30m, 12h, 2d), a date or a UTC time."
_TOOLS = (
    _Tool(
        "explain",
        ("explain",),
        "The status of each recipient of a message and the reason; or a report on an address and the newest mail to it",
        (
            _Argument("what", _text("A message's id (msg_…) or an email address."), required=True),
            _Argument("dialogue", {"type": "boolean", "description": "Include the SMTP dialogue."}, "--dialogue"),
        ),
    ),
    _Tool(
        "search_messages",
        ("message", "list"),
        "Find messages, newest first; a message must match all arguments.",
        (
            _Argument("query", _text("Words, or their prefixes, in addresses, subject, ids, tags and server replies.")),
            _Argument("account", _text("Only messages of this account."), "--account"),
            _Argument("to", _text("A recipient's address, or its domain."), "--to"),
            _Argument("from", _text("The sender's address, or its domain."), "--from"),
            _Argument("status", _text("queued, delivered, partial or failed."), "--status"),
            _Argument(
                "outcome",
                _text(
                    "Of a recipient: scheduled, bounced, deferred, suppressed, cancelled, late_bounced, complained …"
                ),
                "--outcome",
            ),
            _Argument("since", _text(_MOMENT), "--since"),
            _Argument("until", _text(_MOMENT), "--until"),
            _Argument("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "--limit"),
        ),
    ),
    _Tool("queue", ("queue",), "The queue by pool and destination, with the reason for each delay."),
    _Tool("list_accounts", ("account", "list"), "The accounts, with their credits."),
    _Tool("list_domains", ("domain", "list"), "The sending domains of an account.", (_ACCOUNT,)),
    _Tool("domain_records", ("domain", "records"), "The DNS records to publish for a domain.", (_ACCOUNT, _DOMAIN)),
    _Tool(
        "doctor",
        ("doctor",),
        "Check everything that mail depends on: port 25, DNS, certificates, clock, disk. Takes a few seconds.",
        (_Argument("blocklists", {"type": "boolean", "description": "Also check blocklists."}, "--blocklists"),),
    ),
)
_SEND: Json = {
    "name": "send_email",
    "description": "Send a message: the fields are those of POST /emails.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "from": _text("The sender, in a domain of the account."),
            "to": {"type": "array", "items": {"type": "string"}, "description": "The recipients."},
            "subject": _text("The subject."),
            "text": _text("Plain text; text or html is required."),
            "html": _text("HTML."),
            "scheduled_at": _text(f"When to send it: {_AHEAD} Default: at once."),
            "metadata": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "description": "Up to 20 values by key, returned with the message and in events, and never sent.",
            },
        },
        "required": ["from", "to", "subject"],
    },
    "annotations": _CHANGES,
}
_RESCHEDULE: Json = {
    "name": "reschedule_email",
    "description": "Move a scheduled message that is not due yet to another time.",
    "inputSchema": _schema({"id": _MESSAGE, "scheduled_at": _text(_AHEAD)}) | {"required": ["id", "scheduled_at"]},
    "annotations": _CHANGES,
}
_CANCEL: Json = {
    "name": "cancel_email",
    "description": "Cancel all recipients of a message that are scheduled, queued or deferred.",
    "inputSchema": _schema({"id": _MESSAGE}) | {"required": ["id"]},
    "annotations": _CHANGES,
}


@click.command(cls=Command, reads=True)
@flag("--allow-send", "Allow tools to send and change real mail, with a key that is not a test key.")
@config_option
def mcp(allow_send: bool) -> None:
    """Serve the Model Context Protocol over stdin and stdout, for assistants and editors.

    Clients can explain messages and addresses, search, see the queue, run doctor and read the documentation. They can
    send, reschedule and cancel only if $APPLIANCE_API_KEY holds an API key: a test key, whose mail is simulated, or
    with --allow-send any key.

    Examples:
      appliance mcp
      APPLIANCE_API_KEY=ma_test_… appliance mcp
    """
    database.prepare(database.load_settings())
    key = os.environ.get(_KEY_VARIABLE) or None
    methods: dict[str, Callable[[Json], Json]] = {
        "initialize": _initialize,
        "ping": lambda _: {},
        "tools/list": lambda _: {
            "tools": [tool.described() for tool in _TOOLS] + ([tool for tool, _ in _KEYED] if key else [])
        },
        "tools/call": partial(_call, key, allow_send),
        "resources/list": _list_documents,
        "resources/read": _read_document,
    }
    while line := sys.stdin.buffer.readline(_LINE_BYTES):
        if len(line) == _LINE_BYTES:
            raise click.ClickException(f"message larger than {_LINE_BYTES} bytes received")
        if line.strip() and (answer := _answer(line, methods)) is not None:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


def _answer(line: bytes, methods: dict[str, Callable[[Json], Json]]) -> Json | None:
    """Return the response to a message; None for a notification."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return _failed(None, _Fault(PARSE_ERROR, "not valid JSON"))
    if not isinstance(message, dict) or not isinstance(message.get("method"), str):
        return _failed(None, _Fault(INVALID_REQUEST, "not a JSON-RPC 2.0 request"))
    identifier, params = message.get("id"), message.get("params") or {}
    if identifier is None:
        return None
    try:
        if (method := methods.get(message["method"])) is None:
            raise _Fault(METHOD_NOT_FOUND, f"no method {message['method'][:100]!r}")
        if not isinstance(params, dict):
            raise _Fault(INVALID_PARAMS, "params: must be an object")
        return {"jsonrpc": "2.0", "id": identifier, "result": method(params)}
    except _Fault as fault:
        return _failed(identifier, fault)


def _initialize(params: Json) -> Json:
    version = params.get("protocolVersion")
    return {
        "protocolVersion": version if version in _PROTOCOLS else _PROTOCOLS[0],
        "capabilities": {"tools": {}, "resources": {}},
        "serverInfo": {"name": "mail-appliance", "version": __version__},
        "instructions": _INSTRUCTIONS,
    }


def _call(key: str | None, allow_send: bool, params: Json) -> Json:
    name, arguments = params.get("name"), params.get("arguments") or {}
    if not isinstance(arguments, dict):
        raise _Fault(INVALID_PARAMS, "arguments: must be an object")
    try:
        for keyed, work in _KEYED if key is not None else ():
            if keyed["name"] == name:
                return _content(_with_key(key or "", work, arguments, allow_send=allow_send))
        for tool in _TOOLS:
            if tool.name == name:
                return _content(_run(tool.words(dict(arguments))))
    except click.ClickException as error:
        return _content(error.format_message(), failed=True)
    raise _Fault(INVALID_PARAMS, f"no tool {str(name)[:100]!r}")


def _failed(identifier: object, fault: _Fault) -> Json:
    return {"jsonrpc": "2.0", "id": identifier, "error": {"code": fault.code, "message": fault.text}}


def _content(text: str, *, failed: bool = False) -> Json:
    answer: Json = {"content": [{"type": "text", "text": text}], "isError": failed}
    return answer if failed else answer | {"structuredContent": json.loads(text)}


def _run(words: list[str]) -> str:
    from appliance.cli import main

    config, printed = named_config(), io.StringIO()
    command_line = [*(["--config", str(config)] if config else []), *words]
    try:
        with redirect_stdout(printed):
            main.main(command_line, prog_name="appliance", standalone_mode=False)
    except click.ClickException:
        if not printed.getvalue():
            raise
        # The output describes the fault; the exception is only for the exit code.
    return printed.getvalue()


def _with_key(key: str, act: "_Act", arguments: Json, *, allow_send: bool) -> str:
    settings, env = database.load_settings(), Environment()

    async def work(store: "Store") -> str:
        caller = await store.access.caller_by_key(key)
        ends_at = caller.key.expires_at if caller and caller.key else None
        if caller is None or (ends_at is not None and ends_at <= env.now()):
            raise Refused(Code.UNAUTHORIZED, f"${_KEY_VARIABLE} is not an API key of this installation, or has expired")
        if not caller.may_send:
            raise Refused(Code.FORBIDDEN, "this key cannot send: it may only read")
        if not (caller.test or allow_send):
            text = "this key sends real mail: use a test key, or start `appliance mcp --allow-send`"
            raise Refused(Code.FORBIDDEN, text)
        return (await act(_Sender(settings, env, store, caller), arguments)).decode()

    return database.run(work, settings=settings)


class _Sender(NamedTuple):
    settings: "Config"
    env: "Environment"
    store: "Store"
    caller: "Caller"


async def _send(sender: _Sender, fields: Json) -> bytes:
    from appliance.intake.services import build_services
    from appliance.message.request import decode, fingerprint

    settings, env, store, caller = sender
    body = json.dumps(fields).encode()
    intake = build_services(settings, env, store, await database.installation_key(store, settings)).intake
    intake.check_open(caller)
    identifier = env.identifier("req")
    request, key = decode(body), f"mcp_{identifier}"
    return (await intake.send(caller, request, key, fingerprint(request), identifier, len(body))).receipt


async def _reschedule(sender: _Sender, arguments: Json) -> bytes:
    from appliance.message.schedule import due_time

    message_id, scheduled_at = _texts(arguments, "id", "scheduled_at")
    due_at = due_time(scheduled_at, sender.env.now())
    move = partial(sender.store.scheduled.move, sender.caller.account_id, message_id, due_at)
    return await _change(sender, message_id, "email.rescheduled", move)


async def _cancel(sender: _Sender, arguments: Json) -> bytes:
    (message_id,) = _texts(arguments, "id")
    cancel = sender.store.queue_control.cancel
    by_sender = partial(cancel, message_id, "by its sender", sender.caller.account_id)
    return await _change(sender, message_id, "email.cancelled", by_sender)


async def _change(sender: _Sender, message_id: str, action: str, work: Callable[[], Awaitable[object]]) -> bytes:
    from appliance.web.api.message_objects import message_json
    from appliance.web.app import actor_of
    from appliance.web.sent import check_may_change, visible_message

    _, env, store, caller = sender
    await check_may_change(store, caller, message_id)
    assert caller.key is not None  # noqa: S101 - found by its key
    async with store.audit.noting(actor_of(caller.key), action, "mcp", [caller.account_id], message_id):
        await work()
    return message_json(await visible_message(store, caller, message_id), env.identifier("req"))


def _texts(arguments: Json, *names: str) -> list[str]:
    for name in (*names, *arguments):
        if name not in names or not isinstance(arguments.get(name), str):
            raise _Fault(INVALID_PARAMS, f"{name}: expected the arguments {' and '.join(names)}, each a string")
    return [arguments[name] for name in names]


_Act = Callable[[_Sender, Json], Awaitable[bytes]]
_KEYED: tuple[tuple[Json, _Act], ...] = ((_SEND, _send), (_RESCHEDULE, _reschedule), (_CANCEL, _cancel))


def _list_documents(_: Json) -> Json:
    from appliance.web.documents import documents

    listed = [{"uri": _DOCUMENT_URI + name, "name": name, "mimeType": "text/markdown"} for name in documents()]
    return {"resources": listed}


def _read_document(params: Json) -> Json:
    from appliance.web.documents import documents

    uri = str(params.get("uri"))
    if (text := documents().get(uri.removeprefix(_DOCUMENT_URI))) is None or not uri.startswith(_DOCUMENT_URI):
        raise _Fault(NOT_FOUND, f"no document {uri[:200]!r}")
    return {"contents": [{"uri": uri, "mimeType": "text/markdown", "text": text.decode()}]}
