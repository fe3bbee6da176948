-- compatible since: 1
-- Why a recipient bounced or failed although no server decided it. Earlier versions kept that only in the response.
-- 0010 fills the column, and 0011 indexes it: in transactions of their own, so that readers do not wait for them.
ALTER TABLE recipients ADD COLUMN failure TEXT COLLATE "C";  -- suppressed or cancelled

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
