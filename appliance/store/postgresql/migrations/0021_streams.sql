-- compatible since: 1
-- The stream of a message, and the default of what may name one: see model/streams.py.
ALTER TABLE messages ADD COLUMN stream TEXT COLLATE "C" NOT NULL DEFAULT 'transactional';
ALTER TABLE api_keys ADD COLUMN stream TEXT COLLATE "C";
ALTER TABLE smtp_credentials ADD COLUMN stream TEXT COLLATE "C";
ALTER TABLE templates ADD COLUMN stream TEXT COLLATE "C";

-- 1: of a stream with low priority. Nodes of an older release read lanes by these indexes as well, more slowly.
ALTER TABLE recipients ADD COLUMN low BIGINT NOT NULL DEFAULT 0;
DROP INDEX recipients_due;
DROP INDEX recipients_lanes;
CREATE INDEX recipients_due ON recipients (owner, simulated, low, next_attempt_at) WHERE next_attempt_at IS NOT NULL;
CREATE INDEX recipients_lanes ON recipients (owner, simulated, low, account_id, domain, next_attempt_at)
    WHERE next_attempt_at IS NOT NULL;
