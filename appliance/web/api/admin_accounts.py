"""Accounts and their messages, for administrators: /v1/admin/accounts.

Invariant: the audit logs of the account, of the administrator's account and of the installation record every read of a
message before the response. Nothing here changes a message.
"""

from collections import Counter
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace
from quart import Response, request

from appliance.errors import Code, invalid
from appliance.intake import account_rules
from appliance.keys.secrets import check_new
from appliance.model.accounts import Role, User
from appliance.model.numbers import NUMBERS, rates
from appliance.net.address_policy import site_of
from appliance.store.accounts import MAX_CREDITS
from appliance.store.audit import about, concerns
from appliance.times import DAY, HOUR
from appliance.web.api.emails import EMAIL_FILTERS, FILE_NUMBER, EmailRoutes
from appliance.web.api.login import LoginEmail, NewPassword
from appliance.web.api.message_body import ATTACHED_FILE, RAW_FILE, BodyAnswer
from appliance.web.api.message_objects import EmailsAnswer, MessageDetails
from appliance.web.api.stats import RatedCounts
from appliance.web.app import ApiServices, Routes, client_address, page_limit, whole_number
from appliance.web.exchange import ApiAnswer, CreatedAt, NextPage, RequestId, Time, object_from, request_id
from appliance.web.operations import PAGING, PAGING_BACK, Tag, for_admins, identifier, number_parameter, parameter

USAGE_DAYS, MOST_USAGE_DAYS = 30, 90
INSTALLATION = ""  # stands for the installation's own log

_NAME = Meta(examples=["acme"], extra_json_schema={"pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"})
_CREDITS = Meta(ge=0, le=MAX_CREDITS)
_CHANGE = Meta(ge=-MAX_CREDITS, le=MAX_CREDITS, description="Credits to add or, if negative, remove.")
_CAP = Meta(ge=1, le=MAX_CREDITS, description="Recipients per day (UTC); null for no cap.")


class NewAccountRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A new account and its first user."""

    name: Annotated[str, Meta(description="Letters, digits, dots, underscores and hyphens."), _NAME]
    email: Annotated[LoginEmail, Meta(min_length=1, max_length=254, examples=["owner@example.com"])]
    password: Annotated[NewPassword, Meta(description="At least 8 characters.")]
    credits: Annotated[int, Meta(description="Initial balance. Default: unlimited."), _CREDITS] | None = None
    role: Annotated[Role, Meta(description="`customer`, or `admin` to manage all accounts.")] = Role.CUSTOMER


class CreditsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Either `change` or the new `balance`."""

    change: Annotated[int, _CHANGE] | UnsetType = UNSET
    balance: Annotated[int, Meta(description="New balance; null for unlimited."), _CREDITS] | UnsetType | None = UNSET


class DailyCapRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The new daily cap."""

    recipients: Annotated[int, _CAP] | None


class UsedDomainObject(msgspec.Struct):
    """A sending domain."""

    name: Annotated[str, Meta(description="Domain.")]
    usable: Annotated[bool, Meta(description="Whether the account may send from it.")]
    verified_at: Annotated[Time | None, Meta(description="Time DNS proved ownership; null if it has not.")]


class AccountUsageAnswer(RatedCounts, kw_only=True):
    """Statistics of an account without test mail, and how its rates are judged.

    The numbers are those of `GET /v1/stats`.
    """

    sent_today: Annotated[int, Meta(description="Recipients of messages accepted today (UTC).")]
    waiting: Annotated[int, Meta(description="Recipients in the queue, including deferred and sandbox recipients.")]
    domains: Annotated[list[UsedDomainObject], Meta(description="Sending domains, by name.")]
    request_id: RequestId = msgspec.field(default_factory=request_id)


class ManagedAccountObject(msgspec.Struct):
    """An account, as administrators see it."""

    id: Annotated[str, Meta(description="Account id, `acc_…`.")]
    name: Annotated[str, Meta(description="Account name.")]
    email: LoginEmail
    credits: Annotated[int | None, Meta(description="Credit balance; null if unlimited.")]
    daily_cap: Annotated[int | None, Meta(description="Maximum recipients per day (UTC); null without a cap.")]
    suspended: Annotated[bool, Meta(description="Whether the operator has suspended the account.")]
    created_at: CreatedAt
    stored_bytes: Annotated[int, Meta(description="Storage used by messages and templates, in bytes.")]


class ManagedAccountAnswer(ManagedAccountObject):
    """One account."""

    request_id: RequestId


class AccountsAnswer(ApiAnswer):
    """A page of accounts by name. Pass `next` as `after` to get the next page."""

    accounts: Annotated[list[ManagedAccountObject], Meta(description="Accounts, by name.")]
    next: NextPage


_ID = identifier("Account id.", "^acc_[0-9a-f]{32}$")
_ONE, _NEW = (200, ManagedAccountAnswer, "The updated account."), (201, ManagedAccountAnswer, "The account.")
_DAYS = number_parameter("days", "Number of days (UTC), including today.", USAGE_DAYS, MOST_USAGE_DAYS)
_OF_MESSAGE = (_ID, parameter("message_id", "path", "Message id.", {"type": "string"}))
_FILTER_NAMES = frozenset(declared["name"] for declared in EMAIL_FILTERS)


class AdminAccountRoutes(Routes):
    tag = Tag.ADMINISTRATION

    async def _changed(self, account_id: str) -> ManagedAccountAnswer:
        self.services.auth.forget()
        return object_from(ManagedAccountAnswer, await self.store.accounts.find(account_id))

    @for_admins("GET /v1/admin/accounts", AccountsAnswer, *PAGING)
    async def list_accounts(self, _admin: User) -> AccountsAnswer:
        """List all accounts by name."""
        limit = page_limit()
        accounts = await self.store.accounts.page(request.args.get("after", ""), limit + 1)
        following = accounts[limit - 1].name if len(accounts) > limit else None
        shown = [object_from(ManagedAccountObject, account) for account in accounts[:limit]]
        return AccountsAnswer(shown, following)

    @for_admins("POST /v1/admin/accounts", _NEW, Code.CONFLICT, action="account.created")
    async def create_account(self, _admin: User, body: NewAccountRequest) -> ManagedAccountAnswer:
        """Create an account and its first user."""
        name, email = account_rules.account_name(body.name), account_rules.login_email(body.email)
        password_hash = await self.services.hashing.hashed(check_new(body.password), site_of(client_address()))
        about(name, {"email": email, "role": body.role.value})
        account = await self.store.accounts.create(name, email, password_hash, body.role, body.credits)
        return await self._changed(account.id)

    @for_admins("GET /v1/admin/accounts/{id}", ManagedAccountAnswer, _ID)
    async def get_managed_account(self, _admin: User, account_id: str) -> ManagedAccountAnswer:
        """Read one account."""
        return object_from(ManagedAccountAnswer, await self.store.accounts.find(account_id))

    @for_admins("POST /v1/admin/accounts/{id}/suspend", _ONE, _ID, action="account.suspended")
    async def suspend_account(self, _admin: User, account_id: str) -> ManagedAccountAnswer:
        """Suspend an account: it cannot send. Queued mail is still delivered."""
        return await self._set_suspended(account_id, True)

    @for_admins("POST /v1/admin/accounts/{id}/resume", _ONE, _ID, action="account.resumed")
    async def resume_account(self, _admin: User, account_id: str) -> ManagedAccountAnswer:
        """Resume a suspended account."""
        return await self._set_suspended(account_id, False)

    async def _set_suspended(self, account_id: str, suspended: bool) -> ManagedAccountAnswer:
        accounts = self.store.accounts
        await accounts.set_suspended((await accounts.find(account_id)).id, suspended)
        return await self._changed(account_id)

    @for_admins("POST /v1/admin/accounts/{id}/credits", _ONE, Code.CONFLICT, _ID, action="account.credits_changed")
    async def change_credits(self, _admin: User, account_id: str, body: CreditsRequest) -> ManagedAccountAnswer:
        """Change an account's credits."""
        accounts = self.store.accounts
        account = await accounts.find(account_id)
        about(account.name, {"change": body.change} if body.change is not UNSET else {"balance": body.balance})
        if (body.change is UNSET) == (body.balance is UNSET):
            raise invalid("body", "Send either change or balance, not both.")
        if body.change is not UNSET:
            await accounts.change_credits(account.id, body.change)
        elif body.balance is not UNSET:
            await accounts.set_credits(account.id, body.balance)
        return await self._changed(account_id)

    @for_admins("POST /v1/admin/accounts/{id}/daily-cap", _ONE, _ID, action="account.cap_changed")
    async def change_daily_cap(self, _admin: User, account_id: str, body: DailyCapRequest) -> ManagedAccountAnswer:
        """Set or remove the maximum number of recipients per day (UTC).

        Recipients of today's messages count.
        """
        account = await self.store.accounts.find(account_id)
        about(account.name, {"recipients": body.recipients or "no cap"})
        await self.store.accounts.set_daily_cap(account.id, body.recipients)
        return await self._changed(account_id)

    @for_admins("GET /v1/admin/accounts/{id}/usage", AccountUsageAnswer, _ID, _DAYS)
    async def get_account_usage(self, _admin: User, account_id: str) -> AccountUsageAnswer:
        """Read an account's volume, bounce and complaint rates, and domains."""
        account = await self.store.accounts.find(account_id)
        today = self.services.env.now() // DAY
        since = (today - whole_number("days", USAGE_DAYS, MOST_USAGE_DAYS) + 1) * DAY
        numbers = await self.store.statistics.of(account.id, since)
        sums, sent_today = Counter(numbers.returned), 0
        for (hour, kind), count in numbers.by_hour.items():
            if since <= hour * HOUR:
                sums[kind] += count
                sent_today += count if kind == "sent" and hour * HOUR // DAY == today else 0
        domains = [object_from(UsedDomainObject, row) for row in await self.store.access.domains(account.id)]
        counts: dict[str, Any] = {number: sums[number] for number in NUMBERS}
        return AccountUsageAnswer(
            **counts,
            **rates(sums),
            sent_today=sent_today,
            waiting=numbers.simulated + sum(row.due + row.deferred for row in numbers.waiting),
            domains=domains,
        )


