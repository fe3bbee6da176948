"""How PostgreSQL finds what waits: by the owner and the account, however much other accounts have waiting."""

import re
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from appliance.store import Store, mail_log, pools, queue_control, statistics
from appliance.store.postgresql.connection import connect, statement
from tests.store.postgresql.stepping import FIRST, SECOND
from tests.store.postgresql.test_nodes_pools import joined
from tests.store.samples import CREDITS, DAY, HASH, Clock, Messages

BLOCKS = 60  # of tables and indexes that may be read where nothing is found; all that waits has several hundreds
FILL = """INSERT INTO recipients (message_id, id, account_id, address, domain, simulated, charged, status,
        billing_status, next_attempt_at, owner)
    SELECT 'msg_' || lpad(g::text, 32, '0'), 'rcp_' || g, 'acc_big', 'u@d.test', 'd' || g % 100 || '.test', g % 2, 0,
        'deferred', 'reserved', 1000 + g, CASE WHEN g % 3 = 0 THEN 'first' ELSE 'second' END
    FROM generate_series(1, 20000) g"""
DESTINATIONS = "INSERT INTO destinations SELECT 'd' || g || '.test', 'google', 1 FROM generate_series(0, 99) g"
VALUES = {
    "account_id": ("text", "'acc_small'"),
    "domain": ("text", "'d1.test'"),
    "address": ("text", "NULL"),
    "now": ("bigint", "1"),
    "most": ("bigint", "50"),
    "simulated": ("bigint", "0"),
    "low": ("bigint", "0"),
    "beyond": ("bigint", "90000"),
}


@pytest.fixture
async def two(url: str, clock: Clock) -> AsyncIterator[list[Store]]:
    opened = [await joined(url, clock, name) for name in (FIRST, SECOND)]
    yield opened
    for store in opened:
        await store.engine.close()


def blocks_read(connection: psycopg.Connection[Any], query: str) -> int:
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement(query))))
    text = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", statement(query))
    kinds, given = (", ".join(VALUES[name][place] for name in names) for place in (0, 1))
    connection.execute(f"PREPARE planned ({kinds}) AS {text}".encode())
    explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE planned ({given})"
    ((found,),) = connection.execute(explain.encode()).fetchall()
    connection.execute(b"DEALLOCATE planned")
    return int(found[0]["Plan"]["Shared Hit Blocks"] + found[0]["Plan"]["Shared Read Blocks"])


@pytest.mark.parametrize(
    "query",
    [
        pools._WAITING_AT,
        pools._ANY_IS_WAITING,
        statistics._WAITING,
        statistics._SIMULATED,
        mail_log._WAITING,
        queue_control._LATER,
        queue_control._BEYOND,
    ],
)
async def test_what_waits_of_others_is_not_read(two: list[Store], url: str, query: str) -> None:
    connection = connect(url, FIRST)
    try:
        for sql in (FILL, DESTINATIONS, "VACUUM ANALYZE recipients", "ANALYZE destinations"):
            connection.execute(sql.encode())
        assert blocks_read(connection, query) <= BLOCKS
    finally:
        connection.close()


async def test_a_node_brings_forward_its_own_mail(two: list[Store], clock: Clock) -> None:
    account = await two[0].accounts.create("demo", "demo@example.org", HASH, credit=CREDITS)
    for store in two:
        await store.messages.accept(Messages(store.messages.env, account.id).new())
    beyond = clock() + DAY
    await two[0].engine.change("UPDATE recipients SET next_attempt_at = :later", {"later": beyond + DAY})
    assert await two[0].queue_control.bring_forward(beyond, simulated=True) == 1
    assert await two[1].queue_control.bring_forward(beyond, simulated=True) == 1


async def test_what_waits_at_every_node_is_found(two: list[Store]) -> None:
    account = await two[0].accounts.create("demo", "demo@example.org", HASH, credit=CREDITS)
    for store in two:
        await store.messages.accept(Messages(store.messages.env, account.id).new("b@d.test", simulated=False))
        await store.pools.say([], {"d.test": "google"})
    await two[0].engine.change("UPDATE recipients SET owner = 'unknown' WHERE owner = :first", {"first": FIRST})
    wanted = {"account_id": account.id, "simulated": 0, "most": 9, "now": 0}
    assert len(await two[0].engine.rows(mail_log._WAITING, wanted)) == 2
    assert await two[0].engine.rows(statistics._WAITING, wanted) == [("google", 2, 2)]
    assert sorted(await two[0].engine.rows(pools._WAITING_AT, wanted)) == [("google", ""), ("google", SECOND)]
