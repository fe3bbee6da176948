-- The format of a webhook's events, and that of a posted body.
ALTER TABLE webhooks ADD COLUMN format TEXT NOT NULL DEFAULT 'native';
ALTER TABLE webhook_deliveries ADD COLUMN format TEXT NOT NULL DEFAULT 'native';
