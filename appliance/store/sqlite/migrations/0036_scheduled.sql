-- When a message is due; NULL: at once. It stays after that.
ALTER TABLE messages ADD COLUMN scheduled_at INTEGER;

-- Messages that are not due yet: see store/scheduled.py.
CREATE TABLE scheduled_messages (
    account_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    due_at INTEGER,                             -- NULL: it was due while the account was suspended
    PRIMARY KEY (account_id, message_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX scheduled_messages_due ON scheduled_messages (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX scheduled_messages_held ON scheduled_messages (account_id) WHERE due_at IS NULL;
