"""The lines that `appliance dev` prints: one per message with its result, and one per refused request."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import trio
from msgspec import Struct, field

from appliance.intake.request_log import RequestLog, SubmittedRequest
from appliance.model.mail import Message, MessageStatus, NewMessage
from appliance.store import Store
from appliance.times import SECOND

PENDING = 20_000  # messages without a line yet; further ones get none
REMEMBERED = 1_000  # messages with a line, which an outcome that follows must not repeat
LINE_SHOWN = 70  # characters of a subject or a reply
PRINT_EVERY = 0.1  # seconds: under load, lines are written together


class Console(Struct):
    """Prints a line when every recipient of a message has a result."""

    store: Store
    account_id: str
    write: Callable[[str], None]  # of whole lines; never blocks
    _changed: dict[str, None] = field(default_factory=dict)  # ids of messages, in order
    _printed: dict[str, None] = field(default_factory=dict)

    def accepted(self, new: NewMessage) -> None:
        self.changed((new.id,))

    def changed(self, message_ids: Iterable[str]) -> None:
        for message_id in message_ids:
            if len(self._changed) < PENDING and message_id not in self._printed:
                self._changed[message_id] = None

    def refused(self, route: str, status: int, reason: str) -> None:
        self.write(line(time.time(), f"{route}  refused {status}: {reason}"))

    async def run(self) -> None:
        while True:
            await trio.sleep(PRINT_EVERY)
            changed, self._changed = self._changed, {}
            for message_id in changed:
                message = await self.store.messages.read(self.account_id, message_id)
                if message is not None and message.status is not MessageStatus.QUEUED:
                    self._printed[message_id] = None
                    self.write(line(message.created_at / SECOND, described(message)))
            while len(self._printed) > REMEMBERED:
                del self._printed[next(iter(self._printed))]


def line(seconds: float, text: str) -> str:
    """One line, whatever the text: control characters would move the terminal's cursor."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return f"{time.strftime('%H:%M:%S', time.localtime(seconds))}  {shown}\n"


def described(message: Message) -> str:
    """From → to, subject, result."""
    first, *others = message.recipients
    to = f"{first.email} and {len(others)} more" if others else first.email
    results = [recipient.status.value for recipient in message.recipients]
    result = ", ".join(f"{results.count(value)} {value}" for value in dict.fromkeys(results)) if others else results[0]
    if first.status.value != "delivered" and not others:
        result = f"{result}: {_cut(first.last_smtp_response or '')}"
    return f"{message.sender} → {to}  {_cut(message.subject) or '(no subject)'}  {result}"


def _cut(text: str) -> str:
    return text if len(text) <= LINE_SHOWN else f"{text[:LINE_SHOWN]}…"


@dataclass(slots=True, kw_only=True)
class PrintedRequests(RequestLog):
    """The request log, which also prints refusals."""

    console: Console

    def refused(self, submission: SubmittedRequest, status: int, code: str | None, error: str) -> None:
        self.console.refused(submission.route, status, error)
        RequestLog.refused(self, submission, status, code, error)
