"""Holds of pools: whose they are, and when they are probed."""

import apsw

from appliance.store.migrate import migrations

PROBES = next(step for step in migrations() if step.name == "probes")


def test_holds_from_before_there_were_probes() -> None:
    """One that the program made is probed a quarter of an hour after it began; one of the operator's never."""
    connection = apsw.Connection(":memory:")
    for step in migrations():
        if step.number < PROBES.number:
            connection.execute(step.sql)
    ours = "10 refusals of us as a sender in a row, the last: 550 5.7.1 no"
    held = [("google", ours, 1_000_000), ("example.net", "they move", 1_000_000)]
    connection.executemany("INSERT INTO pool_holds (pool, reason, held_at) VALUES (?, ?, ?)", held)
    connection.execute(PROBES.sql)
    found = connection.execute("SELECT pool, probe_at, probes FROM pool_holds ORDER BY pool").fetchall()
    assert found == [("example.net", None, 0), ("google", 901_000_000, 0)]
