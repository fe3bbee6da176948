"""The account with its warnings, credit ledger and audit log: /v1/account, /v1/credits and /v1/audit."""

import csv
import io
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta
from quart import Response, request

from appliance.errors import invalid
from appliance.intake.limits import FreeSpace
from appliance.message.characters import cost_of_size, guard_cell
from appliance.model.accounts import Account, AccountRole, KeyPrincipal, LedgerEntry, LedgerKind, Principal, Role, User
from appliance.model.dashboard import AuditEntry
from appliance.report.explain import public_reason
from appliance.store import Store
from appliance.store.pools import EVERY
from appliance.times import LATEST, rfc3339
from appliance.web.app import Routes, answer, moment, page_limit
from appliance.web.exchange import ApiAnswer, CreatedAt, NextPage, Time, object_from
from appliance.web.operations import PAGING_BACK, Json, Limited, Tag, for_customers, parameter


class EntryKind(StrEnum):
    """Why a balance changed."""

    GRANT = "grant"
    ADJUST = "adjust"
    RESERVE = "reserve"
    RELEASE = "release"


class ServiceObject(msgspec.Struct):
    """How to reach the service."""

    base_url: Annotated[str, Meta(description="Base URL of the HTTP API.")]
    smtp_host: Annotated[str, Meta(description="Host name of the SMTP server.")]
    smtp_ports: Annotated[list[int], Meta(description="Ports with STARTTLS.")]
    smtp_tls_ports: Annotated[list[int], Meta(description="Ports with implicit TLS.")]
    delivery_mode: Annotated[str, Meta(description="`direct`, `relay` or `sandbox`.")]


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


class AccountAnswer(ApiAnswer):
    """The account of the token."""

    id: Annotated[str, Meta(description="Account id, `acc_…`.")]
    name: Annotated[str, Meta(description="Account name.")]
    email: Annotated[str, Meta(description="Login address. Case-insensitive.")]
    role: Annotated[Role, Meta(description="`customer`, or `admin` to manage all accounts.")]
    account_role: Annotated[AccountRole, Meta(description="Role in the account: `owner`, `developer` or `viewer`.")]
    credits: Annotated[int | None, Meta(description="Credit balance; null if unlimited.")]
    daily_cap: Annotated[int | None, Meta(description="Maximum recipients per day (UTC); null without a cap.")]
    suspended: Annotated[bool, Meta(description="Whether the operator has suspended the account.")]
    created_at: CreatedAt
    stored_bytes: Annotated[int, Meta(description="Storage used by messages and templates, in bytes.")]
    stored_bytes_limit: Annotated[int | None, Meta(description="Storage limit in bytes; null without a limit.")]
    service: Annotated[ServiceObject, Meta(description="How to reach the service.")]
    warnings: Annotated[list[WarningObject], Meta(description="Warnings, most serious first.")]


class LedgerEntryObject(msgspec.Struct):
    """One change of the balance."""

    id: Annotated[str, Meta(description="Entry id, `led_…`.")]
    kind: Annotated[EntryKind, Meta(description="`reserve`, `release`, or by the operator `grant`, `adjust`.")]
    amount: Annotated[int, Meta(description="Credits added; negative if credits were removed.")]
    balance: Annotated[int, Meta(description="Balance after the change.")]
    message_id: Annotated[str | None, Meta(description="Message id; null if no message is involved.")]
    recipient_id: Annotated[str | None, Meta(description="Recipient id; null if no recipient is involved.")]
    created_at: CreatedAt


class CreditsAnswer(ApiAnswer):
    """The balance and a page of its changes, newest first. Pass `next` as `before` to get the next page."""

    credits: Annotated[int | None, Meta(description="Credit balance; null if unlimited.")]
    entries: Annotated[list[LedgerEntryObject], Meta(description="Entries, newest first.")]
    next: NextPage


