"""In charge of what templates were before, over HTTP: /v1/templates/{alias}/versions."""

import msgspec
from quart import Blueprint, Response, request

from appliance.errors import Code, Refused
from appliance.message.template import ALIAS
from appliance.model.mail import TemplateVersion
from appliance.times import rfc3339
from appliance.web.answer import Time
from appliance.web.api.templates import ALIAS_PARAMETER, NO_TEMPLATE
from appliance.web.app import Services, answer, page_limit, request_id
from appliance.web.operations import for_customers, parameter

PAGE = 20  # versions, unless asked otherwise: each comes with its bodies
_DIGITS = 9  # of a version's number, more than anybody will reach


class TemplateVersionObject(msgspec.Struct):
    """One version; the first of them is the one in use."""

    version: int
    subject: str | None
    text: str | None
    html: str | None
    created_at: Time


class TemplateVersionsAnswer(msgspec.Struct):
    """A page of versions, the newest first; `next` goes into `before` for the page that follows."""

    versions: list[TemplateVersionObject]
    next: str | None
    request_id: str


def blueprint(services: Services) -> Blueprint:
    """The route."""
    routes = Blueprint("template_versions", __name__)

    @routes.get("/v1/templates/<alias>/versions")
    async def page(alias: str) -> Response:
        user, _ = await services.user()
        limit, before = page_limit(PAGE), _before()
        if not ALIAS.fullmatch(alias) or services.store.templates.current(user.account_id, alias) is None:
            raise Refused(Code.NOT_FOUND, NO_TEMPLATE)
        found, more = services.store.templates.versions(user.account_id, alias, before, limit)
        following = str(found[-1].version) if more else None
        return answer(TemplateVersionsAnswer([_shown(each) for each in found], following, request_id()))

    return routes


def _before() -> int:
    given = request.args.get("before", "9" * _DIGITS)
    if not (given.isascii() and given.isdecimal() and len(given) <= _DIGITS):
        raise Refused(Code.INVALID_REQUEST, "before: must be the `next` of the page before")
    return int(given)


def _shown(each: TemplateVersion) -> TemplateVersionObject:
    return TemplateVersionObject(each.version, each.subject, each.text, each.html, rfc3339(each.created_at))


OPERATIONS = (
    for_customers(
        "get",
        "/v1/templates/{alias}/versions",
        "List what was saved as this template, the newest first.",
        (200, TemplateVersionsAnswer, "A page of versions."),
        Code.INVALID_REQUEST,
        Code.NOT_FOUND,
        parameters=(
            ALIAS_PARAMETER,
            parameter(
                "limit",
                "query",
                "Versions on the page.",
                {"type": "integer", "minimum": 1, "maximum": 100, "default": PAGE},
            ),
            parameter(
                "before",
                "query",
                "`next` of the page before.",
                {"type": "string", "pattern": f"^[0-9]{{1,{_DIGITS}}}$"},
            ),
        ),
    ),
)
