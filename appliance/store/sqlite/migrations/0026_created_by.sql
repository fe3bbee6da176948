-- Which user created an API key or an SMTP credential; NULL: the operator's shell, or unknown.
ALTER TABLE api_keys ADD COLUMN created_by TEXT;
ALTER TABLE smtp_credentials ADD COLUMN created_by TEXT;

-- The audit log names the creators of the last year. A key and its audit line have ids of the same moment, and the first
-- six digits of an id are its time to 18 minutes, so that each lookup reads few lines.
UPDATE api_keys SET created_by = (
    SELECT u.id FROM audit_log l JOIN users u ON u.email = l.actor AND u.account_id = l.account_id
    WHERE l.account_id = api_keys.account_id AND l.id >= 'aud_' || substr(api_keys.id, 5, 6)
        AND l.id < 'aud_' || substr(api_keys.id, 5, 6) || 'g'
        AND l.action = 'api_key.created' AND l.actor_kind = 'user' AND l.object = api_keys.id LIMIT 1);
UPDATE smtp_credentials SET created_by = (
    SELECT u.id FROM audit_log l JOIN users u ON u.email = l.actor AND u.account_id = l.account_id
    WHERE l.account_id = smtp_credentials.account_id AND l.id >= 'aud_' || substr(smtp_credentials.username, 6, 6)
        AND l.id < 'aud_' || substr(smtp_credentials.username, 6, 6) || 'g'
        AND l.action = 'smtp_credential.created' AND l.actor_kind = 'user'
        AND l.object = smtp_credentials.username LIMIT 1);
