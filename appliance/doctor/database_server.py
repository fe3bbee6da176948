"""Findings on a PostgreSQL: whether it keeps what it acknowledged, how fast it answers, what wears it out."""

from collections.abc import Iterator
from pathlib import Path

from appliance.doctor import Finding, fault, ok, warning
from appliance.keys.keyfile import KEY_FILE, KeyFileError, fingerprint, load
from appliance.model.database import ServerFacts

CHECK = "database"

SLOW_ROUND_TRIP = 0.005  # seconds; a transaction takes about ten of them
SKEW_WARNING, SKEW_FAULT = 2.0, 30.0  # seconds; at the second a node stops its delivery
OLD_TRANSACTION = 3_600.0  # seconds
DEAD_ROWS, DEAD_SHARE = 50_000, 0.4  # of the live ones; autovacuum begins at half of that share
CONNECTIONS_SHARE = 0.8  # of those that are allowed

_DURABLE = ("on", "remote_apply")


def judge_server(facts: ServerFacts) -> list[Finding]:
    answers = f"a round trip takes {facts.round_trip * 1_000:.1f} ms"
    findings = [*_schema(facts), *_durability(facts), *_standbys(facts)]
    if facts.round_trip > SLOW_ROUND_TRIP:
        advice = "Run node and database at one site: every message takes several round trips."
        findings.append(warning(CHECK, "round trip", answers, advice))
    else:
        findings.append(ok(CHECK, "round trip", answers))
    return [*findings, _clock(facts.skew), *_wear(facts), _connections(facts)]


def judge_unusable(reason: str) -> Finding:
    return fault(CHECK, "store.url", reason, "Fix this first: no node starts, and running nodes return 503.")


def _schema(facts: ServerFacts) -> Iterator[Finding]:
    what = f"PostgreSQL {facts.version}"
    if not facts.schema:
        yield warning(CHECK, facts.place, f"{what}, still empty", "The first start creates the tables: appliance serve")
    elif facts.is_too_new:
        text = f"has schema {facts.schema}, this version knows only {facts.newest_schema}"
        yield fault(CHECK, facts.place, text, "Run the newer appliance.")
    elif facts.due_schema:
        text = f"has schema {facts.schema}: the next start upgrades it to {facts.due_schema}"
        yield warning(CHECK, facts.place, text, "Make sure that you have a backup.")
    elif facts.schema > facts.newest_schema:
        text = f"has schema {facts.schema}; this version knows only {facts.newest_schema}, and can still use it"
        yield warning(CHECK, facts.place, text, "Upgrade this node too.")
    else:
        yield ok(CHECK, facts.place, f"{what}, schema {facts.schema}")
    if facts.older_nodes:
        text = f"to schema {facts.newest_schema} waits for nodes of older versions: {', '.join(facts.older_nodes)}"
        yield warning(CHECK, "upgrade", text, "Upgrade or stop them; the upgrade then continues automatically.")


def _durability(facts: ServerFacts) -> Iterator[Finding]:
    if facts.settings["fsync"] == "off":
        text = "is off: a crash of the database machine loses acknowledged mail, and may damage the database"
        yield fault(CHECK, "fsync", text, "Set fsync = on in postgresql.conf, and reload PostgreSQL.")
    if facts.settings["full_page_writes"] == "off":
        text = "is off: a crash of the database machine may leave pages half written"
        advice = "Set full_page_writes = on, unless its file system writes whole pages (ZFS)."
        yield warning(CHECK, "full_page_writes", text, advice)
    level = facts.settings["synchronous_commit"]
    if level not in _DURABLE:
        text = f"is {level}, although our connections request on: acknowledged mail can be lost"
        advice = "A connection pooler drops the options: make it pass them on, or connect directly."
        judge = fault if level == "off" else warning
        yield judge(CHECK, "synchronous_commit", text, advice)


def _standbys(facts: ServerFacts) -> Iterator[Finding]:
    subject, names = "synchronous_standby_names", facts.settings["synchronous_standby_names"]
    if not names:
        text = "is empty: if the primary is lost, so is the mail acknowledged last"
        advice = "Set up a standby, and name it there (ANY 1 (a, b)); for a managed database, check its replication."
        yield warning(CHECK, subject, text, advice)
    elif facts.synchronous_standbys == 0:
        text = f"is {names}, and no standby is connected: every write blocks"
        yield fault(CHECK, subject, text, "Start the standby, or remove it from synchronous_standby_names.")
    else:
        yield ok(CHECK, subject, f"is {names}: every commit is on a standby too")


def _clock(skew: float) -> Finding:
    text = f"of the database is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
    advice = "Synchronise both with NTP: timedatectl set-ntp true"
    if abs(skew) >= SKEW_FAULT:
        return fault(CHECK, "clock", f"{text}: the node stops delivery", advice)
    if abs(skew) >= SKEW_WARNING:
        return warning(CHECK, "clock", text, advice)
    return ok(CHECK, "clock", "of the database agrees with this machine's")


def _wear(facts: ServerFacts) -> Iterator[Finding]:
    """Check for dead rows, which slow down reads, and for what keeps vacuum from removing them."""
    if facts.settings["autovacuum"] == "off":
        yield warning(CHECK, "autovacuum", "is off: dead rows are never removed", "Set autovacuum = on, and reload it.")
    if facts.oldest_transaction > OLD_TRANSACTION:
        text = f"began {facts.oldest_transaction / 3_600:.1f} h ago: rows that died since cannot be removed"
        advice = "End it: pg_stat_activity (xact_start) and pg_prepared_xacts show its owner."
        yield warning(CHECK, "oldest transaction", text, advice)
    for table in facts.tables:
        if table.dead > DEAD_ROWS + DEAD_SHARE * table.live:
            text = f"has {table.dead:,} dead rows to {table.live:,} live ones, and as many dead entries in its indexes"
            advice = f"VACUUM {table.name}; make autovacuum run sooner (autovacuum_vacuum_scale_factor, …_cost_limit)."
            yield warning(CHECK, f"table {table.name}", text, advice)


def _connections(facts: ServerFacts) -> Finding:
    allowed = int(facts.settings["max_connections"]) - int(facts.settings["superuser_reserved_connections"])
    text = f"{facts.connections} of {allowed} are in use"
    if facts.connections > CONNECTIONS_SHARE * allowed:
        return warning(CHECK, "connections", text, "Raise max_connections: a node uses about seven.")
    return ok(CHECK, "connections", text)


# ---- files of this node
def judge_key_file(data_dir: Path, stored: str | None) -> list[Finding]:
    """Check that the key file is the one of all nodes of this database."""
    file, advice = data_dir / KEY_FILE, "Copy the key file of another node, or the one kept with the backup."
    if not file.exists():
        return [fault(CHECK, str(file), "is missing: this node cannot start", advice)] if stored else []
    try:
        own = fingerprint(load(data_dir))
    except (KeyFileError, OSError) as error:
        return [fault(CHECK, str(file), f"cannot be used: {error}", advice)]
    if stored not in (None, own):
        return [fault(CHECK, str(file), "is not the key file of this database: this node cannot start", advice)]
    return []