class AdminEmailRoutes(Routes):
    tag = Tag.ADMINISTRATION

    def __init__(self, services: ApiServices) -> None:
        super().__init__(services)
        self.emails = EmailRoutes(services)

    async def _reader(self, admin: User, account_id: str, message_id: str = "") -> User:
        """The administrator acting as a user of the account. Every read is recorded."""
        account = await self.store.accounts.find(account_id)
        about(message_id or account.name, {"account": account.name})
        concerns(INSTALLATION)
        return replace(admin, account_id=account.id)

    @for_admins(
        "GET /v1/admin/accounts/{id}/emails", EmailsAnswer, _ID, *EMAIL_FILTERS, *PAGING_BACK, action="email.listed"
    )
    async def list_managed_emails(self, admin: User, account_id: str) -> bytes | Response:
        """List an account's messages, newest first, with the filters of `GET /v1/emails`.

        The request and its filters are recorded in the audit log.
        """
        reader = await self._reader(admin, account_id)
        about(details={name: value for name, value in request.args.items() if name in _FILTER_NAMES})
        return await self.emails.list_emails(reader)

    @for_admins("GET /v1/admin/accounts/{id}/emails/{message_id}", MessageDetails, *_OF_MESSAGE, action="email.read")
    async def get_managed_email(self, admin: User, account_id: str, message_id: str) -> bytes:
        """Read a message of an account with every attempt. Recorded in the audit log."""
        return await self.emails.get_email_details(await self._reader(admin, account_id, message_id), message_id)

    @for_admins(
        "GET /v1/admin/accounts/{id}/emails/{message_id}/body", BodyAnswer, *_OF_MESSAGE, action="email.body_read"
    )
    async def get_managed_email_body(self, admin: User, account_id: str, message_id: str) -> Response:
        """Read the content of an account's message. Recorded in the audit log."""
        return await self.emails.get_email_body(await self._reader(admin, account_id, message_id), message_id)

    @for_admins(
        "GET /v1/admin/accounts/{id}/emails/{message_id}/raw", RAW_FILE, *_OF_MESSAGE, action="email.downloaded"
    )
    async def get_managed_email_raw(self, admin: User, account_id: str, message_id: str) -> Response:
        """Download an account's message. Recorded in the audit log."""
        return await self.emails.get_email_raw(await self._reader(admin, account_id, message_id), message_id)

    @for_admins(
        "GET /v1/admin/accounts/{id}/emails/{message_id}/attachments/{number}",
        ATTACHED_FILE,
        *_OF_MESSAGE,
        FILE_NUMBER,
        action="email.file_downloaded",
    )
    async def get_managed_email_attachment(
        self, admin: User, account_id: str, message_id: str, number: str
    ) -> Response:
        """Download an attachment of an account's message. Recorded in the audit log."""
        reader = await self._reader(admin, account_id, message_id)
        about(details={"file": number})
        return await self.emails.get_email_attachment(reader, message_id, number)
