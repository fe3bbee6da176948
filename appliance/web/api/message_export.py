"""Sent and received messages as CSV (RFC 4180), streamed page by page: one line per recipient, or received message.

Memory holds one page of messages. No cell looks like a formula to a spreadsheet.
"""

import csv
import io
from collections.abc import AsyncIterator, Iterable, Sequence

from quart import request

from appliance.concurrency.fair_share import Workers
from appliance.message.characters import cost_of_size, guard_cell
from appliance.model.dashboard import ExportedRecipient, MailFilter
from appliance.model.received import ReceivedMessage
from appliance.store.mail_log import MailLog
from appliance.store.message_records import readable_tags
from appliance.store.received import ReceivedStore
from appliance.times import rfc3339

CSV_MESSAGES = 100_000  # newest matching messages in one response
PAGE_MESSAGES = 100
CSV_LINE_BYTES = 500  # the cost of encoding one line
COLUMNS = (
    *("message_id", "accepted_at", "source", "from", "subject", "tags", "key"),
    *("recipient", "outcome", "attempts", "last_smtp_code", "last_smtp_response", "delivered_at"),
    *("metadata", "scheduled_at", "stream"),
)


def exported(
    log: MailLog, workers: Workers, account_id: str, filters: MailFilter | None, before: str | None
) -> AsyncIterator[bytes]:
    """Return the pieces of the file; None as filter: no message matches. Reading ends when the client has gone."""
    peer = request.scope["peer"]  # type: ignore[typeddict-item]  # the server's own entry

    async def pieces() -> AsyncIterator[bytes]:
        yield _encoded([COLUMNS])
        following, messages = before, 0
        while filters is not None and messages < CSV_MESSAGES and not peer.gone:
            lines, following = await log.export(account_id, filters, following, PAGE_MESSAGES)
            messages += len({line.message_id for line in lines})
            if lines:
                yield await workers.run(account_id, cost_of_size(CSV_LINE_BYTES * len(lines)), encoded_lines, lines)
            if following is None:
                return

    return pieces()


def encoded_lines(lines: Sequence[ExportedRecipient]) -> bytes:
    return _encoded(_cells(line) for line in lines)


def _encoded(lines: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(lines)
    return text.getvalue().encode("utf-8", "replace")


def _cells(line: ExportedRecipient) -> Sequence[object]:
    delivered_at, scheduled_at = ("" if at is None else rfc3339(at) for at in (line.delivered_at, line.scheduled_at))
    tags = guard_cell(", ".join(readable_tags(line.tags)))
    head = line.message_id, rfc3339(line.created_at), line.source, guard_cell(line.sender), guard_cell(line.subject)
    recipient = guard_cell(line.email), line.outcome, line.attempt_count, line.last_smtp_code
    last = guard_cell(line.last_smtp_response or ""), delivered_at, line.metadata or "", scheduled_at, line.stream
    return *head, tags, line.credential or "", *recipient, *last


# ---- received messages

RECEIVED_COLUMNS = (
    *("inbound_id", "received_at", "envelope_from", "envelope_to", "from", "subject", "spf", "dkim", "dmarc"),
    *("auto_submitted", "attachments", "size", "in_reply_to_email"),
)


async def received_page(
    store: ReceivedStore, account_id: str, words: Sequence[str], before: str | None, limit: int
) -> tuple[list[ReceivedMessage], str | None]:
    """Return a page of received messages with all of these words, and where to continue."""
    if words:
        return await store.search(account_id, words, before, limit)
    page = await store.page(account_id, before, limit + 1)
    return page[:limit], page[limit - 1].id if len(page) > limit else None


def exported_received(
    store: ReceivedStore, workers: Workers, account_id: str, words: Sequence[str], before: str | None
) -> AsyncIterator[bytes]:
    """Return the pieces of the file. Reading ends when the client has gone."""
    peer = request.scope["peer"]  # type: ignore[typeddict-item]  # the server's own entry

    async def pieces() -> AsyncIterator[bytes]:
        yield _encoded([RECEIVED_COLUMNS])
        following, messages = before, 0
        while messages < CSV_MESSAGES and not peer.gone:
            page, following = await received_page(store, account_id, words, following, PAGE_MESSAGES)
            messages += len(page)
            if page:
                yield await workers.run(account_id, cost_of_size(CSV_LINE_BYTES * len(page)), _encoded_received, page)
            if following is None:
                return

    return pieces()


def _encoded_received(page: Sequence[ReceivedMessage]) -> bytes:
    return _encoded(_received_cells(message) for message in page)


def _received_cells(message: ReceivedMessage) -> Sequence[object]:
    envelope, answers = message.envelope, message.facts.answers
    addresses = guard_cell(envelope.sender), guard_cell(", ".join(envelope.recipients)), guard_cell(message.sender)
    results = message.spf, message.dkim, message.dmarc, "yes" if message.auto_submitted else "no"
    rest = message.attachments, message.size, "" if answers is None else answers.id
    return message.id, rfc3339(message.received_at), *addresses, guard_cell(message.subject), *results, *rest
