"""The warnings of `GET /v1/account`: each says what is wrong and what to do."""

from enum import StrEnum

import msgspec

from appliance.intake.limits import FreeSpace
from appliance.model.accounts import Account
from appliance.report.explain import public_reason
from appliance.store import Store
from appliance.store.pools import EVERY

WEBHOOK_FAILING = (
    "The webhook's receiver does not take its events; they are tried again for a while. Its history says why."
)


class WarningCode(StrEnum):
    """What a warning is about."""

    ACCOUNT_SUSPENDED = "account_suspended"
    NO_CREDITS = "no_credits"
    NO_DOMAIN = "no_domain"
    DOMAIN_PENDING = "domain_pending"
    MAIL_PAUSED = "mail_paused"
    POOL_HELD = "pool_held"
    DISK_LOW = "disk_low"
    WEBHOOK_FAILING = "webhook_failing"


class WarningObject(msgspec.Struct):
    """One warning; `subject` names the domain, the pool or the URL it is about."""

    code: WarningCode
    text: str
    subject: str | None


async def warnings_of(account: Account, store: Store, free_space: FreeSpace) -> list[WarningObject]:
    """The warnings of an account, the gravest first."""
    found = []
    if account.suspended:
        text = "This account is suspended: it cannot send. Ask the operator to resume it."
        found.append(WarningObject(WarningCode.ACCOUNT_SUSPENDED, text, None))
    if account.credits == 0:
        text = "There are no credits left, so nothing can be sent. Have some added."
        found.append(WarningObject(WarningCode.NO_CREDITS, text, None))
    if free_space.low():
        text = "The server is low on disk space and accepts no mail for now. What is queued still goes out."
        found.append(WarningObject(WarningCode.DISK_LOW, text, None))
    webhook = await store.webhooks.of(account.id)
    # A failure that was followed by a success needs no attention.
    if webhook and webhook.enabled and (webhook.last_failure_at or 0) > (webhook.last_success_at or 0):
        text = (
            "The webhook's receiver does not take its events; they are tried again for a while. Its history says why."
        )
        found.append(WarningObject(WarningCode.WEBHOOK_FAILING, text, webhook.url))
    domains = await store.access.domains(account.id)
    if not domains:
        text = "No domain is registered yet: add the one you send from."
        found.append(WarningObject(WarningCode.NO_DOMAIN, text, None))
    for domain in domains:
        if not domain.usable:
            text = f"{domain.name} is not verified: publish its DNS records, then have them checked."
            found.append(WarningObject(WarningCode.DOMAIN_PENDING, text, domain.name))
    for hold in await store.pools.holding(account.id):
        if hold.pool == EVERY:
            text = f"All mail is paused: {hold.reason}. It waits until the operator resumes it."
            found.append(WarningObject(WarningCode.MAIL_PAUSED, text, None))
        else:
            text = f"Mail to {hold.pool} is held: {public_reason(hold)}"
            found.append(WarningObject(WarningCode.POOL_HELD, text, hold.pool))
    return found
