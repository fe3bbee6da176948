"""Changed copies of everything that strangers send, given to the readers of the program at full speed.

    .venv/bin/python -m tests.torture.streams http 4711 1234    # one input again: its kind, the seed and its number

Each input is made of its kind, the seed and its number. A reader may refuse it, in the way that it declares, or read it
as the library does that others read such bytes with: h11 for requests, json for bodies, aiosmtpd for commands and the
end of DATA, smtplib for replies, http.client for answers, dnspython for the DNS, the standard library's email for
reports. Our readers are the stricter ones: what they refuse another may take, but what they take means the same to
both.
"""

import argparse
import asyncio
import http.client
import io
import json
import multiprocessing
import os
import re
import smtplib
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from email import message_from_bytes
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset
import h11
import trio
from aiosmtpd.smtp import SMTP as AiosmtpdServer
from aiosmtpd.smtp import Envelope, Session
from msgspec import UNSET

from appliance.deliver.smtp.protocol import (
    LINE_CHARACTERS,
    Capabilities,
    RelayCredentials,
    ReplyFault,
    ReplyReader,
    ResultKind,
    SmtpExchange,
)
from appliance.deliver.smtp.sending import MailTransaction, Opening, OpeningState, Sending, prepare
from appliance.dns.resolver import NEGATIVE_TTL_LIMIT, TTL_LIMIT, DnsFault, LookupFailed, read_answer
from appliance.dns.wire import READERS, BadDnsReply, DnsPacket, read_reply
from appliance.errors import Refused
from appliance.feedback.mime import open_mail
from appliance.inbound.listener import FeedbackListener, checked_mail
from appliance.message.characters import has_lone_line_end
from appliance.message.compose import draft
from appliance.message.limits import PARTS
from appliance.message.request import decode
from appliance.message.submitted import read as read_submitted
from appliance.net.http import REQUEST_HEAD_BYTES
from appliance.submission import dialogue
from appliance.submission.content import DataContent, FindCaller, FindRecipient, PlainAction, Submit
from appliance.submission.dialogue import Rejected
from appliance.submission.protocol import SmtpProtocol
from appliance.web import hypercorn_parts as hypercorn
from appliance.web.exchange import Answer, Peer
from appliance.web.http1 import Http1, InlineTaskGroup, QuickRequest
from appliance.webhook.connect import NotPosted
from appliance.webhook.post import BODY_KEPT, Posted, exchange
from tests.e2e.raw import check_error, parsed
from tests.feedback.mutated_mail import GROWTH, LONGEST, MAILS, made, most_memory, read_all
from tests.feedback.mutations import mutated
from tests.inbound.test_listener import made as feedback_session
from tests.message.samples import body as sample_body
from tests.message.test_submitted import WHOLE
from tests.submission.offline_client import credential
from tests.submission.offline_client import talk as submission_session
from tests.web.test_http1_fast_post import FIELDS, LINES, PLAIN

SEEDS_APART = 10**9
IN_ONE_TASK = 2_500
SHOWN = 600  # octets of an input that failed

LINE_ENDS = (b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"\n\n", b"\0", b"\xff", b"\xc2\x85", b" ", b"\t", b":", b"")


class Wrong(Exception):
    """What a reader did that it may not do."""


def cut(chance: Random, data: bytes) -> Iterator[bytes]:
    """The same bytes, whole or as the network may bring them: in some pieces, or byte by byte for a while."""
    way, size = chance.random(), len(data)
    if way < 0.5 or not size:
        places: Sequence[int] = ()
    elif way < 0.9:
        places = sorted(int(chance.random() * size) for _ in range(1 + int(6 * chance.random())))
    else:
        begin = int(chance.random() * size)
        places = range(begin, min(begin + 40, size))
    at = 0
    for end in (*places, size):
        if end > at:
            yield data[at:end]
            at = end


# ---- HTTP requests

REQUEST_PIECES = (
    *LINE_ENDS, *FIELDS[:-1], *LINES, b"0\r\n\r\n", b"5\r\nhello\r\n", b"1;a=b\r\nx\r\n", b"0\r\nTrailer: x\r\n\r\n",
    b"ffffffff\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Host: a\r\n", b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", b" HTTP/2.0\r\n", b"%00", b"http://a/",
    b"Expect: 100-continue\r\n",
)  # fmt: skip
Seen = tuple[str, bytes, list[tuple[bytes, bytes]], bytes]  # method, target, headers, body


def a_request(chance: Random) -> bytes:
    return b"".join(_one_request(chance) for _ in range(chance.choice((1, 1, 2, 3))))


