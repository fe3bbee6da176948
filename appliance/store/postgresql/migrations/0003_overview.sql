-- compatible since: 1
-- What DNS shows of a domain, and recipients by day and by one thing that their messages have.

ALTER TABLE domains
    ADD COLUMN dns TEXT COLLATE "C",  -- what DNS showed when it was last asked: JSON, see model/mail.py
    ADD COLUMN dns_check_at BIGINT NOT NULL DEFAULT 0;  -- when to ask again
CREATE INDEX domains_dns ON domains (dns_check_at) WHERE removed_at IS NULL;

-- Recipients by day (UTC), by one thing that their messages have, and what became of them; added up as hourly_counts are.
CREATE TABLE daily_breakdown (
    account_id TEXT COLLATE "C" NOT NULL,
    dimension TEXT COLLATE "C" NOT NULL,  -- domain (of the sender), tag, template or provider
    day BIGINT NOT NULL,
    value TEXT COLLATE "C" NOT NULL,  -- empty: all others
    kind TEXT COLLATE "C" NOT NULL,  -- sent, delivered, bounced, failed, suppressed or cancelled
    recipients BIGINT NOT NULL,
    PRIMARY KEY (account_id, dimension, day, value, kind)
);
CREATE INDEX daily_breakdown_old ON daily_breakdown (day);
