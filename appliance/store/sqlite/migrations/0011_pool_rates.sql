-- How many messages a minute a pool may have, as long as that is what its mail waits for.
ALTER TABLE pool_states ADD COLUMN rate INTEGER;
