"""Holds docs/delivery.md to the pools and the retry schedule that there are.

Run as a program it writes the table of pools anew: `.venv/bin/python tests/docs/test_delivery.py`.
"""

import re
from pathlib import Path

from appliance.config.load import parse
from appliance.config.settings import WarmupSettings
from appliance.deliver.pool_limiter import FIRST_PAUSE, LONGEST_PAUSE, OF_ONE_ACCOUNT, OF_ONE_DOMAIN, SENDER_FAULTS
from appliance.deliver.pool_limiters import FIRST_PROBE, LONGEST_PROBE, PROBE_AGAIN, UNANSWERED_SLOTS
from appliance.deliver.preparing import RECIPIENTS_PER_VISIT
from appliance.deliver.providers import PROVIDERS, PoolLimits, Provider
from appliance.deliver.warmup import DEAD_FOR
from appliance.model.warmup import BURST_PART, hourly_limit
from appliance.report.explain import span
from appliance.times import SECOND

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = DOCS / "delivery.md"
HEAD = "| pool | MX hosts ending in | sessions | messages per connection | per minute |\n|---|---|---|---|---|\n"


def row(provider: Provider) -> str:
    limits, hosts = provider.limits, ", ".join(f"`{suffix}`" for suffix in provider.suffixes)
    rate = limits.per_minute or "-"
    return f"| `{provider.name}` | {hosts} | {limits.concurrency} | {limits.messages_per_connection} | {rate} |\n"


def with_table(document: str) -> str:
    return re.sub(re.escape(HEAD) + r"(\|.*\n)*", HEAD + "".join(map(row, PROVIDERS)), document)


def test_the_document_has_every_built_in_pool() -> None:
    text = DOCUMENT.read_text()
    assert with_table(text) == text
    others = PoolLimits()
    assert others.per_minute is None
    words = f"{others.concurrency} sessions, {others.messages_per_connection} messages per connection, no rate limit"
    assert words in text


def test_the_document_has_the_schedule() -> None:
    delays = parse("", Path("config.toml")).delivery.retry_delays
    waits = [span(round(delay) * SECOND).removesuffix(" 0 min") for delay in delays]
    lines = ["| 1 | none |", *(f"| {number} | {wait} |" for number, wait in enumerate(waits, 2))]
    assert "\n".join(lines) + "\n\n" in DOCUMENT.read_text()


def test_the_document_has_the_numbers_of_the_program() -> None:
    text = " ".join(DOCUMENT.read_text().split())
    assert f"for {FIRST_PAUSE // SECOND} seconds" in text
    assert f"up to {LONGEST_PAUSE // SECOND // 60} minutes" in text
    assert (SENDER_FAULTS, OF_ONE_ACCOUNT, OF_ONE_DOMAIN, UNANSWERED_SLOTS) == (10, 5, 30, 2)
    assert f"After {FIRST_PROBE // SECOND // 60} minutes, a held pool sends one message as a probe" in text
    assert f"twice as long, up to {LONGEST_PROBE // SECOND // 3600} hours" in text
    assert PROBE_AGAIN == 60 * SECOND
    assert "Ten sender refusals in a row" in text
    assert f"up to {RECIPIENTS_PER_VISIT}, each with its own result" in text


def test_the_document_has_the_numbers_of_a_warm_up() -> None:
    text, settings = DOCUMENT.read_text(), WarmupSettings()
    days, hours = re.findall(r"^\| (?:day|recipients per hour) \|(.*)\|$", text, re.MULTILINE)
    told = {int(day): int(hour.replace(",", "")) for day, hour in zip(days.split("|"), hours.split("|"), strict=True)}
    assert told == {day: hourly_limit(settings, day - 1) for day in told}
    assert max(told) == settings.days
    assert f"`first_hour` recipients per hour ({settings.first_hour})" in text
    assert f"`growth` times as many ({settings.growth})" in text
    assert (BURST_PART, DEAD_FOR) == (10, 300.0)  # "a tenth of an hour's recipients", "five minutes"


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text()))
