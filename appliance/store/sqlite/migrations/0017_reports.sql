-- Reports about a domain, and what became of mail by class and provider: both kept for 90 days.

-- DMARC aggregate reports: each counts once, however often it is sent.
CREATE TABLE dmarc_reports (
    account_id TEXT NOT NULL,
    domain TEXT NOT NULL,
    org TEXT NOT NULL,                          -- that sent it, as it calls itself
    report_id TEXT NOT NULL,                    -- given by it
    day INTEGER NOT NULL,                       -- that it is about: days since 1970, UTC
    policy TEXT NOT NULL,                       -- none, quarantine or reject, as the receiver saw it
    percentage INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    passed INTEGER NOT NULL,
    received_at INTEGER NOT NULL,
    PRIMARY KEY (account_id, domain, org, report_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX dmarc_reports_by_day ON dmarc_reports (account_id, domain, day);
CREATE INDEX dmarc_reports_old ON dmarc_reports (day);

-- The messages in those reports by day and source.
CREATE TABLE dmarc_sources (
    account_id TEXT NOT NULL,
    domain TEXT NOT NULL,
    day INTEGER NOT NULL,
    source TEXT NOT NULL,                       -- an IP address; empty: all those over the limit
    messages INTEGER NOT NULL,
    passed INTEGER NOT NULL,                    -- DMARC: by DKIM or SPF, aligned
    dkim INTEGER NOT NULL,
    spf INTEGER NOT NULL,
    quarantined INTEGER NOT NULL,
    rejected INTEGER NOT NULL,
    PRIMARY KEY (account_id, domain, day, source)
) STRICT, WITHOUT ROWID;
CREATE INDEX dmarc_sources_old ON dmarc_sources (day);

-- TLS reports (RFC 8460).
CREATE TABLE tls_reports (
    account_id TEXT NOT NULL,
    domain TEXT NOT NULL,
    org TEXT NOT NULL,
    report_id TEXT NOT NULL,
    day INTEGER NOT NULL,
    successes INTEGER NOT NULL,                 -- sessions
    failures INTEGER NOT NULL,
    received_at INTEGER NOT NULL,
    PRIMARY KEY (account_id, domain, org, report_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX tls_reports_by_day ON tls_reports (account_id, domain, day);
CREATE INDEX tls_reports_old ON tls_reports (day);

-- The failed sessions in those reports by day, server and type of failure; both are empty for all over the limit.
CREATE TABLE tls_failures (
    account_id TEXT NOT NULL,
    domain TEXT NOT NULL,
    day INTEGER NOT NULL,
    mx TEXT NOT NULL,
    type TEXT NOT NULL,
    sessions INTEGER NOT NULL,
    PRIMARY KEY (account_id, domain, day, mx, type)
) STRICT, WITHOUT ROWID;
CREATE INDEX tls_failures_old ON tls_failures (day);

-- Recipients by day (UTC), what became of them, class of bounce and provider; added up as hourly_counts are.
CREATE TABLE daily_feedback (
    account_id TEXT NOT NULL,
    day INTEGER NOT NULL,
    kind TEXT NOT NULL,                         -- the type of the event, without `email.`
    class TEXT NOT NULL,                        -- of a bounce; empty: none
    provider TEXT NOT NULL,                     -- a pool with a name of its own; empty: all others
    recipients INTEGER NOT NULL,
    PRIMARY KEY (account_id, day, kind, class, provider)
) STRICT, WITHOUT ROWID;
CREATE INDEX daily_feedback_old ON daily_feedback (day);
