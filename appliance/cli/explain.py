"""`appliance explain`: the state of each recipient of a message, and why."""

from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import PRINTABLE, common
from appliance.cli.output import printable, record, show
from appliance.times import rfc3339

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.model.mail import Attempt, MessageRecord, TriedRecipient
    from appliance.model.queue import PoolView
    from appliance.store import Store


@click.command()
@click.argument("message", type=PRINTABLE)
@click.option("--dialogue", is_flag=True, help="Show every line that was said to a mail server and by it.")
@common
def explain(message: str, dialogue: bool, as_json: bool) -> None:
    """Tell where each recipient of MESSAGE stands, why, and when it is tried next. Times are UTC.

    \b
    Examples:
      appliance explain msg_0019a85f3c6d7c2e4f1b0a9d8e7c6b5a
      appliance explain msg_0019a85f3c6d7c2e4f1b0a9d8e7c6b5a --dialogue
    """
    settings = database.load_settings()

    async def work(store: "Store") -> "tuple[MessageRecord, dict[str, PoolView]]":
        found = await store.records.of(message)
        if found is None:
            raise click.ClickException(f"there is no message {message!r}")
        domains = {tried.domain for tried in found.recipients}
        return found, await store.pools.views(domains, settings.warmup, found.account_id)

    found, pools = database.run(work, settings=settings)
    answer = _answer(found, pools, len(settings.delivery.retry_delays) + 1, dialogue=dialogue)
    show(as_json, answer, "\n".join(map(printable, _lines(found, answer, dialogue=dialogue))))


def _answer(found: "MessageRecord", pools: "dict[str, PoolView]", allowed: int, *, dialogue: bool) -> dict[str, Any]:
    from appliance.outside import Outside
    from appliance.report.explain import standing

    now, message = Outside().now(), found.message

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
    from appliance.outside import Outside
    from appliance.report import explain as words

    now, message = Outside().now(), found.message
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
