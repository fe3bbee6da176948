-- compatible since: 1
-- The request log: a page is the requests of one account within a second or so.
CREATE TABLE request_pages (
    id TEXT COLLATE "C" PRIMARY KEY,
    account_id TEXT COLLATE "C" NOT NULL,
    size BIGINT NOT NULL,
    data BYTEA NOT NULL
);
CREATE INDEX request_pages_by_account ON request_pages (account_id, id);

CREATE TABLE request_sizes (
    account_id TEXT COLLATE "C" PRIMARY KEY,
    bytes BIGINT NOT NULL
);
