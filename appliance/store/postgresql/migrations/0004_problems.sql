-- compatible since: 1
-- When a deferred recipient was last tried is kept from now on, in `failed_at`.

-- Those that bounced, failed or are deferred, by when: see OUTCOME in store/search_index.py.
CREATE INDEX recipients_problems ON recipients
    (account_id, coalesce(bounced_at, failed_at), id)
    WHERE CASE WHEN status = 'bounced' AND substr(last_smtp_response, 1, 11) = 'suppressed:' AND last_smtp_code IS NULL
            THEN 'suppressed'
        WHEN status = 'failed' AND substr(last_smtp_response, 1, 10) = 'cancelled:' AND last_smtp_code IS NULL
            THEN 'cancelled'
        ELSE status END IN ('bounced', 'failed', 'deferred');
