-- compatible since: 1
-- Fills the column of 0008 for earlier recipients. This reads every recipient once; other nodes go on meanwhile.
UPDATE recipients SET failure = CASE status WHEN 'bounced' THEN 'suppressed' ELSE 'cancelled' END
    WHERE last_smtp_code IS NULL AND (status = 'bounced' AND substr(last_smtp_response, 1, 11) = 'suppressed:'
        OR status = 'failed' AND substr(last_smtp_response, 1, 10) = 'cancelled:');
