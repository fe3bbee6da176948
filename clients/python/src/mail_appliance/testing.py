"""For tests of programs that send mail: a `Client` and an `AsyncClient` that record messages and send nothing.

They are the real clients on a transport that answers as the appliance's sandbox does, so they check, retry and raise
alike. For tests end to end, use the sandbox itself: `appliance serve` without a configuration.
"""

import base64
import binascii
import json
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parseaddr
from typing import Any
from urllib.parse import unquote

from mail_appliance.async_client import AsyncClient
from mail_appliance.client import Client
from mail_appliance.planning import Answer, Request, TransportError

_URL = "http://mail-appliance.invalid"
_TOKEN = "fake"  # noqa: S105 (it opens nothing)


@dataclass(frozen=True, slots=True)
class SentEmail:
    """One accepted send: the fields of the JSON body by the names of the interface, and the key."""

    id: str
    fields: dict[str, Any]
    idempotency_key: str

    def attachment(self, filename: str) -> bytes:
        """The content of the attachment with this name, or KeyError."""
        for attachment in self.fields.get("attachments", ()):
            if attachment["filename"] == filename:
                return base64.b64decode(attachment["content"])
        raise KeyError(filename)


class FakeAppliance:
    """What the fake clients talk to. `sent` has every accepted message, `pauses` the seconds between attempts.

    A scheduled message stays scheduled until the test cancels it; `cancelled` has its id then. A recipient whose
    local part begins with `bounce` has bounced, with `fail` failed; any other is delivered.
    """

    def __init__(self) -> None:
        """Nothing was sent yet."""
        self.sent: list[SentEmail] = []
        self.cancelled: set[str] = set()
        self.pauses: list[float] = []
        self._failures: deque[Answer | TransportError] = deque()
        self._answers: dict[str, tuple[bytes, Answer]] = {}  # by key, with the body of the request

    def fail_next(self, status: int, code: str, *, retry_after: int | None = None) -> None:
        """Answer the next request that has no failure yet with an error object; may be called several times."""
        headers = {} if retry_after is None else {"retry-after": str(retry_after)}
        self._failures.append(_answer(status, {"error": f"this test asked for {code}", "code": code}, headers))

    def lose_next(self) -> None:
        """Lose the connection of the next request that has no failure yet."""
        self._failures.append(TransportError("this test asked for a lost connection"))

    def respond(self, request: Request) -> Answer:
        """What comes back for a request."""
        if self._failures:
            failure = self._failures.popleft()
            if isinstance(failure, TransportError):
                raise failure
            return failure
        path = request.target.split("/")
        if key := request.headers.get("Idempotency-Key"):
            return self._accept(request.body, key, is_batch=path[-1] == "batch")
        if request.method == "GET" and path[-1] == "cancel":
            return _answer(405, {"error": "Use POST.", "code": "invalid_request"})
        message_id = unquote(path[2])
        for sent in self.sent:
            if sent.id == message_id:
                return self._answer_about(sent, request, is_cancel=path[-1] == "cancel")
        return _answer(404, {"error": "No message has this id.", "code": "not_found"})

    def _accept(self, body: bytes, key: str, *, is_batch: bool) -> Answer:
        if key in self._answers:
            known, answer = self._answers[key]
            if known == body:
                return Answer(answer.status, {**answer.headers, "idempotent-replayed": "true"}, answer.body)
            return _answer(
                409,
                {"error": "This Idempotency-Key was used for another message.", "code": "idempotency_conflict"},
            )
        content = json.loads(body)
        accepted = [self._record(fields, key) for fields in (content["emails"] if is_batch else [content])]
        answer = _answer(202, _batch(accepted) if is_batch else _accepted(accepted[0]))
        self._answers[key] = (body, answer)
        return answer

    def _record(self, fields: dict[str, Any], key: str) -> SentEmail:
        self.sent.append(SentEmail(f"msg_{len(self.sent) + 1}", fields, key))
        return self.sent[-1]

    def _answer_about(self, sent: SentEmail, request: Request, *, is_cancel: bool) -> Answer:
        if request.method != "GET" and (sent.id in self.cancelled or "scheduled_at" not in sent.fields):
            return _answer(409, {"error": "The message has no scheduled recipients.", "code": "conflict"})
        if is_cancel:
            self.cancelled.add(sent.id)
        elif request.method == "PATCH":
            sent.fields["scheduled_at"] = json.loads(request.body)["scheduled_at"]
        return _answer(200, _message(sent, is_cancelled=sent.id in self.cancelled))


class FakeClient(Client):
    """A `Client` that sends nothing; `appliance` has what it would have sent."""

    def __init__(self, appliance: FakeAppliance | None = None) -> None:
        """Clients with the same fake share the recorded messages."""
        self.appliance = appliance or FakeAppliance()
        super().__init__(_URL, token=_TOKEN, transport=_Transport(self.appliance), sleep=self.appliance.pauses.append)

    @property
    def sent(self) -> list[SentEmail]:
        """The accepted messages."""
        return self.appliance.sent


