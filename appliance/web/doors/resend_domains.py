"""Domains for Resend's clients. A domain's id is its name."""

from typing import Literal

from msgspec import Struct

from appliance.errors import Code, Refused, invalid
from appliance.web.doors.frame import Api, Call, DoorReply, DoorRoute, Json, Needs, decoded, number_of
from appliance.web.operations import PAGE_LIMIT

_PAGE_DOMAINS = 20  # of a list, unless the client asks for another number


class _Capabilities(Struct, forbid_unknown_fields=True):
    sending: Literal["enabled"] | None = None
    receiving: Literal["disabled"] | None = None


class _NewDomain(Struct, forbid_unknown_fields=True):
    name: str
    region: str | None = None
    custom_return_path: str | None = None
    open_tracking: bool | None = None
    click_tracking: bool | None = None
    tracking_subdomain: str | None = None
    tls: str | None = None
    capabilities: _Capabilities | None = None


async def _create(call: Call, api: Api) -> DoorReply:
    new = decoded(call.body, _NewDomain)
    for name in ("region", "tracking_subdomain"):
        if getattr(new, name) is not None:
            raise invalid(name, "not supported by this server. Leave the field out.")
    for name in ("open_tracking", "click_tracking"):
        if getattr(new, name):
            raise invalid(name, "this server tracks no opens and clicks. Send false, or leave the field out.")
    if new.tls not in (None, "opportunistic"):
        raise invalid("tls", "expected opportunistic: the recipient's domain decides whether TLS is required")
    body = {"domain": new.name}
    if new.custom_return_path is not None:
        body["return_path"] = f"{new.custom_return_path}.{new.name}"
    added = await api("POST", "/v1/domains", body)
    return DoorReply(_shown(added) | {"records": _records(added)}, 201)


async def _list(call: Call, api: Api) -> DoorReply:
    """Domains by name: behind `after`, or directly before `before`."""
    if (before := call.query.get("before")) is not None:
        return await _listed_before(call, api, before)
    page = await api("GET", "/v1/domains", limit=call.query.get("limit", _PAGE_DOMAINS), after=call.query.get("after"))
    return _page(page["domains"], has_more=page["next"] is not None)


async def _listed_before(call: Call, api: Api, before: str) -> DoorReply:
    if "after" in call.query:
        raise invalid("before", "cannot be combined with after")
    limit = number_of(call, "limit", _PAGE_DOMAINS, PAGE_LIMIT, 1)
    domains, after = list[Json](), ""
    while after is not None and after < before:  # an account has few
        page = await api("GET", "/v1/domains", limit=PAGE_LIMIT, after=after)
        domains, after = domains + page["domains"], page["next"]
    domains = [domain for domain in domains if domain["name"] < before]
    return _page(domains[-limit:], has_more=len(domains) > limit)


def _page(domains: list[Json], *, has_more: bool) -> DoorReply:
    return DoorReply({"object": "list", "has_more": has_more, "data": [_shown(domain) for domain in domains]})


async def _get(call: Call, api: Api) -> DoorReply:
    domain = await api("GET", f"/v1/domains/{_name(call)}")
    return DoorReply({"object": "domain", **_shown(domain), "records": _records(domain)})


async def _verify(call: Call, api: Api) -> DoorReply:
    verified = await api("POST", f"/v1/domains/{_name(call)}/verify")
    return DoorReply({"object": "domain", "id": verified["name"]})


async def _remove(call: Call, api: Api) -> DoorReply:
    await api("DELETE", f"/v1/domains/{_name(call)}")
    return DoorReply({"object": "domain", "id": _name(call), "deleted": True})


def _name(call: Call) -> str:
    if call.params["id"] in (".", ".."):
        raise Refused(Code.NOT_FOUND, "This account has no such domain.")
    return call.params["id"]


def _shown(domain: Json) -> Json:
    return {
        "id": domain["name"],
        "name": domain["name"],
        "status": "not_started" if domain["status"] == "pending" else "verified",
        "created_at": domain["created_at"],
        "capabilities": {"sending": "enabled", "receiving": "disabled"},
    }


_STATUSES = {"ok": "verified", "missing": "not_started", "differs": "failed", "unknown": "pending"}
_KINDS = {"v=DKIM1": "DKIM", "v=DMARC1": "DMARC", "v=TLSRPTv1": "TLSRPT"}  # all others belong to SPF


def _records(domain: Json) -> list[Json]:
    shown = []
    for record in domain["records"]:
        value, priority = record["value"], {}
        if record["type"] == "MX":
            preference, _, value = value.partition(" ")
            priority = {"priority": int(preference)}
        kind = _KINDS.get(value.partition(";")[0].strip(), "SPF")
        status = _STATUSES[record["status"]]
        named = {"record": kind, "name": record["name"], "type": record["type"], "value": value, "ttl": "Auto"}
        shown.append({**named, **priority, "status": status})
    return shown


DOMAIN_ROUTES = (
    DoorRoute("POST", "/domains", _create, Needs.MANAGE),
    DoorRoute("GET", "/domains", _list, Needs.MANAGE, ("limit", "after", "before")),
    DoorRoute("GET", "/domains/{id}", _get, Needs.MANAGE),
    DoorRoute("POST", "/domains/{id}/verify", _verify, Needs.MANAGE),
    DoorRoute("DELETE", "/domains/{id}", _remove, Needs.MANAGE),
)
