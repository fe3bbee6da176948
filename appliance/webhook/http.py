"""One POST and its answer on an open connection: the request's bytes, the answer's status and first 2 KiB.

Whatever a receiver sends, the bytes, the reads, the headers and the interim answers of one exchange are bounded.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import h11
import trio

from appliance.webhook.connect import ByteLimitExceeded, NotPosted, ReceiverConnection
from appliance.webhook.fast_answer import read_fast
from appliance.webhook.url_policy import Target

BODY_KEPT = 2048  # bytes, by the interface
HEAD_LIMIT = 16 * 1024  # bytes of headers, in one answer or one of its trailers
ANSWER_LIMIT = 32 * 1024  # bytes read to keep the connection: past that a new one is cheaper
INTERIM_LIMIT = 10  # 1xx answers before the final one
ANSWER_READ_BYTES = 16 * 1024  # at a time: one TLS record
READS_PER_ANSWER = 250  # each costs its share of a millisecond, however few bytes it brings

_VERSION = b"HTTP/1."
_FIELDS = re.compile(r"(?:[A-Za-z0-9-]+: [\x20-\x7e]*\r\n)*")


class Step(StrEnum):
    """What an attempt is waiting for; as text, what to say when it did not come in time."""

    FOUND = "the receiver's name could not be looked up"
    CONNECTED = "the receiver did not accept a connection"
    SECURED = "the receiver did not finish the TLS handshake"
    SENT = "the receiver did not take the event"
    ANSWERED = "the receiver did not answer"
    ENDED = "the receiver did not finish its answer"


@dataclass(slots=True)
class PostAttempt:
    """The progress of one attempt, so that one that times out can still say how far it came."""

    awaiting: Step = Step.FOUND
    status: int | None = None
    body: bytes = b""
    error: str | None = None
    overlong: bool = False


class ConnectionLost(NotPosted):
    """The connection ended before any byte of the answer."""


def request_bytes(target: Target, headers: Sequence[tuple[str, str]], body: bytes) -> bytes:
    """A POST with these headers and those that HTTP requires (RFC 9112 3.2, 6.2); raises `NotPosted`."""
    fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
    if not _FIELDS.fullmatch(fields) or fields.count("\r\n") != len(headers):
        raise NotPosted("a header of the event has a character that cannot be sent")
    # Accept-Encoding: the history shows the beginning of the answer to people, so it must not be compressed.
    head = (
        f"POST {target.path} HTTP/1.1\r\nHost: {target.authority}\r\n{fields}"
        f"Accept-Encoding: identity\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body


class AnswerReader:
    """Parses one answer with h11, within the limits above. No I/O."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.body = b""  # the first 2 KiB
        self.done = False  # nothing more is wanted
        self.whole = False  # it came to its end
        self.keep = False  # the connection may carry another request
        self._begin = b""
        self._received = 0
        self._interim = 0
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_LIMIT)
        # Of the request, which has been sent already, only the method matters for the answer.
        self._http.send(h11.Request(method="POST", target="/", headers=[("Host", "-"), ("Content-Length", "0")]))
        self._http.send(h11.EndOfMessage())

    def receive(self, data: bytes) -> None:
        """Parse what came, nothing when the receiver has closed; raises `NotPosted`."""
        self._received += len(data)
        self._check_version(data)
        try:
            self._http.receive_data(data)
            while not self.done and (event := self._http.next_event()) is not h11.NEED_DATA:
                self._handle(event)
        except h11.RemoteProtocolError as fault:
            raise NotPosted(self._error(fault, closed=not data)) from fault
        self.done = self.done or self._received > ANSWER_LIMIT

    def _check_version(self, data: bytes) -> None:
        """Detect another protocol by its first bytes: h11 would wait for a whole head, which may never come."""
        if len(self._begin) < len(_VERSION):
            self._begin += data[: len(_VERSION) - len(self._begin)]
            if not _VERSION.startswith(self._begin):
                raise NotPosted("the receiver's answer is not HTTP/1.1")

    def _handle(self, event: h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]) -> None:
        if isinstance(event, h11.InformationalResponse):
            self._interim += 1
            if self._interim > INTERIM_LIMIT:
                raise NotPosted(f"the receiver sent over {INTERIM_LIMIT} interim (1xx) answers")
        elif isinstance(event, h11.Response):
            self.status = event.status_code
        elif isinstance(event, h11.Data):
            self.body += event.data[: BODY_KEPT - len(self.body)]
        elif isinstance(event, h11.EndOfMessage):
            self.done = self.whole = True
            in_step = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
            self.keep = in_step and self._http.trailing_data == (b"", False)

    def _error(self, fault: h11.RemoteProtocolError, *, closed: bool) -> str:
        if closed:
            return f"the receiver closed the connection {self.before_what}"
        if fault.error_status_hint == 431:
            return f"the receiver's answer has over {HEAD_LIMIT // 1024} KiB of headers"
        return f"the receiver's answer is no good HTTP: {fault}"

    @property
    def before_what(self) -> str:
        """What is still to come, for an error text."""
        return "before it answered" if self.status is None else "before the end of its answer"


