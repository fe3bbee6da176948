-- The API key's id or the SMTP username that sent a message; NULL: a login, the service itself, or unknown.
ALTER TABLE messages ADD COLUMN credential TEXT;

-- A user's named filters of the message list.
CREATE TABLE saved_views (
    user_id TEXT NOT NULL REFERENCES users (id),
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    filters TEXT NOT NULL,                      -- a JSON object of texts
    created_at INTEGER NOT NULL,
    PRIMARY KEY (user_id, id),
    UNIQUE (user_id, name)
) STRICT, WITHOUT ROWID;
