"""A backup of a server that is busy: one moment, whole, and restored every row of it is as it was."""

import itertools
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from appliance.store import FILE_NAME
from tests.running_appliance import Running, appliance, command

pytestmark = pytest.mark.sqlite_only

SENDERS = 3
# What never changes once it is written, by table.
FIXED = {
    "messages": "account_id, id, request_id, source, sender, subject, recipient_count, credits_reserved, created_at",
    "message_bodies": "message_id, mime, receipt, parts_size",
    "message_body_parts": "*",
    "recipients": "message_id, id, account_id, address, domain, simulated, charged",
    "attempts": "*",
    "events": "*",
    "idempotency_keys": "*",
    "credit_ledger": "*",
}


@contextmanager
def senders(running: Running) -> Iterator[list[str]]:
    """Clients that send without a pause; the ids that were acknowledged so far."""
    acknowledged: list[str] = []
    failures: list[str] = []
    stop, numbers = threading.Event(), itertools.count()

    def send() -> None:
        with running.client() as client:
            while not stop.is_set():
                number = next(numbers)
                to = [f"bounce{number}@example.net", f"ok{number}@example.net"]
                text = "x" * (700_000 if number % 20 == 0 else 4_000)  # some are stored in parts
                body = {"from": "a@example.com", "to": to, "subject": f"s{number}", "text": text}
                answer = client.post("/emails", json=body, headers={"Idempotency-Key": f"key {number}"})
                if answer.status_code == 202:
                    acknowledged.append(answer.json()["id"])
                else:
                    failures.append(answer.text)

    threads = [threading.Thread(target=send) for _ in range(SENDERS)]
    for thread in threads:
        thread.start()
    try:
        yield acknowledged
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []


def wait_for(acknowledged: list[str], more: int) -> None:
    wanted, deadline = len(acknowledged) + more, time.monotonic() + 30
    while len(acknowledged) < wanted:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def rows(path: Path, table: str, columns: str = "*") -> set[tuple[Any, ...]]:
    connection = apsw.Connection(str(path))
    try:
        connection.set_busy_timeout(5_000)
        return set(connection.execute(f"SELECT {columns} FROM {table}").fetchall())
    finally:
        connection.close()


def tables(path: Path) -> set[str]:
    return {name for kind, name in rows(path, "sqlite_master", "type, name") if kind == "table"}


@pytest.mark.slow
def test_a_backup_under_load_restores_every_row(tmp_path: Path) -> None:
    """Everything acknowledged before it began is in it, nothing is in it by half, and all of it comes back."""
    (tmp_path / "busy").mkdir()
    with appliance(tmp_path / "busy") as running:
        with senders(running) as acknowledged:
            wait_for(acknowledged, 60)
            before = set(acknowledged)
            command(running.config_file, "backup", str(tmp_path / "backup.tar"))
            after = set(acknowledged)
            wait_for(acknowledged, 20)  # and it goes on
        live = {table: rows(running.data_dir / FILE_NAME, table, columns) for table, columns in FIXED.items()}
    assert len(after - before) > 0
    command(running.config_file, "verify", str(tmp_path / "backup.tar"))
    subprocess.run(["tar", "xf", tmp_path / "backup.tar", "-C", tmp_path, FILE_NAME], check=True)
    snapshot = tmp_path / FILE_NAME

    # What was acknowledged before is there, and no row differs from what the server has.
    kept = {message_id for (message_id,) in rows(snapshot, "messages", "id")}
    assert before <= kept
    assert kept < set(acknowledged)
    for table, columns in FIXED.items():
        assert rows(snapshot, table, columns) <= live[table], table

    # One moment: each message with its bytes, its recipients and its credits.
    assert kept == {message_id for (message_id,) in rows(snapshot, "message_bodies", "message_id")}
    assert len(rows(snapshot, "recipients", "message_id, id")) == 2 * len(kept)
    ((credit,),) = rows(snapshot, "accounts", "credits")
    reserved = len(kept) * 2 - len({row for row in rows(snapshot, "recipients", "id, status") if row[1] == "bounced"})
    assert credit == 1_000_000 - reserved

    # Restored elsewhere, every row is equal, but for the pause.
    elsewhere = tmp_path / "elsewhere.toml"
    elsewhere.write_text(f'[server]\ndata_dir = "{tmp_path / "elsewhere"}"\n')
    restored = command(elsewhere, "restore", str(tmp_path / "backup.tar"))
    assert restored["messages"] == len(kept)
    there = tmp_path / "elsewhere" / FILE_NAME
    assert tables(there) == tables(snapshot)
    for table in tables(snapshot) - {"pool_holds"}:
        assert rows(there, table) == rows(snapshot, table), table
    assert {pool for (pool,) in rows(there, "pool_holds", "pool")} == {"*"}