class AccountRoutes(Routes):
    tag = Tag.ACCOUNT

    @for_customers("GET /v1/account", AccountAnswer, limited=Limited.NARROWED)
    async def get_account(self, user: Principal) -> AccountAnswer:
        """Read the account, how to reach the service, and warnings."""
        account = await self.store.accounts.find(user.account_id)
        config, intake = self.services.config, self.services.intake
        service = ServiceObject(
            config.http.base_url,
            config.server.hostname,
            sorted({bound.port for bound in config.smtp.bind}),
            sorted({bound.port for bound in config.smtp.bind_tls}),
            config.delivery.mode.value,
        )
        warnings = await warnings_of(account, self.store, intake.free_space)
        if isinstance(user, KeyPrincipal) and user.domain is not None:  # the key is limited to it
            warnings = [warning for warning in warnings if warning.subject in (None, user.domain)]
        by = user if isinstance(user, User) else None
        return object_from(
            AccountAnswer,
            account,
            email=by.email if by else account.email,
            role=by.role if by else Role.CUSTOMER,
            account_role=by.account_role if by else AccountRole.DEVELOPER,
            stored_bytes_limit=intake.quota.bytes(),
            service=service,
            warnings=warnings,
        )

    @for_customers("GET /v1/credits", CreditsAnswer, *PAGING_BACK)
    async def list_credit_changes(self, user: Principal) -> CreditsAnswer:
        """List the changes of the account's credits, newest first."""
        limit = page_limit()
        entries = await self.store.accounts.ledger(user.account_id, limit + 1, request.args.get("before"))
        following = entries[limit - 1].id if len(entries) > limit else None
        balance = (await self.store.accounts.find(user.account_id)).credits
        return CreditsAnswer(balance, [_entry(entry) for entry in entries[:limit]], following)


def _entry(entry: LedgerEntry) -> LedgerEntryObject:
    # The store records a deduction by the operator as a negative grant.
    taken = entry.kind is LedgerKind.GRANT and entry.amount < 0
    return object_from(LedgerEntryObject, entry, kind=EntryKind.ADJUST if taken else EntryKind(entry.kind.value))


async def warnings_of(account: Account, store: Store, free_space: FreeSpace) -> list[WarningObject]:
    warnings: list[WarningObject] = []

    def warn(code: WarningCode, text: str, subject: str | None = None) -> None:
        warnings.append(WarningObject(code, text, subject))

    if account.suspended:
        warn(WarningCode.ACCOUNT_SUSPENDED, "This account is suspended and cannot send. Ask the operator to resume it.")
    if account.credits == 0:
        warn(WarningCode.NO_CREDITS, "No credits left: nothing can be sent. Ask the operator for credits.")
    if free_space.low():
        text = "The server is low on disk space and accepts no new mail. Queued mail is still delivered."
        warn(WarningCode.DISK_LOW, text)
    webhook = await store.webhooks.of(account.id)
    # A later success resolves a failure.
    if webhook and webhook.enabled and (webhook.last_failure_at or 0) > (webhook.last_success_at or 0):
        text = "The webhook receiver rejects events, which are retried. See the webhook history for the cause."
        warn(WarningCode.WEBHOOK_FAILING, text, webhook.url)
    domains = await store.access.domains(account.id)
    if not domains:
        warn(WarningCode.NO_DOMAIN, "No domain yet. Add the domain that you send from.")
    for domain in domains:
        if not domain.usable:
            text = f"{domain.name} is not verified. Publish its DNS records, then check them."
            warn(WarningCode.DOMAIN_PENDING, text, domain.name)
    for hold in await store.pools.holding(account.id):
        if hold.pool == EVERY:
            warn(WarningCode.MAIL_PAUSED, f"All mail is paused: {hold.reason}. The operator must resume it.")
        else:
            warn(WarningCode.POOL_HELD, f"Mail to {hold.pool} is on hold: {public_reason(hold)}", hold.pool)
    return warnings


