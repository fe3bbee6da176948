"""Holds the chapter on submitted messages to what the code does."""

import re
from pathlib import Path

import pytest

from appliance.errors import Code
from appliance.message import header_lines, labels, limits, submitted
from appliance.message.header_lines import OverSmtp

HEADING = "## What happens to a submitted message"
DOCS = Path(__file__).parents[2] / "docs"


def chapter() -> str:
    (page,) = [text for path in DOCS.glob("*.md") if HEADING in (text := path.read_text())]
    return page.partition(HEADING)[2].partition("\n## ")[0]


def flowing(text: str) -> str:
    return " ".join(text.split())


def names(text: str) -> set[str]:
    return {name.lower() for name in re.findall(r"`([A-Za-z-]+\*?)`", text)}


def smtp_table() -> dict[str, OverSmtp]:
    prefixes = {
        f"{prefix.rstrip('-')}-*": action
        for prefix, action in {**header_lines.RESERVED_HEADER_PREFIXES, **header_lines.PROVIDER_PREFIXES}.items()
    }
    return {**{name.decode(): action for name, action in header_lines._EXACT.items()}, **prefixes}


def test_the_fields_are_those_of_the_code() -> None:
    text = chapter()
    rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| `")]
    removed = names("".join(fields for fields, done in rows if "emoved" in done.partition(".")[0]))
    assert removed == {name for name, action in smtp_table().items() if action is OverSmtp.REMOVED}
    own = names("".join(fields for fields, done in rows if "at a domain of the account" in done))
    assert own == {name for name, action in smtp_table().items() if action is OverSmtp.OWN}
    (once,) = [line for line in text.splitlines() if line.startswith("| a second ")]
    assert names(once) == {name.decode() for name in submitted._ONCE}
    varies = re.search(r"same header except (.*?)\. The boundaries", flowing(text))
    assert varies is not None
    assert names(varies[1]) | {"idempotency-key", "resend-idempotency-key"} == {
        name.decode() for name in submitted._VARIES
    }


def test_the_headers_of_providers_are_those_of_the_code() -> None:
    table = chapter().partition("### Headers of other providers")[2].partition("\n- ")[0]
    read = {name.lower() for name in re.findall(r"^\| `([A-Za-z-]+)` ", table, re.MULTILINE)}
    others = {"x-pm-metadata-name", "resend-idempotency-key"}
    assert read == {name.decode() for name in labels.PROVIDER_HEADERS} | others


@pytest.mark.parametrize(
    "words",
    [
        f"{limits.MESSAGE_SIZE:,} bytes",
        f"more than {limits.LINE_LENGTH} octets",
        f"{limits.HEADER_SIZE // 1024} KiB, {limits.HEADER_LINES:,} lines or {limits.HEADER_FIELDS:,} fields",
        f"more than {limits.HOPS} `Received`",
        f"At most {limits.TAGS} tags of 1 to {limits.TAG_LENGTH} printable",
        f"at most {limits.RECIPIENTS} unique addresses",
        f"1 to {limits.KEY_LENGTH} printable",
        f"truncated to {limits.SUBJECT_LENGTH} characters",
        f"not registered for the account; `MAIL FROM:<>` | {Code.FORBIDDEN.smtp}",
        f"A different message under the same key: {Code.IDEMPOTENCY_CONFLICT.smtp}",
        f"still being stored: {Code.IDEMPOTENCY_IN_PROGRESS.smtp}",
        f"as submitted | {Code.PAYLOAD_TOO_LARGE.smtp}",
    ],
)
def test_the_numbers_are_those_of_the_code(words: str) -> None:
    assert words in flowing(chapter())