def _one_request(chance: Random) -> bytes:
    body = chance.randbytes(chance.choice((0, 2, 5, 300)))
    fields = [*PLAIN, *chance.sample(FIELDS, chance.choice((0, 0, 0, 1, 2)))]
    if chance.random() < 0.3:
        fields.append(b"Transfer-Encoding: chunked")
        body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in cut(chance, body)) + b"0\r\n\r\n"
    else:
        fields.append(b"Content-Length: %d" % len(body))
    chance.shuffle(fields)
    first = chance.choice((b"POST /emails", b"POST /emails", b"GET /healthz", b"PUT /v1/templates/a?b=c", b"HEAD /"))
    return first + b" HTTP/1.1\r\n" + b"\r\n".join([*fields, b"", b""]) + body


@dataclass
class Recorded:
    """An application that notes the requests that have come to their end, and answers each."""

    seen: list[Seen] = field(default_factory=list)
    answered: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """By h11 and ASGI."""
        body, event, status = b"", {"more_body": True}, 200
        try:
            while event.get("more_body"):
                event = await receive()
                body += cast(bytes, event.get("body", b""))
        except Refused:
            status = 400
        if event.get("more_body") is False:
            query = b"?" + scope["query_string"] if scope["query_string"] else b""
            self.seen.append((scope["method"], scope["raw_path"] + query, list(scope["headers"]), body))
        self.answered += 1
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def send_whole(self, request: QuickRequest, peer: Peer, *, secure: bool) -> tuple[Answer, bool]:
        self.seen.append(("POST", b"/emails", list(request.headers.items()), request.body))
        self.answered += 1
        return (200, [(b"content-length", b"0")], b""), False


async def served(data: bytes, chance: Random) -> tuple[Recorded, bytes, bool]:
    """What a connection makes of these bytes: the application, the bytes sent, and whether it was closed by us."""
    app, out, pieces, closed = Recorded(), bytearray(), cut(chance, data), False

    async def read_more() -> bytes:
        return next(pieces, b"")

    async def send(event: hypercorn.Event) -> None:
        nonlocal closed
        if type(event) is hypercorn.RawData:
            out.extend(event.data)
        elif type(event) is hypercorn.Closed:
            closed = True

    peer, context = Peer(("127.0.0.1", 1)), hypercorn.WorkerContext(None)
    tasks = InlineTaskGroup(lambda: protocol.receive(), peer)
    state = hypercorn.ConnectionState({})
    protocol = Http1(app, _hypercorn(), context, tasks, state, False, peer.address, None, send)  # type: ignore[arg-type]
    protocol.listen(lambda: "req_1", read_more, peer)
    while not closed and (piece := await read_more()):
        await protocol.handle(hypercorn.RawData(piece))
    return app, bytes(out), closed


@cache
def _hypercorn() -> hypercorn.HypercornConfig:
    return hypercorn.hypercorn_config()


def by_h11(data: bytes) -> list[Seen]:
    """The requests that h11 reads alone."""
    seen: list[Seen] = []
    while data:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=4 * REQUEST_HEAD_BYTES)
        connection.receive_data(data.removeprefix(b"\r\n"))  # RFC 9112 2.2; h11 does not
        body = b""
        try:
            request = connection.next_event()
            if not isinstance(request, h11.Request):
                break
            while isinstance(event := connection.next_event(), h11.Data):
                body += event.data
        except h11.RemoteProtocolError:
            break
        if not isinstance(event, h11.EndOfMessage):
            break
        seen.append((request.method.decode().upper(), request.target, list(request.headers), body))
        data = connection.trailing_data[0]
    return seen


async def check_http(data: bytes, chance: Random) -> None:
    """A request is what h11 reads, or is refused; each has one answer."""
    app, out, _ = await served(data, chance)
    others = by_h11(data)
    for number, ours in enumerate(app.seen):
        if number >= len(others):
            raise Wrong(f"a request that h11 does not read: {ours!r}")
        theirs = others[number]
        same_target = (
            ours[1] in (theirs[1], theirs[1].removesuffix(b"?"))
            or not theirs[1].startswith(b"/")
            or theirs[1].strip(b"/") == b"emails"
        )
        if (ours[0], ours[2], ours[3]) != (theirs[0], theirs[2], theirs[3]) or not same_target:
            raise Wrong(f"read as {ours!r}, by h11 as {theirs!r}")
    answers, rest = parsed(out, ended=True)
    final = [answer for answer in answers if answer.status >= 200]
    if rest or not app.answered <= len(final) <= app.answered + 1:
        raise Wrong(f"{app.answered} requests were answered {out!r}")
    for answer in final[app.answered :]:
        check_error(answer)


# ---- bodies of send requests

BODY_PIECES = (
    *LINE_ENDS, b"{", b"}", b"[", b"]", b",", b'"', b"\\", b"\\u0000", b"\\ud83d", b"\\uD83D\\uDE00", b"null", b"true",
    b"-0", b"1e400", b"9" * 40, b'"to":', b'"from":"a@b.c",', b'"cc":[],', b'"attachments":[{}],',
    b'"variables":{"a":1},',
    b'"headers":{"Bcc":"x"},', b"@", b"<", b">", b"\\r\\n", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b'"html":"<b>",',
    b'"tags":["a"],', b'"template":"a",', b"xn--", b".", "\u202e\u0130".encode(), b"/*", b"NaN", b"Infinity",
)  # fmt: skip


