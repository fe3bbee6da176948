-- The stream of a message, and the default of what may name one: see model/streams.py.
ALTER TABLE messages ADD COLUMN stream TEXT NOT NULL DEFAULT 'transactional';
ALTER TABLE api_keys ADD COLUMN stream TEXT;
ALTER TABLE smtp_credentials ADD COLUMN stream TEXT;
ALTER TABLE templates ADD COLUMN stream TEXT;

-- 1: of a stream with low priority.
ALTER TABLE recipients ADD COLUMN low INTEGER NOT NULL DEFAULT 0;
DROP INDEX recipients_due;
DROP INDEX recipients_lanes;
CREATE INDEX recipients_due ON recipients (simulated, low, next_attempt_at) WHERE next_attempt_at IS NOT NULL;
CREATE INDEX recipients_lanes ON recipients (simulated, low, account_id, domain, next_attempt_at)
    WHERE next_attempt_at IS NOT NULL;