async def exchange(attempt: PostAttempt, connection: ReceiverConnection, request: bytes) -> bool:
    """Send a request and read its answer; whether the connection may carry another. Raises `NotPosted`."""
    connection.transport.reset_limit()
    attempt.awaiting = Step.SENT
    try:
        await connection.stream.send_all(request)
        attempt.awaiting = Step.ANSWERED
        data = bytes(await connection.stream.receive_some(ANSWER_READ_BYTES))
    except ByteLimitExceeded as exceeded:
        raise NotPosted(f"{exceeded} before it answered") from exceeded
    except trio.BrokenResourceError as broken:
        raise ConnectionLost("the receiver broke the connection off before it answered") from broken
    if not data:
        raise ConnectionLost("the receiver closed the connection before it answered")
    return await _read_answer(attempt, connection, data)


async def _read_answer(attempt: PostAttempt, connection: ReceiverConnection, data: bytes) -> bool:
    """Read an answer that begins with `data`; whether the connection may carry another request."""
    reads = 1
    while (fast := read_fast(data)) is not None and len(data) + fast.missing <= ANSWER_LIMIT:
        attempt.status, attempt.body = fast.status, fast.body[:BODY_KEPT]
        if not fast.missing:
            return fast.keep
        if reads == READS_PER_ANSWER:
            break
        attempt.awaiting = Step.ENDED
        more = await _receive(connection, "before the end of its answer")
        if not more:
            raise NotPosted("the receiver closed the connection before the end of its answer")
        data, reads = data + more, reads + 1
    return await _read_by_h11(attempt, connection, data, reads)


async def _read_by_h11(attempt: PostAttempt, connection: ReceiverConnection, data: bytes, reads: int) -> bool:
    reader = AnswerReader()
    while True:
        try:
            reader.receive(data)
        finally:
            attempt.status, attempt.body = reader.status, reader.body
        if reader.done or reads >= READS_PER_ANSWER:
            break
        if reader.status is not None:
            attempt.awaiting = Step.ENDED
        data, reads = await _receive(connection, reader.before_what), reads + 1
    if not reader.whole:
        _cut_short(attempt, f"is over {ANSWER_LIMIT // 1024} KiB long" if reader.done else "comes in too many pieces")
    return reader.keep


def _cut_short(attempt: PostAttempt, why: str) -> None:
    if attempt.status is None:
        raise NotPosted(f"the receiver's answer {why} and yet without a status")
    attempt.overlong = True
    attempt.error = f"the receiver's answer {why}; the rest was not read"


async def _receive(connection: ReceiverConnection, before_what: str) -> bytes:
    try:
        return bytes(await connection.stream.receive_some(ANSWER_READ_BYTES))
    except ByteLimitExceeded as exceeded:
        raise NotPosted(f"{exceeded} {before_what}") from exceeded
    except trio.BrokenResourceError as broken:
        raise NotPosted(f"the receiver broke the connection off {before_what}") from broken
