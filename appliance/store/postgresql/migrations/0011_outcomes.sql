-- compatible since: 1
-- Recipients that bounced, failed or are deferred, by time: see OUTCOME in store/search_texts.py. Nodes of earlier versions
-- need recipients_problems; a contraction may drop it.
CREATE INDEX recipients_outcomes ON recipients (account_id, coalesce(bounced_at, failed_at), id)
    WHERE coalesce(failure, status) IN ('bounced', 'failed', 'deferred');
