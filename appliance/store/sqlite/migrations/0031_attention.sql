-- Problems that need a person; the server mails each once: see model/attention.py.
CREATE TABLE attention (
    account_id TEXT NOT NULL,                   -- empty: the machine, which concerns administrators
    node TEXT NOT NULL,                         -- whose machine; empty: all nodes
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,                      -- a domain, pool, key, webhook or listener
    severity TEXT NOT NULL,
    title TEXT NOT NULL,
    detail TEXT NOT NULL,
    link TEXT NOT NULL,
    since INTEGER NOT NULL,
    opened_at INTEGER NOT NULL,                 -- when a check found it
    ended_at INTEGER,                           -- when a check no longer found it
    PRIMARY KEY (account_id, node, kind, subject)
) STRICT, WITHOUT ROWID;

-- When a user wants mail about problems, when the last was queued, and until when problems are known to the user.
ALTER TABLE users ADD COLUMN notify TEXT NOT NULL DEFAULT 'at_once';
ALTER TABLE users ADD COLUMN notified_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE users ADD COLUMN notified_until INTEGER NOT NULL DEFAULT 0;
-- A message with a link that sets a password: only its recipient reads it.
ALTER TABLE messages ADD COLUMN confidential INTEGER NOT NULL DEFAULT 0;
