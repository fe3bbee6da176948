"""What single migrations make of the rows that are there."""

from pathlib import Path

import apsw

from appliance.environment import Environment
from appliance.store import FILE_NAME, open_store
from appliance.store.body_parts import INLINE
from appliance.store.sqlite.migrate import migrations
from tests.store.samples import HASH, Clock, Messages
from tests.store.test_body_parts import large
from tests.store.test_body_parts_stored_bytes import counted, recounted

PROBES = next(step for step in migrations() if step.name == "probes")
CREATED_BY = next(step for step in migrations() if step.name == "created_by")
BOUNCE_CLASSES = next(step for step in migrations() if step.name == "bounce_classes")
FAILURES = next(step for step in migrations() if step.name == "failures")


def test_holds_from_before_there_were_probes() -> None:
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


def test_suppressions_from_before_they_had_an_origin() -> None:
    connection = apsw.Connection(":memory:")
    for step in migrations():
        if step.number < BOUNCE_CLASSES.number:
            connection.execute(step.sql)
    connection.execute("INSERT INTO accounts (id, name, created_at) VALUES ('acc_1', 'demo', 0)")
    listed = [("a@x.example", "bounced: 550 5.1.1 no"), ("b@x.example", "added by hand"), ("c@x.example", "it bounced")]
    connection.executemany("INSERT INTO suppressions VALUES ('acc_1', ?, ?, 0)", listed)
    connection.execute(BOUNCE_CLASSES.sql)
    found = connection.execute("SELECT origin FROM suppressions ORDER BY address").fetchall()
    assert found == [("bounce",), ("manual",), ("manual",)]


def test_the_audit_log_names_the_creators_of_keys() -> None:
    connection = apsw.Connection(":memory:")
    for step in migrations():
        if step.number < CREATED_BY.number:
            connection.execute(step.sql)
    connection.execute("INSERT INTO accounts (id, name, created_at) VALUES ('acc_1', 'demo', 0)")
    user = "INSERT INTO users (id, account_id, email, password_hash, role, created_at) VALUES (?, 'acc_1', ?, '', ?, 0)"
    connection.execute(user, ("usr_1", "ann@example.org", "customer"))
    env = Environment()
    keys, usernames = ([env.identifier(prefix) for _ in range(3)] for prefix in ("key", "smtp"))
    for key_id in keys:
        row = (key_id, key_id.encode())
        connection.execute(
            "INSERT INTO api_keys (id, account_id, key_sha256, hint, scope, test, created_at)"
            " VALUES (?, 'acc_1', ?, '', 'send', 0, 0)",
            row,
        )
    for username in usernames:
        connection.execute(
            "INSERT INTO smtp_credentials (username, account_id, password_sha256, created_at)"
            " VALUES (?, 'acc_1', x'', 0)",
            (username,),
        )
    for action, made in (("api_key.created", keys), ("smtp_credential.created", usernames)):
        for actor, name in zip(("ann@example.org", "gone@example.org"), made, strict=False):
            line = (env.identifier("aud"), actor, action, name)
            connection.execute("INSERT INTO audit_log VALUES ('acc_1', ?, 0, 'user', ?, '', ?, ?, '{}', '')", line)
    connection.execute(CREATED_BY.sql)
    expected = [("usr_1",), (None,), (None,)]
    assert connection.execute("SELECT created_by FROM api_keys ORDER BY id").fetchall() == expected
    assert connection.execute("SELECT created_by FROM smtp_credentials ORDER BY username").fetchall() == expected


async def test_an_existing_database_is_counted_by_the_migration(tmp_path: Path, clock: Clock) -> None:
    env, data_dir = Environment(now=clock), tmp_path / "data"
    async with open_store(data_dir, env, inline=True) as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=100)
        await store.accounts.create("empty", "empty@example.org", HASH)
        maker = Messages(env, account.id)
        for size in (0, 100, 200_000):
            await store.messages.accept(maker.new("a@example.net", "b@example.net", size=size))
        await store.templates.save(account.id, "welcome", "ä", None, "<p>html</p>")
        await store.suppressions.add(account.id, "a@example.net", "manual")
        expected = await counted(store)
    old = apsw.Connection(str(data_dir / FILE_NAME))
    for statement in (
        "ALTER TABLE accounts DROP COLUMN stored_bytes",
        "DELETE FROM migrations WHERE name = 'stored_bytes'",
    ):
        old.execute(statement)
    old.close()
    async with open_store(data_dir, env, inline=True) as store:
        assert await counted(store) == expected
    assert sorted(expected.values())[0] == 0
    assert max(expected.values()) > 200_000


async def test_a_step_of_the_upgrade_leaves_old_bodies(tmp_path: Path, clock: Clock) -> None:
    env, path = Environment(now=clock), tmp_path / "data" / FILE_NAME
    async with open_store(path.parent, env, inline=True) as store:
        account = await store.accounts.create("demo", "demo@example.org", HASH, credit=100)
        messages = Messages(env, account.id)
        old = large(messages, INLINE)
        await store.messages.accept(old)
        expected = await counted(store)
    before = apsw.Connection(str(path))
    for statement in (
        "ALTER TABLE message_bodies DROP COLUMN parts_size",
        "DROP TABLE message_body_parts",
        "DROP TABLE loose_parts",
        "DELETE FROM migrations WHERE name = 'body_parts'",
    ):
        before.execute(statement)
    before.close()
    async with open_store(path.parent, env, inline=True) as store:
        new = large(messages)
        await store.messages.accept(new)
        assert [await store.messages.mime(each.id) for each in (old, new)] == [old.mime, new.mime]
        assert await counted(store) == await recounted(store) != expected


def test_failures_from_before_they_had_a_reason() -> None:
    connection = apsw.Connection(":memory:")
    for step in migrations():
        if step.number < FAILURES.number:
            connection.execute(step.sql)
    insert = """INSERT INTO recipients (message_id, id, account_id, address, domain, simulated, charged, status,
        billing_status, last_smtp_code, last_smtp_response)
        VALUES ('msg_1', ?, '', '', '', 0, 0, ?, 'released', ?, ?)"""
    rows = [
        ("rcp_1", "bounced", None, "suppressed: this address is on the account's suppression list"),
        ("rcp_2", "failed", None, "cancelled: by the sender"),
        ("rcp_3", "bounced", 550, "suppressed: by a server"),
        ("rcp_4", "failed", None, "no route to the server"),
        ("rcp_5", "queued", None, None),
    ]
    connection.executemany(insert, rows)
    connection.execute(FAILURES.sql)
    failures = connection.execute("SELECT failure FROM recipients ORDER BY id").fetchall()
    assert failures == [("suppressed",), ("cancelled",), (None,), (None,), (None,)]
