-- What the dashboard shows and does: sessions, domains that customers prove, names and last uses of credentials, and
-- numbers by the hour.

-- A login, for as long as it is renewed. Each renewal counts the generation up; the cookie of an older one ends it all.
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    generation INTEGER NOT NULL,
    address TEXT NOT NULL,                      -- where it was used last, and with what
    user_agent TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    renewed_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_by_user ON sessions (user_id, renewed_at);
CREATE INDEX sessions_by_expiry ON sessions (expires_at);

-- A token is good as long as its session is.
DROP TABLE revoked_tokens;

ALTER TABLE domains ADD COLUMN verified_at INTEGER;
ALTER TABLE domains ADD COLUMN removed_at INTEGER;

ALTER TABLE smtp_credentials ADD COLUMN name TEXT NOT NULL DEFAULT '';
ALTER TABLE smtp_credentials ADD COLUMN last_used_at INTEGER;
ALTER TABLE api_keys ADD COLUMN name TEXT NOT NULL DEFAULT '';
ALTER TABLE api_keys ADD COLUMN last_used_at INTEGER;

-- Rare among messages, so that finding them must not mean reading all.
CREATE INDEX messages_failed ON messages (account_id, id) WHERE status = 'failed';
CREATE INDEX messages_partial ON messages (account_id, id) WHERE status = 'partial';
CREATE INDEX messages_test ON messages (account_id, id) WHERE source = 'test';

-- Recipients by the hour (UTC): accepted, and what became of them; test mail is not counted. Added up from messages and
-- events some seconds after they were written, so that sending does not pay for it.
CREATE TABLE hourly_counts (
    account_id TEXT NOT NULL,
    hour INTEGER NOT NULL,                      -- hours since 1970
    kind TEXT NOT NULL CHECK (kind IN ('sent', 'delivered', 'bounced', 'failed')),
    bucket INTEGER NOT NULL,                    -- how long a delivery took, logarithmically; 0 for all others
    recipients INTEGER NOT NULL,
    PRIMARY KEY (account_id, hour, kind, bucket)
) STRICT, WITHOUT ROWID;

-- How far that has come.
CREATE TABLE counted_until (
    kind TEXT PRIMARY KEY,
    id TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX destinations_by_pool ON destinations (pool);
