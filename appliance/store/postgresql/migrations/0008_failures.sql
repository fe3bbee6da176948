-- compatible since: 1
-- Why a recipient bounced or failed although no server decided it. Earlier versions kept that only in the response.
-- Like 0004, this reads every recipient once, and mail waits meanwhile.
ALTER TABLE recipients ADD COLUMN failure TEXT COLLATE "C";  -- suppressed or cancelled
UPDATE recipients SET failure = CASE status WHEN 'bounced' THEN 'suppressed' ELSE 'cancelled' END
    WHERE last_smtp_code IS NULL AND (status = 'bounced' AND substr(last_smtp_response, 1, 11) = 'suppressed:'
        OR status = 'failed' AND substr(last_smtp_response, 1, 10) = 'cancelled:');

-- Fills the column for nodes of earlier versions; a contraction may drop it.
CREATE FUNCTION fill_recipient_failure() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.failure := CASE NEW.status WHEN 'bounced' THEN 'suppressed' ELSE 'cancelled' END;
    RETURN NEW;
END $$;
CREATE TRIGGER recipients_failure BEFORE UPDATE OF status ON recipients FOR EACH ROW
    WHEN (NEW.failure IS NULL AND NEW.last_smtp_code IS NULL
        AND (NEW.status = 'bounced' AND substr(NEW.last_smtp_response, 1, 11) = 'suppressed:'
            OR NEW.status = 'failed' AND substr(NEW.last_smtp_response, 1, 10) = 'cancelled:'))
    EXECUTE FUNCTION fill_recipient_failure();

DROP INDEX recipients_problems;
-- Recipients that bounced, failed or are deferred, by time: see OUTCOME in store/search_texts.py.
CREATE INDEX recipients_problems ON recipients (account_id, coalesce(bounced_at, failed_at), id)
    WHERE coalesce(failure, status) IN ('bounced', 'failed', 'deferred');
