-- The class of a recipient's last refusal, a bounce that came by mail after its delivery, when it was told to be delayed;
-- and what put an address on a suppression list.
ALTER TABLE recipients ADD COLUMN bounce_class TEXT;
ALTER TABLE recipients ADD COLUMN late_bounce TEXT;
ALTER TABLE recipients ADD COLUMN delayed_at INTEGER;
ALTER TABLE suppressions ADD COLUMN origin TEXT NOT NULL DEFAULT 'manual'
    CHECK (origin IN ('bounce', 'late_bounce', 'complaint', 'unsubscribe', 'manual', 'import'));
UPDATE suppressions SET origin = 'bounce' WHERE substr(reason, 1, 7) = 'bounced';
