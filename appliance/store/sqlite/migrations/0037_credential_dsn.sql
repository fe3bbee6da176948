-- The default of NOTIFY for recipients without one: 'failure', or NULL for no notification.
ALTER TABLE smtp_credentials ADD COLUMN dsn TEXT;
