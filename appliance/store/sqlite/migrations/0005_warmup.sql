-- How far the warm-up of this machine's addresses has come at each pool. Kept when it is over, or it would begin again.
CREATE TABLE warmups (
    pool TEXT NOT NULL,
    source TEXT NOT NULL,                       -- the address mail leaves from, as the system knows it
    day INTEGER NOT NULL,                       -- of the warm-up, from 0; days on which nothing went do not count
    day_at INTEGER NOT NULL,                    -- when that day began
    sent INTEGER NOT NULL,                      -- recipients on that day
    hour_at INTEGER NOT NULL,                   -- when the hour began that is counted
    used INTEGER NOT NULL,                      -- recipients in that hour
    rested_at INTEGER NOT NULL,                 -- when a burst may go again, if nothing goes until then
    PRIMARY KEY (pool, source)
) STRICT, WITHOUT ROWID;
CREATE INDEX warmups_by_hour ON warmups (hour_at);
