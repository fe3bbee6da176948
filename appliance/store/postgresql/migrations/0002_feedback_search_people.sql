-- compatible since: 1
-- Return paths, feedback, reports, search, keys with limits, several users and the audit log. Versions of November 2026
-- made some or all of it in step 1, so every statement leaves alone what is there.

ALTER TABLE users ADD COLUMN IF NOT EXISTS account_role TEXT COLLATE "C" NOT NULL DEFAULT 'owner';
ALTER TABLE users DROP CONSTRAINT IF EXISTS users_account_role_check;
ALTER TABLE users ADD CONSTRAINT users_account_role_check CHECK (account_role IN ('owner', 'developer', 'viewer'));

ALTER TABLE domains
    ADD COLUMN IF NOT EXISTS return_path TEXT COLLATE "C",  -- NULL: bounces.NAME
    ADD COLUMN IF NOT EXISTS return_path_at BIGINT;  -- since when DNS shows its records; NULL: not in use
CREATE INDEX IF NOT EXISTS domains_return_path ON domains (coalesce(return_path, 'bounces.' || name));

ALTER TABLE api_keys DROP CONSTRAINT IF EXISTS api_keys_scope_check;
ALTER TABLE api_keys
    ADD CONSTRAINT api_keys_scope_check CHECK (scope IN ('send', 'read', 'full', 'manage')),
    ADD COLUMN IF NOT EXISTS last_used_from TEXT COLLATE "C",  -- the client's address
    ADD COLUMN IF NOT EXISTS domain TEXT COLLATE "C",  -- the only one that it may send from; NULL: any of the account
    ADD COLUMN IF NOT EXISTS expires_at BIGINT,
    ADD COLUMN IF NOT EXISTS previous_sha256 BYTEA,  -- the secret that was replaced last, and is good until then
    ADD COLUMN IF NOT EXISTS previous_hint TEXT COLLATE "C",
    ADD COLUMN IF NOT EXISTS previous_expires_at BIGINT;
CREATE UNIQUE INDEX IF NOT EXISTS api_keys_previous_sha256_key ON api_keys (previous_sha256);

ALTER TABLE templates
    ADD COLUMN IF NOT EXISTS unsubscribe BIGINT NOT NULL DEFAULT 0;  -- messages with it get a link to unsubscribe

ALTER TABLE recipients
    -- of the last reply that was no success, see feedback/bounce_class.py
    ADD COLUMN IF NOT EXISTS bounce_class TEXT COLLATE "C",
    -- came by mail after the delivery: JSON {at, code, response, class}
    ADD COLUMN IF NOT EXISTS late_bounce TEXT COLLATE "C",
    -- the first deferral an hour or more after it was accepted
    ADD COLUMN IF NOT EXISTS delayed_at BIGINT,
    -- what its sender wants to be told of it by mail: JSON, see model/mail.py
    ADD COLUMN IF NOT EXISTS dsn TEXT COLLATE "C";

ALTER TABLE suppressions ADD COLUMN IF NOT EXISTS origin TEXT COLLATE "C" NOT NULL DEFAULT 'manual';
ALTER TABLE suppressions DROP CONSTRAINT IF EXISTS suppressions_origin_check;
ALTER TABLE suppressions ADD CONSTRAINT suppressions_origin_check
    CHECK (origin IN ('bounce', 'late_bounce', 'complaint', 'unsubscribe', 'manual', 'import'));
UPDATE suppressions SET origin = 'bounce' WHERE origin = 'manual' AND substr(reason, 1, 7) = 'bounced';

ALTER TABLE dkim_keys
    -- made by a rotation, and signs once DNS shows its record
    ADD COLUMN IF NOT EXISTS pending BIGINT NOT NULL DEFAULT 0;
CREATE INDEX IF NOT EXISTS dkim_keys_pending ON dkim_keys (account_id, domain) WHERE pending = 1;