def a_body(chance: Random) -> bytes:
    more: dict[str, Any] = {
        "cc": ["Ada <c@example.net>"], "bcc": "b@example.net", "reply_to": "r@example.com", "html": "<p>é</p>",
        "headers": {"X-A": "b"}, "tags": ["one", "two"], "variables": {"a": "x", "b": 1, "c": True},
        "attachments": [{"filename": "a.txt", "content": "QUJD", "content_type": "text/plain"}],
    }  # fmt: skip
    chosen = {name: more[name] for name in chance.sample(sorted(more), chance.randint(0, 4))}
    return json.dumps(sample_body(**chosen), ensure_ascii=chance.random() < 0.5).encode()


async def check_body(data: bytes, chance: Random) -> None:
    """A body is refused in words, or is what the standard library reads, with each key once."""
    try:
        request = decode(data)
    except Refused as refused:
        refused.text.encode()
        return
    pairs: list[list[tuple[str, Any]]] = []
    theirs = json.loads(data, object_pairs_hook=lambda found: pairs.append(found) or dict(found))  # type: ignore[func-returns-value]
    if any(len(dict(found)) < len(found) for found in pairs):
        raise Wrong("a key that occurs twice was read")
    if (theirs["from"], theirs["to"], theirs.get("text", UNSET)) != (request.sender, request.to, request.text):
        raise Wrong(f"read as {request!r}")
    with suppress(Refused):
        draft(request, None)


# ---- SMTP: what clients and other servers send

COMMAND_PIECES = (
    *LINE_ENDS, b"EHLO a\r\n", b"HELO a\r\n", b"STARTTLS\r\n", b"AUTH PLAIN " + credential() + b"\r\n",
    b"AUTH LOGIN\r\n",
    b"AUTH PLAIN\r\n", b"*\r\n", b"=\r\n", b"MAIL FROM:<a@example.com>\r\n", b"MAIL FROM:<>\r\n", b"RSET\r\n",
    b"NOOP\r\n",
    b"RCPT TO:<b@example.net>\r\n", b"DATA\r\n", b"BDAT 5\r\nhello", b"BDAT 5 LAST\r\nhello", b"BDAT 0 LAST\r\n",
    b"BDAT 99999999999999999999\r\n", b"QUIT\r\n", b"VRFY a\r\n", b"HELP\r\n", b"\r\n.\r\n", b"\n.\n", b"\r.\r",
    b"\n.\r\n",
    b"\r\n.\n", b"..", b".", b" SIZE=5", b" SIZE=99999999999", b" BODY=8BITMIME", b" SMTPUTF8", b" RET=FULL",
    b" ENVID=a+2B",
    b" NOTIFY=NEVER", b" NOTIFY=SUCCESS,FAILURE", b" ORCPT=rfc822;a", b" AUTH=<>", b"<", b">", b"@", b'"', b"\\",
    b"a" * 600, b"a" * 13_000, "\u0436@\u0436.example".encode(), b"\xff", b"[127.0.0.1]", b"b+", b"A" * 24,
)  # fmt: skip
REPLIES = re.compile(rb"(?:[2-5][0-9]{2}-[\x20-\x7e]*\r\n)*[2-5][0-9]{2} [\x20-\x7e]*\r\n")
PATHS = re.compile(rb"(?:MAIL (FROM:)|RCPT (TO:))([^\r\n]*)\r\n", re.IGNORECASE)


def _session(*lines: bytes) -> bytes:
    return b"".join(line + b"\r\n" for line in lines)


LOGINS = (
    _session(b"EHLO client.example.com", b"AUTH PLAIN " + credential()),
    _session(b"EHLO client.example.com", b"AUTH LOGIN", b"c210cF8x", b"c2VjcmV0"),
    _session(b"EHLO client.example.com", b"STARTTLS", b"EHLO client.example.com", b"AUTH PLAIN", credential()),
)
ENVELOPE = _session(b"MAIL FROM:<shop@example.com> SIZE=900 BODY=8BITMIME", b"RCPT TO:<ada@example.net> NOTIFY=NEVER")
DOTTED = WHOLE.replace(b"\r\n.", b"\r\n..")
TRANSACTIONS = (
    ENVELOPE + b"DATA\r\n" + DOTTED + b".\r\n",
    ENVELOPE + b"RCPT TO:<bob@example.net>\r\nBDAT %d\r\n%sBDAT 0 LAST\r\n" % (len(WHOLE), WHOLE),
    ENVELOPE + b"RSET\r\n" + ENVELOPE + b"BDAT %d LAST\r\n%s" % (len(WHOLE), WHOLE),
)


