-- The index of messages by words, made behind the mail: see store/search_index.py.
CREATE TABLE search_blocks (
    number INTEGER PRIMARY KEY,
    account_id TEXT NOT NULL,
    after_id TEXT NOT NULL,
    last_id TEXT NOT NULL,
    size INTEGER NOT NULL,
    ids TEXT NOT NULL
) STRICT;
CREATE INDEX search_blocks_by_account ON search_blocks (account_id, after_id);
CREATE INDEX search_blocks_unused ON search_blocks (number) WHERE size = 0;
CREATE TABLE search_terms (
    block INTEGER NOT NULL,
    term TEXT NOT NULL,
    postings TEXT NOT NULL,
    PRIMARY KEY (block, term)
) STRICT, WITHOUT ROWID;
CREATE TABLE search_positions (
    account_id TEXT PRIMARY KEY,
    message_id TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE search_changes (
    account_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (account_id, message_id)
) STRICT, WITHOUT ROWID;
