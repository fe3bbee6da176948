"""Templates and their versions: /v1/templates."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
from quart import Response, request

from appliance.errors import Code, Refused
from appliance.intake.limits import Quota
from appliance.message.characters import BODY_PATTERN, LINE_PATTERN
from appliance.message.limits import SUBJECT_LENGTH
from appliance.message.template import ALIAS, check_template, placeholders
from appliance.model.mail import StoredTemplate, User
from appliance.web.answer import DeletedAnswer, Time, object_from
from appliance.web.app import ApiServices, answer, json_request, page_limit, request_id
from appliance.web.operations import BEFORE_PARAMETER, PAGING, for_customers, limit_parameter, parameter

NO_TEMPLATE = "There is no template with this alias."
VERSIONS_ON_PAGE = 20  # fewer than in other lists: each comes with its bodies
_DIGITS = 9  # of a version number, at most

# For the schema only: check_template has the rules, each with a message of its own.
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


ALIAS_PARAMETER = parameter(
    "alias", "path", "The template's alias.", {"type": "string", "pattern": f"^{ALIAS.pattern}$"}
)


@dataclass(frozen=True, slots=True)
class TemplateRoutes:
    services: ApiServices
    quota: Quota

    @for_customers(
        "GET /v1/templates",
        "List the account's templates by alias.",
        (200, TemplatesAnswer, "A page of templates."),
        parameters=PAGING,
    )
    async def page(self, user: User) -> Response:
        limit = page_limit()
        found, more = self.services.store.templates.page(user.account_id, request.args.get("after", ""), limit)
        shown = [object_from(TemplateObject, each, variables=_variables(each)) for each in found]
        return answer(TemplatesAnswer(shown, found[-1].alias if more else None, request_id()))

    @for_customers(
        "GET /v1/templates/{alias}",
        "Read the current version of a template.",
        (200, TemplateAnswer, "The template."),
        Code.NOT_FOUND,
        parameters=(ALIAS_PARAMETER,),
    )
    async def show(self, user: User, alias: str) -> Response:
        stored = self.services.store.templates.current(user.account_id, alias) if ALIAS.fullmatch(alias) else None
        if stored is None:
            raise Refused(Code.NOT_FOUND, NO_TEMPLATE)
        return _template_answer(stored)

    @for_customers(
        "PUT /v1/templates/{alias}",
        "Store a template as a new version.",
        (200, TemplateAnswer, "The template as stored."),
        Code.CONFLICT,
        body=TemplateRequest,
        parameters=(ALIAS_PARAMETER,),
    )
    async def save(self, user: User, alias: str) -> Response:
        body = await json_request(TemplateRequest)
        subject, text, html = (None if value is UNSET else value for value in (body.subject, body.text, body.html))
        check_template(alias, subject, text, html)
        stored = await self.services.store.templates.save(
            user.account_id, alias, subject, text, html, may_store=self.quota.bytes()
        )
        return _template_answer(stored)

    @for_customers(
        "DELETE /v1/templates/{alias}",
        "Remove a template from use.",
        (200, DeletedAnswer, "Deleted."),
        Code.NOT_FOUND,
        parameters=(ALIAS_PARAMETER,),
    )
    async def delete(self, user: User, alias: str) -> Response:
        if not ALIAS.fullmatch(alias):
            raise Refused(Code.NOT_FOUND, NO_TEMPLATE)
        await self.services.store.templates.delete(user.account_id, alias)
        return answer(DeletedAnswer(True, request_id()))

    @for_customers(
        "GET /v1/templates/{alias}/versions",
        "List what was saved as this template, the newest first.",
        (200, TemplateVersionsAnswer, "A page of versions."),
        Code.NOT_FOUND,
        parameters=(
            ALIAS_PARAMETER,
            limit_parameter(VERSIONS_ON_PAGE, "Versions on the page."),
            {**BEFORE_PARAMETER, "schema": {"type": "string", "pattern": f"^[0-9]{{1,{_DIGITS}}}$"}},
        ),
    )
    async def versions(self, user: User, alias: str) -> Response:
        limit, before = page_limit(VERSIONS_ON_PAGE), _version_before()
        if not ALIAS.fullmatch(alias) or self.services.store.templates.current(user.account_id, alias) is None:
            raise Refused(Code.NOT_FOUND, NO_TEMPLATE)
        found, more = self.services.store.templates.versions(user.account_id, alias, before, limit)
        following = str(found[-1].version) if more else None
        return answer(
            TemplateVersionsAnswer(
                [object_from(TemplateVersionObject, each) for each in found], following, request_id()
            )
        )


def _variables(stored: StoredTemplate) -> list[str]:
    sources = (stored.subject, stored.text, stored.html)
    return sorted(frozenset().union(*(placeholders(source) for source in sources if source)))


def _template_answer(stored: StoredTemplate) -> Response:
    return answer(object_from(TemplateAnswer, stored, variables=_variables(stored), request_id=request_id()))


def _version_before() -> int:
    given = request.args.get("before", "9" * _DIGITS)
    if not (given.isascii() and given.isdecimal() and len(given) <= _DIGITS):
        raise Refused(Code.INVALID_REQUEST, "before: must be the `next` of the page before")
    return int(given)