def a_submission(chance: Random) -> tuple[bytes, bytes]:
    """A login, which often stays as it is so that what follows is reached, and transactions."""
    login, rest = (
        chance.choice(LOGINS),
        b"".join(chance.choices(TRANSACTIONS, k=chance.choice((1, 1, 2)))) + b"QUIT\r\n",
    )
    return (login, rest) if chance.random() < 0.85 else (b"", login + rest)


def some_feedback(chance: Random) -> tuple[bytes, bytes]:
    mail = chance.choice(list(MAILS.values()))
    start = _session(b"EHLO mx.example.net", b"MAIL FROM:<>")
    rest = b"RCPT TO:<%s>\r\nDATA\r\n" % _token() + mail.replace(b"\r\n.", b"\r\n..") + b"\r\n.\r\nQUIT\r\n"
    return (start, rest) if chance.random() < 0.5 else (b"", start + rest)


@cache
def _feedback() -> tuple[FeedbackListener, bytes]:
    session = feedback_session()
    return session.listener, session.token()


def _token() -> bytes:
    return _feedback()[1]


@dataclass
class Taken:
    replies: bytes = b""
    mails: list[bytes] = field(default_factory=list)


async def talked(protocol: SmtpProtocol, pieces: Iterator[bytes], submit: Callable[[Submit], bytes]) -> Taken:
    taken = Taken()
    for piece in pieces:
        action = protocol.receive(piece)
        while action is not None:
            following = None
            if isinstance(action, FindCaller):
                following = protocol.caller_found(action, None)
            elif isinstance(action, FindRecipient):
                protocol.recipient_found(await _found(protocol, action))
            elif isinstance(action, Submit):
                try:
                    taken.mails.append(submit(action))
                    protocol.submitted("msg_1")
                except Refused as refused:
                    protocol.submitted(refused)
            elif action is PlainAction.WRONG_LOGIN:
                protocol.login_failed(too_many=False)
            elif action is PlainAction.START_TLS:
                protocol.secured()
            else:
                protocol.resume()
            action = following or protocol.proceed()
        if len(protocol.input.data) > dialogue.AUTH_LINE:
            raise Wrong(f"{len(protocol.input.data)} octets are held that are no line")
    protocol.close()
    taken.replies = b"".join(protocol.out)
    return taken


async def _found(protocol: SmtpProtocol, action: FindRecipient) -> Any:
    if protocol.backend.logins is not None:
        try:
            return dialogue.parse_address(action.text)
        except Rejected as rejected:
            return rejected
    return await protocol.backend.find_recipient(action)


def _check_session(protocol: SmtpProtocol, taken: Taken) -> None:
    at = 0
    while at < len(taken.replies):
        reply = REPLIES.match(taken.replies, at)
        if reply is None or len(reply[0]) > 2_000:
            raise Wrong(f"no reply: {taken.replies[at : at + 200]!r}")
        at = reply.end()
    if b"Traceback" in taken.replies or b"4.3.0 Internal" in taken.replies:
        raise Wrong(f"an internal error: {taken.replies[-300:]!r}")
    if protocol._budget.shares.used:
        raise Wrong(f"memory that was not given back: {protocol._budget.shares.used} bytes")


async def check_submission(data: bytes, chance: Random) -> None:
    """Every reply is one, what is refused is refused in words, no memory is kept, and aiosmtpd reads the same."""
    session = submission_session(secure=chance.random() < 0.9)

    def submit(message: Submit) -> bytes:
        mime = message.content()
        read_submitted(message.sender, list(message.recipients), mime)
        return mime

    session.protocol.out.clear()
    taken = await talked(session.protocol, cut(chance, data), submit)
    _check_session(session.protocol, taken)
    _check_paths(data)
    _check_end_of_data(data, chance)


async def check_feedback(data: bytes, chance: Random) -> None:
    listener, _ = _feedback()
    session = feedback_session()
    backend = listener.backend_for("192.0.2.1", lambda _: False)
    protocol = SmtpProtocol("mail.example.com", backend, session.protocol._budget, secure=False)
    protocol.out.clear()
    taken = await talked(protocol, cut(chance, data), lambda message: checked_mail(message.content))
    _check_session(protocol, taken)
    _check_end_of_data(data, chance)


