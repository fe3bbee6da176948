-- The source that an attempt used, and what is known about sources: see model/sources.py.
ALTER TABLE attempts ADD COLUMN source TEXT;

-- The sources of a stream that an account has instead of the stream's own.
CREATE TABLE account_sources (
    account_id TEXT NOT NULL REFERENCES accounts (id),
    stream TEXT NOT NULL,
    sources TEXT NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (account_id, stream)
) STRICT, WITHOUT ROWID;

-- Whether a node's sessions can bind to a source.
CREATE TABLE source_states (
    source TEXT NOT NULL,
    node TEXT NOT NULL,
    is_here INTEGER NOT NULL,
    detail TEXT NOT NULL,
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (source, node)
) STRICT, WITHOUT ROWID;

-- The results of a day's attempts.
CREATE TABLE source_days (
    source TEXT NOT NULL,
    pool TEXT NOT NULL,
    day INTEGER NOT NULL,
    node TEXT NOT NULL,
    delivered INTEGER NOT NULL,
    deferred INTEGER NOT NULL,
    blocked INTEGER NOT NULL,
    reply TEXT,
    reply_at INTEGER,
    PRIMARY KEY (source, pool, day, node)
) STRICT, WITHOUT ROWID;
CREATE INDEX source_days_old ON source_days (day);
