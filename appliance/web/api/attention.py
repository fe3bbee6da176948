"""Problems that need a person: /v1/attention. When a person gets mail about them: /v1/account/notifications."""

from typing import Annotated

import msgspec
from msgspec import Meta

from appliance.model.accounts import Principal, Role, User
from appliance.model.attention import AttentionKind, Notify, Severity
from appliance.store.audit import about
from appliance.times import rfc3339
from appliance.web.app import Routes
from appliance.web.exchange import ApiAnswer, Time, object_from
from appliance.web.operations import Tag, for_customers, for_people


class AttentionObject(msgspec.Struct):
    """One problem."""

    kind: Annotated[AttentionKind, Meta(description="What is wrong, for programs.")]
    severity: Annotated[Severity, Meta(description="`critical`: mail is affected now. `warning`: it will be.")]
    title: Annotated[str, Meta(description="What is wrong, in a few words.")]
    detail: Annotated[str, Meta(description="The numbers, and what to do.")]
    link: Annotated[str, Meta(description="Path of the dashboard page about it.")]
    since: Annotated[Time, Meta(description="Time the problem began, or a check first found it.")]


class AttentionAnswer(ApiAnswer):
    """Open problems of the account; for administrators also of the machine."""

    items: Annotated[list[AttentionObject], Meta(description="Problems, most serious first.")]


NotifySetting = Annotated[Notify, Meta(description="When problems are mailed: `at_once`, `daily` or `never`.")]


class NotificationsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """When the user wants mail about problems."""

    notify: NotifySetting


class NotificationsAnswer(ApiAnswer):
    """When the user gets mail about problems."""

    notify: NotifySetting
    email: Annotated[str, Meta(description="Address that gets the mail: the login address.")]
    enabled: Annotated[bool, Meta(description="Whether this server sends such mail (`notifications.from` is set).")]


class AttentionRoutes(Routes):
    tag = Tag.ACCOUNT

    @for_customers("GET /v1/attention", AttentionAnswer)
    async def list_attention(self, user: Principal) -> AttentionAnswer:
        """List what needs attention: broken DNS, high rates, held mail, failing webhook, expiring keys, low credits.

        Administrators also see problems of the machine: certificates, disk, queue and held pools.
        """
        account = await self.store.accounts.find(user.account_id)
        is_admin = isinstance(user, User) and user.role is Role.ADMIN
        problems = await self.services.problems.shown(account, is_admin=is_admin)
        shown = [object_from(AttentionObject, problem, since=rfc3339(problem.since or 0)) for problem in problems]
        return AttentionAnswer(shown)

    @for_people("GET /v1/account/notifications", NotificationsAnswer)
    async def get_notifications(self, user: User) -> NotificationsAnswer:
        """Read when the user gets mail about problems."""
        return await self._notifications(user)

    @for_people("PUT /v1/account/notifications", NotificationsAnswer, action="notifications.changed")
    async def set_notifications(self, user: User, body: NotificationsRequest) -> NotificationsAnswer:
        """Choose when the user gets mail about problems: at once, in a daily digest, or never."""
        about(user.email, {"notify": body.notify})
        await self.store.attention.set_notify(user.id, body.notify)
        return await self._notifications(user)

    async def _notifications(self, user: User) -> NotificationsAnswer:
        notify = await self.store.attention.notify_setting(user.id)
        return NotificationsAnswer(notify, user.email, self.services.mailer.sender is not None)