class _Reference(AiosmtpdServer):
    """The parsing of aiosmtpd, without its connection."""

    _loop = asyncio.SelectorEventLoop()  # never runs; one of trio-asyncio would, until the process ends

    def __init__(self, data: bytes = b"") -> None:
        self.local_part_limit = 0
        self.session, self.envelope = Session(self._loop), Envelope()
        self.session.extended_smtp = True
        self.envelope.rcpt_tos.append("a")
        self.transport, self._decode_data = asyncio.BaseTransport(), False
        self.data_size_limit, self.line_length_limit = 0, 2**30
        self._handle_hooks = {"DATA": self._call_handler_hook}
        self._reader = asyncio.StreamReader(2**30, self._loop)
        self._reader.feed_data(data)

    async def push(self, status: object) -> None:
        """Say nothing."""

    async def check_helo_needed(self, helo: str = "HELO") -> bool:
        return False

    async def check_auth_needed(self, caller_method: str) -> bool:
        return False

    async def _call_handler_hook(self, command: str, *words: object) -> str:
        return "250 OK"

    def _set_post_data_state(self) -> None:
        """Keep the envelope."""

    def data(self) -> tuple[bytes, bytes] | None:
        """The content of DATA and what follows its end; None before that."""
        reading = self.smtp_DATA("")
        try:
            reading.send(None)
        except StopIteration:
            content, rest = cast(Any, self.envelope).content, cast(Any, self._reader)._buffer
            return bytes(content), bytes(rest)
        with suppress(asyncio.CancelledError, RuntimeError):
            reading.close()
        return None


def _check_paths(data: bytes) -> None:
    """An address that we take from a command is the one that aiosmtpd finds there."""
    for mail, rcpt, argument in PATHS.findall(data)[:2]:
        try:
            _, text = dialogue.parse(b"X " + mail + rcpt + argument)
            path = dialogue.mail_path(text, dsn=True) if mail else dialogue.rcpt_path(text, dsn=True)
            if not path[0]:
                continue
            address = dialogue.parse_address(path[0])
        except Rejected:
            continue
        theirs, _ = _Reference()._getaddr(text.partition(":")[2].strip())
        if theirs is None or '"' in theirs:
            continue  # quotes are written in many ways
        if theirs.lower() != path[0].lower():
            raise Wrong(f"{argument!r} is {path[0]!r} ({address!r}), to aiosmtpd {theirs!r}")


def _check_end_of_data(data: bytes, chance: Random) -> None:
    """DATA ends where it ends for aiosmtpd, and has the same content."""
    _, found, content = data.partition(b"DATA\r\n")
    if not found:
        return
    ours, rest, pieces = DataContent(), None, cut(chance, content)
    for piece in pieces:
        if (rest := ours.receive(piece)) is not None:
            break
    theirs = _Reference(content).data()
    mine = None if rest is None else (ours.content(), rest + b"".join(pieces))
    if mine != theirs:
        raise Wrong(f"DATA is {mine!r}, to aiosmtpd {theirs!r}")


# ---- SMTP: what remote servers answer

REPLY_PIECES = (
    *LINE_ENDS, b"250 ok\r\n", b"250-ok\r\n", b"250", b"354 go\r\n", b"421 4.3.2 bye\r\n", b"550 5.1.1 unknown\r\n",
    b"220 \r\n",
    b"451 4.7.1 later\r\n", b"-", b"999 x\r\n", b"200\r\n", b"25", b"2500 x\r\n", b"-1 x\r\n", b"250\t", b"5.1.1.1 ",
    b"a" * 2_100,
    b"250-x\r\n" * 101, b"334 \r\n", b"235 2.7.0 in\r\n", b"SIZE 99999999999999999999999", b"STARTTLS", b"AUTH=LOGIN",
    b"\x1b[2J",
    b"b+" + b"a" * 24 + b"@x", "\u202e\u2028".encode(), b"HTTP/1.1 200 OK\r\n",
)  # fmt: skip
EHLO_REPLY = (
    b"250-mx.example\r\n250-PIPELINING\r\n250-SIZE 10485760\r\n250-AUTH PLAIN LOGIN\r\n250-8BITMIME\r\n250 SMTPUTF8\r\n"
)
OPENING = [b"220 mx.example ESMTP\r\n", EHLO_REPLY, b"334 \r\n", b"235 2.7.0 in\r\n"]
SENT = [b"250 2.1.0 ok\r\n", b"250 2.1.5 ok\r\n", b"550-5.1.1 no such\r\n550 5.1.1 user\r\n", b"450 4.2.2 full\r\n",
        b"354 go on\r\n", b"250 2.0.0 queued as 1\r\n"]  # fmt: skip
RECIPIENTS = ("a@x.example", "b@x.example", "c@x.example")
PAYLOAD = prepare(WHOLE)


def some_replies(chance: Random) -> bytes:
    return b"".join([*OPENING[: chance.choice((2, 2, 4))], *SENT])


def _fed(talk: SmtpExchange, replies: Iterator[bytes]) -> bytes:
    """Give replies until nothing is awaited, then the end of the connection; what was said."""
    said = b"".join(talk.output())
    while talk.awaiting is not None:
        talk.receive(next(replies, b""))
        said += b"".join(talk.output())
    return said


DIALOGUE_LINES = 20  # of one recipient: two for each command, and the notes


