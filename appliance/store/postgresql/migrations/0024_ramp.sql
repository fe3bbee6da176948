-- compatible since: 1
-- The ramp: see model/ramp.py.
ALTER TABLE recipients ADD COLUMN bucket BIGINT;
ALTER TABLE recipients ADD COLUMN route TEXT COLLATE "C";
ALTER TABLE attempts ADD COLUMN route TEXT COLLATE "C";

-- Results of recipients under the ramp by the hour (UTC), added up as each is recorded.
CREATE TABLE ramp_hours (
    hour BIGINT NOT NULL,  -- hours since 1970
    provider TEXT COLLATE "C" NOT NULL,
    route TEXT COLLATE "C" NOT NULL CHECK (route IN ('direct', 'relay')),
    delivered BIGINT NOT NULL DEFAULT 0,
    deferred BIGINT NOT NULL DEFAULT 0,  -- attempts
    bounced BIGINT NOT NULL DEFAULT 0,
    failed BIGINT NOT NULL DEFAULT 0,
    complaints BIGINT NOT NULL DEFAULT 0,
    seconds BIGINT NOT NULL DEFAULT 0,  -- from acceptance to delivery, in total
    within_minute BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (hour, provider, route)
);