class AsyncFakeClient(AsyncClient):
    """An `AsyncClient` that sends nothing; `appliance` has what it would have sent."""

    def __init__(self, appliance: FakeAppliance | None = None) -> None:
        """Clients with the same fake share the recorded messages."""
        self.appliance = appliance or FakeAppliance()
        super().__init__(_URL, token=_TOKEN, transport=_AsyncTransport(self.appliance), sleep=self._pause)

    @property
    def sent(self) -> list[SentEmail]:
        """The accepted messages."""
        return self.appliance.sent

    async def _pause(self, seconds: float) -> None:
        self.appliance.pauses.append(seconds)


class _Transport:
    def __init__(self, appliance: FakeAppliance) -> None:
        self._appliance = appliance

    def send(self, request: Request, timeout: float) -> Answer:
        return self._appliance.respond(request)

    def close(self) -> None:
        pass


class _AsyncTransport:
    def __init__(self, appliance: FakeAppliance) -> None:
        self._appliance = appliance

    async def send(self, request: Request, timeout: float) -> Answer:  # noqa: ASYNC109 (the protocol's name)
        return self._appliance.respond(request)

    async def close(self) -> None:
        pass


# ---- answers


def _answer(status: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> Answer:
    content = {**content, "request_id": "req_fake"}
    return Answer(status, {"x-request-id": "req_fake", **(headers or {})}, json.dumps(content).encode())


def _accepted(sent: SentEmail) -> dict[str, Any]:
    fields = sent.fields
    recipients = _recipients(fields)
    return {
        **{name: fields[name] for name in ("from", "reply_to", "subject", "headers", "scheduled_at") if name in fields},
        **{name: _list(fields.get(name)) for name in ("to", "cc", "bcc", "tags")},
        "id": sent.id,
        "status": "queued",
        "source": "api",
        "billing_status": "reserved",
        "recipient_count": len(recipients),
        "credits_reserved": len(recipients),
        "attachments": [_attachment(attachment) for attachment in fields.get("attachments", ())],
    }


def _batch(accepted: list[SentEmail]) -> dict[str, Any]:
    shown = ("id", "status", "recipient_count", "credits_reserved")
    results = [
        {"index": index, **{name: _accepted(sent)[name] for name in shown}} for index, sent in enumerate(accepted)
    ]
    return {"results": results, "accepted": len(results), "refused": 0}


def _attachment(fields: dict[str, str]) -> dict[str, Any]:
    try:
        size = len(base64.b64decode(fields["content"]))
    except binascii.Error:
        size = 0
    return {**{name: value for name, value in fields.items() if name != "content"}, "size": size}


def _message(sent: SentEmail, *, is_cancelled: bool) -> dict[str, Any]:
    recipients = [_recipient(number, email) for number, email in enumerate(_recipients(sent.fields), 1)]
    is_scheduled = "scheduled_at" in sent.fields
    if is_scheduled:
        waiting = _CANCELLED if is_cancelled else _SCHEDULED
        recipients = [{"id": recipient["id"], "email": recipient["email"], **waiting} for recipient in recipients]
    delivered = sum(recipient["status"] == "delivered" for recipient in recipients)
    final = "delivered" if delivered == len(recipients) else "partial" if delivered else "failed"
    return {
        **{name: sent.fields[name] for name in ("scheduled_at", "metadata") if name in sent.fields},
        "id": sent.id,
        "status": "queued" if is_scheduled and not is_cancelled else final,
        "source": "api",
        "from": sent.fields["from"],
        "subject": sent.fields.get("subject"),
        "billing_status": _billing({recipient["billing_status"] for recipient in recipients}),
        "recipient_count": len(recipients),
        "credits_reserved": len(recipients),
        "created_at": datetime.now(UTC).isoformat(),
        "recipients": recipients,
    }


_SCHEDULED = {"status": "scheduled", "billing_status": "reserved", "attempt_count": 0}
_CANCELLED = {
    "status": "failed",
    "billing_status": "released",
    "attempt_count": 0,
    "last_smtp_response": "cancelled: by the sender",
}


def _billing(recipients: set[str]) -> str:
    return next(status for status in ("reserved", "settled", "released") if status in recipients)


def _recipient(number: int, email: str) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat()
    status = "bounced" if email.startswith("bounce") else "failed" if email.startswith("fail") else "delivered"
    code, response = {
        "bounced": (550, "550 5.1.1 no such user"),
        "failed": (451, "451 4.3.0 try again later"),
        "delivered": (250, "250 2.0.0 OK"),
    }[status]
    return {
        "id": f"rcp_{number}",
        "email": email,
        "status": status,
        "billing_status": "released" if status == "bounced" else "settled",
        "attempt_count": 12 if status == "failed" else 1,
        "last_smtp_code": code,
        "last_smtp_response": response,
        "delivered_at": now if status == "delivered" else None,
        "bounced_at": now if status == "bounced" else None,
    }


def _list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def _recipients(fields: dict[str, Any]) -> list[str]:
    """The unique addresses, in their first spelling."""
    addresses: dict[str, str] = {}
    for name in ("to", "cc", "bcc"):
        for text in _list(fields.get(name)):
            address = parseaddr(text)[1] or text
            addresses.setdefault(address.lower(), address)
    return list(addresses.values())
