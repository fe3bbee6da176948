"""Sends one POST on an open connection, and reads the status and the first 2 KiB of its answer.

The bytes, reads, headers, chunks and interim answers of one exchange are bounded, whatever a receiver sends.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import h11
import trio

from appliance.webhook.connect import RECEIVED_LIMIT, ByteLimitExceeded, NotPosted, ReceiverConnection, Target
from appliance.webhook.fast_answer import read_fast

BODY_KEPT = 2048  # bytes, by the interface
HEAD_LIMIT = 16 * 1024  # bytes of headers, in one answer or one of its trailers
ANSWER_LIMIT = 32 * 1024  # bytes read to keep the connection; beyond that a new one is cheaper
INTERIM_LIMIT = 10  # 1xx answers before the final one
ANSWER_READ_BYTES = 16 * 1024  # at a time: one TLS record
READS_PER_ANSWER = 250  # each costs CPU time, however few bytes it returns
CHUNKS_PER_ANSWER = 250  # each costs as much, and one read may return thousands

_VERSION = b"HTTP/1."
_FIELDS = re.compile(r"(?:[A-Za-z0-9-]+: [\x20-\x7e]*\r\n)*")


class Step(StrEnum):
    """What an attempt waits for; the text is the error if it times out there."""

    FOUND = "the receiver's name could not be looked up"
    CONNECTED = "the receiver did not accept a connection"
    SECURED = "the receiver did not finish the TLS handshake"
    SENT = "the receiver did not take the event"
    ANSWERED = "the receiver did not answer"
    ENDED = "the receiver did not finish its answer"


@dataclass(slots=True)
class Posted:
    """The result of one attempt; during the attempt its progress, so that a timeout can name the step."""

    status: int | None = None
    body: bytes = b""  # the first 2 KiB of the answer's body
    error: str | None = None  # also for a 2xx with a broken body; None after a whole answer
    duration_ms: int = 0
    timed_out: bool = False
    awaiting: Step = Step.FOUND

    @property
    def accepted(self) -> bool:
        """Whether the receiver took the event: any 2xx in time, by the interface, whatever its body."""
        return self.status is not None and 200 <= self.status < 300 and not self.timed_out

    @property
    def before_what(self) -> str:
        """What was missing, for an error text."""
        return "before it answered" if self.status is None else "before the end of its answer"


class ConnectionLost(NotPosted):
    """The connection ended before any byte of the answer."""


def request_bytes(target: Target, headers: Sequence[tuple[str, str]], body: bytes) -> bytes:
    """A POST with these headers and the ones HTTP requires (RFC 9112 3.2, 6.2); raises `NotPosted`."""
    fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
    if not _FIELDS.fullmatch(fields) or fields.count("\r\n") != len(headers):
        raise NotPosted("a header of the event has a character that cannot be sent")
    # Accept-Encoding: people read the start of the answer in the history, so it must not be compressed.
    head = (
        f"POST {target.path} HTTP/1.1\r\nHost: {target.authority}\r\n{fields}"
        f"Accept-Encoding: identity\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body


class AnswerReader:
    """Parses one answer with h11, within the limits above, into `posted`. No I/O."""

    def __init__(self, posted: Posted) -> None:
        self.posted = posted
        posted.status, posted.body = None, b""
        self.done = False  # nothing more is read
        self.whole = False  # the end was read
        self.keep = False  # the connection may carry another request
        self._start = b""
        self.received = self._interim = self._chunks = 0
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_LIMIT)
        # The request is already sent; only its method matters for parsing the answer.
        self._http.send(h11.Request(method="POST", target="/", headers=[("Host", "-"), ("Content-Length", "0")]))
        self._http.send(h11.EndOfMessage())

    def receive(self, data: bytes) -> None:
        """Parse received bytes, b"" at the end of the stream; raises `NotPosted`."""
        self.received += len(data)
        # Recognise another protocol by its first bytes: h11 would wait for a whole head, which may never arrive.
        self._start += data[: len(_VERSION) - len(self._start)]
        if not _VERSION.startswith(self._start):
            raise NotPosted("the receiver's answer is not HTTP/1.1")
        try:
            self._http.receive_data(data)
            while not self.done and (event := self._http.next_event()) is not h11.NEED_DATA:
                self._handle(event)
        except h11.RemoteProtocolError as fault:
            text = f"the receiver's answer is not valid HTTP: {fault}"
            if not data:
                text = f"the receiver closed the connection {self.posted.before_what}"
            elif fault.error_status_hint == 431:
                text = f"the receiver's answer has over {HEAD_LIMIT // 1024} KiB of headers"
            raise NotPosted(text) from fault
        self.done = self.done or self.received > ANSWER_LIMIT

    def _handle(self, event: h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]) -> None:
        if isinstance(event, h11.InformationalResponse):
            self._interim += 1
            if self._interim > INTERIM_LIMIT:
                raise NotPosted(f"the receiver sent over {INTERIM_LIMIT} interim (1xx) answers")
        elif isinstance(event, h11.Response):
            self.posted.status = event.status_code
        elif isinstance(event, h11.Data):
            self.posted.body += event.data[: BODY_KEPT - len(self.posted.body)]
            self._chunks += event.chunk_start
            self.done = self._chunks > CHUNKS_PER_ANSWER
        elif isinstance(event, h11.EndOfMessage):
            self.done = self.whole = True
            in_step = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
            self.keep = in_step and self._http.trailing_data == (b"", False)


async def exchange(posted: Posted, connection: ReceiverConnection, request: bytes) -> bool:
    """Send a request and read its answer. Return whether the connection is reusable; raises `NotPosted`."""
    connection.transport.left = RECEIVED_LIMIT
    posted.awaiting, data = Step.SENT, b""
    try:
        await connection.stream.send_all(request)
        posted.awaiting = Step.ANSWERED
        if data := bytes(await connection.stream.receive_some(ANSWER_READ_BYTES)):
            return await _read_answer(posted, connection.stream, data)
    except ByteLimitExceeded as exceeded:
        raise NotPosted(f"{exceeded} {posted.before_what}") from exceeded
    except trio.BrokenResourceError as broken:
        text = f"the receiver broke the connection off {posted.before_what}"
        raise (NotPosted if data else ConnectionLost)(text) from broken
    raise ConnectionLost("the receiver closed the connection before it answered")


async def _read_answer(posted: Posted, stream: trio.abc.Stream, data: bytes) -> bool:
    """Read an answer that starts with `data`. Return whether the connection is reusable."""
    reads = 1
    while (fast := read_fast(data)) is not None and len(data) + fast.missing <= ANSWER_LIMIT:
        posted.status, posted.body = fast.status, fast.body[:BODY_KEPT]
        if not fast.missing:
            return fast.keep
        if reads == READS_PER_ANSWER:
            break
        posted.awaiting = Step.ENDED
        more = await stream.receive_some(ANSWER_READ_BYTES)
        if not more:
            raise NotPosted("the receiver closed the connection before the end of its answer")
        data, reads = data + more, reads + 1
    reader = AnswerReader(posted)
    reader.receive(data)
    while not reader.done and reads < READS_PER_ANSWER:
        if posted.status is not None:
            posted.awaiting = Step.ENDED
        reader.receive(bytes(await stream.receive_some(ANSWER_READ_BYTES)))
        reads += 1
    if not reader.whole:
        is_long = reader.received > ANSWER_LIMIT
        fault = f"is over {ANSWER_LIMIT // 1024} KiB long" if is_long else "comes in too many pieces"
        if posted.status is None:
            raise NotPosted(f"the receiver's answer {fault} and yet without a status")
        posted.error = f"the receiver's answer {fault}; the rest was not read"
    return reader.keep
