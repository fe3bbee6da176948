-- What DNS shows of a domain's records, and when it is to be asked again.
ALTER TABLE domains ADD COLUMN dns TEXT;
ALTER TABLE domains ADD COLUMN dns_check_at INTEGER NOT NULL DEFAULT 0;
CREATE INDEX domains_dns ON domains (dns_check_at) WHERE removed_at IS NULL;

-- Recipients by day (UTC), by one thing that their messages have, and what became of them; added up as hourly_counts are.
CREATE TABLE daily_breakdown (
    account_id TEXT NOT NULL,
    dimension TEXT NOT NULL,                    -- domain (of the sender), tag, template or provider
    day INTEGER NOT NULL,
    value TEXT NOT NULL,                        -- empty: all others
    kind TEXT NOT NULL,                         -- sent, delivered, bounced, failed, suppressed or cancelled
    recipients INTEGER NOT NULL,
    PRIMARY KEY (account_id, dimension, day, value, kind)
) STRICT, WITHOUT ROWID;
CREATE INDEX daily_breakdown_old ON daily_breakdown (day);
