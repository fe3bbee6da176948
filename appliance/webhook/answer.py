"""In charge of reading a receiver's answer: its status and the first 2 KiB of its body, whatever else it sends. PURE.

The usual answer is short, plain and soon there. A quick look reads it for a tenth of what h11 takes; but only what h11
would read the same way without any doubt, and all else is h11's, from its first byte (`tests/webhook/test_answer.py`
holds the two against each other).
"""

import re
from typing import NamedTuple

import h11

from appliance.webhook.attempt import NotPosted

BODY_KEPT = 2048  # bytes, by the interface
HEAD_LIMIT = 16 * 1024  # bytes of headers, in one answer or one of its trailers
ANSWER_LIMIT = 32 * 1024  # bytes read, for the sake of the connection: past that a new one is the cheaper way
INTERIM_LIMIT = 10  # 1xx answers before the real one

_VERSION = b"HTTP/1."
_QUICK_HEAD = 4 * 1024  # bytes; a longer head is no usual one
# A final status; then no folded line, no bare CR or LF, no control or 8-bit character, no space around a name.
_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9])(?: [\x20-\x7e]*)?\r\n")
_FIELDS = re.compile(rb"(?:[A-Za-z0-9-]+:[\x20-\x7e]*\r\n)*")
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]{1,5}) *\r\n")
_CONNECTION = re.compile(rb"\r\nconnection: *(keep-alive|close) *\r\n")
_NO_CONTENT = (204, 304)  # no body, whatever their headers say (RFC 9112 6.3)


class QuickAnswer(NamedTuple):
    """A plain answer, whole but for the bytes that are missing."""

    status: int
    body: bytes  # the first 2 KiB
    keep: bool  # the connection may carry another request
    missing: int = 0


def read_quickly(data: bytes) -> QuickAnswer | None:
    """The answer that these bytes are, or are the beginning of; None when that takes more than a quick look."""
    first, end = _STATUS_LINE.match(data), data.find(b"\r\n\r\n", 0, _QUICK_HEAD)
    if first is None or end < 0 or not _FIELDS.fullmatch(data, first.end(), end + 2):
        return None
    status, head = int(first[1]), data[first.end() - 2 : end + 2].lower()
    length, keep = _length(head, status), _keep(head)
    if length is None or keep is None or b"\r\ntransfer-encoding:" in head:
        return None
    begin = end + 4
    missing = begin + length - len(data)
    if missing < 0 or begin + length > ANSWER_LIMIT:
        return None
    return QuickAnswer(status, data[begin : begin + BODY_KEPT], keep, missing)


def _length(head: bytes, status: int) -> int | None:
    """How long the body is; None when that is not plain to see. `head` is in lower case."""
    if b"\r\ncontent-length:" not in head:
        return 0 if status in _NO_CONTENT else None
    found = _LENGTH.search(head)
    if found is None or head.count(b"\r\ncontent-length:") > 1:
        return None
    return 0 if status in _NO_CONTENT else int(found[1])


def _keep(head: bytes) -> bool | None:
    """Whether the connection stays open (RFC 9112 9.3); None when that is not plain to see."""
    if b"\r\nconnection:" not in head:
        return True
    found = _CONNECTION.search(head)
    if found is None or head.count(b"\r\nconnection:") > 1:
        return None
    return found[1] == b"keep-alive"


class AnswerReader:
    """Reads one answer by h11, within the limits above."""

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
        # Of the request, which has been sent already, only the method says anything about the answer.
        self._http.send(h11.Request(method="POST", target="/", headers=[("Host", "-"), ("Content-Length", "0")]))
        self._http.send(h11.EndOfMessage())

    def receive(self, data: bytes) -> None:
        """Take what came, nothing when the receiver has closed; raises `NotPosted`."""
        self._received += len(data)
        self._check_begin(data)
        try:
            self._http.receive_data(data)
            while not self.done and (event := self._http.next_event()) is not h11.NEED_DATA:
                self._take(event)
        except h11.RemoteProtocolError as fault:
            raise NotPosted(self._words(fault, closed=not data)) from fault
        self.done = self.done or self._received > ANSWER_LIMIT

    def _check_begin(self, data: bytes) -> None:
        """Notice another protocol by its first bytes: h11 would wait for a whole head, which need not ever come."""
        if len(self._begin) < len(_VERSION):
            self._begin += data[: len(_VERSION) - len(self._begin)]
            if not _VERSION.startswith(self._begin):
                raise NotPosted("the receiver's answer is not HTTP/1.1")

    def _take(self, event: h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]) -> None:
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

    def _words(self, fault: h11.RemoteProtocolError, *, closed: bool) -> str:
        if closed:
            return f"the receiver closed the connection {self.before_what}"
        if fault.error_status_hint == 431:
            return f"the receiver's answer has over {HEAD_LIMIT // 1024} KiB of headers"
        return f"the receiver's answer is no good HTTP: {fault}"

    @property
    def before_what(self) -> str:
        """What is still to come, for saying that it will not."""
        return "before it answered" if self.status is None else "before the end of its answer"
