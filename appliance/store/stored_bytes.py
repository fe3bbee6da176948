"""Counts the bytes each account keeps in the database, for the quota `limits.stored_bytes_per_account`.

Invariant: at every commit `accounts.stored_bytes` is what migration 0007 would count, the parts of large messages with
them (`message_bodies.parts_size`; loose ones count for no account). So whatever adds or deletes messages, their bytes,
template versions or suppressions changes it in the same transaction, by the figures below.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import apsw

from appliance.errors import Code, Refused
from appliance.model.mail import NewMessage
from appliance.store.sql import Many, Row, rows, run

# What is kept beside the bytes themselves, as a fixed price: its true size is known only later, and varies little.
MESSAGE = 1_024  # bytes: the record and the idempotency key
RECIPIENT = 2_048  # its record, attempts, event and webhook delivery; measured without a webhook: 1.0 KiB
TEMPLATE_VERSION = 512
SUPPRESSION = 512

EXACT = 10 * 2**20  # bytes; from here on a tenth of a MiB is less than a hundredth of it
QUOTA_RETRY_AFTER = 600  # seconds; room is made slowly, as old messages are deleted

_ADD = "UPDATE accounts SET stored_bytes = stored_bytes + :count WHERE id = :account_id"
_KEPT = "SELECT stored_bytes FROM accounts WHERE id = :account_id"
_BODIES = Many("""SELECT (SELECT r.account_id FROM recipients r WHERE r.message_id = b.message_id LIMIT 1),
        sum(length(b.mime) + b.parts_size), sum(coalesce(length(b.receipt), 0))
    FROM message_bodies b WHERE b.message_id IN ({?}) GROUP BY 1""")


def of_record(recipients: int) -> int:
    """What the record of a message with so many recipients counts."""
    return MESSAGE + RECIPIENT * recipients


def of_message(new: NewMessage) -> int:
    return len(new.mime) + len(new.receipt or b"") + of_record(len(new.recipients))


def of_template(subject: str | None, text: str | None, html: str | None) -> int:
    return TEMPLATE_VERSION + sum(len(part.encode()) for part in (subject, text, html) if part is not None)


def check_room(c: apsw.Connection, account_id: str, count: int, limit: int | None) -> None:
    """Refuse so many bytes more, in the transaction that would write them, where the account may not keep them."""
    ((kept,),) = rows(c, _KEPT, {"account_id": account_id})
    if limit is not None and kept + count > limit:
        raise over_quota(kept, limit)


def add(c: apsw.Connection, account_id: str, count: int) -> None:
    """An account keeps so many bytes more, or less, as a step of a transaction."""
    run(c, _ADD, {"account_id": account_id, "count": count})


def give_back(c: apsw.Connection, freed: Mapping[str, int]) -> None:
    for account_id, count in freed.items():
        add(c, account_id, -count)


def bodies(c: apsw.Connection, messages: Sequence[Row], *, receipts: bool) -> Counter[str]:
    """What the bytes of these messages count, with or without their receipts, by account; before they are deleted."""
    counts: Counter[str] = Counter()
    for account_id, mime, receipt in _BODIES.run(c, messages):
        counts[account_id] += mime + (receipt if receipts else 0)
    return counts


def over_quota(kept: int, limit: int) -> Refused:
    return Refused(
        Code.RATE_LIMITED,
        f"This account keeps {readable(kept)} of messages and templates and may keep {readable(limit)}."
        " Room is made as the contents of old messages are deleted. Retry later.",
        retry_after=QUOTA_RETRY_AFTER,
    )


def readable(count: int) -> str:
    """A number of bytes as people read it; a small one to the byte."""
    return f"{count:,} bytes" if count < EXACT else f"{count / 2**20:,.1f} MiB"
