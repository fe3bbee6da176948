-- Why a recipient bounced or failed although no server decided it. Earlier versions kept that only in the response.
ALTER TABLE recipients ADD COLUMN failure TEXT;  -- suppressed or cancelled
UPDATE recipients SET failure = 'suppressed'
    WHERE status = 'bounced' AND last_smtp_code IS NULL AND substr(last_smtp_response, 1, 11) = 'suppressed:';
UPDATE recipients SET failure = 'cancelled'
    WHERE status = 'failed' AND last_smtp_code IS NULL AND substr(last_smtp_response, 1, 10) = 'cancelled:';

DROP INDEX recipients_problems;
-- Recipients that bounced, failed or are deferred, by time: see OUTCOME in store/search_texts.py.
CREATE INDEX recipients_problems ON recipients (account_id, coalesce(bounced_at, failed_at), id)
    WHERE coalesce(failure, status) IN ('bounced', 'failed', 'deferred');
