"""In charge of templates over HTTP: /v1/templates."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from quart import Blueprint, Response, request

from appliance.errors import Code, Refused
from appliance.intake.quota import Quota
from appliance.message.characters import BODY_PATTERN, LINE_PATTERN
from appliance.message.limits import SUBJECT_LENGTH
from appliance.message.template import ALIAS, check_template, placeholders
from appliance.model.mail import StoredTemplate
from appliance.times import rfc3339
from appliance.web.answer import Time
from appliance.web.app import Services, answer, json_request, page_limit, request_id
from appliance.web.operations import PAGING, for_customers, parameter

NO_TEMPLATE = "There is no template with this alias."

# For the schema only: the rules themselves stand in check_template, where each has a sentence of its own.
_LINE = {"pattern": LINE_PATTERN}
_BODY = {"pattern": BODY_PATTERN}


class TemplateRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a PUT: at least one of text and html."""

    subject: (
        Annotated[str, Meta(max_length=SUBJECT_LENGTH, examples=["Welcome, {{name}}"], extra_json_schema=_LINE)]
        | UnsetType
    ) = UNSET
    text: Annotated[str, Meta(examples=["Hello {{name}}!"], extra_json_schema=_BODY)] | UnsetType = UNSET
    html: Annotated[str, Meta(examples=["<p>Hello {{name}}!</p>"], extra_json_schema=_BODY)] | UnsetType = UNSET


class TemplateObject(msgspec.Struct):
    """One template in a list."""

    alias: str
    version: int
    subject: str | None
    text: str | None
    html: str | None
    variables: list[str]
    created_at: Time
    updated_at: Time


class TemplateAnswer(TemplateObject):
    """One template on its own."""

    request_id: str


class TemplatesAnswer(msgspec.Struct):
    """A page of templates; `next` goes into `after` for the page that follows."""

    templates: list[TemplateObject]
    next: str | None
    request_id: str


class DeletedAnswer(msgspec.Struct):
    """The answer to a DELETE."""

    deleted: bool
    request_id: str


BODY = msgspec.json.Decoder(TemplateRequest)


def blueprint(services: Services, quota: Quota) -> Blueprint:
    """The routes."""
    routes = Blueprint("templates", __name__)

    @routes.get("/v1/templates")
    async def page() -> Response:
        user, _ = await services.user()
        limit = page_limit()
        found, more = services.store.templates.page(user.account_id, request.args.get("after", ""), limit)
        shown = [TemplateObject(**_fields(each)) for each in found]
        return answer(TemplatesAnswer(shown, found[-1].alias if more else None, request_id()))

    @routes.get("/v1/templates/<alias>")
    async def show(alias: str) -> Response:
        user, _ = await services.user()
        stored = services.store.templates.current(user.account_id, alias) if ALIAS.fullmatch(alias) else None
        if stored is None:
            raise Refused(Code.NOT_FOUND, NO_TEMPLATE)
        return answer(TemplateAnswer(**_fields(stored), request_id=request_id()))

    @routes.put("/v1/templates/<alias>")
    async def save(alias: str) -> Response:
        user, _ = await services.user()
        body = await json_request(BODY)
        subject, text, html = (None if value is UNSET else value for value in (body.subject, body.text, body.html))
        check_template(alias, subject, text, html)
        stored = await services.store.templates.save(
            user.account_id, alias, subject, text, html, may_store=quota.bytes()
        )
        return answer(TemplateAnswer(**_fields(stored), request_id=request_id()))

    @routes.delete("/v1/templates/<alias>")
    async def delete(alias: str) -> Response:
        user, _ = await services.user()
        if not ALIAS.fullmatch(alias):
            raise Refused(Code.NOT_FOUND, NO_TEMPLATE)
        await services.store.templates.delete(user.account_id, alias)
        return answer(DeletedAnswer(True, request_id()))

    return routes


def _fields(stored: StoredTemplate) -> dict[str, Any]:
    sources = (stored.subject, stored.text, stored.html)
    return {
        "alias": stored.alias,
        "version": stored.version,
        "subject": stored.subject,
        "text": stored.text,
        "html": stored.html,
        "variables": sorted(frozenset().union(*(placeholders(source) for source in sources if source))),
        "created_at": rfc3339(stored.created_at),
        "updated_at": rfc3339(stored.updated_at),
    }


ALIAS_PARAMETER = parameter(
    "alias", "path", "The template's alias.", {"type": "string", "pattern": f"^{ALIAS.pattern}$"}
)

OPERATIONS = (
    for_customers(
        "get",
        "/v1/templates",
        "List the account's templates by alias.",
        (200, TemplatesAnswer, "A page of templates."),
        Code.INVALID_REQUEST,
        parameters=PAGING,
    ),
    for_customers(
        "get",
        "/v1/templates/{alias}",
        "Read the current version of a template.",
        (200, TemplateAnswer, "The template."),
        Code.NOT_FOUND,
        parameters=(ALIAS_PARAMETER,),
    ),
    for_customers(
        "put",
        "/v1/templates/{alias}",
        "Store a template as a new version.",
        (200, TemplateAnswer, "The template as stored."),
        Code.CONFLICT,
        body=TemplateRequest,
        parameters=(ALIAS_PARAMETER,),
    ),
    for_customers(
        "delete",
        "/v1/templates/{alias}",
        "Remove a template from use.",
        (200, DeletedAnswer, "Deleted."),
        Code.NOT_FOUND,
        parameters=(ALIAS_PARAMETER,),
    ),
)
