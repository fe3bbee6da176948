-- How many bytes an account keeps, changed in the transaction that adds or deletes them. The figures are those of
-- store/stored.py: whoever changes one there counts anew in a step like this.
ALTER TABLE accounts ADD COLUMN stored_bytes INTEGER NOT NULL DEFAULT 0;
UPDATE accounts SET stored_bytes =
    (SELECT coalesce(sum(1024 + 2048 * m.recipient_count
        + coalesce((SELECT length(b.mime) + coalesce(length(b.receipt), 0) FROM message_bodies b
            WHERE b.message_id = m.id), 0)), 0)
    FROM messages m WHERE m.account_id = accounts.id)
    + (SELECT coalesce(sum(512 + coalesce(octet_length(v.subject), 0) + coalesce(octet_length(v.text_body), 0)
        + coalesce(octet_length(v.html_body), 0)), 0)
    FROM template_versions v WHERE v.account_id = accounts.id)
    + (SELECT 512 * count(*) FROM suppressions s WHERE s.account_id = accounts.id);
