-- Webhooks: where an account wants its events, and every post of one: waiting, tried again, or done.

CREATE TABLE webhooks (
    id TEXT PRIMARY KEY,
    account_id TEXT UNIQUE REFERENCES accounts (id),    -- NULL: deleted; the row goes when its log has gone
    url TEXT NOT NULL,
    events TEXT NOT NULL,                       -- the types it wants, with a space between them
    enabled INTEGER NOT NULL,
    secret BLOB NOT NULL,                       -- sealed under the key file
    secret_hint TEXT NOT NULL,                  -- its last four characters, to tell secrets apart
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    last_success_at INTEGER,
    last_failure_at INTEGER
) STRICT, WITHOUT ROWID;

-- When an account last pinged its webhook; it outlives the webhook, or deleting that would end the cooldown.
CREATE TABLE webhook_pings (
    account_id TEXT PRIMARY KEY REFERENCES accounts (id),
    pinged_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One post of one event, updated by each attempt. It keeps a body of its own, so that it can be repeated byte for byte
-- for as long as it is shown.
CREATE TABLE webhook_deliveries (
    webhook_id TEXT NOT NULL,
    id TEXT NOT NULL,
    event_id TEXT NOT NULL,
    type TEXT NOT NULL,
    message_id TEXT,                            -- NULL: a ping
    recipient_id TEXT,
    url TEXT NOT NULL,                          -- of the last attempt
    cause TEXT NOT NULL CHECK (cause IN ('event', 'ping', 'replay')),
    status TEXT NOT NULL CHECK (status IN ('pending', 'success', 'failed')),
    attempt INTEGER NOT NULL DEFAULT 0,         -- how many there were
    request_body BLOB NOT NULL,                 -- as it is posted
    response_status INTEGER,
    response_body TEXT,                         -- the beginning of it
    error TEXT,                                 -- in words; NULL: an answer came
    duration_ms INTEGER,
    created_at INTEGER NOT NULL,
    attempted_at INTEGER,
    next_attempt_at INTEGER,                    -- NULL: final
    PRIMARY KEY (webhook_id, id)
) STRICT, WITHOUT ROWID;
-- A lane is one webhook's posts of one cause: a ping does not wait behind a backlog of events.
CREATE INDEX webhook_deliveries_lanes ON webhook_deliveries (cause, webhook_id, next_attempt_at)
    WHERE next_attempt_at IS NOT NULL;
CREATE INDEX webhook_deliveries_by_message ON webhook_deliveries (webhook_id, message_id, id);
CREATE INDEX webhook_deliveries_done ON webhook_deliveries (created_at) WHERE next_attempt_at IS NULL;
