"""Finds problems that need a person, from stored data, the disk and the certificate files.

The API, the command line and the mail to people use the same checks. Problems of an account concern its members;
problems of the machine (certificates, disk, queue, held pools) concern administrators.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from urllib.parse import quote, urlsplit

import trio
from msgspec import Struct
from msgspec.structs import replace

from appliance.config.settings import Config
from appliance.config.values import MIB
from appliance.environment import Environment
from appliance.intake.limits import FreeSpace
from appliance.model.accounts import Account, ApiKey, Domain, RecordStatus
from appliance.model.attention import MACHINE, AttentionItem, AttentionKind, Severity
from appliance.model.numbers import BOUNCE_MARKS, COMPLAINT_MARKS, COMPLAINTS_JUDGED_FROM, JUDGED_FROM
from appliance.model.queue import PoolHold
from appliance.model.webhooks import Webhook
from appliance.report.explain import public_reason, span
from appliance.store import Store
from appliance.store.attention import RecentMail
from appliance.store.pools import EVERY
from appliance.store.queue_control import Depth
from appliance.times import DAY, HOUR, MINUTE, SECOND
from appliance.tls.certificate import ACME_FILE, acme_directory, by_acme, expiry

RATES_SINCE = 7 * DAY
FEW_CREDITS = 100
DOMAINS_LISTED = 50  # broken ones of an account, by name
KEY_EXPIRES_WITHIN = 7 * DAY
CERTIFICATE_EXPIRES_WITHIN = 10 * DAY
EXPIRES_SOON = 2 * DAY  # critical from then on
QUEUE_DUE, QUEUE_OVERDUE = 1_000, 10 * MINUTE  # due recipients, and how long the first of them has waited
DISK_MARGIN = 1.25  # times the minimum, below which free space is low
DEPTH_KEPT = 10.0  # seconds; counting a long queue takes a while

_QUEUED, _ADMIN = "/dashboard/messages?waiting=true", "/dashboard/admin"
_ORDER = list(Severity)


class Problems(Struct):
    config: Config
    store: Store
    env: Environment
    free_space: FreeSpace
    _depth: Depth | None = None
    _depth_at: float = float("-inf")

    async def of_account(self, account: Account) -> list[AttentionItem]:
        now, store = self.env.now(), self.store
        broken = await store.access.judge_domains(
            account.id, lambda domains: list(islice(judge_domains(domains), DOMAINS_LISTED))
        )
        recent = await store.attention.recent_mail(account.id, now - RATES_SINCE)
        keys = await store.access.expiring_keys(account.id, now + KEY_EXPIRES_WITHIN)
        return [
            *judge_holds(await store.pools.holding(account.id)),
            *judge_credits(account, recent.used),
            *broken,
            *judge_webhook(await store.webhooks.of(account.id)),
            *judge_rates(recent),
            *judge_keys(keys, now),
        ]

    async def of_node(self) -> list[AttentionItem]:
        now = self.env.now()
        return [
            *judge_disk(*self.free_space.free_and_needed()),
            *judge_certificates(certificate_expiries(self.config), now),
            *judge_queue(await self._queue(), now),
        ]

    async def of_all_nodes(self) -> list[AttentionItem]:
        return list(judge_holds(await self.store.pools.all_holds(), for_operator=True))

    async def shown(self, account: Account | None, *, is_admin: bool) -> list[AttentionItem]:
        """Return problems of an account, for administrators also problems of the machine; the most serious first."""
        problems = [] if account is None else await self.of_account(account)
        stored = [] if account is None else await self.store.attention.of(account.id)
        if is_admin:
            of_machines = await self.store.attention.of(MACHINE)
            elsewhere = [row for row in of_machines if row.node not in ("", self.store.engine.node)]
            problems += [*await self.of_all_nodes(), *await self.of_node()]
            problems += [row.problem for row in elsewhere if row.ended_at is None]
            stored += [row for row in of_machines if row not in elsewhere]
        since = {row.problem.key: row.problem.since for row in stored if row.ended_at is None}
        unique = {problem.key: problem for problem in reversed(problems)}
        # To the minute: until a check has stored the problem, open pages would otherwise change with every request.
        return in_order(unique.values(), since, self.env.now() // MINUTE * MINUTE)

    async def _queue(self) -> Depth:
        if self._depth is None or trio.current_time() > self._depth_at + DEPTH_KEPT:
            self._depth, self._depth_at = await self.store.queue_control.depth(), trio.current_time()
        return self._depth


def in_order(
    problems: Iterable[AttentionItem], since: Mapping[tuple[str, str], int | None], now: int
) -> list[AttentionItem]:
    """Sort by severity, then newest first. A problem without a time of its own began when a check first found it."""
    dated = [
        problem if problem.since is not None else replace(problem, since=since.get(problem.key) or now)
        for problem in problems
    ]
    return sorted(dated, key=lambda problem: (_ORDER.index(problem.severity), -(problem.since or 0), problem.key))


# ---- problems of an account
def judge_domains(domains: Iterable[Domain]) -> Iterator[AttentionItem]:
    """A domain that may send, and whose last DNS check showed a wrong record. A failed lookup proves nothing."""
    for domain in domains:
        if not domain.usable or domain.dns is None:
            continue
        dns, missing, differs = domain.dns, RecordStatus.MISSING, RecordStatus.DIFFERS
        states: dict[str, RecordStatus | None] = {"DKIM": dns.dkim, "SPF": dns.spf, "DMARC": dns.dmarc}
        # A return path that was never in use may be missing.
        states |= {"return path": dns.return_path} if dns.return_path is differs or domain.return_path_at else {}
        wrong = [
            _listed(names, _STATES[state])
            for state in (differs, missing)
            if (names := [name for name, current in states.items() if current is state])
        ]
        if not wrong:
            continue
        is_critical = dns.dkim in (missing, differs) or dns.spf in (missing, differs)
        yield AttentionItem(
            AttentionKind.DOMAIN_BROKEN,
            domain.name,
            Severity.CRITICAL if is_critical else Severity.WARNING,
            f"DNS of {domain.name} is broken",
            f"In DNS, {' and '.join(wrong)}. Providers may reject mail from this domain. Publish the records again.",
            f"/dashboard/domains/{quote(domain.name, safe='')}",
        )


def _listed(names: list[str], state: str) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last} are {state}" if others else f"{last} is {state}"


_STATES = {RecordStatus.MISSING: "missing", RecordStatus.DIFFERS: "wrong"}


def judge_rates(recent: RecentMail) -> Iterator[AttentionItem]:
    final = recent.delivered + recent.bounced + recent.failed
    advice = "Remove addresses that do not exist, and send only mail that people requested."
    yield from _judge_rate(
        AttentionKind.BOUNCE_RATE,
        recent.bounced,
        final if final >= JUDGED_FROM else 0,
        BOUNCE_MARKS,
        f"recipients bounced in the last 7 days. Providers block senders of such mail. {advice}",
    )
    advice = "Send only mail that people requested, and let them unsubscribe with one click."
    yield from _judge_rate(
        AttentionKind.COMPLAINT_RATE,
        recent.complained,
        recent.delivered if recent.delivered >= COMPLAINTS_JUDGED_FROM else 0,
        COMPLAINT_MARKS,
        f"delivered recipients complained in the last 7 days. Above 0.3 % providers reject mail. {advice}",
    )


def _judge_rate(
    kind: AttentionKind, count: int, total: int, marks: tuple[float, float], text: str
) -> Iterator[AttentionItem]:
    high, too_high = marks
    if total and count >= high * total:
        name = "Bounce rate" if kind is AttentionKind.BOUNCE_RATE else "Complaint rate"
        digits = 1 if kind is AttentionKind.BOUNCE_RATE else 2
        severity = Severity.CRITICAL if count >= too_high * total else Severity.WARNING
        title = f"{name} is {100 * count / total:.{digits}f} %"
        yield AttentionItem(kind, "", severity, title, f"{count:,} of {total:,} {text}", "/dashboard/feedback")


def judge_holds(holds: Iterable[PoolHold], *, for_operator: bool = False) -> Iterator[AttentionItem]:
    for hold in holds:
        reason = hold.reason if for_operator else public_reason(hold)
        link = _ADMIN if for_operator else _QUEUED
        if hold.pool == EVERY:
            kind, title = AttentionKind.MAIL_PAUSED, "All mail is paused"
            advice = "Resume it with: appliance resume" if for_operator else "The operator must resume it."
        else:
            kind, title = AttentionKind.PROVIDER_BLOCKING, f"Mail to {hold.pool} is on hold{hold.by_node}"
            advice = "The server tests regularly whether the provider accepts mail again."
            if hold.probe_at is None:
                advice = f"Release it with: appliance queue resume {hold.pool}" if for_operator else ""
        subject = f"{hold.pool} {hold.node}".strip()
        text = f"{reason[:1].upper()}{reason[1:].rstrip('.')}. {advice}".rstrip()
        yield AttentionItem(kind, subject, Severity.CRITICAL, title, text, link, hold.held_at)


def judge_webhook(webhook: Webhook | None) -> Iterator[AttentionItem]:
    if webhook and webhook.enabled and (webhook.last_failure_at or 0) > (webhook.last_success_at or 0):
        url = urlsplit(webhook.url)  # its path and query may be secrets, and this text is mailed
        shown = f"{url.scheme}://{url.netloc.rpartition('@')[2]}/…"
        text = f"{shown} rejects events or does not answer. The server retries them for a day. See the history."
        yield AttentionItem(
            AttentionKind.WEBHOOK_FAILING, webhook.id, Severity.WARNING, "The webhook fails", text, "/dashboard/webhook"
        )


def judge_credits(account: Account, used: int) -> Iterator[AttentionItem]:
    """`used` are the credits of the last day."""
    left = account.credits
    if left is None or (left >= FEW_CREDITS and left >= used):
        return
    if left == 0:
        severity, title = Severity.CRITICAL, "No credits left"
    else:
        severity, title = Severity.WARNING, f"Credits are low: {left:,} left"
    text = f"The last day used {used:,}. Without credits the server refuses new mail. Ask the operator for credits."
    yield AttentionItem(AttentionKind.CREDITS_LOW, "", severity, title, text, "/dashboard/account")


def judge_keys(keys: Iterable[ApiKey], now: int) -> Iterator[AttentionItem]:
    for key in keys:
        if key.expires_at is not None:
            name, at = key.name or f"…{key.hint}", key.expires_at
            text = f"It works until {_day(at)}. Create a new key, and give it to the programs that use this one."
            severity = Severity.CRITICAL if at - now < EXPIRES_SOON else Severity.WARNING
            title, since = f"API key {name} expires in {_left(at - now)}", at - KEY_EXPIRES_WITHIN
            yield AttentionItem(AttentionKind.KEY_EXPIRING, key.id, severity, title, text, "/dashboard/keys", since)


# ---- problems of the machine
def certificate_expiries(config: Config) -> dict[str, float]:
    """When the certificates of the listeners expire, in seconds since 1970. A generated one renews itself."""
    files = {section: getattr(config, section).tls_cert for section in ("http", "smtp", "inbound")}
    if by_acme(config, "http") or by_acme(config, "smtp"):
        files["acme"] = acme_directory(config) / ACME_FILE
    return {name: at for name, file in files.items() if file is not None and (at := expiry(file)) is not None}


def judge_certificates(expiries: Mapping[str, float], now: int) -> Iterator[AttentionItem]:
    for name, seconds in expiries.items():
        at = round(seconds * SECOND)
        if at - now < CERTIFICATE_EXPIRES_WITHIN:
            severity = Severity.CRITICAL if at - now < EXPIRES_SOON else Severity.WARNING
            state = "has expired" if at <= now else f"expires in {_left(at - now)}"
            text = f"It is valid until {_day(at)}. Clients refuse an expired certificate. "
            text += "See the log of appliance.acme." if name == "acme" else f"Renew the file of {name}.tls_cert."
            title, since = f"The certificate of {name} {state}", at - CERTIFICATE_EXPIRES_WITHIN
            yield AttentionItem(AttentionKind.CERTIFICATE_EXPIRING, name, severity, title, text, _ADMIN, since)


def judge_disk(free: int, needed: int) -> Iterator[AttentionItem]:
    if free < needed * DISK_MARGIN:
        severity = Severity.CRITICAL if free < needed else Severity.WARNING
        text = f"{_rounded(free // MIB):,} MiB are free. "
        text += f"Below {needed // MIB:,} MiB the server refuses new mail. Free space."
        yield AttentionItem(AttentionKind.DISK_LOW, "", severity, "Disk space is low", text, _ADMIN)


def judge_queue(depth: Depth, now: int) -> Iterator[AttentionItem]:
    waited = round(depth.overdue * SECOND)
    if depth.due >= QUEUE_DUE and waited >= QUEUE_OVERDUE and EVERY not in depth.held:
        text = f"{depth.due:,} recipients are due, the first for {span(waited)}. More mail arrives than leaves. "
        text += "See which pool is slow: appliance queue"
        title, since = "The queue is growing", now - waited
        yield AttentionItem(AttentionKind.QUEUE_GROWING, "", Severity.WARNING, title, text, _ADMIN, since)


# Rounded: a text that changes all the time would reach every open page again and again.
def _left(time: int) -> str:
    hours = -(-time // HOUR)
    return f"{hours // 24} days" if hours >= 48 else f"{hours} hours" if hours > 1 else "an hour"


def _rounded(count: int) -> int:
    """To two digits, downwards."""
    step: int = 10 ** max(0, len(str(count)) - 2)
    return count // step * step


def _day(at: int) -> str:
    return f"{datetime.fromtimestamp(at // SECOND, UTC):%Y-%m-%d %H:%M} UTC"
