"""The warnings of `GET /v1/account`."""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from appliance.intake.limits import FreeSpace
from appliance.model.accounts import Account
from appliance.report.explain import public_reason
from appliance.store import Store
from appliance.store.pools import EVERY

WEBHOOK_FAILING = "The webhook receiver rejects events, which are retried. See the webhook history for the cause."


class WarningCode(StrEnum):
    """Subject of a warning."""

    ACCOUNT_SUSPENDED = "account_suspended"
    NO_CREDITS = "no_credits"
    NO_DOMAIN = "no_domain"
    DOMAIN_PENDING = "domain_pending"
    MAIL_PAUSED = "mail_paused"
    POOL_HELD = "pool_held"
    DISK_LOW = "disk_low"
    WEBHOOK_FAILING = "webhook_failing"


class WarningObject(msgspec.Struct):
    """One warning."""

    code: Annotated[WarningCode, Meta(description="Warning code for programs.")]
    text: Annotated[str, Meta(description="What is wrong, and what to do.")]
    subject: Annotated[str | None, Meta(description="Affected domain, pool or URL; null if none.")]


async def warnings_of(account: Account, store: Store, free_space: FreeSpace) -> list[WarningObject]:
    """The warnings of an account, most serious first."""
    found = []
    if account.suspended:
        text = "This account is suspended and cannot send. Ask the operator to resume it."
        found.append(WarningObject(WarningCode.ACCOUNT_SUSPENDED, text, None))
    if account.credits == 0:
        text = "No credits left: nothing can be sent. Ask the operator for credits."
        found.append(WarningObject(WarningCode.NO_CREDITS, text, None))
    if free_space.low():
        text = "The server is low on disk space and accepts no new mail. Queued mail is still delivered."
        found.append(WarningObject(WarningCode.DISK_LOW, text, None))
    webhook = await store.webhooks.of(account.id)
    # A later success resolves a failure.
    if webhook and webhook.enabled and (webhook.last_failure_at or 0) > (webhook.last_success_at or 0):
        text = "The webhook receiver rejects events, which are retried. See the webhook history for the cause."
        found.append(WarningObject(WarningCode.WEBHOOK_FAILING, text, webhook.url))
    domains = await store.access.domains(account.id)
    if not domains:
        text = "No domain yet. Add the domain that you send from."
        found.append(WarningObject(WarningCode.NO_DOMAIN, text, None))
    for domain in domains:
        if not domain.usable:
            text = f"{domain.name} is not verified. Publish its DNS records, then check them."
            found.append(WarningObject(WarningCode.DOMAIN_PENDING, text, domain.name))
    for hold in await store.pools.holding(account.id):
        if hold.pool == EVERY:
            text = f"All mail is paused: {hold.reason}. The operator must resume it."
            found.append(WarningObject(WarningCode.MAIL_PAUSED, text, None))
        else:
            text = f"Mail to {hold.pool} is on hold: {public_reason(hold)}"
            found.append(WarningObject(WarningCode.POOL_HELD, text, hold.pool))
    return found
