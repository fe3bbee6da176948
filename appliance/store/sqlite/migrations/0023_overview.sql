-- What DNS shows of a domain's records, and when it is to be asked again.
ALTER TABLE domains ADD COLUMN dns TEXT;
ALTER TABLE domains ADD COLUMN dns_check_at INTEGER NOT NULL DEFAULT 0;
CREATE INDEX domains_dns ON domains (dns_check_at) WHERE removed_at IS NULL;