CSV_ROWS = 10_000  # newest entries in one response
CSV_COLUMNS = ("time", "actor_kind", "actor", "actor_name", "action", "object", "details", "address")
_ROW_BYTES = 500  # the cost of encoding one entry

_TIME: Json = {"type": "string", "format": "date-time"}
ACTION_LENGTH = 64
_FILTERS = (
    parameter(
        "action", "query", "An action, or the part before its dot.", {"type": "string", "maxLength": ACTION_LENGTH}
    ),
    parameter("since", "query", "Only entries at or after this time.", _TIME),
    parameter("until", "query", "Only entries before this time.", _TIME),
)


class AuditEntryObject(msgspec.Struct):
    """One change."""

    id: Annotated[str, Meta(description="Entry id, `aud_…`.")]
    created_at: Annotated[Time, Meta(description="Time of the change.")]
    actor_kind: Annotated[str, Meta(description="`user`, `key`, `operator` (command line) or `service`.")]
    actor: Annotated[str, Meta(description="User address, API key id, system user or part of the service.")]
    actor_name: Annotated[str, Meta(description="Name of the API key; empty for other actors.")]
    action: Annotated[str, Meta(description="What happened, for example `api_key.created`.")]
    object: Annotated[str, Meta(description="Affected id, name or address.")]
    details: Annotated[dict[str, str], Meta(description="Further details; never a secret.")]
    address: Annotated[str, Meta(description="Client address, `cli` or `server`.")]


class AuditAnswer(ApiAnswer):
    """A page of entries, newest first. Pass `next` as `before` to get the next page."""

    audit: Annotated[list[AuditEntryObject], Meta(description="Entries, newest first.")]
    next: NextPage


class AuditRoutes(Routes):
    tag = Tag.AUDIT

    @for_customers("GET /v1/audit", AuditAnswer, *_FILTERS, *PAGING_BACK)
    async def list_audit(self, user: Principal) -> Response:
        """List the account's changes of the last year, newest first. The newest 100,000 per account are kept.

        A page may be incomplete while the search continues; `next` is null only at the end. With `Accept: text/csv` or
        `format=csv`, the response is the newest 10,000 matching entries as CSV.
        """
        since, until = moment("since") or 0, LATEST if (end := moment("until")) is None else end
        action, before = request.args.get("action", ""), request.args.get("before")
        if len(action) > ACTION_LENGTH:
            raise invalid("action", f"must have at most {ACTION_LENGTH} characters")
        if request.headers.get("Accept", "").startswith("text/csv") or request.args.get("format") == "csv":
            entries: list[AuditEntry] = []
            following = before
            while True:
                part, following = await self.store.audit.search(
                    user.account_id, before=following, action=action, since=since, until=until, most=CSV_ROWS
                )
                entries = (entries + part)[:CSV_ROWS]
                if following is None or len(entries) == CSV_ROWS:
                    break
            work = cost_of_size(_ROW_BYTES * len(entries))
            body = await self.services.intake.workers.run(user.account_id, work, audit_csv, entries)
            disposition = {"Content-Disposition": 'attachment; filename="audit.csv"'}
            return Response(body, 200, disposition, content_type="text/csv; charset=utf-8")
        limit = page_limit()
        entries, following = await self.store.audit.search(
            user.account_id, before=before, action=action, since=since, until=until, most=limit
        )
        shown = [object_from(AuditEntryObject, entry) for entry in entries]
        return answer(AuditAnswer(shown, following))


def audit_csv(entries: Sequence[AuditEntry]) -> str:
    """As CSV (RFC 4180). No cell looks like a formula to a spreadsheet."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(CSV_COLUMNS)
    for entry in entries:
        details = "; ".join(f"{name}: {value}" for name, value in entry.details.items())
        row = (entry.actor_kind, entry.actor, entry.actor_name, entry.action, entry.object, details, entry.address)
        writer.writerow((rfc3339(entry.created_at), *map(guard_cell, row)))
    return text.getvalue()
