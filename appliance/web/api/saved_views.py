"""A user's saved views of the message list: named filters, stored per person: /v1/views."""

from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta

from appliance.errors import Code
from appliance.message.limits import MAILBOX_LENGTH
from appliance.model.accounts import Permission, User
from appliance.web.api.templates import LINE
from appliance.web.app import Routes, check_line
from appliance.web.exchange import ApiAnswer, CreatedAt, DeletedAnswer, RequestId, SinglePage, object_from
from appliance.web.operations import Tag, for_customers, identifier

NAME_LENGTH = 60  # characters
FILTERS = 20  # in one view

_Name = Annotated[
    str,
    Meta(min_length=1, max_length=NAME_LENGTH, examples=["Bounced orders"], description="Name, unique per user."),
    Meta(extra_json_schema=LINE),
]
_FilterName = Annotated[str, Meta(min_length=1, max_length=32)]
_FilterText = Annotated[str, Meta(min_length=1, max_length=MAILBOX_LENGTH)]
_Filters = Annotated[
    dict[_FilterName, _FilterText],
    Meta(max_length=FILTERS, description="Parameters of `GET /v1/emails`, or of the dashboard's message list."),
]
for_person = partial(for_customers, permission=Permission.VIEW, people_only=True)
_VIEW_ID = identifier("View id.", "^view_[0-9a-f]{32}$")


class ViewRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A view to save."""

    name: _Name
    filters: _Filters


class ViewObject(msgspec.Struct):
    """A saved view."""

    id: Annotated[str, Meta(description="View id, `view_…`.")]
    name: _Name
    filters: _Filters
    created_at: CreatedAt


class ViewAnswer(ViewObject):
    """The saved view."""

    request_id: RequestId


class ViewsAnswer(ApiAnswer):
    """The user's saved views, by name."""

    views: Annotated[list[ViewObject], Meta(description="Saved views, by name.")]
    next: SinglePage


class SavedViewRoutes(Routes):
    tag = Tag.MESSAGES

    @for_person("GET /v1/views", ViewsAnswer)
    async def list_views(self, user: User) -> ViewsAnswer:
        """List the user's saved views of the message list."""
        views = await self.store.saved_views.of(user.id)
        return ViewsAnswer([object_from(ViewObject, view) for view in views], None)

    @for_person("POST /v1/views", (201, ViewAnswer, "The saved view."), Code.CONFLICT)
    async def save_view(self, user: User, body: ViewRequest) -> ViewAnswer:
        """Save a view of the message list. A view of the same name gets the new filters.

        Only the user sees it. A user can have 50 views.
        """
        check_line("name", body.name)
        return object_from(ViewAnswer, await self.store.saved_views.save(user.id, body.name, body.filters))

    @for_person("DELETE /v1/views/{id}", DeletedAnswer, _VIEW_ID)
    async def delete_view(self, user: User, view_id: str) -> DeletedAnswer:
        """Delete a saved view."""
        await self.store.saved_views.delete(user.id, view_id)
        return DeletedAnswer(True)
