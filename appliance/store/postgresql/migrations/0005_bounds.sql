-- compatible since: 1
-- Templates in use and deleted ones are indexed apart, so that no query reads through the other kind.
CREATE INDEX templates_live ON templates (account_id, alias) WHERE deleted = 0;
CREATE INDEX templates_deleted ON templates (account_id, updated_at) WHERE deleted = 1;

-- A new key's selector must differ from every selector of its domain, in all accounts.
CREATE INDEX dkim_keys_by_domain ON dkim_keys (domain, selector);

-- For retention, which deletes destinations that have not been routed for 90 days.
CREATE INDEX destinations_old ON destinations (updated_at);
