"""In charge of SMTP credentials in their owner's hands: /v1/smtp-credentials."""

import msgspec
from quart import Blueprint, Response, request

from appliance.errors import Code
from appliance.model.mail import SmtpCredential
from appliance.times import rfc3339
from appliance.web.answer import Time
from appliance.web.api.labels import Label, check_label
from appliance.web.api.lists import RevokedAnswer, time_or_none
from appliance.web.app import Services, answer, json_request, page_limit, request_id
from appliance.web.operations import PAGING_BACK, for_customers, identifier


class SmtpCredentialRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST."""

    name: Label = ""


class SmtpCredentialObject(msgspec.Struct):
    """A credential without its password."""

    username: str
    name: str
    created_at: Time
    last_used_at: Time | None
    revoked_at: Time | None


class NewSmtpCredentialAnswer(msgspec.Struct):
    """A new credential; the password is shown only here."""

    username: str
    password: str
    name: str
    created_at: Time
    request_id: str


class SmtpCredentialsAnswer(msgspec.Struct):
    """A page of credentials, newest first; `next` goes into `before` for the page that follows."""

    smtp_credentials: list[SmtpCredentialObject]
    next: str | None
    request_id: str


BODY = msgspec.json.Decoder(SmtpCredentialRequest)


def blueprint(services: Services) -> Blueprint:
    """The routes."""
    routes = Blueprint("smtp_credentials", __name__)
    access = services.store.access

    @routes.get("/v1/smtp-credentials")
    async def page() -> Response:
        user, limit = await services.customer(), page_limit()
        await services.auth.credentials.record_uses()
        found = access.newest_credentials(user.account_id, request.args.get("before"), limit + 1)
        following = found[limit - 1].username if len(found) > limit else None
        return answer(SmtpCredentialsAnswer([_object(each) for each in found[:limit]], following, request_id()))

    @routes.post("/v1/smtp-credentials")
    async def create() -> Response:
        user, body = await services.customer(), await json_request(BODY)
        name = check_label(body.name)
        username, password = await access.create_credential(user.account_id, name, by_owner=True)
        created_at = rfc3339(access.credential(user.account_id, username).created_at)
        return answer(NewSmtpCredentialAnswer(username, password, name, created_at, request_id()), 201)

    @routes.delete("/v1/smtp-credentials/<username>")
    async def revoke(username: str) -> Response:
        user = await services.customer()
        await access.revoke_credential(user.account_id, username)
        services.auth.forget()
        return answer(RevokedAnswer(True, request_id()))

    return routes


def _object(found: SmtpCredential) -> SmtpCredentialObject:
    return SmtpCredentialObject(
        found.username,
        found.name,
        rfc3339(found.created_at),
        time_or_none(found.last_used_at),
        time_or_none(found.revoked_at),
    )


OPERATIONS = (
    for_customers(
        "get",
        "/v1/smtp-credentials",
        "List the account's SMTP credentials, revoked ones too, newest first.",
        (200, SmtpCredentialsAnswer, "A page of credentials."),
        Code.INVALID_REQUEST,
        parameters=PAGING_BACK,
    ),
    for_customers(
        "post",
        "/v1/smtp-credentials",
        "Create an SMTP credential.",
        (201, NewSmtpCredentialAnswer, "The credential, with its password."),
        Code.CONFLICT,
        body=SmtpCredentialRequest,
    ),
    for_customers(
        "delete",
        "/v1/smtp-credentials/{username}",
        "Stop an SMTP credential from working, for good.",
        (200, RevokedAnswer, "Revoked."),
        Code.NOT_FOUND,
        parameters=(identifier("The credential's username.", "^smtp_[0-9a-f]{32}$", "username"),),
    ),
)
