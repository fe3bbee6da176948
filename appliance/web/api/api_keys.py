"""In charge of API keys in their owner's hands: /v1/api-keys."""

import msgspec
from quart import Blueprint, Response, request

from appliance.errors import Code, Refused
from appliance.model.mail import ApiKey, Scope
from appliance.times import rfc3339
from appliance.web.answer import Time
from appliance.web.api.labels import Label, check_label
from appliance.web.api.lists import RevokedAnswer, time_or_none
from appliance.web.app import Services, answer, json_request, page_limit, request_id
from appliance.web.operations import PAGING_BACK, for_customers, identifier


class ApiKeyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST."""

    name: Label = ""
    scope: Scope = Scope.SEND
    test: bool = False


class ApiKeyObject(msgspec.Struct):
    """A key by its id; `hint` is its last four characters."""

    id: str
    name: str
    hint: str
    scope: Scope
    test: bool
    created_at: Time
    last_used_at: Time | None
    revoked_at: Time | None


class NewApiKeyAnswer(ApiKeyObject):
    """A new key; the key itself is shown only here."""

    key: str
    request_id: str


class ApiKeysAnswer(msgspec.Struct):
    """A page of keys, newest first; `next` goes into `before` for the page that follows."""

    api_keys: list[ApiKeyObject]
    next: str | None
    request_id: str


BODY = msgspec.json.Decoder(ApiKeyRequest)


def blueprint(services: Services) -> Blueprint:
    """The routes."""
    routes = Blueprint("api_keys", __name__)
    access = services.store.access

    @routes.get("/v1/api-keys")
    async def page() -> Response:
        user, limit = await services.customer(), page_limit()
        await services.auth.credentials.record_uses()
        found = access.newest_keys(user.account_id, request.args.get("before"), limit + 1)
        following = found[limit - 1].id if len(found) > limit else None
        shown = [ApiKeyObject(*_fields(each)) for each in found[:limit]]
        return answer(ApiKeysAnswer(shown, following, request_id()))

    @routes.post("/v1/api-keys")
    async def create() -> Response:
        user, body = await services.customer(), await json_request(BODY)
        name = check_label(body.name)
        key_id, key = await access.create_key(
            user.account_id, scope=body.scope, test=body.test, name=name, by_owner=True
        )
        return answer(NewApiKeyAnswer(*_fields(access.key(key_id)), key, request_id()), 201)

    @routes.delete("/v1/api-keys/<key_id>")
    async def revoke(key_id: str) -> Response:
        user = await services.customer()
        if not key_id.startswith("key_"):  # the store would take the key itself, which belongs into no address
            raise Refused(Code.NOT_FOUND, "there is no such API key")
        await access.revoke_key(key_id, user.account_id)
        services.auth.forget()
        return answer(RevokedAnswer(True, request_id()))

    return routes


def _fields(found: ApiKey) -> tuple[str, str, str, Scope, bool, str, str | None, str | None]:
    return (
        found.id,
        found.name,
        found.hint,
        found.scope,
        found.test,
        rfc3339(found.created_at),
        time_or_none(found.last_used_at),
        time_or_none(found.revoked_at),
    )


OPERATIONS = (
    for_customers(
        "get",
        "/v1/api-keys",
        "List the account's API keys, revoked ones too, newest first.",
        (200, ApiKeysAnswer, "A page of keys."),
        Code.INVALID_REQUEST,
        parameters=PAGING_BACK,
    ),
    for_customers(
        "post",
        "/v1/api-keys",
        "Create an API key.",
        (201, NewApiKeyAnswer, "The key."),
        Code.CONFLICT,
        body=ApiKeyRequest,
    ),
    for_customers(
        "delete",
        "/v1/api-keys/{id}",
        "Stop an API key from working, for good.",
        (200, RevokedAnswer, "Revoked."),
        Code.NOT_FOUND,
        parameters=(identifier("The key's id.", "^key_[0-9a-f]{32}$"),),
    ),
)
