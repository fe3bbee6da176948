"""In charge of an account as its owner sees it: /v1/account, and the ledger at /v1/credits."""

from enum import StrEnum

import msgspec
from quart import Blueprint, Response, request

from appliance.config.load import Config
from appliance.errors import Code
from appliance.intake.quota import Quota
from appliance.model.mail import LedgerEntry, LedgerKind, Role
from appliance.times import rfc3339
from appliance.web.answer import Time
from appliance.web.api.warnings import Warner, WarningObject
from appliance.web.app import Services, answer, page_limit, request_id
from appliance.web.operations import PAGING_BACK, for_customers


class EntryKind(StrEnum):
    """Why a balance changed: credits were added, corrected downwards, taken for a message, or given back."""

    GRANT = "grant"
    ADJUST = "adjust"
    RESERVE = "reserve"
    RELEASE = "release"


class ServiceObject(msgspec.Struct):
    """How to reach the service, for whoever sets up a program."""

    base_url: str
    smtp_host: str
    smtp_ports: list[int]  # STARTTLS
    smtp_tls_ports: list[int]  # TLS from the first byte
    delivery_mode: str


class AccountAnswer(msgspec.Struct):
    """The account of the token; `credits` is null when it is unlimited, and so is `stored_bytes_limit`."""

    id: str
    name: str
    email: str
    role: Role
    credits: int | None
    daily_cap: int | None
    suspended: bool
    created_at: Time
    stored_bytes: int
    stored_bytes_limit: int | None
    service: ServiceObject
    warnings: list[WarningObject]
    request_id: str


class LedgerEntryObject(msgspec.Struct):
    """One change of the balance: `amount` is what was added, `balance` what it came to."""

    id: str
    kind: EntryKind
    amount: int
    balance: int
    message_id: str | None
    recipient_id: str | None
    created_at: Time


class CreditsAnswer(msgspec.Struct):
    """The balance and a page of its changes, newest first; `next` goes into `before` for the page that follows."""

    credits: int | None
    entries: list[LedgerEntryObject]
    next: str | None
    request_id: str


def blueprint(services: Services, config: Config, warnings: Warner, quota: Quota) -> Blueprint:
    """The routes."""
    routes = Blueprint("account", __name__)
    accounts = services.store.accounts
    service = ServiceObject(
        config.http.base_url,
        config.server.hostname,
        sorted({bound.port for bound in config.smtp.bind}),
        sorted({bound.port for bound in config.smtp.bind_tls}),
        config.delivery.mode.value,
    )

    @routes.get("/v1/account")
    async def show() -> Response:
        user = await services.customer()
        account = accounts.find(user.account_id)
        return answer(
            AccountAnswer(
                account.id,
                account.name,
                user.email,
                user.role,
                account.credits,
                account.daily_cap,
                account.suspended,
                rfc3339(account.created_at),
                account.stored_bytes,
                quota.bytes(),
                service,
                await warnings(account),
                request_id(),
            )
        )

    @routes.get("/v1/credits")
    async def ledger() -> Response:
        user = await services.customer()
        limit = page_limit()
        found = accounts.ledger(user.account_id, limit + 1, request.args.get("before"))
        following = found[limit - 1].id if len(found) > limit else None
        balance = accounts.find(user.account_id).credits
        return answer(CreditsAnswer(balance, [_entry(each) for each in found[:limit]], following, request_id()))

    return routes


def _entry(entry: LedgerEntry) -> LedgerEntryObject:
    # What takes credits away by hand is kept as a grant of less than nothing.
    taken = entry.kind is LedgerKind.GRANT and entry.amount < 0
    return LedgerEntryObject(
        entry.id,
        EntryKind.ADJUST if taken else EntryKind(entry.kind.value),
        entry.amount,
        entry.balance,
        entry.message_id,
        entry.recipient_id,
        rfc3339(entry.created_at),
    )


OPERATIONS = (
    for_customers(
        "get",
        "/v1/account",
        "Read the account of the token, how to reach the service, and what needs attention.",
        (200, AccountAnswer, "The account."),
    ),
    for_customers(
        "get",
        "/v1/credits",
        "List the changes of the account's credits, newest first.",
        (200, CreditsAnswer, "A page of the ledger."),
        Code.INVALID_REQUEST,
        parameters=PAGING_BACK,
    ),
)
