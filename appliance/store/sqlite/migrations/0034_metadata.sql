-- What the sender attached to a message, and its Message-ID.
ALTER TABLE messages ADD COLUMN metadata TEXT;
ALTER TABLE messages ADD COLUMN header_id TEXT;