-- A link that sets a password, once: of a user who is invited, or of one who has forgotten it.
CREATE TABLE IF NOT EXISTS password_links (
    id TEXT COLLATE "C" PRIMARY KEY,
    account_id TEXT COLLATE "C" NOT NULL REFERENCES accounts (id),
    user_id TEXT COLLATE "C" REFERENCES users (id),  -- NULL: an invitation, and the user is created with the password
    email TEXT COLLATE "C" NOT NULL,  -- lower case
    account_role TEXT COLLATE "C" NOT NULL CHECK (account_role IN ('owner', 'developer', 'viewer')),
    token_sha256 BYTEA NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE INDEX IF NOT EXISTS password_links_by_account ON password_links (account_id);
CREATE INDEX IF NOT EXISTS password_links_by_user ON password_links (user_id);
CREATE INDEX IF NOT EXISTS password_links_by_expiry ON password_links (expires_at);

-- The second factor of a user (RFC 6238).
CREATE TABLE IF NOT EXISTS second_factors (
    user_id TEXT COLLATE "C" PRIMARY KEY REFERENCES users (id),
    secret BYTEA NOT NULL,  -- sealed under the key file
    created_at BIGINT NOT NULL,
    confirmed_at BIGINT,  -- NULL: not in force, no code of it was given yet
    last_step BIGINT NOT NULL  -- of the code that was used last: it and older ones are spent
);

-- What a user has in place of codes, each good once: then its row goes.
CREATE TABLE IF NOT EXISTS recovery_codes (
    user_id TEXT COLLATE "C" NOT NULL REFERENCES users (id),
    code_sha256 BYTEA NOT NULL,
    PRIMARY KEY (user_id, code_sha256)
);

-- Addresses that get no more messages of one list: `tag:NAME` or `template:ALIAS`.
CREATE TABLE IF NOT EXISTS unsubscriptions (
    account_id TEXT COLLATE "C" NOT NULL REFERENCES accounts (id),
    address TEXT COLLATE "C" NOT NULL,  -- the key form, as in suppressions
    list TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (account_id, address, list)
);

-- Tags whose messages get a link to unsubscribe.
CREATE TABLE IF NOT EXISTS unsubscribe_tags (
    account_id TEXT COLLATE "C" NOT NULL REFERENCES accounts (id),
    tag TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (account_id, tag)
);

-- Mail that came to return paths and report addresses, until it is read.
CREATE TABLE IF NOT EXISTS feedback_mail (
    id TEXT COLLATE "C" PRIMARY KEY,
    addresses TEXT COLLATE "C" NOT NULL,  -- it was sent to, with a space between them
    mime BYTEA NOT NULL,  -- its beginning, see inbound/listener.py
    received_at BIGINT NOT NULL,
    tries BIGINT NOT NULL DEFAULT 0  -- readings that were begun
);
CREATE INDEX IF NOT EXISTS feedback_mail_next ON feedback_mail (tries, id);

-- One for each recipient that complained.
CREATE TABLE IF NOT EXISTS complaints (
    account_id TEXT COLLATE "C" NOT NULL,
    recipient_id TEXT COLLATE "C" NOT NULL,
    message_id TEXT COLLATE "C" NOT NULL,
    domain TEXT COLLATE "C" NOT NULL,  -- of the account, that the message was sent from
    provider TEXT COLLATE "C" NOT NULL,  -- the pool of the recipient's domain, or that domain
    kind TEXT COLLATE "C" NOT NULL,  -- `abuse` and others, RFC 5965 7.3
    at BIGINT NOT NULL,
    PRIMARY KEY (account_id, recipient_id)
);
CREATE INDEX IF NOT EXISTS complaints_by_time ON complaints (at);

-- DMARC aggregate reports: each counts once, however often it is sent.
CREATE TABLE IF NOT EXISTS dmarc_reports (
    account_id TEXT COLLATE "C" NOT NULL,
    domain TEXT COLLATE "C" NOT NULL,
    org TEXT COLLATE "C" NOT NULL,  -- that sent it, as it calls itself
    report_id TEXT COLLATE "C" NOT NULL,  -- given by it
    day BIGINT NOT NULL,  -- that it is about: days since 1970, UTC
    policy TEXT COLLATE "C" NOT NULL,  -- none, quarantine or reject, as the receiver saw it
    percentage BIGINT NOT NULL,
    messages BIGINT NOT NULL,
    passed BIGINT NOT NULL,
    received_at BIGINT NOT NULL,
    PRIMARY KEY (account_id, domain, org, report_id)
);
CREATE INDEX IF NOT EXISTS dmarc_reports_by_day ON dmarc_reports (account_id, domain, day);
CREATE INDEX IF NOT EXISTS dmarc_reports_old ON dmarc_reports (day);

-- The messages in those reports by day and source.
CREATE TABLE IF NOT EXISTS dmarc_sources (
    account_id TEXT COLLATE "C" NOT NULL,
    domain TEXT COLLATE "C" NOT NULL,
    day BIGINT NOT NULL,
    source TEXT COLLATE "C" NOT NULL,  -- an IP address; empty: all those over the limit
    messages BIGINT NOT NULL,
    passed BIGINT NOT NULL,  -- DMARC: by DKIM or SPF, aligned
    dkim BIGINT NOT NULL,
    spf BIGINT NOT NULL,
    quarantined BIGINT NOT NULL,
    rejected BIGINT NOT NULL,
    PRIMARY KEY (account_id, domain, day, source)
);
CREATE INDEX IF NOT EXISTS dmarc_sources_old ON dmarc_sources (day);

-- TLS reports (RFC 8460).
CREATE TABLE IF NOT EXISTS tls_reports (
    account_id TEXT COLLATE "C" NOT NULL,
    domain TEXT COLLATE "C" NOT NULL,
    org TEXT COLLATE "C" NOT NULL,
    report_id TEXT COLLATE "C" NOT NULL,
    day BIGINT NOT NULL,
    successes BIGINT NOT NULL,  -- sessions
    failures BIGINT NOT NULL,
    received_at BIGINT NOT NULL,
    PRIMARY KEY (account_id, domain, org, report_id)
);
CREATE INDEX IF NOT EXISTS tls_reports_by_day ON tls_reports (account_id, domain, day);
CREATE INDEX IF NOT EXISTS tls_reports_old ON tls_reports (day);

-- The failed sessions in those reports by day, server and type of failure; both are empty for all over the limit.
CREATE TABLE IF NOT EXISTS tls_failures (
    account_id TEXT COLLATE "C" NOT NULL,
    domain TEXT COLLATE "C" NOT NULL,
    day BIGINT NOT NULL,
    mx TEXT COLLATE "C" NOT NULL,
    type TEXT COLLATE "C" NOT NULL,
    sessions BIGINT NOT NULL,
    PRIMARY KEY (account_id, domain, day, mx, type)
);
CREATE INDEX IF NOT EXISTS tls_failures_old ON tls_failures (day);

-- Recipients by day (UTC), what became of them, class of bounce and provider; added up as hourly_counts are.
CREATE TABLE IF NOT EXISTS daily_feedback (
    account_id TEXT COLLATE "C" NOT NULL,
    day BIGINT NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,  -- the type of the event, without `email.`
    class TEXT COLLATE "C" NOT NULL,  -- of a bounce; empty: none
    provider TEXT COLLATE "C" NOT NULL,  -- a pool with a name of its own; empty: all others
    recipients BIGINT NOT NULL,
    PRIMARY KEY (account_id, day, kind, class, provider)
);
CREATE INDEX IF NOT EXISTS daily_feedback_old ON daily_feedback (day);

-- The index of messages by words, made behind the mail: see store/search_index.py. A block is some thousand messages of
-- one account that follow each other.
CREATE TABLE IF NOT EXISTS search_blocks (
    number BIGINT PRIMARY KEY,
    account_id TEXT COLLATE "C" NOT NULL,
    after_id TEXT COLLATE "C" NOT NULL,  -- it has all messages after this one, as long as none is deleted
    last_id TEXT COLLATE "C" NOT NULL,  -- up to this one
    size BIGINT NOT NULL,  -- messages; 0: not in use, not yet or no more
    ids TEXT COLLATE "C" NOT NULL  -- of its messages in their order, each without `msg_`
);
CREATE INDEX IF NOT EXISTS search_blocks_by_account ON search_blocks (account_id, after_id);
CREATE INDEX IF NOT EXISTS search_blocks_unused ON search_blocks (number) WHERE size = 0;

CREATE TABLE IF NOT EXISTS search_terms (
    block BIGINT NOT NULL,
    term TEXT COLLATE "C" NOT NULL,
    postings TEXT COLLATE "C" NOT NULL,  -- which messages of the block have it: their numbers from 0, as 4 hex digits
    PRIMARY KEY (block, term)
);

-- How far that has come.
CREATE TABLE IF NOT EXISTS search_positions (
    account_id TEXT COLLATE "C" PRIMARY KEY,
    message_id TEXT COLLATE "C" NOT NULL
);

-- Messages of which something has changed so late that they may be in a block already.
CREATE TABLE IF NOT EXISTS search_changes (
    account_id TEXT COLLATE "C" NOT NULL,
    message_id TEXT COLLATE "C" NOT NULL,
    changed_at BIGINT NOT NULL,
    PRIMARY KEY (account_id, message_id)
);

-- Changes by people, API keys and the operator; an action of an administrator on another account has a row in both.
CREATE TABLE IF NOT EXISTS audit_log (
    account_id TEXT COLLATE "C" NOT NULL,  -- empty: the installation's
    id TEXT COLLATE "C" NOT NULL,
    at BIGINT NOT NULL,
    actor_kind TEXT COLLATE "C" NOT NULL,  -- user, key, operator
    actor TEXT COLLATE "C" NOT NULL,  -- the user's email address, the key's id, the system's user
    actor_name TEXT COLLATE "C" NOT NULL,  -- of a key
    action TEXT COLLATE "C" NOT NULL,
    object TEXT COLLATE "C" NOT NULL,
    details TEXT COLLATE "C" NOT NULL,  -- a JSON object; no secrets
    address TEXT COLLATE "C" NOT NULL,  -- the client's, or `cli`
    PRIMARY KEY (account_id, id)
);
CREATE INDEX IF NOT EXISTS audit_log_old ON audit_log (at);
