-- The request log: a page is the requests of one account within a second or so.
CREATE TABLE request_pages (
    id TEXT PRIMARY KEY,
    account_id TEXT NOT NULL,
    size INTEGER NOT NULL,
    data BLOB NOT NULL
) STRICT;
CREATE INDEX request_pages_by_account ON request_pages (account_id, id);

CREATE TABLE request_sizes (
    account_id TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
