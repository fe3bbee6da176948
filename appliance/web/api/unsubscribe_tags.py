"""The tags whose messages get a link to unsubscribe by one click: /v1/unsubscribe-tags."""

from typing import Annotated

import msgspec
from msgspec import Meta

from appliance.errors import invalid
from appliance.feedback.unsubscribe import UnsubscribeLinks
from appliance.message.header_rules import check_tags
from appliance.message.schema import Tag
from appliance.model.accounts import User
from appliance.web.app import Routes, request_id
from appliance.web.operations import for_customers

UNSUBSCRIBE_TAGS = 100  # of one account: every caller in memory has all of them


class UnsubscribeTagsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a PUT: all such tags, or none."""

    tags: Annotated[list[Tag], Meta(max_length=UNSUBSCRIBE_TAGS, examples=[["newsletter"]])]


class UnsubscribeTagsAnswer(msgspec.Struct):
    """All such tags of the account, sorted."""

    tags: list[str]
    request_id: str


def check_links(field: str, links: UnsubscribeLinks) -> None:
    """Refuse a setting that could have no effect."""
    if not links.usable:
        text = "links to unsubscribe need a server that is reached over https: the operator sets http.base_url"
        raise invalid(field, text)


class UnsubscribeTagRoutes(Routes):
    @for_customers("GET /v1/unsubscribe-tags", (200, UnsubscribeTagsAnswer, "All such tags."))
    async def list_unsubscribe_tags(self, user: User) -> UnsubscribeTagsAnswer:
        """List the tags whose messages get a link to unsubscribe."""
        return UnsubscribeTagsAnswer(await self.store.unsubscriptions.tags(user.account_id), request_id())

    @for_customers(
        "PUT /v1/unsubscribe-tags",
        (200, UnsubscribeTagsAnswer, "All such tags, as stored."),
        body=UnsubscribeTagsRequest,
        action="unsubscribe_tags.saved",
    )
    async def save_unsubscribe_tags(self, user: User, body: UnsubscribeTagsRequest) -> UnsubscribeTagsAnswer:
        """Choose the tags whose messages get a link to unsubscribe.

        They take the place of those before. An address that has unsubscribed from a tag stays so if the tag is left
        out.
        """
        check_tags(body.tags, "tags", numbered=True)
        if body.tags:
            check_links("tags", self.services.intake.links)
        tags = sorted(set(body.tags))
        await self.store.unsubscriptions.replace_tags(user.account_id, tags)
        return UnsubscribeTagsAnswer(tags, request_id())