async def check_replies(data: bytes, chance: Random) -> None:
    """Every recipient has a verdict, no secret is told, and codes are those that smtplib reads."""
    pieces, replies = cut(chance, data), ReplyReader()
    secret = RelayCredentials("user", "hunter2") if chance.random() < 0.3 else None
    opening = Opening("me.example", replies, lambda: 0.0, None, secret)
    _fed(opening, pieces)
    offered = (
        opening.capabilities if opening.state is OpeningState.READY else Capabilities(pipelining=True, eight_bit=True)
    )
    mail = Sending(MailTransaction("from@x.example", RECIPIENTS, PAYLOAD), offered, ReplyReader(), lambda: 0.0)
    said = _fed(mail, pieces)
    verdicts = mail.verdicts()
    if len(verdicts) != len(RECIPIENTS):
        raise Wrong(f"{len(verdicts)} verdicts")
    if any(each.kind is ResultKind.ACCEPTED for each in verdicts) and not said.endswith(PAYLOAD.parts[-1][-5:]):
        raise Wrong("accepted before it was sent")
    for talk in (opening, mail):
        lines = talk.transcript.lines(0)
        if len(lines) > DIALOGUE_LINES:
            raise Wrong(f"a transcript of {len(lines)} lines")
        for line in lines:
            if "aHVudGVyMg" in line.text or len(line.text) > LINE_CHARACTERS or not line.text.isprintable():
                raise Wrong(f"a line of the transcript: {line.text!r}")
    ours, theirs = _codes(data), _codes_by_smtplib(data)
    if ours != theirs[: len(ours)]:
        raise Wrong(f"codes {ours}, by smtplib {theirs}")


def _codes(data: bytes) -> list[int]:
    reader, codes = ReplyReader(), []
    reader.feed(data)
    with suppress(ReplyFault):
        while (reply := reader.next_reply()) is not None:
            codes.append(reply.code)
    return codes


def _codes_by_smtplib(data: bytes) -> list[int]:
    client, codes = smtplib.SMTP(), []
    client.file = io.BytesIO(data)
    with suppress(smtplib.SMTPException):
        while client.file is not None:  # closed after the last
            codes.append(client.getreply()[0])
    return codes


# ---- answers of webhook receivers

ANSWER_PIECES = (
    *LINE_ENDS, b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.0 200 OK\r\n",
    b"Content-Length: 2\r\n",
    b"Content-Length: 99999\r\n", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"2\r\nok\r\n", b"0\r\n\r\n", b"204", b"304", b"600", b"X: " + b"y" * 5_000 + b"\r\n", b"a: b\r\n" * 300,
    b"z" * 40_000,
    b"ffffffff\r\n", b"HTTP/2 ", b"220 mail ESMTP\r\n", b"Set-Cookie: a\r\n", b"Content-Encoding: gzip\r\n",
)  # fmt: skip
ANSWERS = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\nok",
    b"HTTP/1.1 204 No Content\r\nServer: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n3;a=b\r\nabc\r\n0\r\n\r\n",
    b"HTTP/1.1 500 Internal Server Error\r\nConnection: close\r\nContent-Length: 4\r\n\r\noops",
    b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end",
    b"HTTP/1.1 302 Found\r\nLocation: https://elsewhere.example/\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n" + b"x" * 3_000,
)


