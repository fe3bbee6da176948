"""The account of the token, and the ledger of its credits: /v1/account and /v1/credits."""

from dataclasses import dataclass
from enum import StrEnum

import msgspec
from quart import Response, request

from appliance.config.settings import Config
from appliance.intake.limits import Quota
from appliance.model.mail import LedgerEntry, LedgerKind, Role, User
from appliance.web.answer import Time, object_from
from appliance.web.api.warnings import Warner, WarningObject
from appliance.web.app import ApiServices, answer, page_limit, request_id
from appliance.web.operations import PAGING_BACK, for_customers


class EntryKind(StrEnum):
    """Why a balance changed: credits were added, corrected downwards, taken for a message, or given back."""

    GRANT = "grant"
    ADJUST = "adjust"
    RESERVE = "reserve"
    RELEASE = "release"


class ServiceObject(msgspec.Struct):
    """How to reach the service, for setting up a client."""

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


@dataclass(frozen=True, slots=True)
class AccountRoutes:
    services: ApiServices
    config: Config
    warnings: Warner
    quota: Quota

    @for_customers(
        "GET /v1/account",
        "Read the account of the token, how to reach the service, and what needs attention.",
        (200, AccountAnswer, "The account."),
    )
    async def show(self, user: User) -> Response:
        account = self.services.store.accounts.find(user.account_id)
        shown = object_from(
            AccountAnswer,
            account,
            email=user.email,
            role=user.role,
            stored_bytes_limit=self.quota.bytes(),
            service=_service(self.config),
            warnings=await self.warnings(account),
            request_id=request_id(),
        )
        return answer(shown)

    @for_customers(
        "GET /v1/credits",
        "List the changes of the account's credits, newest first.",
        (200, CreditsAnswer, "A page of the ledger."),
        parameters=PAGING_BACK,
    )
    async def ledger(self, user: User) -> Response:
        limit = page_limit()
        found = self.services.store.accounts.ledger(user.account_id, limit + 1, request.args.get("before"))
        following = found[limit - 1].id if len(found) > limit else None
        balance = self.services.store.accounts.find(user.account_id).credits
        return answer(CreditsAnswer(balance, [_entry(each) for each in found[:limit]], following, request_id()))


def _service(config: Config) -> ServiceObject:
    return ServiceObject(
        config.http.base_url,
        config.server.hostname,
        sorted({bound.port for bound in config.smtp.bind}),
        sorted({bound.port for bound in config.smtp.bind_tls}),
        config.delivery.mode.value,
    )


def _entry(entry: LedgerEntry) -> LedgerEntryObject:
    # The store has a deduction by the operator as a grant of a negative amount.
    taken = entry.kind is LedgerKind.GRANT and entry.amount < 0
    return object_from(LedgerEntryObject, entry, kind=EntryKind.ADJUST if taken else EntryKind(entry.kind.value))
