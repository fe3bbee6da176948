-- What is kept is kept from when a recipient was final: of one that has failed, nothing said when that was.
ALTER TABLE recipients ADD COLUMN failed_at INTEGER;
