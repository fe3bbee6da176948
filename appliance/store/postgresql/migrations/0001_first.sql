-- compatible since: 1
-- The schema of the embedded engine after its migration 0011, in PostgreSQL's words. Text is ordered by its bytes: the
-- order of ids by time depends on it. Times are whole microseconds since 1970 (UTC), and what is optional is NULL.

CREATE TABLE accounts (
    id TEXT COLLATE "C" PRIMARY KEY,
    name TEXT COLLATE "C" NOT NULL UNIQUE,
    credits BIGINT CHECK (credits >= 0),  -- NULL: unlimited
    daily_cap BIGINT CHECK (daily_cap >= 0),  -- NULL: no warm-up cap; recipients a day (UTC)
    suspended BIGINT NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL,
    stored_bytes BIGINT NOT NULL DEFAULT 0  -- of messages, templates and suppressions, see store/stored.py
);

CREATE TABLE users (
    id TEXT COLLATE "C" PRIMARY KEY,
    account_id TEXT COLLATE "C" NOT NULL REFERENCES accounts (id),
    email TEXT COLLATE "C" NOT NULL UNIQUE,  -- lower case
    password_hash TEXT COLLATE "C" NOT NULL,
    role TEXT COLLATE "C" NOT NULL CHECK (role IN ('customer', 'admin')),
    token_epoch BIGINT NOT NULL DEFAULT 0,  -- a token of an older epoch is revoked
    created_at BIGINT NOT NULL
);
CREATE INDEX users_by_account ON users (account_id);