class _Pieces:
    """The stream of a receiver that answers so and closes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    async def send_all(self, data: bytes) -> None:
        """Take it."""

    async def receive_some(self, most: int) -> bytes:
        return next(self._pieces, b"")


async def check_answer(data: bytes, chance: Random) -> None:
    """What is read to its end has the status and the body that http.client reads."""
    posted = Posted()
    pieces = (part for piece in cut(chance, data) for part in (piece[:16_000], piece[16_000:]) if part)
    connection = cast(Any, SimpleNamespace(transport=SimpleNamespace(left=0), stream=_Pieces(pieces)))
    try:
        await exchange(posted, connection, b"POST / HTTP/1.1\r\n\r\n")
    except NotPosted as why:
        str(why).encode()
        return
    if len(posted.body) > BODY_KEPT or posted.status is None:
        raise Wrong(f"kept {len(posted.body)} bytes of {posted.status}")
    if posted.error is not None or re.match(rb"HTTP/1\.[0-9] 1", data):
        return  # not read to its end; or an interim answer, of which http.client knows only the 100
    with io.BytesIO(data) as file:
        response = http.client.HTTPResponse(cast(Any, SimpleNamespace(makefile=lambda _: file)), method="POST")
        try:
            response.begin()
            theirs = response.status, response.read()[:BODY_KEPT]
        except (http.client.HTTPException, ValueError):
            return  # what h11 reads and it does not, as a folded line or many headers
    if (posted.status, posted.body) != theirs:
        raise Wrong(f"read as {posted.status} {posted.body[:80]!r}, by http.client as {theirs[0]} {theirs[1][:80]!r}")


# ---- bounces, complaints and reports

KIND = re.compile(r"[A-Za-z0-9.+-]{1,50}/[A-Za-z0-9.+-]{1,50}(?: *;.*)?", re.DOTALL)


async def check_report(data: bytes, chance: Random) -> None:
    """Every reader of feedback; and the parts of a mail that is sound to the standard library are the same.

    Sound is one that the listener takes, without a lone CR or LF, with media types that are some, and without a message
    inside, of which the standard library reads the parts, too.
    """
    read_all(data)
    if has_lone_line_end(data) or not data.isascii() or b"message/" in data.lower():
        return
    theirs = list(message_from_bytes(data).walk())
    if not 1 < len(theirs) <= PARTS or any(part.defects for part in theirs):
        return
    if not all(KIND.fullmatch(part.get("Content-Type", "text/plain")) for part in theirs):
        return
    kinds = [part.get_content_type() for part in theirs if not part.is_multipart()]
    if (ours := [part.kind for part in open_mail(data).parts]) != kinds:
        raise Wrong(f"the parts are {ours}, by email {kinds}")


# ---- replies of the DNS

DNS_PIECES = (
    b"\xc0\x0c", b"\xc0\x00", b"\xff\xff", b"\x00", b"\x01a", b"?", b"@", b"\x00\x05\x00\x01", b"\x00\x0f\x00\x01",
    b"\x00\x00\x01,", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\x03com\x00", b"\xc0\x1e", b"\x81\x83", b"\x83\x80",
)  # fmt: skip
DNS_TEXTS = {
    "MX": "10 mx{0}.example.com.", "A": "192.0.2.{0}", "AAAA": "2001:db8::{0}", "TXT": '"text {0}" "more"',
    "PTR": "Host\\.{0}.example.com.", "TLSA": "3 1 0 abcdef{0:02}",
}  # fmt: skip


def a_dns_reply(chance: Random) -> tuple[bytes, bytes]:
    """A query with its size before it; and a reply with records, perhaps behind CNAMEs, or with a denial."""
    kind, name = chance.choice(list(DNS_TEXTS)), dns.name.from_text(chance.choice(["example.com", "a.b.Example.org"]))
    query = dns.message.make_query(name, kind, use_edns=chance.random() < 0.5, id=chance.randrange(65_536))
    reply = dns.message.make_response(query, recursion_available=True)
    for _ in range(chance.choice([0, 0, 0, 1, 2, 9])):
        target = dns.name.from_text(f"alias{chance.randrange(20)}.example.net")
        reply.answer.append(dns.rrset.from_text(name, chance.randrange(900), "IN", "CNAME", target.to_text()))
        name = target
    if number := chance.choice([0, 1, 1, 2, 5, 90]):
        texts = [DNS_TEXTS[kind].format(each) for each in range(number)]
        reply.answer.append(dns.rrset.from_text(name, chance.randrange(900), "IN", kind, *texts))
    elif chance.random() < 0.7:
        soa = f"ns.example. admin.example. 1 2 3 4 {chance.randrange(900)}"
        reply.authority.append(dns.rrset.from_text(name.parent(), chance.randrange(900), "IN", "SOA", soa))
        reply.set_rcode(chance.choice([dns.rcode.NOERROR, dns.rcode.NXDOMAIN, dns.rcode.SERVFAIL]))
    wire = query.to_wire()
    return len(wire).to_bytes(2) + wire, reply.to_wire(max_size=65_535, want_shuffle=False)


def _dns_answer(query: bytes, wire: bytes, kind: str) -> object:
    """The records, the next name to ask for, or the denial, and for how long it holds; None if refused."""
    try:
        answer, alias = read_answer(read_reply(query, wire), kind, validated=False)
    except BadDnsReply:
        return None
    except LookupFailed as failed:
        return None if failed.fault is DnsFault.TEMPORARY else (failed.fault, failed.ttl)
    return alias or (sorted(map(repr, answer.records)), answer.ttl)


def _by_dnspython(query: bytes, wire: bytes, kind: str) -> object:
    try:
        reply = dns.message.from_wire(wire)
        if not dns.message.from_wire(query).is_response(reply) or not isinstance(reply, dns.message.QueryMessage):
            return None
        found = reply.resolve_chaining()
    except Exception:  # it raises many kinds
        return None
    if found.answer is not None:
        texts = [record.to_wire() for record in found.answer]
        records = {READERS[kind](DnsPacket(text), 0, len(text)) for text in texts if text is not None}
        return sorted(map(repr, records)), min(found.minimum_ttl, TTL_LIMIT)
    ttl = min(found.minimum_ttl, NEGATIVE_TTL_LIMIT)
    if reply.rcode() == dns.rcode.NXDOMAIN:
        return DnsFault.NXDOMAIN, ttl
    if found.cnames and not reply.authority:
        return found.canonical_name.canonicalize().to_wire()
    return DnsFault.NODATA, ttl


async def check_dns(data: bytes, chance: Random) -> None:
    """What both read is the same; a temporary failure is a refusal, as for many CNAMEs."""
    end = 2 + int.from_bytes(data[:2])
    query, wire = data[2:end], data[end:]
    kind = dns.rdatatype.to_text(dns.message.from_wire(query).question[0].rdtype)
    ours, theirs = _dns_answer(query, wire, kind), _by_dnspython(query, wire, kind)
    if ours not in (None, theirs) and theirs is not None:
        raise Wrong(f"{kind} read as {str(ours)[:200]}, by dnspython as {str(theirs)[:200]}")


# ---- all of them

Check = Callable[[bytes, Random], Awaitable[None]]


@dataclass(frozen=True)
class Stream:
    """A kind of input: how it is made, what is put into it, how it is checked, and its part of all."""

    make: Callable[[Random], bytes | tuple[bytes, bytes]]  # what stays as it is, and what is changed
    pieces: Sequence[bytes]
    check: Check
    part: float

    def input(self, number: int) -> bytes:
        """The input with this number; one in eight is not changed, so that what is good is read, too."""
        chance = Random(number)
        begin, data = made_of if isinstance(made_of := self.make(chance), tuple) else (b"", made_of)
        return begin + (data if number % 8 == 0 else mutated(data, number, self.pieces))


STREAMS = {
    "http": Stream(a_request, REQUEST_PIECES, check_http, 0.24),
    "bodies": Stream(a_body, BODY_PIECES, check_body, 0.14),
    "submission": Stream(a_submission, COMMAND_PIECES, check_submission, 0.18),
    "feedback": Stream(some_feedback, COMMAND_PIECES, check_feedback, 0.1),
    "replies": Stream(some_replies, REPLY_PIECES, check_replies, 0.12),
    "answers": Stream(lambda chance: chance.choice(ANSWERS), ANSWER_PIECES, check_answer, 0.1),
    "dns": Stream(a_dns_reply, DNS_PIECES, check_dns, 0.08),
    "reports": Stream(
        lambda chance: made(chance.randrange(10**6), chance.randrange(10**6))[1], LINE_ENDS, check_report, 0.04
    ),
}


async def _check(name: str, numbers: Sequence[int]) -> tuple[list[str], float]:
    wrong, slowest = [], 0.0
    for number in numbers:
        stream = STREAMS[name]
        data, began = stream.input(number), time.process_time()
        try:
            await stream.check(data, Random(number))
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {str(error)[:SHOWN]} ({where.filename.rpartition('/')[2]}:{where.lineno})"
            wrong.append(f"{number}: {text}; input {data[:SHOWN]!r}")
        slowest = max(slowest, time.process_time() - began)
    if slowest > LONGEST:
        wrong.append(f"{slowest:.1f} s for one input of {numbers[0]} to {numbers[-1]}")
    return wrong, slowest


def task(name: str, seed: int, first: int, count: int) -> tuple[list[str], float, int]:
    """Check so many inputs: what was wrong, the slowest in processor seconds, and the growth of memory."""
    base = seed * SEEDS_APART
    trio.run(_check, name, range(base, base + 50))  # what is loaded and cached once is no growth
    before = most_memory()
    wrong, slowest = trio.run(_check, name, range(base + first, base + first + count))
    growth = most_memory() - before
    if growth > GROWTH:
        wrong.append(f"memory grew by {growth // 2**20} MiB in {count} inputs from {first} on")
    return [f"streams {name} {seed} {each}" for each in wrong], slowest, growth


def check_all(count: int, seed: int, told: Callable[[str], None]) -> tuple[int, list[str]]:
    """Check so many inputs of all kinds in processes of their own; how many, and what was wrong."""
    tasks = [
        (name, seed, first, min(IN_ONE_TASK, int(count * stream.part) - first))
        for name, stream in STREAMS.items()
        for first in range(0, int(count * stream.part), IN_ONE_TASK)
    ]
    done, wrong = 0, list[str]()
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        for future in as_completed(futures := {pool.submit(task, *each): each for each in tasks}):
            name, _, first, size = futures[future]
            try:
                wrong += future.result()[0]
            except Exception as error:  # a process that died, among others
                wrong.append(f"streams {name} {seed} {first}: {type(error).__name__}: {error}")
            done += size
            told(f"{done:,} inputs of {count:,}")
    return done, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=STREAMS)
    parser.add_argument("seed", type=int)
    parser.add_argument("number", type=int, help="of the input; with --count, without the seed")
    parser.add_argument("--count", type=int, default=0)
    options = parser.parse_args()
    if options.count:
        began = time.monotonic()
        wrong, slowest, growth = task(options.kind, options.seed, options.number, options.count)
        rate = options.count / (time.monotonic() - began)
        print(f"{rate:,.0f} inputs a second, slowest {slowest * 1000:.1f} ms, memory + {growth / 2**20:.1f} MiB")
    else:
        print(repr(STREAMS[options.kind].input(options.number)))
        wrong, _ = trio.run(_check, options.kind, [options.number])
    print(f"{len(wrong)} wrong", *wrong[:10], sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
