-- compatible since: 1
-- What the sender attached to a message, and its Message-ID.
ALTER TABLE messages ADD COLUMN metadata TEXT COLLATE "C";
ALTER TABLE messages ADD COLUMN header_id TEXT COLLATE "C";
