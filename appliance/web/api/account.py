"""The account of the token, and the ledger of its credits: /v1/account and /v1/credits."""

from enum import StrEnum

import msgspec
from quart import request

from appliance.model.accounts import AccountRole, KeyPrincipal, LedgerEntry, LedgerKind, Principal, Role, User
from appliance.web.answer import Time, object_from
from appliance.web.api.warnings import WarningObject, warnings_of
from appliance.web.app import Routes, page_limit, request_id
from appliance.web.operations import PAGING_BACK, Limited, for_customers


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
    account_role: AccountRole
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


class AccountRoutes(Routes):
    @for_customers("GET /v1/account", (200, AccountAnswer, "The account."), limited=Limited.NARROWED)
    async def get_account(self, user: Principal) -> AccountAnswer:
        """Read the account of the token, how to reach the service, and what needs attention."""
        account, config, intake = (
            await self.store.accounts.find(user.account_id),
            self.services.config,
            self.services.intake,
        )
        service = ServiceObject(
            config.http.base_url,
            config.server.hostname,
            sorted({bound.port for bound in config.smtp.bind}),
            sorted({bound.port for bound in config.smtp.bind_tls}),
            config.delivery.mode.value,
        )
        by = user if isinstance(user, User) else None
        return object_from(
            AccountAnswer,
            account,
            email=by.email if by else account.email,
            role=by.role if by else Role.CUSTOMER,
            account_role=by.account_role if by else AccountRole.DEVELOPER,
            stored_bytes_limit=intake.quota.bytes(),
            service=service,
            warnings=_within_reach(user, await warnings_of(account, self.store, intake.free_space)),
            request_id=request_id(),
        )

    @for_customers("GET /v1/credits", (200, CreditsAnswer, "A page of the ledger."), parameters=PAGING_BACK)
    async def list_credit_changes(self, user: Principal) -> CreditsAnswer:
        """List the changes of the account's credits, newest first."""
        limit = page_limit()
        found = await self.store.accounts.ledger(user.account_id, limit + 1, request.args.get("before"))
        following = found[limit - 1].id if len(found) > limit else None
        balance = (await self.store.accounts.find(user.account_id)).credits
        return CreditsAnswer(balance, [_entry(each) for each in found[:limit]], following, request_id())


def _within_reach(principal: Principal, warnings: list[WarningObject]) -> list[WarningObject]:
    """The warnings without those about something that a key limited to a domain may not see."""
    if not isinstance(principal, KeyPrincipal) or principal.domain is None:
        return warnings
    return [warning for warning in warnings if warning.subject in (None, principal.domain)]


def _entry(entry: LedgerEntry) -> LedgerEntryObject:
    # The store has a deduction by the operator as a grant of a negative amount.
    taken = entry.kind is LedgerKind.GRANT and entry.amount < 0
    return object_from(LedgerEntryObject, entry, kind=EntryKind.ADJUST if taken else EntryKind(entry.kind.value))
