"""In charge of the command `appliance explain`: where each recipient of a message stands, and why."""

from typing import TYPE_CHECKING, Any

import click

from appliance.cli import database
from appliance.cli.options import TEXT, common
from appliance.cli.output import printable, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from appliance.config.settings import WarmupSettings
    from appliance.model.mail import Attempt, MessageRecord, TriedRecipient
    from appliance.model.queue import PoolView
    from appliance.store import Store


@click.command()
@click.argument("message", type=TEXT)
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
    allowed = len(settings.delivery.retry_delays) + 1

    async def work(store: "Store") -> "tuple[MessageRecord, dict[str, PoolView]]":
        return _found(store, message, settings.warmup)

    record, pools = database.run(work, settings=settings)
    answer = _answer(record, pools, allowed, dialogue=dialogue)
    show(as_json, answer, "\n".join(map(printable, _lines(record, answer, dialogue=dialogue))))


def _found(store: "Store", message: str, warmup: "WarmupSettings") -> "tuple[MessageRecord, dict[str, PoolView]]":
    """The record of a message, and how the pools of its recipients stand."""
    from appliance.errors import Code, Refused

    record = store.records.of(message)
    if record is None:
        raise Refused(Code.NOT_FOUND, f"there is no message {message!r}")
    return record, store.pools.views({tried.domain for tried in record.recipients}, warmup, record.account_id)


def _answer(record: "MessageRecord", pools: "dict[str, PoolView]", allowed: int, *, dialogue: bool) -> dict[str, Any]:
    from appliance.outside import Outside
    from appliance.report.explain import standing
    from appliance.times import rfc3339

    now, message = Outside().now(), record.message

    def recipient(tried: "TriedRecipient") -> dict[str, Any]:
        pool, due = pools[tried.domain], tried.next_attempt_at
        return {
            "id": tried.recipient.id,
            "email": tried.recipient.email,
            "status": tried.recipient.status.value,
            "explanation": standing(tried, pool, now, allowed),
            "pool": None if tried.simulated else pool.name,
            "next_attempt_at": None if due is None else rfc3339(due),
            "attempts": [_attempt(*each, dialogue=dialogue) for each in enumerate(tried.attempts, 1)],
        }

    return {
        "id": message.id,
        "account": record.account_name,
        "status": message.status.value,
        "from": message.sender,
        "subject": message.subject,
        "created_at": rfc3339(message.created_at),
        "recipients": [recipient(tried) for tried in record.recipients],
    }


def _attempt(number: int, attempt: "Attempt", *, dialogue: bool) -> dict[str, Any]:
    from appliance.report import explain as words
    from appliance.times import rfc3339

    answer = {
        "number": number,
        "started_at": rfc3339(attempt.started_at),
        "duration_ms": (attempt.finished_at - attempt.started_at) // 1000,
        "pool": attempt.pool,
        "mx_host": attempt.mx_host,
        "mx_address": attempt.mx_address,
        "tls": attempt.tls,
        "smtp_code": attempt.smtp_code,
        "smtp_response": attempt.smtp_response,
        "decision": attempt.decision,
    }
    if dialogue:
        answer["dialogue"] = [
            {"ms": line.milliseconds, "speaker": line.speaker, "text": line.text} for line in words.dialogue(attempt)
        ]
    return answer


def _lines(record: "MessageRecord", answer: dict[str, Any], *, dialogue: bool) -> "Iterator[str]":
    from appliance.outside import Outside
    from appliance.report import explain as words

    now, message = Outside().now(), record.message
    accepted = words.clock(message.created_at, now)
    yield f"{message.id} of {record.account_name}, accepted at {accepted} UTC: {message.status.value}"
    yield f"from {message.sender}: {message.subject}"
    for tried, row in zip(record.recipients, answer["recipients"], strict=True):
        yield ""
        yield tried.recipient.email
        yield f"  {row['explanation']}"
        for number, attempt in enumerate(tried.attempts, 1):
            yield f"    {words.attempt_line(number, attempt, now)}"
            if dialogue:
                for line in words.dialogue(attempt):
                    yield f"      {line.milliseconds:>6} ms  {line.speaker}  {line.text}"
