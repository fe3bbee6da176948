-- One-click unsubscribe: which templates and tags have links for it, and which addresses have used one.
ALTER TABLE templates ADD COLUMN unsubscribe INTEGER NOT NULL DEFAULT 0;
CREATE TABLE unsubscriptions (
    account_id TEXT NOT NULL REFERENCES accounts (id),
    address TEXT NOT NULL,
    list TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (account_id, address, list)
) STRICT, WITHOUT ROWID;
CREATE TABLE unsubscribe_tags (
    account_id TEXT NOT NULL REFERENCES accounts (id),
    tag TEXT NOT NULL,
    PRIMARY KEY (account_id, tag)
) STRICT, WITHOUT ROWID;
