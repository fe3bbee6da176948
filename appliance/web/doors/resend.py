"""The door for Resend's clients."""

from msgspec import Struct

from appliance.config.settings import DoorName
from appliance.message.request import Body
from appliance.message.schema import SendRequest
from appliance.web.doors.frame import Call, Door, Json, Refusal, Reply, Result, Route, Send, Sent, decoded, send_request


class Email(Struct, forbid_unknown_fields=True, rename={"sender": "from"}):
    sender: str
    to: str | list[str]
    subject: str | None = None
    html: str | None = None
    text: str | None = None


def _parse(call: Call, body: Body) -> SendRequest:
    email = decoded(body, Email)
    return send_request(
        {"from": email.sender, "to": email.to, "subject": email.subject, "html": email.html, "text": email.text}
    )


def _answer(call: Call, results: list[Result]) -> Reply:
    return Reply({"id": results[0].id} if isinstance(results[0], Sent) else None)


def _refuse(refusal: Refusal) -> tuple[int, Json]:
    return refusal.code.status, {"statusCode": refusal.code.status, "name": "validation_error", "message": refusal.text}


DOOR = Door(
    name=DoorName.RESEND,
    credential=lambda headers: headers.get(b"authorization"),
    routes=(Route("POST", "/emails", Send(_parse, _answer)),),
    refuse=_refuse,
    has_keys=True,
)
