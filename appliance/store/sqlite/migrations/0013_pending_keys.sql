-- Keys that a rotation has made, and that sign once DNS shows their records.
ALTER TABLE dkim_keys ADD COLUMN pending INTEGER NOT NULL DEFAULT 0;
CREATE INDEX dkim_keys_pending ON dkim_keys (account_id, domain) WHERE pending = 1;
