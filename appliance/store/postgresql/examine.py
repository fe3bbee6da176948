"""Finds out how a PostgreSQL is set up and how it does, for `appliance doctor`, and what `upgrade` would change there.

Reads only.
"""

from collections.abc import Callable
from contextlib import closing
from statistics import median
from time import perf_counter

import psycopg

from appliance.model.database import PendingUpgrade, ServerFacts, TableRows
from appliance.store.engine import Row
from appliance.store.installation import last_start
from appliance.store.postgresql.connection import PostgresTx, connect, run
from appliance.store.postgresql.migrate import (
    SchemaStep,
    check,
    check_compatible,
    has_table,
    is_ours,
    key_fingerprint,
    newest_known,
    place,
    plan,
    refusals,
    state,
)
from appliance.times import SECOND

_PROGRAM = "mail-appliance doctor"
ROUND_TRIPS = 15
LONGEST_STATEMENT = 5_000  # milliseconds

SETTINGS = (
    *("fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names", "autovacuum"),
    *("max_connections", "superuser_reserved_connections"),
)

_SETTINGS = "SELECT name, setting FROM pg_settings WHERE name = ANY (%s)"
_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"
# Snapshots of open and prepared transactions, which keep dead rows from being removed.
_OLDEST = """SELECT extract(epoch FROM max(clock_timestamp() - began))::float8 FROM (
    SELECT xact_start FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
    UNION ALL SELECT prepared FROM pg_prepared_xacts
) AS found (began)"""
_CONNECTIONS = "SELECT sum(numbackends)::bigint FROM pg_stat_database WHERE datname IS NOT NULL"
_SEES_STANDBYS = "SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')"
_STANDBYS = "SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"
_NODES = "SELECT name, version FROM nodes WHERE adopted_by IS NULL ORDER BY name"
# The partitions of a table count as one.
_TABLES = """SELECT coalesce(pg_partition_root(relid), relid)::regclass::text, sum(n_live_tup)::bigint,
        sum(n_dead_tup)::bigint
    FROM pg_stat_user_tables WHERE schemaname = current_schema()::text GROUP BY 1 ORDER BY 3 DESC LIMIT 100"""


def examine(url: str, now: Callable[[], int]) -> ServerFacts:
    """Everything; raises DatabaseRefused where it cannot be used at all."""
    with refusals(url), closing(connect(url, name=_PROGRAM)) as connection:
        connection.execute(f"SET statement_timeout = {LONGEST_STATEMENT}")
        check(connection)
        round_trip, skew = _round_trip(connection, now)
        ((sees_standbys,),) = run(connection, _SEES_STANDBYS)
        schema, since = state(connection) if is_ours(connection) else (0, 0)
        planned = plan(connection)
        standbys = run(connection, _STANDBYS)[0][0] if sees_standbys else None
        return ServerFacts(
            place=place(url),
            version=str(connection.info.parameter_status("server_version")).partition(" ")[0],
            schema=schema,
            newest_schema=newest_known(),
            compatible_since=since,
            due_schema=planned.due[-1].number if planned.due else 0,
            older_nodes=tuple(planned.older),
            key_fingerprint=key_fingerprint(connection),
            settings=dict(run(connection, _SETTINGS, (list(SETTINGS),))),
            synchronous_standbys=standbys,
            round_trip=round_trip,
            skew=skew,
            oldest_transaction=run(connection, _OLDEST)[0][0] or 0.0,
            connections=run(connection, _CONNECTIONS)[0][0],
            tables=tuple(TableRows(*row) for row in run(connection, _TABLES)),
        )


def pending_upgrade(url: str) -> PendingUpgrade:
    """What the next start would change; raises DatabaseRefused or NewerDatabase."""
    with refusals(url), closing(connect(url, name=_PROGRAM)) as connection:
        check(connection)
        is_there = is_ours(connection)
        if is_there:
            check_compatible(connection, newest_known())
        planned, tx = plan(connection), PostgresTx(connection)
        return PendingUpgrade(
            schema=state(connection)[0] if is_there else 0,
            newest=newest_known(),
            steps=tuple(map(_step_name, planned.due)),
            last_start=last_start(tx) if has_table(connection, "installation") else None,
            waiting=tuple(map(_step_name, planned.waiting)),
            older_nodes=tuple(planned.older),
            nodes=tuple((name, version) for name, version in run(connection, _NODES)) if is_there else (),
        )


def _step_name(step: SchemaStep) -> str:
    return f"{step.number:04}_{step.name}"


def _round_trip(connection: psycopg.Connection[Row], now: Callable[[], int]) -> tuple[float, float]:
    """The median round trip, and the clock difference in the shortest one, where it is most precise."""
    taken = []
    for _ in range(ROUND_TRIPS):
        before, began = now(), perf_counter()
        ((there,),) = run(connection, _CLOCK)
        took = perf_counter() - began
        taken.append((took, there - before / SECOND - took / 2))
    return median(took for took, _ in taken), min(taken)[1]
