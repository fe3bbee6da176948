"""`appliance explain`: the state of each recipient of a message, or of the mail to an address, and why; or a reply."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.messages import SEARCH_SECONDS
from appliance.cli.options import PRINTABLE, common
from appliance.cli.output import printable, record, show
from appliance.times import rfc3339

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.config.settings import Config
    from appliance.model.mail import Attempt, MessageRecord, Suppression, TriedRecipient
    from appliance.model.queue import PoolView
    from appliance.store import Store

    _Explained = tuple[MessageRecord, dict[str, PoolView]]


MESSAGES_EXPLAINED = 10  # of an address


@click.command()
@click.argument("what", type=PRINTABLE, metavar="[MESSAGE|ADDRESS]", required=False)
@click.option("--dialogue", is_flag=True, help="Show every line that was said to a mail server and by it.")
@click.option("--reply", metavar="TEXT", help="Judge this reply of a mail server, and name the rule that decides.")
@click.option("--provider", metavar="NAME", help="With --reply: only rules of this provider, and general ones.")
@common
def explain(what: str | None, dialogue: bool, reply: str | None, provider: str | None, as_json: bool) -> None:
    """Tell where each recipient of MESSAGE stands, why, and when it is tried next. Times are UTC.

    Of an ADDRESS: whether it is suppressed, and what to do; and where the ten newest messages to it stand, of all
    accounts. It searches for about ten seconds at most, and says how far back it came.

    With --reply: the bounce class of a mail server's reply, whose fault it is, whether it suppresses the address or
    holds the pool, and the rule behind it. It needs no database.

    \b
    Examples:
      appliance explain msg_0019a85f3c6d7c2e4f1b0a9d8e7c6b5a
      appliance explain msg_0019a85f3c6d7c2e4f1b0a9d8e7c6b5a --dialogue
      appliance explain ada@example.net
      appliance explain --reply '550 5.4.1 Recipient address rejected: Access denied.'
      appliance explain --reply '451 4.7.1 Try again later' --provider rspamd
    """
    if (what is None) == (reply is None):
        raise click.UsageError("Give a message, an address, or --reply TEXT.")
    if reply is not None:
        _explain_reply(reply, provider, as_json=as_json)
        return
    if provider is not None:
        raise click.UsageError("--provider is for --reply.")
    assert what is not None  # noqa: S101 - one of the two was given
    settings = database.load_settings()
    allowed = len(settings.delivery.retry_delays) + 1
    if "@" in what:
        _explain_address(what, settings, allowed, dialogue=dialogue, as_json=as_json)
        return

    async def work(store: "Store") -> "_Explained":
        if (found := await _explained(store, settings, what)) is None:
            raise click.ClickException(f"there is no message {what!r}")
        return found

    found, pools = database.run(work, settings=settings)
    answer = _answer(found, pools, allowed, dialogue=dialogue)
    show(as_json, answer, "\n".join(map(printable, _lines(found, answer, dialogue=dialogue))))


_HOLDS = {
    True: "slows the pool down if it is a 4xx, and counts towards its hold if it is a 5xx",
    "if repeated": "slows the pool down only if it comes before RCPT, or meets recipients accepted before",
    False: "does not hold the pool",
}


def _explain_reply(reply: str, provider: str | None, *, as_json: bool) -> None:
    from appliance.deliver.providers import PROVIDERS
    from appliance.feedback.reply_rules import RULES, judge_reply, parse_reply

    known = {rule.provider for rule in RULES} | {each.name for each in PROVIDERS}
    if provider is not None and provider not in known:
        raise click.BadParameter(
            f"{provider!r} is not known. Known are {', '.join(sorted(known))}.", param_hint="--provider"
        )
    code, status, text = parse_reply(reply)
    if code is not None and code < 400:
        raise click.UsageError(f"--reply: {code} is not a refusal. Give a reply whose code begins with 4 or 5.")
    rule = judge_reply(code, status, text, provider)
    answer = {
        "code": code,
        "enhanced": status,
        "class": rule.bounce_class.value,
        "fault": rule.fault.value,
        "suppress": rule.suppress,
        "hold": rule.holds,
        "rule": rule.name,
    }
    lines = (
        f"class: {rule.bounce_class.value}",
        f"fault: {rule.fault.value}",
        f"suppress: {'the address enters the suppression list' if rule.suppress else 'no'}",
        f"hold: {_HOLDS[rule.hold]}",
        f"rule: {rule.name} ({rule.provider})",
        f"source: {rule.source}",
    )
    show(as_json, answer, "\n".join(lines))


async def _explained(store: "Store", settings: "Config", message_id: str) -> "_Explained | None":
    if (found := await store.records.of(message_id)) is None:
        return None
    domains = {tried.domain for tried in found.recipients}
    return found, await store.pools.views(domains, settings.warmup, found.account_id)


def _explain_address(text: str, settings: "Config", allowed: int, *, dialogue: bool, as_json: bool) -> None:
    from appliance.environment import Environment
    from appliance.intake.account_rules import searched_recipient
    from appliance.message.addresses import parse
    from appliance.model.dashboard import MailFilter
    from appliance.report import explain as words

    with database.refusals():
        address = parse(text, "address")
    wanted = MailFilter(recipient=searched_recipient(address.wire))

    async def work(store: "Store") -> "tuple[list[tuple[str, Suppression]], list[_Explained], int | None]":
        accounts = [each.id for each in await store.accounts.all()]
        found = await store.mail_log.newest(accounts, wanted, MESSAGES_EXPLAINED, SEARCH_SECONDS)
        explained = [await _explained(store, settings, message.id) for _, message in found.messages]
        listed = await store.suppressions.of_address(address.key)
        return listed, [each for each in explained if each is not None], found.searched_to

    listed, explained, searched_to = database.run(work, settings=settings)
    now, messages, lines = Environment().now(), list[dict[str, Any]](), list[str]()
    for account, entry in listed:
        lines += [f"{entry.address} is {words.suppressed(entry, account, now)}"]
        lines += [f"  {words.suppression_advice(entry, account)}"]
    if not listed:
        lines.append(f"{address.key} is not suppressed")
    for found, pools in explained:
        own = tuple(each for each in found.recipients if searched_recipient(each.recipient.email) == wanted.recipient)
        found = replace(found, recipients=own)
        messages.append(_answer(found, pools, allowed, dialogue=dialogue))
        lines += ["", *_lines(found, messages[-1], dialogue=dialogue)]
    if not explained:
        lines.append("no message to it is known")
    if searched_to is not None:
        lines += ["", f"searched back to {rfc3339(searched_to)} only"]
    suppressions = [
        {"account": account, **record(entry, "reason", "origin", "created_at")}
        | {"list": entry.mail_list or None, "advice": words.suppression_advice(entry, account)}
        for account, entry in listed
    ]
    answer: dict[str, Any] = {"address": address.key, "suppressions": suppressions, "messages": messages}
    answer["searched_to"] = None if searched_to is None else rfc3339(searched_to)
    show(as_json, answer, "\n".join(map(printable, lines)))


def _answer(found: "MessageRecord", pools: "dict[str, PoolView]", allowed: int, *, dialogue: bool) -> dict[str, Any]:
    from appliance.environment import Environment
    from appliance.report.explain import standing

    now, message = Environment().now(), found.message

    def recipient(tried: "TriedRecipient") -> dict[str, Any]:
        pool, due, late = pools[tried.domain], tried.next_attempt_at, tried.recipient.late_bounce
        return {
            "id": tried.recipient.id,
            "email": tried.recipient.email,
            "status": tried.recipient.status.value,
            "explanation": standing(tried, pool, now, allowed),
            "bounce_class": tried.recipient.bounce_class,
            "late_bounce": None
            if late is None
            else {"at": rfc3339(late.at), "code": late.code, "response": late.response, "class": late.bounce_class},
            "pool": None if tried.simulated else pool.name,
            "next_attempt_at": None if due is None else rfc3339(due),
            "attempts": [_attempt(*each, dialogue=dialogue) for each in enumerate(tried.attempts, 1)],
        }

    return {
        "id": message.id,
        "account": found.account_name,
        "status": message.status.value,
        "from": message.sender,
        "subject": message.subject,
        "created_at": rfc3339(message.created_at),
        "recipients": [recipient(tried) for tried in found.recipients],
    }


def _attempt(number: int, attempt: "Attempt", *, dialogue: bool) -> dict[str, Any]:
    from appliance.report import explain as words

    milliseconds = (attempt.finished_at - attempt.started_at) // 1000
    names = ("pool", "mx_host", "mx_address", "tls", "smtp_code", "smtp_response", "decision")
    answer = {"number": number, "started_at": rfc3339(attempt.started_at), "duration_ms": milliseconds}
    answer |= record(attempt, *names)
    if dialogue:
        answer["dialogue"] = [
            {"ms": line.milliseconds, "speaker": line.speaker, "text": line.text} for line in words.dialogue(attempt)
        ]
    return answer


def _lines(found: "MessageRecord", answer: dict[str, Any], *, dialogue: bool) -> "Iterator[str]":
    from appliance.environment import Environment
    from appliance.report import explain as words

    now, message = Environment().now(), found.message
    accepted = words.clock(message.created_at, now)
    yield f"{message.id} of {found.account_name}, accepted at {accepted} UTC: {message.status.value}"
    yield f"from {message.sender}: {message.subject}"
    for tried, row in zip(found.recipients, answer["recipients"], strict=True):
        yield ""
        yield tried.recipient.email
        yield f"  {row['explanation']}"
        if tried.recipient.bounce_class is not None:
            yield f"  class of bounce: {tried.recipient.bounce_class}"
        for number, attempt in enumerate(tried.attempts, 1):
            yield f"    {words.attempt_line(number, attempt, now)}"
            if dialogue:
                for line in words.dialogue(attempt):
                    yield f"      {line.milliseconds:>6} ms  {line.speaker}  {line.text}"
