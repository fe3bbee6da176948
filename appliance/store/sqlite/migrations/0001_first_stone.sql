-- Everything that accepting a message over HTTP and simulating its delivery needs.

CREATE TABLE accounts (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    credits INTEGER CHECK (credits >= 0),       -- NULL: unlimited
    daily_cap INTEGER CHECK (daily_cap >= 0),   -- NULL: no warm-up cap; recipients a day (UTC)
    suspended INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE users (
    id TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    email TEXT NOT NULL UNIQUE,                 -- lower case
    password_hash TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('customer', 'admin')),
    token_epoch INTEGER NOT NULL DEFAULT 0,     -- a token of an older epoch is revoked
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX users_by_account ON users (account_id);

CREATE TABLE revoked_tokens (
    token_id TEXT PRIMARY KEY,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX revoked_tokens_by_expiry ON revoked_tokens (expires_at);

CREATE TABLE domains (
    account_id TEXT NOT NULL REFERENCES accounts (id),
    name TEXT NOT NULL,                         -- A-labels, lower case
    usable INTEGER NOT NULL,                    -- added by the operator, or proven by DNS
    created_at INTEGER NOT NULL,
    PRIMARY KEY (account_id, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE smtp_credentials (
    username TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    password_sha256 BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX smtp_credentials_by_account ON smtp_credentials (account_id);

CREATE TABLE api_keys (
    id TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    key_sha256 BLOB NOT NULL UNIQUE,
    hint TEXT NOT NULL,                         -- the last four characters, to tell keys apart
    scope TEXT NOT NULL CHECK (scope IN ('send', 'full')),
    test INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX api_keys_by_account ON api_keys (account_id);

CREATE TABLE templates (
    account_id TEXT NOT NULL REFERENCES accounts (id),
    alias TEXT NOT NULL,
    version INTEGER NOT NULL,                   -- the newest; numbers go on after a delete
    deleted INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (account_id, alias)
) STRICT, WITHOUT ROWID;

CREATE TABLE template_versions (
    account_id TEXT NOT NULL,
    alias TEXT NOT NULL,
    version INTEGER NOT NULL,
    subject TEXT,
    text_body TEXT,
    html_body TEXT,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (account_id, alias, version),
    FOREIGN KEY (account_id, alias) REFERENCES templates (account_id, alias)
) STRICT;

-- A message's rows are written by the hundred in one commit, so each table here has as few indexes as its readers
-- need, and refers to its parents without the engine checking again what the same transaction has just written.
CREATE TABLE messages (
    account_id TEXT NOT NULL REFERENCES accounts (id),
    id TEXT NOT NULL,
    request_id TEXT NOT NULL,
    source TEXT NOT NULL CHECK (source IN ('api', 'smtp', 'test')),
    status TEXT NOT NULL CHECK (status IN ('queued', 'delivered', 'partial', 'failed')),
    billing_status TEXT NOT NULL CHECK (billing_status IN ('reserved', 'settled', 'released')),
    sender TEXT NOT NULL,                       -- as the caller wrote it
    envelope_from TEXT NOT NULL,
    subject TEXT NOT NULL,
    tags TEXT NOT NULL,                         -- a JSON array
    template_alias TEXT,
    template_version INTEGER,
    recipient_count INTEGER NOT NULL,
    credits_reserved INTEGER NOT NULL,
    size INTEGER NOT NULL,                      -- bytes of the MIME message
    created_at INTEGER NOT NULL,
    PRIMARY KEY (account_id, id)
) STRICT, WITHOUT ROWID;

-- The bytes stand apart so that they can go while the record stays.
CREATE TABLE message_bodies (
    message_id TEXT PRIMARY KEY,
    mime BLOB NOT NULL,
    receipt BLOB                                -- the 202's fields as JSON, told again when the request is repeated
) STRICT;

CREATE TABLE recipients (
    message_id TEXT NOT NULL,
    id TEXT NOT NULL,
    account_id TEXT NOT NULL,
    address TEXT NOT NULL,                      -- as the caller spelled it
    domain TEXT NOT NULL,                       -- A-labels, lower case
    simulated INTEGER NOT NULL,                 -- never leaves the machine: a test key's, or sandbox delivery
    charged INTEGER NOT NULL,                   -- a credit was taken for it, so a bounce gives one back
    status TEXT NOT NULL CHECK (status IN ('queued', 'deferred', 'delivered', 'bounced', 'failed')),
    billing_status TEXT NOT NULL CHECK (billing_status IN ('reserved', 'settled', 'released')),
    attempt_count INTEGER NOT NULL DEFAULT 0,
    last_smtp_code INTEGER,
    last_smtp_response TEXT,
    delivered_at INTEGER,
    bounced_at INTEGER,
    next_attempt_at INTEGER,                    -- NULL: final
    PRIMARY KEY (message_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX recipients_due ON recipients (simulated, next_attempt_at) WHERE next_attempt_at IS NOT NULL;

CREATE TABLE attempts (
    recipient_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    finished_at INTEGER NOT NULL,
    smtp_code INTEGER,
    smtp_response TEXT,
    PRIMARY KEY (recipient_id, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    id TEXT PRIMARY KEY,
    account_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    recipient_id TEXT NOT NULL,
    type TEXT NOT NULL,
    body BLOB NOT NULL,                         -- the envelope's bytes, fixed here so that every post of it is the same
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Keys come in any order, so each lands on a page of its own somewhere: the rows are small, to share their pages.
CREATE TABLE idempotency_keys (
    scope TEXT NOT NULL,                        -- the SMTP credential, the API key, or the account of a token
    key TEXT NOT NULL,
    fingerprint BLOB NOT NULL,                  -- of the body as JSON
    message_id TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (expires_at);

CREATE TABLE credit_ledger (
    account_id TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('grant', 'reserve', 'release')),
    amount INTEGER NOT NULL,                    -- signed: what it did to the balance
    balance INTEGER NOT NULL,                   -- after it
    message_id TEXT,
    recipient_id TEXT,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (account_id, id)
) STRICT, WITHOUT ROWID;

-- Counted only for accounts with a daily cap.
CREATE TABLE daily_volume (
    account_id TEXT NOT NULL,
    day INTEGER NOT NULL,                       -- days since 1970, UTC
    recipients INTEGER NOT NULL,
    PRIMARY KEY (account_id, day)
) STRICT, WITHOUT ROWID;

CREATE TABLE suppressions (
    account_id TEXT NOT NULL REFERENCES accounts (id),
    address TEXT NOT NULL,                      -- the key form: lower case, A-labels
    reason TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (account_id, address)
) STRICT, WITHOUT ROWID;
