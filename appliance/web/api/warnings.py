"""The warnings of `GET /v1/account`: each says what is wrong and what to do."""

from collections.abc import Awaitable, Callable
from enum import StrEnum

import msgspec

from appliance.model.mail import Account
from appliance.model.queue import PoolHold
from appliance.report.explain import public_reason
from appliance.store import Store
from appliance.store.pools import EVERY
from appliance.system.disk import FreeSpace


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


Warner = Callable[[Account], Awaitable[list[WarningObject]]]


def warner(store: Store, free_space: FreeSpace) -> Warner:
    """A function that finds the warnings of an account, the gravest first."""

    async def find(account: Account) -> list[WarningObject]:
        return [
            *_of_account(account, free_space),
            *_of_webhook(store, account),
            *_of_domains(store, account),
            *await _of_pools(store, account),
        ]

    return find


def _of_account(account: Account, free_space: FreeSpace) -> list[WarningObject]:
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
    return found


def _of_domains(store: Store, account: Account) -> list[WarningObject]:
    domains = store.access.domains(account.id)
    if not domains:
        text = "No domain is registered yet: add the one you send from."
        return [WarningObject(WarningCode.NO_DOMAIN, text, None)]
    return [
        WarningObject(
            WarningCode.DOMAIN_PENDING,
            f"{domain.name} is not verified: publish its DNS records, then have them checked.",
            domain.name,
        )
        for domain in domains
        if not domain.usable
    ]


def _of_webhook(store: Store, account: Account) -> list[WarningObject]:
    """Warn if the last attempt failed: a failure that was followed by a success needs no attention."""
    webhook = store.webhooks.of(account.id)
    if webhook is None or not webhook.enabled or (webhook.last_failure_at or 0) <= (webhook.last_success_at or 0):
        return []
    text = "The webhook's receiver does not take its events; they are tried again for a while. Its history says why."
    return [WarningObject(WarningCode.WEBHOOK_FAILING, text, webhook.url)]


async def _of_pools(store: Store, account: Account) -> list[WarningObject]:
    return [_held(hold) for hold in await store.pools.holding(account.id)]


def _held(hold: PoolHold) -> WarningObject:
    if hold.pool == EVERY:
        text = f"All mail is paused: {hold.reason}. It waits until the operator resumes it."
        return WarningObject(WarningCode.MAIL_PAUSED, text, None)
    return WarningObject(WarningCode.POOL_HELD, f"Mail to {hold.pool} is held: {public_reason(hold)}", hold.pool)
