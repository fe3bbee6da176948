-- Attempts by the hour (UTC) and their outcome, added up as each is recorded: the page of a webhook shows them.
CREATE TABLE webhook_hours (
    webhook_id TEXT NOT NULL,
    hour INTEGER NOT NULL,                      -- hours since 1970
    outcome TEXT NOT NULL CHECK (outcome IN ('success', 'redirect', 'client_error', 'server_error', 'no_response')),
    attempts INTEGER NOT NULL,
    total_ms INTEGER NOT NULL,
    slowest_ms INTEGER NOT NULL,
    PRIMARY KEY (webhook_id, hour, outcome)
) STRICT, WITHOUT ROWID;
CREATE INDEX webhook_hours_by_hour ON webhook_hours (hour);
