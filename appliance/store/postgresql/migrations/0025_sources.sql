-- compatible since: 1
-- The source that an attempt used, and what is known about sources: see model/sources.py.
ALTER TABLE attempts ADD COLUMN source TEXT COLLATE "C";

-- The sources of a stream that an account has instead of the stream's own.
CREATE TABLE account_sources (
    account_id TEXT COLLATE "C" NOT NULL REFERENCES accounts (id),
    stream TEXT COLLATE "C" NOT NULL,
    sources TEXT COLLATE "C" NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (account_id, stream)
);

-- Whether a node's sessions can bind to a source.
CREATE TABLE source_states (
    source TEXT COLLATE "C" NOT NULL,
    node TEXT COLLATE "C" NOT NULL,
    is_here BIGINT NOT NULL,
    detail TEXT COLLATE "C" NOT NULL,
    changed_at BIGINT NOT NULL,
    PRIMARY KEY (source, node)
);

-- The results of a day's attempts.
CREATE TABLE source_days (
    source TEXT COLLATE "C" NOT NULL,
    pool TEXT COLLATE "C" NOT NULL,
    day BIGINT NOT NULL,
    node TEXT COLLATE "C" NOT NULL,
    delivered BIGINT NOT NULL,
    deferred BIGINT NOT NULL,
    blocked BIGINT NOT NULL,
    reply TEXT COLLATE "C",
    reply_at BIGINT,
    PRIMARY KEY (source, pool, day, node)
);
CREATE INDEX source_days_old ON source_days (day);
