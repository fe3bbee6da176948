"""Templates and their versions: /v1/templates. Tags with an unsubscribe link: /v1/unsubscribe-tags."""

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType
from quart import request

from appliance.errors import Code, Refused, invalid
from appliance.feedback.return_path import UnsubscribeLinks
from appliance.message.characters import BODY_PATTERN, LINE_PATTERN
from appliance.message.header_lines import check_tags
from appliance.message.limits import SUBJECT_LENGTH
from appliance.message.schema import Tag as MessageTag
from appliance.message.template import ALIAS, check_template, cost_of_placeholders, placeholders
from appliance.model.accounts import User
from appliance.model.mail import StoredTemplate
from appliance.web.app import Routes, page_limit
from appliance.web.exchange import ApiAnswer, CreatedAt, DeletedAnswer, NextPage, RequestId, Time, object_from
from appliance.web.operations import (
    BEFORE_PARAMETER,
    PAGING,
    Json,
    Limited,
    Tag,
    for_customers,
    identifier,
    limit_parameter,
)

NO_TEMPLATE = "No template has this alias."
VERSIONS_ON_PAGE = 20  # fewer than in other lists, because versions include their bodies
_DIGITS = 9  # maximum length of a version number

# Only for the schema: check_template has the rules, each with its own message.
LINE, BODY = {"pattern": LINE_PATTERN}, {"pattern": BODY_PATTERN}
_Sources = tuple[str | None, str | None, str | None]  # subject, text and HTML of a template
_Subject = Annotated[str, Meta(max_length=SUBJECT_LENGTH, examples=["Welcome, {{name}}"], extra_json_schema=LINE)]

_TEXT = Meta(examples=["Hello {{name}}!"], extra_json_schema=BODY)
_HTML = Meta(examples=["<p>Hello {{name}}!</p>"], extra_json_schema=BODY)

_STREAM = Meta(description="Stream of messages that name none; null for that of the key.")
_REPLACES = Meta(ge=0, description="Version that you edited, 0 for a new template: 409 if another one is current.")


class TemplateRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A template. At least one of `text` and `html` is required."""

    subject: Annotated[_Subject | UnsetType, Meta(description="One line of at most 500 characters.")] = UNSET
    text: Annotated[str, Meta(description="Required unless `html` is set."), _TEXT] | UnsetType = UNSET
    html: Annotated[str, Meta(description="Required unless `text` is set."), _HTML] | UnsetType = UNSET
    unsubscribe: Annotated[bool, Meta(description="Whether to add a one-click unsubscribe link.")] = False
    stream: Annotated[str, _STREAM] | None = None
    replaces: Annotated[int, _REPLACES] | UnsetType = UNSET


class TemplateObject(msgspec.Struct):
    """A template."""

    alias: Annotated[str, Meta(description="Name that messages refer to.")]
    version: Annotated[int, Meta(description="Version number. Numbering continues after a delete.")]
    subject: Annotated[str | None, Meta(description="Subject; null without one.")]
    text: Annotated[str | None, Meta(description="Plain-text body; null without one.")]
    html: Annotated[str | None, Meta(description="HTML body; null without one.")]
    variables: Annotated[list[str], Meta(description="Names of the placeholders.")]
    unsubscribe: Annotated[bool, Meta(description="Whether messages get a one-click unsubscribe link.")]
    stream: Annotated[str | None, _STREAM]
    created_at: CreatedAt
    updated_at: Annotated[Time, Meta(description="Time of the last change.")]


class TemplateAnswer(TemplateObject):
    """One template."""

    request_id: RequestId


class TemplatesAnswer(ApiAnswer):
    """A page of templates. Pass `next` as `after` to get the next page."""

    templates: Annotated[list[TemplateObject], Meta(description="Templates, by alias.")]
    next: NextPage


class TemplateVersionObject(msgspec.Struct):
    """One version of a template."""

    version: Annotated[int, Meta(description="Version number. Numbering continues after a delete.")]
    subject: Annotated[str | None, Meta(description="Subject; null without one.")]
    text: Annotated[str | None, Meta(description="Plain-text body; null without one.")]
    html: Annotated[str | None, Meta(description="HTML body; null without one.")]
    created_at: CreatedAt


class TemplateVersionsAnswer(ApiAnswer):
    """A page of versions, newest first. Pass `next` as `before` to get the next page."""

    versions: Annotated[list[TemplateVersionObject], Meta(description="Newest first. The newest of all is in use.")]
    next: NextPage


_ALIAS = identifier("Alias of the template.", f"^{ALIAS.pattern}$", "alias")
_VERSION: Json = {"type": "string", "pattern": f"^[0-9]{{1,{_DIGITS}}}$"}
_VERSIONS = (limit_parameter(VERSIONS_ON_PAGE, "Versions per page."), {**BEFORE_PARAMETER, "schema": _VERSION})


class TemplateRoutes(Routes):
    tag = Tag.TEMPLATES

    @for_customers("GET /v1/templates", TemplatesAnswer, *PAGING, limited=Limited.OPEN)
    async def list_templates(self, user: User) -> TemplatesAnswer:
        """List the account's templates by alias."""
        limit = page_limit()
        templates, more = await self.store.templates.page(user.account_id, request.args.get("after", ""), limit)
        variables = await self._variables(user.account_id, *map(_sources, templates))
        rows = zip(templates, variables, strict=True)
        shown = [object_from(TemplateObject, template, variables=names) for template, names in rows]
        return TemplatesAnswer(shown, templates[-1].alias if more else None)

    @for_customers("GET /v1/templates/{alias}", TemplateAnswer, _ALIAS, limited=Limited.OPEN)
    async def get_template(self, user: User, alias: str) -> TemplateAnswer:
        """Read the current version of a template."""
        stored = await self.store.templates.current(user.account_id, alias) if ALIAS.fullmatch(alias) else None
        if stored is None:
            raise Refused(Code.NOT_FOUND, NO_TEMPLATE)
        (variables,) = await self._variables(user.account_id, _sources(stored))
        return object_from(TemplateAnswer, stored, variables=variables)

    @for_customers("PUT /v1/templates/{alias}", TemplateAnswer, Code.CONFLICT, _ALIAS, action="template.saved")
    async def save_template(self, user: User, alias: str, body: TemplateRequest) -> TemplateAnswer:
        """Save a template as a new version.

        At least one of `text` and `html` is required. `{{name}}` is a placeholder: every message that uses the template
        must send its value. With `unsubscribe`, messages get a one-click unsubscribe link. With `replaces`, the save is
        refused with 409 if someone else has saved another version meanwhile.
        """
        if body.unsubscribe:
            check_links("unsubscribe", self.services.intake.links)
        if body.stream is not None:
            self.services.intake.streams.get(body.stream)
        subject, text, html = (None if value is UNSET else value for value in (body.subject, body.text, body.html))
        check_template(alias, subject, text, html)
        (variables,) = await self._variables(user.account_id, (subject, text, html))  # may fail with 503
        stored = await self.store.templates.save(
            user.account_id,
            alias,
            subject,
            text,
            html,
            unsubscribe=body.unsubscribe,
            stream=body.stream,
            replaces=None if body.replaces is UNSET else body.replaces,
            may_store=self.services.intake.quota.bytes(),
        )
        return object_from(TemplateAnswer, stored, variables=variables)

    @for_customers("DELETE /v1/templates/{alias}", DeletedAnswer, _ALIAS, action="template.deleted")
    async def delete_template(self, user: User, alias: str) -> DeletedAnswer:
        """Delete a template."""
        if not ALIAS.fullmatch(alias):
            raise Refused(Code.NOT_FOUND, NO_TEMPLATE)
        await self.store.templates.delete(user.account_id, alias)
        return DeletedAnswer(True)

    @for_customers(
        "GET /v1/templates/{alias}/versions", TemplateVersionsAnswer, _ALIAS, *_VERSIONS, limited=Limited.OPEN
    )
    async def list_template_versions(self, user: User, alias: str) -> TemplateVersionsAnswer:
        """List the versions of a template, newest first."""
        limit, before = page_limit(VERSIONS_ON_PAGE), request.args.get("before", "9" * _DIGITS)
        if not (before.isascii() and before.isdecimal() and len(before) <= _DIGITS):
            raise invalid("before", "must be `next` of the previous page")
        if not ALIAS.fullmatch(alias) or await self.store.templates.current(user.account_id, alias) is None:
            raise Refused(Code.NOT_FOUND, NO_TEMPLATE)
        versions, more = await self.store.templates.versions(user.account_id, alias, int(before), limit)
        shown = [object_from(TemplateVersionObject, version) for version in versions]
        return TemplateVersionsAnswer(shown, str(versions[-1].version) if more else None)

    async def _variables(self, account_id: str, *templates: _Sources) -> list[list[str]]:
        """The variables of each template. A template may have thousands, which are extracted at every read."""
        cost = sum(cost_of_placeholders(*sources) for sources in templates)
        return await self.services.intake.workers.run(account_id, cost, variables_of, templates)


