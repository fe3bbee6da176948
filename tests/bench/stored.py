"""Fills a database with messages that were delivered long ago, for benchmarks of a full database."""

import os
import sys
import time
from pathlib import Path

import apsw

from appliance.store import FILE_NAME

BATCH = 20_000

# One statement a table, all counting the same numbers :first … :last. An id begins with its time, as real ones do.
_NUMBERS = "WITH RECURSIVE n(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i < :last) "
_TIME = "(:began + i * 1000)"
_MESSAGE = f"'msg_' || printf('%013x', {_TIME} >> 2) || printf('%019x', i)"
_RECIPIENT = f"'rcp_' || printf('%013x', {_TIME} >> 2) || printf('%019x', i)"
_STATEMENTS = (
    f"""INSERT INTO messages (account_id, id, request_id, source, status, billing_status, sender, envelope_from,
        subject, tags, recipient_count, credits_reserved, size, created_at)
    SELECT :account_id, {_MESSAGE}, 'req_' || i, 'api', 'delivered', 'settled', 'Shop <orders@example.com>',
        'orders@example.com', 'On its way', '[]', 1, 1, length(:mime), {_TIME} FROM n""",
    f"""INSERT INTO message_bodies (message_id, mime, receipt) SELECT {_MESSAGE}, :mime, :receipt FROM n""",
    f"""INSERT INTO recipients (message_id, id, account_id, address, domain, simulated, charged, status, billing_status,
        attempt_count, last_smtp_code, last_smtp_response, delivered_at)
    SELECT {_MESSAGE}, {_RECIPIENT}, :account_id, 'ada@example.net', 'example.net', 1, 1, 'delivered', 'settled',
        1, 250, '250 2.0.0 OK', {_TIME} FROM n""",
    f"""INSERT INTO attempts (recipient_id, number, started_at, finished_at, smtp_code, smtp_response)
    SELECT {_RECIPIENT}, 1, {_TIME}, {_TIME}, 250, '250 2.0.0 OK' FROM n""",
    f"""INSERT INTO events (id, account_id, message_id, recipient_id, type, body, created_at)
    SELECT 'evt_' || printf('%013x', {_TIME} >> 2) || printf('%019x', i), :account_id, {_MESSAGE}, {_RECIPIENT},
        'email.delivered', :receipt, {_TIME} FROM n""",
    f"""INSERT INTO credit_ledger (account_id, id, kind, amount, balance, message_id, created_at)
    SELECT :account_id, 'led_' || printf('%013x', {_TIME} >> 2) || printf('%019x', i), 'reserve', -1, 0,
        {_MESSAGE}, {_TIME} FROM n""",
    f"""INSERT INTO idempotency_keys (scope, key, fingerprint, message_id, expires_at)
    SELECT 'key:' || :account_id, lower(hex(randomblob(16))), randomblob(32), {_MESSAGE},
        {_TIME} + 86400000000 FROM n""",
)


def fill(data_dir: Path, account_id: str, count: int, *, age: float = 60) -> None:
    """Store `count` delivered messages of 2 KB, accepted within twenty minutes, the last of them `age` seconds ago."""
    connection = apsw.Connection(str(data_dir / FILE_NAME))
    connection.execute("PRAGMA synchronous = OFF").fetchall()
    shared = {
        "account_id": account_id,
        "mime": b"x" * 2_600,
        "receipt": b"y" * 450,
        "began": time.time_ns() // 1000 - count * 1000 - round(age * 1_000_000),
    }
    for first in range(0, count, BATCH):
        connection.execute("BEGIN IMMEDIATE")
        for statement in _STATEMENTS:
            bounds = {"first": first, "last": min(count, first + BATCH) - 1}
            head, _, values = statement.partition("SELECT")
            connection.execute(f"{head}{_NUMBERS}SELECT{values}", shared | bounds)
        connection.execute("COMMIT")
        if sys.stderr.isatty():
            print(f"\rfilling: {100 * min(count, first + BATCH) // count} %", end="\r", file=sys.stderr, flush=True)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()
    os.sync()  # else the system writes out gigabytes while what follows is measured
