"""Fills a database with messages that wait for delivery, for benchmarks of a long queue."""

import re
import sys
import time
from contextlib import closing
from pathlib import Path

import apsw
import psycopg

from appliance.store import FILE_NAME
from appliance.store.postgresql.connection import connect
from tests import engines

BATCH = 20_000
LINE = b"Hello Ada, your order 1234567 has left our warehouse and will be with you soon.\r\n"
HEAD = (
    b"From: Shop <orders@example.com>\r\nTo: ada@example.net\r\nSubject: On its way\r\n"
    b"Date: Sun, 01 Jun 2025 12:00:00 +0000\r\nMessage-ID: <queued@example.com>\r\n"
    b"MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
)
MIME = HEAD + LINE * 22

# One statement a table, all counting the same numbers :first … :last. An id begins with its time, as real ones do.
_NUMBERS = "WITH RECURSIVE n(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i < :last) "
_TIME = "(:began + i * 10)"
_NUMBER = f"printf('%013x', {_TIME} >> 2) || printf('%019x', i)"
_MESSAGE = f"'msg_' || {_NUMBER}"
_RECIPIENT = f"'rcp_' || {_NUMBER}"
_DOMAIN = "CASE WHEN :domains = 1 THEN :domain ELSE 'd' || (i % :domains) || '.' || :domain END"
_STATEMENTS = (
    f"""INSERT INTO messages (account_id, id, request_id, source, status, billing_status, sender, envelope_from,
        subject, tags, recipient_count, credits_reserved, size, created_at)
    SELECT :account_id, {_MESSAGE}, 'req_' || i, 'api', 'queued', 'reserved', 'Shop <orders@example.com>',
        'orders@example.com', 'On its way', '[]', 1, 1, length(:mime), {_TIME} FROM n""",
    f"""INSERT INTO message_bodies (message_id, mime, receipt) SELECT {_MESSAGE}, :mime, :receipt FROM n""",
    f"""INSERT INTO recipients (message_id, id, account_id, address, domain, simulated, charged, status, billing_status,
        next_attempt_at)
    SELECT {_MESSAGE}, {_RECIPIENT}, :account_id, 'ada@' || {_DOMAIN}, {_DOMAIN}, 0, 1, 'queued', 'reserved', {_TIME}
    FROM n""",
)


def fill_queue(
    data_dir: Path, account_id: str, count: int, domain: str = "example.net", *, domains: int = 1, told: bool = True
) -> None:
    """Store `count` messages of 2 KB that are due now, for the domain or for so many below it in turn."""
    shared = {
        "account_id": account_id,
        "domain": domain,
        "domains": domains,
        "mime": MIME,
        "receipt": b"y" * 450,
        "began": time.time_ns() // 1000 - count * 10 - 60_000_000,
    }
    url = engines.url_of(data_dir)
    with closing(connect(url, "bench") if url else _file(data_dir)) as connection:
        for first in range(0, count, BATCH):
            connection.execute("BEGIN")
            for statement in _STATEMENTS:
                head, _, values = statement.partition("SELECT")
                text = f"{head}{_NUMBERS}SELECT{values}"
                bindings = shared | {"first": first, "last": min(count, first + BATCH) - 1}
                if isinstance(connection, psycopg.Connection):
                    connection.execute(_on_a_server(text).encode(), bindings)
                else:
                    connection.execute(text, bindings)
            connection.execute("COMMIT")
            if told and sys.stderr.isatty():
                print(f"\rfilling: {100 * min(count, first + BATCH) // count} %", end="\r", file=sys.stderr, flush=True)
        if isinstance(connection, apsw.Connection):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _file(data_dir: Path) -> apsw.Connection:
    connection = apsw.Connection(str(data_dir / FILE_NAME))
    connection.execute("PRAGMA synchronous = OFF").fetchall()
    return connection


def _on_a_server(text: str) -> str:
    number = f"lpad(to_hex({_TIME} >> 2), 13, '0') || lpad(to_hex(i), 19, '0')"
    return re.sub(r":(\w+)", r"%(\1)s", text.replace(_NUMBER, number).replace("i % :domains", "i %% :domains"))