def variables_of(templates: Iterable[_Sources]) -> list[list[str]]:
    return [sorted(frozenset().union(*map(placeholders, filter(None, sources)))) for sources in templates]


def _sources(stored: StoredTemplate) -> _Sources:
    return stored.subject, stored.text, stored.html


UNSUBSCRIBE_TAGS = 100  # per account, because every cached caller holds all of them

_TAGS = Meta(max_length=UNSUBSCRIBE_TAGS, examples=[["newsletter"]])


class UnsubscribeTagsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """All tags with an unsubscribe link."""

    tags: Annotated[list[MessageTag], Meta(description="An empty list removes all tags."), _TAGS]


class UnsubscribeTagsAnswer(ApiAnswer):
    """All tags with an unsubscribe link."""

    tags: Annotated[list[str], Meta(description="Tags, sorted.")]


def check_links(field: str, links: UnsubscribeLinks) -> None:
    if not links.usable:
        text = "unsubscribe links require https. Ask the operator to set http.base_url to an https URL"
        raise invalid(field, text)


class UnsubscribeTagRoutes(Routes):
    tag = Tag.UNSUBSCRIBE

    @for_customers("GET /v1/unsubscribe-tags", UnsubscribeTagsAnswer)
    async def list_unsubscribe_tags(self, user: User) -> UnsubscribeTagsAnswer:
        """List the tags whose messages get an unsubscribe link."""
        return UnsubscribeTagsAnswer(await self.store.unsubscriptions.tags(user.account_id))

    @for_customers("PUT /v1/unsubscribe-tags", UnsubscribeTagsAnswer, action="unsubscribe_tags.saved")
    async def save_unsubscribe_tags(self, user: User, body: UnsubscribeTagsRequest) -> UnsubscribeTagsAnswer:
        """Replace the tags whose messages get an unsubscribe link.

        Unsubscriptions from a removed tag stay in force.
        """
        check_tags(body.tags, "tags", numbered=True)
        if body.tags:
            check_links("tags", self.services.intake.links)
        tags = sorted(set(body.tags))
        await self.store.unsubscriptions.replace_tags(user.account_id, tags)
        return UnsubscribeTagsAnswer(tags)
