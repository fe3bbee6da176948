-- What an SMTP client has asked to be told by mail of a recipient (RFC 3461).
ALTER TABLE recipients ADD COLUMN dsn TEXT;
