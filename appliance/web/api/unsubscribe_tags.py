"""Tags whose messages get a one-click unsubscribe link: /v1/unsubscribe-tags."""

from typing import Annotated

import msgspec
from msgspec import Meta

from appliance.errors import invalid
from appliance.feedback.return_path import UnsubscribeLinks
from appliance.message.header_lines import check_tags
from appliance.message.schema import Tag as MessageTag
from appliance.model.accounts import User
from appliance.web.answer import RequestId
from appliance.web.app import Routes, request_id
from appliance.web.operations import Tag, for_customers

UNSUBSCRIBE_TAGS = 100  # per account, because every cached caller holds all of them


class UnsubscribeTagsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """All tags with an unsubscribe link."""

    tags: Annotated[
        list[MessageTag],
        Meta(max_length=UNSUBSCRIBE_TAGS, examples=[["newsletter"]], description="An empty list removes all tags."),
    ]


class UnsubscribeTagsAnswer(msgspec.Struct):
    """All tags with an unsubscribe link."""

    tags: Annotated[list[str], Meta(description="Tags, sorted.")]
    request_id: RequestId


def check_links(field: str, links: UnsubscribeLinks) -> None:
    """Refuse a setting without effect."""
    if not links.usable:
        text = "unsubscribe links require https. Ask the operator to set http.base_url to an https URL"
        raise invalid(field, text)


class UnsubscribeTagRoutes(Routes):
    tag = Tag.UNSUBSCRIBE

    @for_customers("GET /v1/unsubscribe-tags", UnsubscribeTagsAnswer)
    async def list_unsubscribe_tags(self, user: User) -> UnsubscribeTagsAnswer:
        """List the tags whose messages get an unsubscribe link."""
        return UnsubscribeTagsAnswer(await self.store.unsubscriptions.tags(user.account_id), request_id())

    @for_customers(
        "PUT /v1/unsubscribe-tags", UnsubscribeTagsAnswer, body=UnsubscribeTagsRequest, action="unsubscribe_tags.saved"
    )
    async def save_unsubscribe_tags(self, user: User, body: UnsubscribeTagsRequest) -> UnsubscribeTagsAnswer:
        """Replace the tags whose messages get an unsubscribe link.

        Unsubscriptions from a removed tag stay in force.
        """
        check_tags(body.tags, "tags", numbered=True)
        if body.tags:
            check_links("tags", self.services.intake.links)
        tags = sorted(set(body.tags))
        await self.store.unsubscriptions.replace_tags(user.account_id, tags)
        return UnsubscribeTagsAnswer(tags, request_id())
