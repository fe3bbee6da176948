-- Where what comes back of a domain's mail goes, and since when DNS shows its records.
ALTER TABLE domains ADD COLUMN return_path TEXT;
ALTER TABLE domains ADD COLUMN return_path_at INTEGER;
CREATE INDEX domains_return_path ON domains (coalesce(return_path, 'bounces.' || name));
