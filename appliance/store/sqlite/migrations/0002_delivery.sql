-- Delivery to the world: keys to sign with, what happened on the way, and mail in lanes so that nobody's backlog
-- stands before somebody else's single message.

ALTER TABLE attempts ADD COLUMN pool TEXT;
ALTER TABLE attempts ADD COLUMN mx_host TEXT;
ALTER TABLE attempts ADD COLUMN mx_address TEXT;
ALTER TABLE attempts ADD COLUMN tls TEXT;
ALTER TABLE attempts ADD COLUMN decision TEXT;
ALTER TABLE attempts ADD COLUMN dialogue TEXT;

ALTER TABLE message_bodies ADD COLUMN signature BLOB;

CREATE TABLE dkim_keys (
    account_id TEXT NOT NULL,
    domain TEXT NOT NULL,
    selector TEXT NOT NULL,
    algorithm TEXT NOT NULL CHECK (algorithm IN ('rsa', 'ed25519')),
    private_key BLOB NOT NULL,                  -- sealed under the key file
    record TEXT NOT NULL,                       -- the TXT record to publish
    created_at INTEGER NOT NULL,
    retired_at INTEGER,                         -- signs no more; its record stays published for mail on its way
    PRIMARY KEY (account_id, domain, selector),
    FOREIGN KEY (account_id, domain) REFERENCES domains (account_id, name)
) STRICT, WITHOUT ROWID;

-- A lane is one account's mail for one domain.
CREATE INDEX recipients_lanes ON recipients (simulated, account_id, domain, next_attempt_at)
    WHERE next_attempt_at IS NOT NULL;

-- Pools whose mail is held, by the operator or because servers there refuse us as a sender.
CREATE TABLE pool_holds (
    pool TEXT PRIMARY KEY,
    reason TEXT NOT NULL,
    held_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What the running server last said of its pools: for `appliance queue` and `appliance explain` in another process.
CREATE TABLE pool_states (
    pool TEXT PRIMARY KEY,
    in_use INTEGER NOT NULL,
    allowed INTEGER NOT NULL,
    slowed_until INTEGER,
    slowed_by TEXT,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Which pool a domain's mail goes through, as its MX records were when last looked up.
CREATE TABLE destinations (
    domain TEXT PRIMARY KEY,
    pool TEXT NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
