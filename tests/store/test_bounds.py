"""Every table has a declared bound, so that no outsider can fill the disk or slow a query with rows.

A table is bounded in one of these ways:

- `rows`: a constant limits the rows of one account (or of the installation).
- `age`: retention deletes rows that are older than a setting or a constant.
- `bytes`: the rows count towards `limits.stored_bytes_per_account`, and retention or the owner deletes them.
- `operator`: only the operator adds rows.
- `parent`: each row of another table has a bounded number of rows here, deleted with it.
"""

import re
from pathlib import Path

import pytest

import appliance.store

SCHEMA = (Path(appliance.store.__file__).parent / "sqlite" / "schema.sql").read_text()
BOUNDS = {
    "accounts": "operator",
    "api_keys": "rows: CredentialLimits.working and .revoked",
    "attempts": "parent: recipients, one row for each of the attempts in delivery.retry_delays",
    "attention": "parent: domains, keys, webhooks, pools, nodes; rows: ENDED_MOST of former ones; age: ENDED_KEPT",
    "audit_log": "rows: AUDIT_LINES, AUDIT_MOST; age: AUDIT_KEPT",
    "complaints": "parent: recipients; age: retention.metadata",
    "counted_until": "rows: one for each kind of statistics",
    "credit_ledger": "age: retention.metadata, then one row a day",
    "daily_breakdown": "rows: VALUES_MOST for each account, day and dimension; age: REPORTS_KEPT_DAYS",
    "daily_feedback": "rows: kinds, classes and named providers; age: REPORTS_KEPT_DAYS",
    "daily_volume": "age: retention.metadata",
    "destinations": "age: UNUSED_KEPT",
    "dkim_keys": "parent: domains, two for each; only the operator rotates them",
    "dmarc_reports": "rows: REPORTS_PER_DAY; age: REPORTS_KEPT_DAYS",
    "dmarc_sources": "rows: SOURCES_PER_DAY; age: REPORTS_KEPT_DAYS",
    "domains": "rows: DOMAINS_PER_ACCOUNT",
    "events": "parent: recipients; age: retention.metadata",
    "feedback_counts": "parent: feedback_mail",
    "feedback_inbox": "rows: INBOX_MAILS for each account and kind; age: retention.metadata",
    "feedback_mail": "rows: QUEUED_MAILS, and a share for each network, token and account; read within seconds",
    "hourly_counts": "rows: kinds and buckets of an hour; age: STATISTICS_KEPT",
    "hourly_stream_counts": "rows: configured streams, kinds and buckets of an hour; age: STATISTICS_KEPT",
    "idempotency_keys": "parent: messages; age: a day",
    "installation": "rows: a fixed set of names",
    "loose_parts": "bytes",
    "message_bodies": "bytes; age: retention.bodies",
    "message_body_parts": "bytes; age: retention.bodies",
    "messages": "bytes; age: retention.metadata",
    "migrations": "rows: one for each migration",
    "password_links": "rows: PEOPLE_PER_ACCOUNT; age: expires_at",
    "pool_holds": "rows: pools that are held, bounded by the limiters in memory",
    "pool_states": "rows: pools in use, bounded by the limiters in memory",
    "received_messages": "bytes; age: retention.bodies, or until their webhook posts are final",
    "receiving_addresses": "rows: RECEIVING_ADDRESSES",
    "recipients": "bytes; age: retention.metadata",
    "recovery_codes": "parent: users, ten for each",
    "request_pages": "rows: ACCOUNT_BYTES of each account, LOG_BYTES of all; age: REQUESTS_KEPT",
    "request_sizes": "parent: accounts",
    "saved_views": "rows: VIEWS_PER_USER",
    "scheduled_messages": "parent: messages; deleted when due",
    "search_blocks": "parent: messages",
    "search_changes": "parent: messages; deleted once indexed",
    "search_positions": "parent: accounts",
    "search_terms": "parent: search_blocks",
    "second_factors": "parent: users",
    "sessions": "rows: SESSIONS_PER_USER; age: expires_at",
    "smtp_credentials": "rows: CredentialLimits.working and .revoked",
    "smtp_sessions": "rows: delivery.connections",
    "suppressions": "bytes",
    "template_versions": "rows: VERSIONS; bytes",
    "templates": "rows: TEMPLATES in use, DELETED_TEMPLATES; age: retention.metadata",
    "tls_failures": "rows: FAILURES_PER_DAY; age: REPORTS_KEPT_DAYS",
    "tls_reports": "rows: REPORTS_PER_DAY; age: REPORTS_KEPT_DAYS",
    "unsubscribe_tags": "rows: UNSUBSCRIBE_TAGS",
    "unsubscriptions": "bytes",
    "users": "rows: PEOPLE_PER_ACCOUNT",
    "warmups": "age: UNUSED_KEPT",
    "webhook_deliveries": "parent: events; age: retention.webhook_logs",
    "ramp_hours": "rows: providers of an hour; age: 30 days",
    "webhook_hours": "rows: outcomes of an hour; age: retention.webhook_logs",
    "webhook_pings": "parent: accounts",
    "webhooks": "rows: one for each account; deleted ones leave with their log",
}


def test_every_table_declares_its_bound() -> None:
    assert set(re.findall(r"^CREATE TABLE (\w+)", SCHEMA, re.MULTILINE)) == BOUNDS.keys()


@pytest.mark.parametrize("table", sorted(name for name, bound in BOUNDS.items() if "rows: " in bound))
def test_the_constants_of_a_bound_exist(table: str) -> None:
    sources = "\n".join(path.read_text() for path in Path(appliance.__file__).parent.rglob("*.py"))
    for name in re.findall(r"\b[A-Z][A-Z_]{4,}\b", BOUNDS[table]):
        assert re.search(rf"^{name}\b.* = ", sources, re.MULTILINE), name
