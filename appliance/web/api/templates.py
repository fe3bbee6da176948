"""Templates and their versions: /v1/templates."""

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
from quart import request

from appliance.errors import Code, Refused, invalid
from appliance.message.characters import BODY_PATTERN, LINE_PATTERN
from appliance.message.cost import of_placeholders
from appliance.message.limits import SUBJECT_LENGTH
from appliance.message.template import ALIAS, check_template, placeholders
from appliance.model.accounts import User
from appliance.model.mail import StoredTemplate
from appliance.web.answer import DeletedAnswer, Time, object_from
from appliance.web.api.unsubscribe_tags import check_links
from appliance.web.app import Routes, page_limit, request_id
from appliance.web.operations import BEFORE_PARAMETER, PAGING, Json, Limited, for_customers, identifier, limit_parameter

NO_TEMPLATE = "There is no template with this alias."
VERSIONS_ON_PAGE = 20  # fewer than in other lists: each comes with its bodies
_DIGITS = 9  # of a version number, at most

# For the schema only: check_template has the rules, each with a message of its own.
LINE, BODY = {"pattern": LINE_PATTERN}, {"pattern": BODY_PATTERN}
_Sources = tuple[str | None, str | None, str | None]  # subject, text and HTML of a template
_Subject = Annotated[str, Meta(max_length=SUBJECT_LENGTH, examples=["Welcome, {{name}}"], extra_json_schema=LINE)]


class TemplateRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a PUT: at least one of `text` and `html`."""

    subject: _Subject | UnsetType = UNSET
    text: Annotated[str, Meta(examples=["Hello {{name}}!"], extra_json_schema=BODY)] | UnsetType = UNSET
    html: Annotated[str, Meta(examples=["<p>Hello {{name}}!</p>"], extra_json_schema=BODY)] | UnsetType = UNSET
    unsubscribe: bool = False


class TemplateObject(msgspec.Struct):
    """One template in a list."""

    alias: str
    version: int
    subject: str | None
    text: str | None
    html: str | None
    variables: list[str]
    unsubscribe: bool
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


_ALIAS = identifier("The template's alias.", f"^{ALIAS.pattern}$", "alias")
_VERSION: Json = {"type": "string", "pattern": f"^[0-9]{{1,{_DIGITS}}}$"}
_VERSIONS = (limit_parameter(VERSIONS_ON_PAGE, "Versions on the page."), {**BEFORE_PARAMETER, "schema": _VERSION})


class TemplateRoutes(Routes):
    @for_customers(
        "GET /v1/templates", (200, TemplatesAnswer, "A page of templates."), parameters=PAGING, limited=Limited.OPEN
    )
    async def list_templates(self, user: User) -> TemplatesAnswer:
        """List the account's templates by alias."""
        limit = page_limit()
        found, more = await self.store.templates.page(user.account_id, request.args.get("after", ""), limit)
        variables = await self._variables(user.account_id, *map(_sources, found))
        shown = [
            object_from(TemplateObject, each, variables=names) for each, names in zip(found, variables, strict=True)
        ]
        return TemplatesAnswer(shown, found[-1].alias if more else None, request_id())

    @for_customers(
        "GET /v1/templates/{alias}",
        (200, TemplateAnswer, "The template."),
        Code.NOT_FOUND,
        parameters=(_ALIAS,),
        limited=Limited.OPEN,
    )
    async def get_template(self, user: User, alias: str) -> TemplateAnswer:
        """Read the current version of a template."""
        stored = await self.store.templates.current(user.account_id, alias) if ALIAS.fullmatch(alias) else None
        if stored is None:
            raise Refused(Code.NOT_FOUND, NO_TEMPLATE)
        (variables,) = await self._variables(user.account_id, _sources(stored))
        return object_from(TemplateAnswer, stored, variables=variables, request_id=request_id())

    @for_customers(
        "PUT /v1/templates/{alias}",
        (200, TemplateAnswer, "The template as stored."),
        Code.CONFLICT,
        body=TemplateRequest,
        parameters=(_ALIAS,),
        action="template.saved",
    )
    async def save_template(self, user: User, alias: str, body: TemplateRequest) -> TemplateAnswer:
        """Store a template as a new version.

        At least one of `text` and `html` is required. `{{name}}` stands for a variable, which every message that uses
        the template must then give. With `unsubscribe` its messages get a link to unsubscribe by one click.
        """
        if body.unsubscribe:
            check_links("unsubscribe", self.services.intake.links)
        subject, text, html = (None if value is UNSET else value for value in (body.subject, body.text, body.html))
        check_template(alias, subject, text, html)
        (variables,) = await self._variables(user.account_id, (subject, text, html))  # before it is stored: may be 503
        stored = await self.store.templates.save(
            user.account_id,
            alias,
            subject,
            text,
            html,
            unsubscribe=body.unsubscribe,
            may_store=self.services.intake.quota.bytes(),
        )
        return object_from(TemplateAnswer, stored, variables=variables, request_id=request_id())

    @for_customers(
        "DELETE /v1/templates/{alias}",
        (200, DeletedAnswer, "Deleted."),
        Code.NOT_FOUND,
        parameters=(_ALIAS,),
        action="template.deleted",
    )
    async def delete_template(self, user: User, alias: str) -> DeletedAnswer:
        """Remove a template from use."""
        if not ALIAS.fullmatch(alias):
            raise Refused(Code.NOT_FOUND, NO_TEMPLATE)
        await self.store.templates.delete(user.account_id, alias)
        return DeletedAnswer(True, request_id())

    @for_customers(
        "GET /v1/templates/{alias}/versions",
        (200, TemplateVersionsAnswer, "A page of versions."),
        Code.NOT_FOUND,
        parameters=(_ALIAS, *_VERSIONS),
        limited=Limited.OPEN,
    )
    async def list_template_versions(self, user: User, alias: str) -> TemplateVersionsAnswer:
        """List what was saved as this template, the newest first."""
        limit, before = page_limit(VERSIONS_ON_PAGE), request.args.get("before", "9" * _DIGITS)
        if not (before.isascii() and before.isdecimal() and len(before) <= _DIGITS):
            raise invalid("before", "must be the `next` of the page before")
        if not ALIAS.fullmatch(alias) or await self.store.templates.current(user.account_id, alias) is None:
            raise Refused(Code.NOT_FOUND, NO_TEMPLATE)
        found, more = await self.store.templates.versions(user.account_id, alias, int(before), limit)
        shown = [object_from(TemplateVersionObject, each) for each in found]
        return TemplateVersionsAnswer(shown, str(found[-1].version) if more else None, request_id())

    async def _variables(self, account_id: str, *templates: _Sources) -> list[list[str]]:
        """The variables of each: a template may have thousands, and is searched at every read."""
        cost = sum(of_placeholders(*sources) for sources in templates)
        return await self.services.intake.workers.run(account_id, cost, variables_of, templates)


def variables_of(templates: Iterable[_Sources]) -> list[list[str]]:
    """The names of the variables of each template, sorted. Pure."""
    return [sorted(frozenset().union(*map(placeholders, filter(None, sources)))) for sources in templates]


def _sources(stored: StoredTemplate) -> _Sources:
    return stored.subject, stored.text, stored.html
