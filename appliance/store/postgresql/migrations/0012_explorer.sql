-- compatible since: 1
-- The API key's id or the SMTP username that sent a message; NULL: a login, the service itself, or unknown.
ALTER TABLE messages ADD COLUMN credential TEXT COLLATE "C";

-- A user's named filters of the message list. Nodes of earlier versions delete a user without them.
CREATE TABLE saved_views (
    user_id TEXT COLLATE "C" NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    id TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    filters TEXT COLLATE "C" NOT NULL,  -- a JSON object of texts
    created_at BIGINT NOT NULL,
    PRIMARY KEY (user_id, id),
    UNIQUE (user_id, name)
);
