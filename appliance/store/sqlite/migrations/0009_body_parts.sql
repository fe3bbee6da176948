-- The bytes of a large message are written before it, in parts of a commit each, so that no other commit waits for all
-- of them. `mime` then has only the beginning, and the parts what follows.
ALTER TABLE message_bodies ADD COLUMN parts_size INTEGER NOT NULL DEFAULT 0;
CREATE TABLE message_body_parts (
    message_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (message_id, number)
) STRICT;

-- Messages of which there are parts, but to which no row of message_bodies refers.
CREATE TABLE loose_parts (
    message_id TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
