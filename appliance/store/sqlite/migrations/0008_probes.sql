-- A pool that holds itself is probed: when next, and how many probes were refused. Without a time it is the operator's.
ALTER TABLE pool_holds ADD COLUMN probe_at INTEGER;
ALTER TABLE pool_holds ADD COLUMN probes INTEGER NOT NULL DEFAULT 0;

-- The accounts whose mail alone waits, as JSON: [[account, until, reason], …].
ALTER TABLE pool_states ADD COLUMN slowed_accounts TEXT;

-- Holds that the program made, which so far only the operator could end.
UPDATE pool_holds SET probe_at = held_at + 900000000 WHERE reason LIKE '% refusals of us as a sender in a row, the last: %';