-- A login, for as long as it is renewed. Each renewal counts the generation up; the cookie of an older one ends it all.
CREATE TABLE sessions (
    id TEXT COLLATE "C" PRIMARY KEY,
    user_id TEXT COLLATE "C" NOT NULL REFERENCES users (id),
    generation BIGINT NOT NULL,
    address TEXT COLLATE "C" NOT NULL,  -- where it was used last, and with what
    user_agent TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    renewed_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE INDEX sessions_by_user ON sessions (user_id, renewed_at);
CREATE INDEX sessions_by_expiry ON sessions (expires_at);

CREATE TABLE domains (
    account_id TEXT COLLATE "C" NOT NULL REFERENCES accounts (id),
    name TEXT COLLATE "C" NOT NULL,  -- A-labels, lower case
    usable BIGINT NOT NULL,  -- added by the operator, or proven by DNS
    created_at BIGINT NOT NULL,
    verified_at BIGINT,  -- NULL: not proven by DNS
    removed_at BIGINT,  -- the row stays, for the keys that sign what is still queued
    PRIMARY KEY (account_id, name)
);

CREATE TABLE smtp_credentials (
    username TEXT COLLATE "C" PRIMARY KEY,
    account_id TEXT COLLATE "C" NOT NULL REFERENCES accounts (id),
    password_sha256 BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    revoked_at BIGINT,
    name TEXT COLLATE "C" NOT NULL DEFAULT '',  -- what its owner calls it
    last_used_at BIGINT  -- to the minute
);
CREATE INDEX smtp_credentials_by_account ON smtp_credentials (account_id);

CREATE TABLE api_keys (
    id TEXT COLLATE "C" PRIMARY KEY,
    account_id TEXT COLLATE "C" NOT NULL REFERENCES accounts (id),
    key_sha256 BYTEA NOT NULL UNIQUE,
    hint TEXT COLLATE "C" NOT NULL,  -- the last four characters, to tell keys apart
    scope TEXT COLLATE "C" NOT NULL CHECK (scope IN ('send', 'full')),
    test BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    revoked_at BIGINT,
    name TEXT COLLATE "C" NOT NULL DEFAULT '',
    last_used_at BIGINT
);
CREATE INDEX api_keys_by_account ON api_keys (account_id);

CREATE TABLE templates (
    account_id TEXT COLLATE "C" NOT NULL REFERENCES accounts (id),
    alias TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL,  -- the newest; numbers go on after a delete
    deleted BIGINT NOT NULL DEFAULT 0,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (account_id, alias)
);

CREATE TABLE template_versions (
    account_id TEXT COLLATE "C" NOT NULL,
    alias TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL,
    subject TEXT COLLATE "C",
    text_body TEXT COLLATE "C",
    html_body TEXT COLLATE "C",
    created_at BIGINT NOT NULL,
    PRIMARY KEY (account_id, alias, version),
    FOREIGN KEY (account_id, alias) REFERENCES templates (account_id, alias)
);

-- A message's rows are written by the hundred in one commit, so each table here has as few indexes as its readers
-- need, and refers to its parents without the engine checking again what the same transaction has just written.
--
-- What grows with the mail is partitioned by the time in its ids, so that what is old can be dropped: see partitions.py,
-- which makes the partitions. Rows of a time that has none go to the tables called `_others`.
CREATE TABLE messages (
    account_id TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    request_id TEXT COLLATE "C" NOT NULL,
    source TEXT COLLATE "C" NOT NULL CHECK (source IN ('api', 'smtp', 'test')),
    status TEXT COLLATE "C" NOT NULL CHECK (status IN ('queued', 'delivered', 'partial', 'failed')),
    billing_status TEXT COLLATE "C" NOT NULL CHECK (billing_status IN ('reserved', 'settled', 'released')),
    sender TEXT COLLATE "C" NOT NULL,  -- as the caller wrote it
    envelope_from TEXT COLLATE "C" NOT NULL,
    subject TEXT COLLATE "C" NOT NULL,
    tags TEXT COLLATE "C" NOT NULL,  -- a JSON array
    template_alias TEXT COLLATE "C",
    template_version BIGINT,
    recipient_count BIGINT NOT NULL,
    credits_reserved BIGINT NOT NULL,
    size BIGINT NOT NULL,  -- bytes of the MIME message
    created_at BIGINT NOT NULL,
    PRIMARY KEY (account_id, id)
) PARTITION BY RANGE (id);
CREATE TABLE messages_others PARTITION OF messages DEFAULT;
-- Rare among messages, so that finding them must not mean reading all.
CREATE INDEX messages_failed ON messages (account_id, id) WHERE status = 'failed';
CREATE INDEX messages_partial ON messages (account_id, id) WHERE status = 'partial';
CREATE INDEX messages_test ON messages (account_id, id) WHERE source = 'test';

-- The bytes stand apart so that they can go while the record stays.
CREATE TABLE message_bodies (
    message_id TEXT COLLATE "C" PRIMARY KEY,
    mime BYTEA NOT NULL,  -- empty: no longer kept, though the receipt is
    receipt BYTEA,  -- the 202's fields as JSON, told again when the request is repeated
    signature BYTEA,  -- the DKIM-Signature fields, once made
    parts_size BIGINT NOT NULL DEFAULT 0  -- bytes that follow `mime`, in message_body_parts
) PARTITION BY RANGE (message_id);
CREATE TABLE message_bodies_others PARTITION OF message_bodies DEFAULT;

-- A partition that is about to be dropped takes no more bodies: those of a node whose clock is a day behind are refused.
CREATE FUNCTION refuse_body() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION 'the clock of this node is behind: % is too old', NEW.message_id USING ERRCODE = '55000';
END $$;

-- A large message's bytes, written in a commit each before the message itself: see store/body_parts.py.
CREATE TABLE message_body_parts (
    message_id TEXT COLLATE "C" NOT NULL,
    number BIGINT NOT NULL,  -- from 1
    content BYTEA NOT NULL,
    PRIMARY KEY (message_id, number)
);

-- Messages of which there are parts, but to which no row of message_bodies refers: not accepted yet, left behind by a
-- crash, or past their retention. Every part is referred to by one or the other.
CREATE TABLE loose_parts (
    message_id TEXT COLLATE "C" PRIMARY KEY
);

CREATE TABLE recipients (
    message_id TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    account_id TEXT COLLATE "C" NOT NULL,
    address TEXT COLLATE "C" NOT NULL,  -- as the caller spelled it
    domain TEXT COLLATE "C" NOT NULL,  -- A-labels, lower case
    simulated BIGINT NOT NULL,  -- never leaves the machine: a test key's, or sandbox delivery
    charged BIGINT NOT NULL,  -- a credit was taken for it, so a bounce gives one back
    status TEXT COLLATE "C" NOT NULL CHECK (status IN ('queued', 'deferred', 'delivered', 'bounced', 'failed')),
    billing_status TEXT COLLATE "C" NOT NULL CHECK (billing_status IN ('reserved', 'settled', 'released')),
    attempt_count BIGINT NOT NULL DEFAULT 0,
    last_smtp_code BIGINT,
    last_smtp_response TEXT COLLATE "C",
    delivered_at BIGINT,
    bounced_at BIGINT,
    next_attempt_at BIGINT,  -- NULL: final
    failed_at BIGINT,
    owner TEXT COLLATE "C" NOT NULL DEFAULT current_setting('appliance.owner'),  -- the run of a node that delivers it
    PRIMARY KEY (message_id, id)
) PARTITION BY RANGE (message_id);
CREATE TABLE recipients_others PARTITION OF recipients DEFAULT;
CREATE INDEX recipients_due ON recipients (owner, simulated, next_attempt_at) WHERE next_attempt_at IS NOT NULL;
-- A lane is one account's mail for one domain.
CREATE INDEX recipients_lanes ON recipients (owner, simulated, account_id, domain, next_attempt_at)
    WHERE next_attempt_at IS NOT NULL;

CREATE TABLE attempts (
    recipient_id TEXT COLLATE "C" NOT NULL,
    number BIGINT NOT NULL,
    started_at BIGINT NOT NULL,
    finished_at BIGINT NOT NULL,
    smtp_code BIGINT,
    smtp_response TEXT COLLATE "C",
    pool TEXT COLLATE "C",
    mx_host TEXT COLLATE "C",
    mx_address TEXT COLLATE "C",
    tls TEXT COLLATE "C",  -- version and how far it was verified; NULL: plaintext
    decision TEXT COLLATE "C",  -- in words
    dialogue TEXT COLLATE "C",  -- what was said, a JSON array of lines, bounded
    PRIMARY KEY (recipient_id, number)
) PARTITION BY RANGE (recipient_id);
CREATE TABLE attempts_others PARTITION OF attempts DEFAULT;

CREATE TABLE events (
    id TEXT COLLATE "C" PRIMARY KEY,
    account_id TEXT COLLATE "C" NOT NULL,
    message_id TEXT COLLATE "C" NOT NULL,
    recipient_id TEXT COLLATE "C" NOT NULL,
    type TEXT COLLATE "C" NOT NULL,
    body BYTEA NOT NULL,  -- the envelope's bytes, fixed here so that every post of it is the same
    created_at BIGINT NOT NULL
) PARTITION BY RANGE (id);
CREATE TABLE events_others PARTITION OF events DEFAULT;

-- Keys come in any order, so each lands on a page of its own somewhere: the rows are small, to share their pages.
CREATE TABLE idempotency_keys (
    scope TEXT COLLATE "C" NOT NULL,  -- the SMTP credential, the API key, or the account of a token
    key TEXT COLLATE "C" NOT NULL,
    fingerprint BYTEA NOT NULL,  -- of the body as JSON
    message_id TEXT COLLATE "C" NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (scope, key)
);
CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (expires_at);

CREATE TABLE credit_ledger (
    account_id TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL CHECK (kind IN ('grant', 'reserve', 'release')),
    amount BIGINT NOT NULL,  -- signed: what it did to the balance
    balance BIGINT NOT NULL,  -- after it
    message_id TEXT COLLATE "C",
    recipient_id TEXT COLLATE "C",
    created_at BIGINT NOT NULL,
    PRIMARY KEY (account_id, id)
);

-- Counted only for accounts with a daily cap.
CREATE TABLE daily_volume (
    account_id TEXT COLLATE "C" NOT NULL,
    day BIGINT NOT NULL,  -- days since 1970, UTC
    recipients BIGINT NOT NULL,
    PRIMARY KEY (account_id, day)
);

CREATE TABLE suppressions (
    account_id TEXT COLLATE "C" NOT NULL REFERENCES accounts (id),
    address TEXT COLLATE "C" NOT NULL,  -- the key form: lower case, A-labels
    reason TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (account_id, address)
);

CREATE TABLE dkim_keys (
    account_id TEXT COLLATE "C" NOT NULL,
    domain TEXT COLLATE "C" NOT NULL,
    selector TEXT COLLATE "C" NOT NULL,
    algorithm TEXT COLLATE "C" NOT NULL CHECK (algorithm IN ('rsa', 'ed25519')),
    private_key BYTEA NOT NULL,  -- sealed under the key file
    record TEXT COLLATE "C" NOT NULL,  -- the TXT record to publish
    created_at BIGINT NOT NULL,
    retired_at BIGINT,  -- signs no more; its record stays published for mail on its way
    PRIMARY KEY (account_id, domain, selector),
    FOREIGN KEY (account_id, domain) REFERENCES domains (account_id, name)
);

-- Pools whose mail is held on all nodes: by the operator, or because servers refused the machine this was copied from.
CREATE TABLE pool_holds (
    pool TEXT COLLATE "C" PRIMARY KEY,
    reason TEXT COLLATE "C" NOT NULL,
    held_at BIGINT NOT NULL,
    probe_at BIGINT,  -- when one message goes as a probe; none: it is the operator's
    probes BIGINT NOT NULL DEFAULT 0  -- that were refused
);

-- Pools whose mail one node holds, because servers there refuse it as a sender; no pool is in both tables.
CREATE TABLE node_holds (
    pool TEXT COLLATE "C" NOT NULL,
    node TEXT COLLATE "C" NOT NULL,  -- its name, so that the hold outlives a run
    reason TEXT COLLATE "C" NOT NULL,
    held_at BIGINT NOT NULL,
    probe_at BIGINT NOT NULL,  -- when one message goes as a probe
    probes BIGINT NOT NULL DEFAULT 0,  -- that were refused
    PRIMARY KEY (pool, node)
);

-- What the running server last said of its pools: for `appliance queue` and `appliance explain` in another process.
CREATE TABLE pool_states (
    pool TEXT COLLATE "C" NOT NULL,
    in_use BIGINT NOT NULL,
    allowed BIGINT NOT NULL,
    slowed_until BIGINT,
    slowed_by TEXT COLLATE "C",
    updated_at BIGINT NOT NULL,
    slowed_accounts TEXT COLLATE "C",  -- whose mail alone waits, as JSON: [[account, until, reason, slots], …]
    rate BIGINT,  -- messages a minute, as long as that is what its mail waits for
    owner TEXT COLLATE "C" NOT NULL DEFAULT current_setting('appliance.owner'),  -- the run of a node that delivers it
    PRIMARY KEY (owner, pool)
);

-- The recipients in SMTP sessions that have taken a while, as the running server last said: for `appliance explain`.
CREATE TABLE smtp_sessions (
    recipient_id TEXT COLLATE "C" PRIMARY KEY,
    host TEXT COLLATE "C" NOT NULL,  -- the server that is being tried
    address TEXT COLLATE "C" NOT NULL,
    started_at BIGINT NOT NULL,  -- of the attempt, which may have tried other servers before
    awaits TEXT COLLATE "C" NOT NULL,  -- what the server is to do next: `connection`, `greeting`, `mail`, …
    since BIGINT NOT NULL,
    owner TEXT COLLATE "C" NOT NULL DEFAULT current_setting('appliance.owner')  -- the run of a node that delivers it
);

-- Which pool a domain's mail goes through, as its MX records were when last looked up.
CREATE TABLE destinations (
    domain TEXT COLLATE "C" PRIMARY KEY,
    pool TEXT COLLATE "C" NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE INDEX destinations_by_pool ON destinations (pool);

-- How far the warm-up of this machine's addresses has come at each pool. Kept when it is over, or it would begin again.
CREATE TABLE warmups (
    pool TEXT COLLATE "C" NOT NULL,
    source TEXT COLLATE "C" NOT NULL,  -- the address mail leaves from, as the system knows it
    day BIGINT NOT NULL,  -- of the warm-up, from 0; days on which nothing went do not count
    day_at BIGINT NOT NULL,  -- when that day began
    sent BIGINT NOT NULL,  -- recipients on that day
    hour_at BIGINT NOT NULL,  -- when the hour began that is counted
    used BIGINT NOT NULL,  -- recipients in that hour
    rested_at BIGINT NOT NULL,  -- when a burst may go again, if nothing goes until then
    PRIMARY KEY (pool, source)
);
CREATE INDEX warmups_by_hour ON warmups (hour_at);

CREATE TABLE webhooks (
    id TEXT COLLATE "C" PRIMARY KEY,
    account_id TEXT COLLATE "C" UNIQUE REFERENCES accounts (id),  -- NULL: deleted; the row goes when its log has gone
    url TEXT COLLATE "C" NOT NULL,
    events TEXT COLLATE "C" NOT NULL,  -- the types it wants, with a space between them
    enabled BIGINT NOT NULL,
    secret BYTEA NOT NULL,  -- sealed under the key file
    secret_hint TEXT COLLATE "C" NOT NULL,  -- its last four characters, to tell secrets apart
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    last_success_at BIGINT,
    last_failure_at BIGINT
);

-- When an account last pinged its webhook; it outlives the webhook, or deleting that would end the cooldown.
CREATE TABLE webhook_pings (
    account_id TEXT COLLATE "C" PRIMARY KEY REFERENCES accounts (id),
    pinged_at BIGINT NOT NULL
);

-- One post of one event, updated by each attempt. It keeps a body of its own, so that it can be repeated byte for byte
-- for as long as it is shown.
CREATE TABLE webhook_deliveries (
    webhook_id TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    event_id TEXT COLLATE "C" NOT NULL,
    type TEXT COLLATE "C" NOT NULL,
    message_id TEXT COLLATE "C",  -- NULL: a ping
    recipient_id TEXT COLLATE "C",
    url TEXT COLLATE "C" NOT NULL,  -- of the last attempt
    cause TEXT COLLATE "C" NOT NULL CHECK (cause IN ('event', 'ping', 'replay')),
    status TEXT COLLATE "C" NOT NULL CHECK (status IN ('pending', 'success', 'failed')),
    attempt BIGINT NOT NULL DEFAULT 0,  -- how many there were
    request_body BYTEA NOT NULL,  -- as it is posted
    response_status BIGINT,
    response_body TEXT COLLATE "C",  -- the beginning of it
    error TEXT COLLATE "C",  -- in words; NULL: an answer came
    duration_ms BIGINT,
    created_at BIGINT NOT NULL,
    attempted_at BIGINT,
    next_attempt_at BIGINT,  -- NULL: final
    owner TEXT COLLATE "C" NOT NULL DEFAULT current_setting('appliance.owner'),  -- the run of a node that delivers it
    PRIMARY KEY (webhook_id, id)
) PARTITION BY RANGE (id);
CREATE TABLE webhook_deliveries_others PARTITION OF webhook_deliveries DEFAULT;
-- A lane is one webhook's posts of one cause: a ping does not wait behind a backlog of events.
CREATE INDEX webhook_deliveries_lanes ON webhook_deliveries (owner, cause, webhook_id, next_attempt_at)
    WHERE next_attempt_at IS NOT NULL;
CREATE INDEX webhook_deliveries_by_message ON webhook_deliveries (webhook_id, message_id, id);
CREATE INDEX webhook_deliveries_done ON webhook_deliveries (created_at) WHERE next_attempt_at IS NULL;

-- Recipients by the hour (UTC): accepted, and what became of them; test mail is not counted. Added up from messages and
-- events some seconds after they were written, so that sending does not pay for it.
CREATE TABLE hourly_counts (
    account_id TEXT COLLATE "C" NOT NULL,
    hour BIGINT NOT NULL,  -- hours since 1970
    kind TEXT COLLATE "C" NOT NULL CHECK (kind IN ('sent', 'delivered', 'bounced', 'failed')),
    bucket BIGINT NOT NULL,  -- how long a delivery took, logarithmically; 0 for all others
    recipients BIGINT NOT NULL,
    PRIMARY KEY (account_id, hour, kind, bucket)
);

-- How far that has come.
CREATE TABLE counted_until (
    kind TEXT COLLATE "C" PRIMARY KEY,
    id TEXT COLLATE "C" NOT NULL
);

-- One run of a node, for as long as it renews its lease. All times are by the database's clock.
CREATE TABLE nodes (
    owner TEXT COLLATE "C" PRIMARY KEY,  -- stands in the rows that this run delivers
    name TEXT COLLATE "C" NOT NULL,
    home TEXT COLLATE "C" NOT NULL,  -- of its data directory: a node that starts there again takes these rows at once
    address TEXT COLLATE "C" NOT NULL,  -- its host name
    addresses TEXT COLLATE "C" NOT NULL DEFAULT '',  -- where the others would reach it, with a space between them
    version TEXT COLLATE "C" NOT NULL,
    schema BIGINT NOT NULL,  -- the newest that its program knows
    started_at BIGINT NOT NULL,
    beat_at BIGINT NOT NULL,
    lease_until BIGINT NOT NULL,
    skew BIGINT NOT NULL DEFAULT 0,  -- microseconds by which its clock is ahead
    in_flight BIGINT NOT NULL DEFAULT 0,  -- recipients in SMTP sessions
    draining BIGINT NOT NULL DEFAULT 0,
    acme TEXT COLLATE "C" NOT NULL DEFAULT '',  -- which certificate it wants by ACME, as JSON; empty: none
    adopted_by TEXT COLLATE "C"  -- NULL: it delivers its rows; else they go to others, and it must not go on
);
CREATE UNIQUE INDEX nodes_by_name ON nodes (name) WHERE adopted_by IS NULL;

-- What one node at a time does for all.
CREATE TABLE chores (
    name TEXT COLLATE "C" PRIMARY KEY,
    owner TEXT COLLATE "C" NOT NULL,
    lease_until BIGINT NOT NULL
);

-- Requests to give up mail that another node delivers: only that one knows which of it is in a session just now.
CREATE TABLE cancellations (
    id TEXT COLLATE "C" PRIMARY KEY,
    owner TEXT COLLATE "C" NOT NULL,  -- who is asked
    message_id TEXT COLLATE "C" NOT NULL,
    account_id TEXT COLLATE "C",  -- NULL: the operator asks
    reason TEXT COLLATE "C" NOT NULL,
    asked_at BIGINT NOT NULL,
    cancelled BIGINT,  -- recipients; NULL: not answered yet
    refusal TEXT COLLATE "C"  -- why nothing was cancelled
);
CREATE INDEX cancellations_by_owner ON cancellations (owner) WHERE cancelled IS NULL;

-- Failed logins, for the other nodes to count them too; kept for some minutes.
CREATE TABLE login_failures (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner TEXT COLLATE "C" NOT NULL DEFAULT current_setting('appliance.owner'),
    account TEXT COLLATE "C" NOT NULL,  -- as it was given
    network TEXT COLLATE "C" NOT NULL,
    at BIGINT NOT NULL
);
CREATE INDEX login_failures_by_time ON login_failures (at);

-- What ACME keeps for all nodes, by the names of its files: the account's key, the certificate with its key, the state.
CREATE TABLE acme_records (
    name TEXT COLLATE "C" PRIMARY KEY,
    sealed BYTEA NOT NULL  -- under the key file
);

-- The challenges of the certificate that a node is requesting just now: the authority may ask any node for them.
CREATE TABLE acme_challenges (
    token TEXT COLLATE "C" PRIMARY KEY,
    text TEXT COLLATE "C" NOT NULL  -- the answer
);

-- Facts of the installation itself, by name: the fingerprint of the key file that seals its secrets.
CREATE TABLE installation (
    name TEXT COLLATE "C" PRIMARY KEY,
    value TEXT COLLATE "C" NOT NULL
);
