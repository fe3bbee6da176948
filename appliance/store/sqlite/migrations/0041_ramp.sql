-- The ramp: see model/ramp.py.
ALTER TABLE recipients ADD COLUMN bucket INTEGER;
ALTER TABLE recipients ADD COLUMN route TEXT;
ALTER TABLE attempts ADD COLUMN route TEXT;

-- Results of recipients under the ramp by the hour (UTC), added up as each is recorded.
CREATE TABLE ramp_hours (
    hour INTEGER NOT NULL,                      -- hours since 1970
    provider TEXT NOT NULL,
    route TEXT NOT NULL CHECK (route IN ('direct', 'relay')),
    delivered INTEGER NOT NULL DEFAULT 0,
    deferred INTEGER NOT NULL DEFAULT 0,        -- attempts
    bounced INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    complaints INTEGER NOT NULL DEFAULT 0,
    seconds INTEGER NOT NULL DEFAULT 0,         -- from acceptance to delivery, in total
    within_minute INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (hour, provider, route)
) STRICT, WITHOUT ROWID;
