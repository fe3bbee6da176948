"""SendGrid's bounces and global unsubscribes, which are suppressions of the account."""

from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from appliance.errors import invalid
from appliance.message.schedule import microseconds
from appliance.model.mail import SuppressionOrigin
from appliance.times import SECOND
from appliance.web.doors.frame import Api, Call, DoorReply, DoorRoute, Json, Needs, decoded, number_of
from appliance.web.doors.suppressed import remove_suppression, suppression_of, suppressions_after

_PAGE = 500  # entries, unless the client asks for fewer
_LISTED = 5_000  # entries that a filtered list reads
_LATEST = 2**33  # seconds since 1970
_DELETED = 100  # addresses in one request
_BOUNCE, _UNSUBSCRIBE = SuppressionOrigin.BOUNCE, SuppressionOrigin.UNSUBSCRIBE


class _Deletion(Struct, forbid_unknown_fields=True):
    emails: list[str] = []
    delete_all: bool = False


def _bounce(entry: Json) -> Json:
    created = microseconds(entry["created_at"], "created_at") // SECOND
    return {"created": created, "email": entry["address"], "reason": entry["reason"], "status": ""}


async def _bounces(call: Call, api: Api) -> DoorReply:
    limit, offset = number_of(call, "limit", _PAGE, _PAGE, 1), number_of(call, "offset", 0, _LISTED - _PAGE)
    start, end = number_of(call, "start_time", 0, _LATEST), number_of(call, "end_time", _LATEST, _LATEST)
    most = _LISTED if {"start_time", "end_time"} & call.query.keys() else limit + offset
    entries, _ = await suppressions_after(api, _BOUNCE, None, most)
    bounces = [bounce for bounce in map(_bounce, entries) if start <= bounce["created"] <= end]
    return DoorReply(bounces[offset : offset + limit])


async def _bounce_of(call: Call, api: Api) -> DoorReply:
    entry = await suppression_of(api, call.params["email"], _BOUNCE)
    return DoorReply([] if entry is None else [_bounce(entry)])


async def _delete_bounces(call: Call, api: Api) -> DoorReply:
    deletion = decoded(call.body, _Deletion)
    if deletion.delete_all or not 1 <= len(deletion.emails) <= _DELETED:
        field = "delete_all" if deletion.delete_all else "emails"
        raise invalid(field, f"name 1 to {_DELETED} addresses in emails")
    for email in deletion.emails:
        await remove_suppression(api, email, _BOUNCE)
    return DoorReply(None, 204)


def _delete(origin: SuppressionOrigin) -> Callable[[Call, Api], Coroutine[Any, Any, DoorReply]]:
    async def delete(call: Call, api: Api) -> DoorReply:
        if call.query.get("email_address", call.params["email"]).lower() != call.params["email"].lower():
            raise invalid("email_address", "differs from the address in the path")
        await remove_suppression(api, call.params["email"], origin)
        return DoorReply(None, 204)

    return delete


async def _global(call: Call, api: Api) -> DoorReply:
    entry = await suppression_of(api, call.params["email"], _UNSUBSCRIBE)
    return DoorReply({} if entry is None else {"recipient_email": entry["address"]})


_BOUNCES, _GLOBAL = "/v3/suppression/bounces", "/v3/asm/suppressions/global"
SUPPRESSION_ROUTES = (
    DoorRoute("GET", _BOUNCES, _bounces, Needs.MANAGE, ("limit", "offset", "start_time", "end_time")),
    DoorRoute("DELETE", _BOUNCES, _delete_bounces, Needs.MANAGE),
    DoorRoute("GET", f"{_BOUNCES}/{{email}}", _bounce_of, Needs.MANAGE),
    DoorRoute("DELETE", f"{_BOUNCES}/{{email}}", _delete(_BOUNCE), Needs.MANAGE, ("email_address",)),
    DoorRoute("GET", f"{_GLOBAL}/{{email}}", _global, Needs.MANAGE),
    DoorRoute("DELETE", f"{_GLOBAL}/{{email}}", _delete(_UNSUBSCRIBE), Needs.MANAGE),
)
