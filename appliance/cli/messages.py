"""`appliance message`, `request` and `explain`: searches messages and requests, explains delivery.

A search reads the newest messages first and ends within a bounded time.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from appliance.cli import database, options
from appliance.cli.output import printable, record, show, show_list
from appliance.environment import Environment
from appliance.times import rfc3339

if TYPE_CHECKING:
    from appliance.config.settings import Config
    from appliance.model.dashboard import FoundMail, ListedMessage
    from appliance.model.mail import Attempt, MessageRecord, Suppression, TriedRecipient
    from appliance.model.queue import PoolView
    from appliance.store import Store

    _Explained = tuple[MessageRecord, dict[str, PoolView]]

MESSAGE_COLUMNS = {"id": "ID", "account": "ACCOUNT", "status": "STATUS", "from": "FROM", "to": "TO"}
MESSAGE_COLUMNS |= {"subject": "SUBJECT", "created_at": "ACCEPTED (UTC)"}
MESSAGE_SPARE = ("account", "from", "created_at", "subject")
LISTED, MOST_LISTED = 50, 1_000  # lines of a list
MESSAGES_EXPLAINED = 10  # of an address
SEARCH_SECONDS = 10.0  # enough for a few million messages
STATUSES = ("queued", "delivered", "partial", "failed")
OUTCOMES = (
    *("scheduled", "queued", "deferred", "delivered", "bounced", "failed", "suppressed", "cancelled"),
    *("late_bounced", "complained"),
)

REQUEST_COLUMNS = {"at": "TIME (UTC)", "account": "ACCOUNT", "status": "STATUS", "route": "ROUTE", "key": "KEY"}
REQUEST_COLUMNS |= {"client": "CLIENT", "message": "MESSAGE OR ERROR"}
REQUEST_FIELDS = ("request_id", "source", "route", "key", "client", "status", "code", "error", "message_id", "size")
REQUEST_SPARE = ("client", "key", "account")

message = options.CommandGroup("message", "List messages.", default="list")
request = options.CommandGroup("request", "Submissions of the last 7 days, accepted or refused.", default="list")


@message.command("list", reads=True)
@click.argument("words", type=options.PRINTABLE, nargs=-1, metavar="[WORD]...")
@options.text_option("--account", "NAME", "Filter by account.", **database.completed("account"))
@options.text_option("--to", "ADDRESS|DOMAIN", "Filter by recipient address or domain.")
@options.text_option("--from", "ADDRESS|DOMAIN", "Filter by sender address or domain.", "sender")
@options.text_option("--contains", "TEXT", "Filter by a part of a recipient's address.", "address")
@options.text_option("--tag", "TAG", "Filter by tag.")
@options.text_option("--metadata", "KEY:VALUE", "Filter by an entry of the metadata.")
@options.text_option("--stream", "NAME", "Filter by stream.", **database.completed("stream"))
@options.text_option(
    "--provider", "POOL", "Filter by the provider pool of a recipient's domain.", **database.completed("pool")
)
@options.text_option("--key", "ID|USERNAME", "Filter by API key id or SMTP username that sent the message.")
@click.option("--status", type=click.Choice(STATUSES), help="Filter by message status.")
@click.option("--outcome", type=click.Choice(OUTCOMES), help="Filter by the outcome of any recipient.")
@options.flag("--scheduled", "Only scheduled messages, with their time (as --outcome scheduled).")
@click.option("--since", type=options.TIME_AGO, metavar="2d|DATE", help="Only messages accepted from this time on.")
@click.option("--until", type=options.TIME_AGO, metavar="2d|DATE", help="Only messages accepted before this time.")
@options.number_option("--limit", LISTED, MOST_LISTED, "Number of messages to show.")
@options.listing
def list_messages(
    words: tuple[str, ...],
    account: str | None,
    to: str | None,
    sender: str | None,
    address: str | None,
    tag: str | None,
    metadata: str | None,
    stream: str | None,
    provider: str | None,
    key: str | None,
    status: str | None,
    outcome: str | None,
    scheduled: bool,
    since: int | None,
    until: int | None,
    limit: int,
) -> None:
    """List messages of one account or of all, newest first.

    Each WORD must be a prefix of a word in the message: in a recipient's or the sender's address or name, the subject,
    an id, a tag, the template or a mail server's reply. A message must match all words and options. A time is a span
    before now (30m, 12h, 2d), a date (2026-11-15) or a UTC time (2026-11-15T13:00). A search stops after ten seconds;
    the last line then says how far back it got, and the same command with --until continues from there. To see the
    history of one message: appliance explain ID

    Examples:
      appliance message list
      appliance message list --to ada@example.net --since 2d
      appliance message list --account acme --outcome bounced --limit 10
      appliance message list --scheduled
    """
    from appliance.intake.account_rules import searched_recipient, searched_sender
    from appliance.message.labels import metadata_entry
    from appliance.message.search_words import query_words
    from appliance.model.dashboard import FoundMail, MailFilter
    from appliance.model.mail import MessageStatus, RecipientOutcome

    if scheduled and outcome not in (None, "scheduled"):
        raise click.UsageError("--scheduled cannot be combined with another --outcome.")
    with database.refusals():
        searched = query_words(" ".join(words)) if words else ()
        entry = metadata_entry(metadata) if metadata else None
    mail_filter = MailFilter(
        words=searched,
        outcome=RecipientOutcome(outcome or "scheduled") if outcome or scheduled else None,
        since=since,
        until=until,
        status=MessageStatus(status) if status else None,
        recipient=searched_recipient(to.strip()) if to else None,
        sender=searched_sender(sender.strip()) if sender else None,
        address_part=searched_sender(address.strip()) if address else None,
        tag=tag,
        provider=provider,
        credential=key,
        metadata=entry,
        stream=stream,
    )

    async def work(store: "Store") -> "tuple[dict[str, str], FoundMail]":
        chosen = await store.accounts.all() if account is None else [await store.accounts.named(account)]
        names = {one.id: one.name for one in chosen}
        return names, await store.mail_log.newest(names, mail_filter, limit, SEARCH_SECONDS)

    names, mail = database.run(work, or_nothing=lambda: ({}, FoundMail((), None)))
    rows = [_message_row(names[account_id], message) for account_id, message in mail.messages]
    # Rounded up to milliseconds, so that a search that continues from there omits nothing.
    back_to = None if mail.searched_to is None else rfc3339(mail.searched_to + 999)
    answer = {"messages": rows, "searched_to": back_to}
    columns = MESSAGE_COLUMNS | ({"scheduled_at": "SCHEDULED (UTC)"} if scheduled else {})
    show_list(answer, columns, "No message matches.", MESSAGE_SPARE, _worded_message)
    if back_to is not None and not options.is_json():
        click.echo(f"Searched back to {back_to} only. To continue, add --until {back_to}")


def _message_row(account: str, message: "ListedMessage") -> dict[str, Any]:
    recipients = [
        {"email": one.email, "status": one.status.value, "outcome": one.outcome.value} for one in message.recipients
    ]
    row: dict[str, Any] = {"id": message.id, "account": account, "status": message.status.value}
    row |= {"source": message.source.value, "from": message.sender, "recipients": recipients}
    row["outcomes"] = {outcome.value: count for outcome, count in message.outcomes.items()}
    return row | record(message, "recipient_count", "subject", "created_at", "scheduled_at")


def _worded_message(row: dict[str, Any]) -> dict[str, Any]:
    more = row["recipient_count"] - 1
    to = row["recipients"][0]["email"] if row["recipients"] else ""
    return row | {"to": to + (f" and {more} more" if more else "")}


# ---- requests


@request.command("list", reads=True)
@click.option(
    "--status", type=options.STATUS, metavar="CODE|accepted|refused", help="Filter by status or SMTP reply code."
)
@options.text_option("--key", "ID", "Filter by API key id or SMTP username.")
@options.text_option("--text", "TEXT", "Filter by text in the request: an id, an address, an error.")
@options.number_option("--limit", LISTED, MOST_LISTED, "Number of requests to show.")
@database.list_of_accounts
def list_requests(name: str | None, status: str | int | None, key: str | None, text: str | None, limit: int) -> None:
    """List API and SMTP submissions of the last 7 days, newest first, of one account or of all.

    The log is written once a second. It has the start of each request's JSON (with --json), without secrets. Requests
    without a valid credential are not listed.

    Examples:
      appliance request list --account acme --status refused
      appliance request list --text ada@example.net --json
    """
    from appliance.model.dashboard import LoggedRequest, RequestFilter

    filters = RequestFilter(
        status=status if isinstance(status, int) else None,
        accepted=None if not isinstance(status, str) else status == "accepted",
        key=key,
        text=(text or "").lower(),
    )

    async def read(store: "Store") -> "tuple[list[tuple[str, LoggedRequest]], dict[str, str]]":
        accounts = {account.id: account.name for account in await store.accounts.all()}
        account_id = None if name is None else (await store.accounts.named(name)).id
        results: list[tuple[str, LoggedRequest]] = []
        cursor = None
        while len(results) < limit:
            part, cursor = await store.request_pages.search(account_id, filters, limit - len(results), cursor)
            results += part
            if cursor is None:
                break
        return results, accounts

    results, accounts = database.run(read, or_nothing=lambda: ([], {}))
    rows = []
    for account_id, entry in results:
        row = {"account": accounts.get(account_id, account_id), "at": rfc3339(entry.at)}
        rows.append(row | record(entry, *REQUEST_FIELDS, "body"))
    show_list({"requests": rows}, REQUEST_COLUMNS, "No request matches.", REQUEST_SPARE, _worded_request)


def _worded_request(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"message": row["message_id"] or row["error"]}


# ---- explain
@click.command(cls=options.Command, reads=True)
@click.argument("what", type=options.PRINTABLE, metavar="[MESSAGE|ADDRESS]", required=False)
@options.flag("--dialogue", "Show every line of the SMTP dialogue.")
@click.option("--reply", metavar="TEXT", help="Classify this reply of a mail server, and name the rule that applies.")
@click.option(
    "--provider",
    metavar="NAME",
    help="With --reply: only rules of this provider, and general ones.",
    **database.completed("pool"),
)
@options.common
def explain(what: str | None, dialogue: bool, reply: str | None, provider: str | None) -> None:
    """Show the status of each recipient of MESSAGE, the reason, and the time of the next attempt. Times are UTC.

    For an ADDRESS: whether it is suppressed, and what to do; and the status of the ten newest messages to it, of all
    accounts. The search takes about ten seconds at most; the last line then says how far back it got.

    With --reply: the bounce class of a mail server's reply, whose fault it is, whether it suppresses the address or
    holds the pool, and the rule. This needs no database.

    Examples:
      appliance explain msg_0019a85f3c6d7c2e4f1b0a9d8e7c6b5a --dialogue
      appliance explain ada@example.net
      appliance explain --reply '550 5.4.1 Recipient address rejected: Access denied.'
      appliance explain --reply '451 4.7.1 Try again later' --provider rspamd
    """
    if (what is None) == (reply is None):
        raise click.UsageError("Name a message or an address, or use --reply TEXT.")
    if reply is not None:
        _explain_reply(reply, provider)
        return
    if provider is not None:
        raise click.UsageError("--provider works only with --reply.")
    assert what is not None  # noqa: S101 - either this or `reply`
    settings = database.load_settings()
    allowed = len(settings.delivery.retry_delays) + 1
    if "@" in what:
        _explain_address(what, settings, allowed, dialogue=dialogue)
        return

    async def work(store: "Store") -> "_Explained":
        if (explained := await _explained(store, settings, what)) is None:
            raise click.ClickException(f"there is no message {what!r}")
        return explained

    stored, pools = database.run(work, settings=settings)
    answer = _answer(stored, pools, allowed, dialogue=dialogue)
    show(answer, "\n".join(map(printable, _lines(stored, answer, dialogue=dialogue))))


_HOLDS = {
    True: "a 4xx reply slows the pool down; a 5xx reply counts towards its hold",
    "if repeated": "slows the pool down only before RCPT, or if it refuses recipients accepted before",
    False: "does not hold the pool",
}


def _explain_reply(reply: str, provider: str | None) -> None:
    from appliance.deliver.providers import PROVIDERS
    from appliance.feedback.reply_rules import RULES, judge_reply, parse_reply

    known = {rule.provider for rule in RULES} | {one.name for one in PROVIDERS}
    if provider is not None and provider not in known:
        text = f"{provider!r} is not known. Use one of {', '.join(sorted(known))}."
        raise click.BadParameter(text, param_hint="--provider")
    code, status, text = parse_reply(reply)
    if code is not None and code < 400:
        raise click.UsageError(f"--reply: {code} is not a refusal. Use a reply whose code begins with 4 or 5.")
    rule = judge_reply(code, status, text, provider)
    answer = {"code": code, "enhanced": status, "class": rule.bounce_class.value, "fault": rule.fault.value}
    answer |= {"suppress": rule.suppress, "hold": rule.holds, "rule": rule.name}
    lines = (
        f"class: {rule.bounce_class.value}",
        f"fault: {rule.fault.value}",
        f"suppress: {'the address enters the suppression list' if rule.suppress else 'no'}",
        f"hold: {_HOLDS[rule.hold]}",
        f"rule: {rule.name} ({rule.provider})",
        f"source: {rule.source}",
    )
    show(answer, "\n".join(lines))


async def _explained(store: "Store", settings: "Config", message_id: str) -> "_Explained | None":
    if (stored := await store.records.of(message_id)) is None:
        return None
    from appliance.model.ramp import in_force, sources_in_use

    domains = {tried.domain for tried in stored.recipients}
    table, stream = sources_in_use(settings, in_force(await store.ramp.stored(), settings)), stored.message.stream
    return stored, await store.pools.views(domains, settings.warmup, stored.account_id, stream, table)


def _explain_address(text: str, settings: "Config", allowed: int, *, dialogue: bool) -> None:
    from appliance.intake.account_rules import searched_recipient
    from appliance.message.addresses import parse
    from appliance.model.dashboard import MailFilter
    from appliance.report import explain as words

    with database.refusals():
        address = parse(text, "address")
    mail_filter = MailFilter(recipient=searched_recipient(address.wire))

    async def work(store: "Store") -> "tuple[list[tuple[str, Suppression]], list[_Explained], int | None]":
        accounts = [account.id for account in await store.accounts.all()]
        mail = await store.mail_log.newest(accounts, mail_filter, MESSAGES_EXPLAINED, SEARCH_SECONDS)
        explained = [await _explained(store, settings, message.id) for _, message in mail.messages]
        listed = await store.suppressions.of_address(address.key)
        return listed, [one for one in explained if one is not None], mail.searched_to

    listed, explained, searched_to = database.run(work, settings=settings)
    now, messages, lines = Environment().now(), list[dict[str, Any]](), list[str]()
    for account, entry in listed:
        lines += [f"{entry.address} is {words.suppressed(entry, account, now)}"]
        lines += [f"  {words.suppression_advice(entry, account)}"]
    if not listed:
        lines.append(f"{address.key} is not suppressed")
    for stored, pools in explained:
        own = [one for one in stored.recipients if searched_recipient(one.recipient.email) == mail_filter.recipient]
        stored = replace(stored, recipients=tuple(own))
        messages.append(_answer(stored, pools, allowed, dialogue=dialogue))
        lines += ["", *_lines(stored, messages[-1], dialogue=dialogue)]
    if not explained:
        lines.append("no message to it is known")
    back_to = None if searched_to is None else rfc3339(searched_to)
    if back_to is not None:
        lines += ["", f"searched back to {back_to} only"]
    suppressions = [
        {"account": account, **record(entry, "reason", "origin", "created_at")}
        | {"list": entry.mail_list or None, "advice": words.suppression_advice(entry, account)}
        for account, entry in listed
    ]
    answer = {"address": address.key, "suppressions": suppressions, "messages": messages, "searched_to": back_to}
    show(answer, "\n".join(map(printable, lines)))


def _answer(stored: "MessageRecord", pools: "dict[str, PoolView]", allowed: int, *, dialogue: bool) -> dict[str, Any]:
    from appliance.report.explain import standing

    now, message = Environment().now(), stored.message

    def recipient(tried: "TriedRecipient") -> dict[str, Any]:
        pool, late, complaint = pools[tried.domain], tried.recipient.late_bounce, tried.recipient.complaint
        late_bounce = late and record(late, "code", "response") | {"at": rfc3339(late.at), "class": late.bounce_class}
        return record(tried.recipient, "id", "email", "status", "outcome") | {
            "explanation": standing(tried, pool, now, allowed),
            "bounce_class": tried.recipient.bounce_class,
            "late_bounce": late_bounce,
            "complaint": complaint and {"at": rfc3339(complaint.at), "kind": complaint.kind},
            "pool": None if tried.simulated else pool.name,
            **record(tried, "next_attempt_at"),
            "attempts": [_attempt(number, one, dialogue=dialogue) for number, one in enumerate(tried.attempts, 1)],
        }

    answer = {"id": message.id, "account": stored.account_name, "status": message.status.value}
    answer |= {"from": message.sender, **record(message, "subject", "created_at")}
    return answer | {"recipients": [recipient(tried) for tried in stored.recipients]}


def _attempt(number: int, attempt: "Attempt", *, dialogue: bool) -> dict[str, Any]:
    from appliance.report import explain as words

    milliseconds = (attempt.finished_at - attempt.started_at) // 1000
    answer = {"number": number, **record(attempt, "started_at"), "duration_ms": milliseconds}
    answer |= record(attempt, "pool", "mx_host", "mx_address", "tls", "smtp_code", "smtp_response", "decision", "route")
    if dialogue:
        lines = words.dialogue(attempt)
        answer["dialogue"] = [{"ms": line.milliseconds, "speaker": line.speaker, "text": line.text} for line in lines]
    return answer


def _lines(stored: "MessageRecord", answer: dict[str, Any], *, dialogue: bool) -> "Iterator[str]":
    from appliance.report import explain as words

    now, message = Environment().now(), stored.message
    accepted = words.clock(message.created_at, now)
    yield f"{message.id} of {stored.account_name}, accepted at {accepted} UTC: {message.status.value}"
    yield f"from {message.sender}: {message.subject}"
    for tried, row in zip(stored.recipients, answer["recipients"], strict=True):
        yield from ("", tried.recipient.email, f"  {row['explanation']}")
        if tried.recipient.bounce_class is not None:
            yield f"  class of bounce: {tried.recipient.bounce_class}"
        for number, attempt in enumerate(tried.attempts, 1):
            yield f"    {words.attempt_line(number, attempt, now)}"
            for line in words.dialogue(attempt) if dialogue else ():
                yield f"      {line.milliseconds:>6} ms  {line.speaker}  {line.text}"
