-- compatible since: 1
-- Attempts by the hour (UTC) and their outcome, added up as each is recorded: the page of a webhook shows them.
CREATE TABLE webhook_hours (
    webhook_id TEXT COLLATE "C" NOT NULL,
    hour BIGINT NOT NULL,  -- hours since 1970
    outcome TEXT COLLATE "C" NOT NULL CHECK (outcome IN ('success', 'redirect', 'client_error', 'server_error', 'no_response')),
    attempts BIGINT NOT NULL,
    total_ms BIGINT NOT NULL,
    slowest_ms BIGINT NOT NULL,
    PRIMARY KEY (webhook_id, hour, outcome)
);
CREATE INDEX webhook_hours_by_hour ON webhook_hours (hour);
