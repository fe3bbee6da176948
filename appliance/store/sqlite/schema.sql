-- The schema as all migrations together leave it; tests hold the two against each other.
-- Times are whole microseconds since 1970 (UTC), ids are our own text, and what is optional is NULL.

CREATE TABLE migrations (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT;

CREATE TABLE accounts (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    credits INTEGER CHECK (credits >= 0),       -- NULL: unlimited
    daily_cap INTEGER CHECK (daily_cap >= 0),   -- NULL: no warm-up cap; recipients a day (UTC)
    suspended INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    stored_bytes INTEGER NOT NULL DEFAULT 0     -- of messages, templates and suppressions, see store/stored.py
) STRICT, WITHOUT ROWID;

CREATE TABLE users (
    id TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    email TEXT NOT NULL UNIQUE,                 -- lower case
    password_hash TEXT NOT NULL,
    role TEXT NOT NULL CHECK (role IN ('customer', 'admin')),
    token_epoch INTEGER NOT NULL DEFAULT 0,     -- a token of an older epoch is revoked
    created_at INTEGER NOT NULL,
    account_role TEXT NOT NULL DEFAULT 'owner' CHECK (account_role IN ('owner', 'developer', 'viewer')),
    notify TEXT NOT NULL DEFAULT 'at_once',     -- or daily, never: mail about problems
    notified_at INTEGER NOT NULL DEFAULT 0,     -- when the last such mail was queued
    notified_until INTEGER NOT NULL DEFAULT 0   -- problems that opened until then are known to the user
) STRICT, WITHOUT ROWID;
CREATE INDEX users_by_account ON users (account_id);

-- A login, for as long as it is renewed. Each renewal counts the generation up; the cookie of an older one ends it all.
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    generation INTEGER NOT NULL,
    address TEXT NOT NULL,                      -- where it was used last, and with what
    user_agent TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    renewed_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_by_user ON sessions (user_id, renewed_at);
CREATE INDEX sessions_by_expiry ON sessions (expires_at);

-- A link that sets a password, once: of a user who is invited, or of one who has forgotten it.
CREATE TABLE password_links (
    id TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    user_id TEXT REFERENCES users (id),         -- NULL: an invitation, and the user is created with the password
    email TEXT NOT NULL,                        -- lower case
    account_role TEXT NOT NULL CHECK (account_role IN ('owner', 'developer', 'viewer')),
    token_sha256 BLOB NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX password_links_by_account ON password_links (account_id);
CREATE INDEX password_links_by_user ON password_links (user_id);
CREATE INDEX password_links_by_expiry ON password_links (expires_at);

-- The second factor of a user (RFC 6238).
CREATE TABLE second_factors (
    user_id TEXT PRIMARY KEY REFERENCES users (id),
    secret BLOB NOT NULL,                       -- sealed under the key file
    created_at INTEGER NOT NULL,
    confirmed_at INTEGER,                       -- NULL: not in force, no code of it was given yet
    last_step INTEGER NOT NULL                  -- of the code that was used last: it and older ones are spent
) STRICT, WITHOUT ROWID;

-- What a user has in place of codes, each good once: then its row goes.
CREATE TABLE recovery_codes (
    user_id TEXT NOT NULL REFERENCES users (id),
    code_sha256 BLOB NOT NULL,
    PRIMARY KEY (user_id, code_sha256)
) STRICT, WITHOUT ROWID;

-- A user's named filters of the message list.
CREATE TABLE saved_views (
    user_id TEXT NOT NULL REFERENCES users (id),
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    filters TEXT NOT NULL,                      -- a JSON object of texts
    created_at INTEGER NOT NULL,
    PRIMARY KEY (user_id, id),
    UNIQUE (user_id, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE domains (
    account_id TEXT NOT NULL REFERENCES accounts (id),
    name TEXT NOT NULL,                         -- A-labels, lower case
    usable INTEGER NOT NULL,                    -- added by the operator, or proven by DNS
    created_at INTEGER NOT NULL,
    verified_at INTEGER,                        -- NULL: not proven by DNS
    removed_at INTEGER,                         -- the row stays, for the keys that sign what is still queued
    return_path TEXT,                           -- NULL: bounces.NAME
    return_path_at INTEGER,                     -- since when DNS shows its records; NULL: not in use
    dns TEXT,                                   -- what DNS showed when it was last asked: JSON, see model/mail.py
    dns_check_at INTEGER NOT NULL DEFAULT 0,    -- when to ask again
    PRIMARY KEY (account_id, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX domains_return_path ON domains (coalesce(return_path, 'bounces.' || name));
CREATE INDEX domains_dns ON domains (dns_check_at) WHERE removed_at IS NULL;

CREATE TABLE smtp_credentials (
    username TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    password_sha256 BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER,
    name TEXT NOT NULL DEFAULT '',              -- what its owner calls it
    last_used_at INTEGER,                       -- to the minute
    created_by TEXT,                            -- the user who created it; NULL: the shell, or unknown
    dsn TEXT,                                   -- 'failure': the default of NOTIFY; NULL: no notification
    stream TEXT                                 -- of its messages, unless they or their template name one
) STRICT, WITHOUT ROWID;
CREATE INDEX smtp_credentials_by_account ON smtp_credentials (account_id);

CREATE TABLE api_keys (
    id TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    key_sha256 BLOB NOT NULL UNIQUE,
    hint TEXT NOT NULL,                         -- the last four characters, to tell keys apart
    scope TEXT NOT NULL CHECK (scope IN ('send', 'read', 'full', 'manage')),
    test INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER,
    name TEXT NOT NULL DEFAULT '',
    last_used_at INTEGER,
    last_used_from TEXT,                        -- the client's address
    domain TEXT,                                -- the only one that it may send from; NULL: any of the account
    expires_at INTEGER,
    previous_sha256 BLOB UNIQUE,                -- the secret that was replaced last, and is good until then
    previous_hint TEXT,
    previous_expires_at INTEGER,
    created_by TEXT,                            -- the user who created it; NULL: the shell, or unknown
    stream TEXT                                 -- of its messages, unless they or their template name one
) STRICT, WITHOUT ROWID;
CREATE INDEX api_keys_by_account ON api_keys (account_id);

CREATE TABLE templates (
    account_id TEXT NOT NULL REFERENCES accounts (id),
    alias TEXT NOT NULL,
    version INTEGER NOT NULL,                   -- the newest; numbers go on after a delete
    deleted INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    unsubscribe INTEGER NOT NULL DEFAULT 0,     -- messages with it get a link to unsubscribe
    stream TEXT,                                -- of messages with it, unless they name one
    PRIMARY KEY (account_id, alias)
) STRICT, WITHOUT ROWID;
CREATE INDEX templates_live ON templates (account_id, alias) WHERE deleted = 0;
CREATE INDEX templates_deleted ON templates (account_id, updated_at) WHERE deleted = 1;

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
    credential TEXT,                            -- the API key's id or the SMTP username; NULL: a login, or unknown
    confidential INTEGER NOT NULL DEFAULT 0,    -- has a link that sets a password: only its recipient reads it
    metadata TEXT,                              -- a JSON object of strings; NULL: none
    header_id TEXT,                             -- the Message-ID, without brackets; NULL: see NewMessage in model/mail.py
    scheduled_at INTEGER,                       -- when it is due; NULL: at once. It stays after that
    stream TEXT NOT NULL DEFAULT 'transactional',
    PRIMARY KEY (account_id, id)
) STRICT, WITHOUT ROWID;
-- Rare among messages, so that finding them must not mean reading all.
CREATE INDEX messages_failed ON messages (account_id, id) WHERE status = 'failed';
CREATE INDEX messages_partial ON messages (account_id, id) WHERE status = 'partial';
CREATE INDEX messages_test ON messages (account_id, id) WHERE source = 'test';
-- A reply names the Message-ID of the message that it answers.
CREATE INDEX messages_header_id ON messages (account_id, header_id) WHERE header_id IS NOT NULL;

-- Messages that are not due yet: see store/scheduled.py.
CREATE TABLE scheduled_messages (
    account_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    due_at INTEGER,                             -- NULL: it was due while the account was suspended
    PRIMARY KEY (account_id, message_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX scheduled_messages_due ON scheduled_messages (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX scheduled_messages_held ON scheduled_messages (account_id) WHERE due_at IS NULL;

-- The bytes stand apart so that they can go while the record stays.
CREATE TABLE message_bodies (
    message_id TEXT PRIMARY KEY,
    mime BLOB NOT NULL,                         -- empty: no longer kept, though the receipt is
    receipt BLOB,                               -- the 202's fields as JSON, told again when the request is repeated
    signature BLOB,                             -- the DKIM-Signature fields, once made
    parts_size INTEGER NOT NULL DEFAULT 0       -- bytes that follow `mime`, in message_body_parts
) STRICT;

-- A large message's bytes, written in a commit each before the message itself: see store/body_parts.py.
CREATE TABLE message_body_parts (
    message_id TEXT NOT NULL,
    number INTEGER NOT NULL,                    -- from 1
    content BLOB NOT NULL,
    PRIMARY KEY (message_id, number)
) STRICT;

-- Messages of which there are parts, but to which no row of message_bodies refers: not accepted yet, left behind by a
-- crash, or past their retention. Every part is referred to by one or the other.
CREATE TABLE loose_parts (
    message_id TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

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
    next_attempt_at INTEGER,                    -- NULL: final, or queued in a message that is not due yet
    failed_at INTEGER,                          -- of a deferred one: when it was last tried
    bounce_class TEXT,                          -- of the last reply that was no success, see feedback/reply_rules.toml
    late_bounce TEXT,                           -- came by mail after the delivery: JSON {at, code, response, class}
    delayed_at INTEGER,                         -- the first deferral an hour or more after it was accepted
    dsn TEXT,                                   -- what its sender wants to be told of it by mail: JSON, see model/mail.py
    failure TEXT,                               -- suppressed or cancelled; NULL: a server decided, or none has yet
    low INTEGER NOT NULL DEFAULT 0,             -- 1: of a stream with low priority
    bucket INTEGER,                             -- of the ramp, by the address; NULL: it was off at acceptance
    route TEXT,                                 -- the only one that may take it: direct or relay; NULL: none yet, or no ramp
    PRIMARY KEY (message_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX recipients_due ON recipients (simulated, low, next_attempt_at) WHERE next_attempt_at IS NOT NULL;
-- A lane is one account's mail for one domain, with high or with low priority.
CREATE INDEX recipients_lanes ON recipients (simulated, low, account_id, domain, next_attempt_at)
    WHERE next_attempt_at IS NOT NULL;
-- Those that bounced, failed or are deferred, by when: see RESULT in store/message_records.py.
CREATE INDEX recipients_problems ON recipients
    (account_id, coalesce(bounced_at, failed_at), id)
    WHERE coalesce(failure, status) IN ('bounced', 'failed', 'deferred');
CREATE INDEX recipients_late_bounces ON recipients (account_id, message_id) WHERE late_bounce IS NOT NULL;

CREATE TABLE attempts (
    recipient_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    finished_at INTEGER NOT NULL,
    smtp_code INTEGER,
    smtp_response TEXT,
    pool TEXT,
    mx_host TEXT,
    mx_address TEXT,
    tls TEXT,                                   -- version and how far it was verified; NULL: plaintext
    decision TEXT,                              -- in words
    dialogue TEXT,                              -- what was said, a JSON array of lines, bounded
    route TEXT,                                 -- direct or relay; NULL: simulated, or an older version wrote it
    source TEXT,                                -- the name of the source address; NULL: the system chose the address
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
CREATE INDEX events_by_account ON events (account_id, id);

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
    origin TEXT NOT NULL DEFAULT 'manual'
        CHECK (origin IN ('bounce', 'late_bounce', 'complaint', 'unsubscribe', 'manual', 'import')),
    PRIMARY KEY (account_id, address)
) STRICT, WITHOUT ROWID;

-- Addresses that get no more messages of one list: `tag:NAME` or `template:ALIAS`.
CREATE TABLE unsubscriptions (
    account_id TEXT NOT NULL REFERENCES accounts (id),
    address TEXT NOT NULL,                      -- the key form, as in suppressions
    list TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (account_id, address, list)
) STRICT, WITHOUT ROWID;
CREATE INDEX unsubscriptions_by_list ON unsubscriptions (account_id, list, created_at);

-- Tags whose messages get a link to unsubscribe.
CREATE TABLE unsubscribe_tags (
    account_id TEXT NOT NULL REFERENCES accounts (id),
    tag TEXT NOT NULL,
    PRIMARY KEY (account_id, tag)
) STRICT, WITHOUT ROWID;

CREATE TABLE dkim_keys (
    account_id TEXT NOT NULL,
    domain TEXT NOT NULL,
    selector TEXT NOT NULL,
    algorithm TEXT NOT NULL CHECK (algorithm IN ('rsa', 'ed25519')),
    private_key BLOB NOT NULL,                  -- sealed under the key file
    record TEXT NOT NULL,                       -- the TXT record to publish
    created_at INTEGER NOT NULL,
    retired_at INTEGER,                         -- signs no more; its record stays published for mail on its way
    pending INTEGER NOT NULL DEFAULT 0,         -- made by a rotation, and signs once DNS shows its record
    PRIMARY KEY (account_id, domain, selector),
    FOREIGN KEY (account_id, domain) REFERENCES domains (account_id, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX dkim_keys_pending ON dkim_keys (account_id, domain) WHERE pending = 1;
CREATE INDEX dkim_keys_by_domain ON dkim_keys (domain, selector);

-- Pools whose mail is held, by the operator or because servers there refuse us as a sender.
CREATE TABLE pool_holds (
    pool TEXT PRIMARY KEY,
    reason TEXT NOT NULL,
    held_at INTEGER NOT NULL,
    probe_at INTEGER,                           -- when one message goes as a probe; none: it is the operator's
    probes INTEGER NOT NULL DEFAULT 0           -- that were refused
) STRICT, WITHOUT ROWID;

-- What the running server last said of its pools: for `appliance queue` and `appliance explain` in another process.
CREATE TABLE pool_states (
    pool TEXT PRIMARY KEY,
    in_use INTEGER NOT NULL,
    allowed INTEGER NOT NULL,
    slowed_until INTEGER,
    slowed_by TEXT,
    updated_at INTEGER NOT NULL,
    slowed_accounts TEXT,                       -- whose mail alone waits, as JSON: [[account, until, reason, slots], …]
    rate INTEGER                                -- messages a minute, as long as that is what its mail waits for
) STRICT, WITHOUT ROWID;

-- The recipients in SMTP sessions that have taken a while, as the running server last said: for `appliance explain`.
CREATE TABLE smtp_sessions (
    recipient_id TEXT PRIMARY KEY,
    host TEXT NOT NULL,                         -- the server that is being tried
    address TEXT NOT NULL,
    started_at INTEGER NOT NULL,                -- of the attempt, which may have tried other servers before
    awaits TEXT NOT NULL,                       -- what the server is to do next: `connection`, `greeting`, `mail`, …
    since INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Which pool a domain's mail goes through, as its MX records were when last looked up.
CREATE TABLE destinations (
    domain TEXT PRIMARY KEY,
    pool TEXT NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX destinations_by_pool ON destinations (pool);
CREATE INDEX destinations_old ON destinations (updated_at);

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

-- The sources of a stream that an account has instead of the stream's own.
CREATE TABLE account_sources (
    account_id TEXT NOT NULL REFERENCES accounts (id),
    stream TEXT NOT NULL,
    sources TEXT NOT NULL,                      -- names, separated by commas
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (account_id, stream)
) STRICT, WITHOUT ROWID;

-- Whether a node's sessions can bind to a source, for commands and the API.
CREATE TABLE source_states (
    source TEXT NOT NULL,
    node TEXT NOT NULL,                         -- empty: the database has one node
    is_here INTEGER NOT NULL,
    detail TEXT NOT NULL,                       -- the addresses that cannot be bound, and why
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (source, node)
) STRICT, WITHOUT ROWID;

-- The results of a day's attempts from a source to a pool of the settings, or to all `other` pools.
CREATE TABLE source_days (
    source TEXT NOT NULL,
    pool TEXT NOT NULL,
    day INTEGER NOT NULL,                       -- days since 1970, UTC
    node TEXT NOT NULL,
    delivered INTEGER NOT NULL,                 -- recipients
    deferred INTEGER NOT NULL,
    blocked INTEGER NOT NULL,                   -- refused as mail from this source
    reply TEXT,                                 -- of the last server that deferred or refused
    reply_at INTEGER,
    PRIMARY KEY (source, pool, day, node)
) STRICT, WITHOUT ROWID;
CREATE INDEX source_days_old ON source_days (day);

CREATE TABLE webhooks (
    id TEXT PRIMARY KEY,
    account_id TEXT UNIQUE REFERENCES accounts (id),    -- NULL: deleted; the row goes when its log has gone
    url TEXT NOT NULL,
    events TEXT NOT NULL,                       -- the types it wants, with a space between them
    enabled INTEGER NOT NULL,
    secret BLOB NOT NULL,                       -- sealed under the key file
    secret_hint TEXT NOT NULL,                  -- its last four characters, to tell secrets apart
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    last_success_at INTEGER,
    last_failure_at INTEGER,
    format TEXT NOT NULL DEFAULT 'native'       -- of new events: whose webhooks they look like
) STRICT, WITHOUT ROWID;

-- When an account last pinged its webhook; it outlives the webhook, or deleting that would end the cooldown.
CREATE TABLE webhook_pings (
    account_id TEXT PRIMARY KEY REFERENCES accounts (id),
    pinged_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One post of one event, updated by each attempt. It keeps a body of its own, so that it can be repeated byte for byte
-- for as long as it is shown.
CREATE TABLE webhook_deliveries (
    webhook_id TEXT NOT NULL,
    id TEXT NOT NULL,
    event_id TEXT NOT NULL,
    type TEXT NOT NULL,
    message_id TEXT,                            -- NULL: a ping
    recipient_id TEXT,
    url TEXT NOT NULL,                          -- of the last attempt
    cause TEXT NOT NULL CHECK (cause IN ('event', 'ping', 'replay')),
    status TEXT NOT NULL CHECK (status IN ('pending', 'success', 'failed')),
    attempt INTEGER NOT NULL DEFAULT 0,         -- how many there were
    request_body BLOB NOT NULL,                 -- as it is posted
    response_status INTEGER,
    response_body TEXT,                         -- the beginning of it
    error TEXT,                                 -- in words; NULL: an answer came
    duration_ms INTEGER,
    created_at INTEGER NOT NULL,
    attempted_at INTEGER,
    next_attempt_at INTEGER,                    -- NULL: final
    format TEXT NOT NULL DEFAULT 'native',      -- of the body; it decides on further signatures
    PRIMARY KEY (webhook_id, id)
) STRICT, WITHOUT ROWID;
-- A lane is one webhook's posts of one cause: a ping does not wait behind a backlog of events.
CREATE INDEX webhook_deliveries_lanes ON webhook_deliveries (cause, webhook_id, next_attempt_at)
    WHERE next_attempt_at IS NOT NULL;
CREATE INDEX webhook_deliveries_by_message ON webhook_deliveries (webhook_id, message_id, id);
CREATE INDEX webhook_deliveries_done ON webhook_deliveries (created_at) WHERE next_attempt_at IS NULL;

-- Attempts by the hour (UTC) and their outcome, added up as each is recorded: the page of a webhook shows them.
CREATE TABLE webhook_hours (
    webhook_id TEXT NOT NULL,
    hour INTEGER NOT NULL,                      -- hours since 1970
    outcome TEXT NOT NULL CHECK (outcome IN ('success', 'redirect', 'client_error', 'server_error', 'no_response')),
    attempts INTEGER NOT NULL,
    total_ms INTEGER NOT NULL,
    slowest_ms INTEGER NOT NULL,
    PRIMARY KEY (webhook_id, hour, outcome)
) STRICT, WITHOUT ROWID;
CREATE INDEX webhook_hours_by_hour ON webhook_hours (hour);

-- Recipients by the hour (UTC): accepted, and what became of them; test mail is not counted. Added up from messages and
-- events some seconds after they were written, so that sending does not pay for it.
CREATE TABLE hourly_counts (
    account_id TEXT NOT NULL,
    hour INTEGER NOT NULL,                      -- hours since 1970
    kind TEXT NOT NULL CHECK (kind IN ('sent', 'delivered', 'bounced', 'failed')),
    bucket INTEGER NOT NULL,                    -- how long a delivery took, logarithmically; the class of a bounce or failure; else 0
    recipients INTEGER NOT NULL,
    PRIMARY KEY (account_id, hour, kind, bucket)
) STRICT, WITHOUT ROWID;

-- As hourly_counts and daily_feedback, for each stream but the default one, whose numbers are the difference.
CREATE TABLE hourly_stream_counts (
    account_id TEXT NOT NULL,
    hour INTEGER NOT NULL,                      -- hours since 1970
    stream TEXT NOT NULL,
    kind TEXT NOT NULL,                         -- as in hourly_counts, or late_bounced or complained
    bucket INTEGER NOT NULL,                    -- as in hourly_counts
    recipients INTEGER NOT NULL,
    PRIMARY KEY (account_id, hour, stream, kind, bucket)
) STRICT, WITHOUT ROWID;

-- How far that has come.
CREATE TABLE counted_until (
    kind TEXT PRIMARY KEY,
    id TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Mail to return paths and feedback addresses, until it is read.
CREATE TABLE feedback_mail (
    id TEXT PRIMARY KEY,
    addresses TEXT NOT NULL,                    -- it was sent to, with a space between them
    mime BLOB NOT NULL,                         -- its beginning, see inbound/listener.py
    received_at INTEGER NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0,           -- readings that were begun
    size INTEGER NOT NULL DEFAULT 0,            -- bytes of `mime`
    shares TEXT NOT NULL DEFAULT '[]',          -- JSON: the rows of feedback_counts that count it
    without_token INTEGER NOT NULL DEFAULT 0,   -- 1: anyone can send it, so it is read last
    turn TEXT NOT NULL DEFAULT '',              -- of received mail: its account and client network; '': feedback
    envelope TEXT,                              -- of received mail: JSON, see ReceivedEnvelope in model/received.py
    parts_size INTEGER NOT NULL DEFAULT 0       -- bytes that follow `mime`, in message_body_parts
) STRICT;
CREATE INDEX feedback_mail_next ON feedback_mail (tries, without_token, id) WHERE turn = '';
CREATE INDEX feedback_mail_turns ON feedback_mail (turn, tries, id) WHERE turn <> '';

-- Mails in feedback_mail and their bytes, by client network, token, account and others: see store/feedback.py.
CREATE TABLE feedback_counts (
    scope TEXT NOT NULL,
    name TEXT NOT NULL,
    mails INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (scope, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX feedback_counts_empty ON feedback_counts (scope, name) WHERE mails <= 0;

-- The last mails to the feedback addresses that a person has to read.
CREATE TABLE feedback_inbox (
    account_id TEXT NOT NULL,                   -- that owns the return path; '': none, or several
    kind TEXT NOT NULL,                         -- `fbl`, `postmaster` or `abuse`
    id TEXT NOT NULL,                           -- that it had in feedback_mail
    address TEXT NOT NULL,                      -- it was sent to
    sender TEXT NOT NULL,
    subject TEXT NOT NULL,
    result TEXT NOT NULL,                       -- see InboxResult
    received_at INTEGER NOT NULL,
    size INTEGER NOT NULL,                      -- of the mail in bytes
    mime BLOB NOT NULL,                         -- its beginning
    PRIMARY KEY (account_id, kind, id)
) STRICT;
CREATE INDEX feedback_inbox_newest ON feedback_inbox (id);

-- The addresses and domains that receive mail for an account: see store/receiving.py.
CREATE TABLE receiving_addresses (
    address TEXT PRIMARY KEY,                   -- lower case, A-labels; a domain: every address of it
    account_id TEXT NOT NULL REFERENCES accounts (id),
    domain TEXT NOT NULL,                       -- that mail for it is sent to; of one account only
    parent TEXT NOT NULL,                       -- the account's sending domain: `domain` itself, or one above it
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX receiving_addresses_by_account ON receiving_addresses (account_id, address);
CREATE INDEX receiving_addresses_by_domain ON receiving_addresses (domain, account_id);

-- Received messages: see store/received.py.
CREATE TABLE received_messages (
    account_id TEXT NOT NULL REFERENCES accounts (id),
    id TEXT NOT NULL,                           -- of its parts in message_body_parts, too
    received_at INTEGER NOT NULL,
    envelope TEXT NOT NULL,                     -- JSON, see ReceivedEnvelope in model/received.py
    sender TEXT NOT NULL,                       -- the From field
    recipients TEXT NOT NULL,                   -- of the envelope, with a comma between them
    subject TEXT NOT NULL,
    spf TEXT NOT NULL,
    dkim TEXT NOT NULL,
    dmarc TEXT NOT NULL,
    auto_submitted INTEGER NOT NULL,
    attachments INTEGER NOT NULL,               -- how many
    facts TEXT NOT NULL,                        -- JSON, see ReceivedFacts
    size INTEGER NOT NULL,                      -- bytes of the message
    counted INTEGER NOT NULL,                   -- bytes in accounts.stored_bytes
    mime BLOB NOT NULL,                         -- the message, or its beginning
    parts_size INTEGER NOT NULL,                -- bytes that follow `mime`, in message_body_parts
    PRIMARY KEY (account_id, id)
) STRICT;
CREATE INDEX received_messages_by_age ON received_messages (id);

-- One for each recipient that complained.
CREATE TABLE complaints (
    account_id TEXT NOT NULL,
    recipient_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    domain TEXT NOT NULL,                       -- of the account, that the message was sent from
    provider TEXT NOT NULL,                     -- the pool of the recipient's domain, or that domain
    kind TEXT NOT NULL,                         -- `abuse` and others, RFC 5965 7.3
    at INTEGER NOT NULL,
    PRIMARY KEY (account_id, recipient_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX complaints_by_time ON complaints (at);

-- Facts of the installation itself, by name: the fingerprint of the key file that seals its secrets.
CREATE TABLE installation (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- DMARC aggregate reports: each counts once, however often it is sent.
CREATE TABLE dmarc_reports (
    account_id TEXT NOT NULL,
    domain TEXT NOT NULL,
    org TEXT NOT NULL,                          -- that sent it, as it calls itself
    report_id TEXT NOT NULL,                    -- given by it
    day INTEGER NOT NULL,                       -- that it is about: days since 1970, UTC
    policy TEXT NOT NULL,                       -- none, quarantine or reject, as the receiver saw it
    percentage INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    passed INTEGER NOT NULL,
    received_at INTEGER NOT NULL,
    PRIMARY KEY (account_id, domain, org, report_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX dmarc_reports_by_day ON dmarc_reports (account_id, domain, day);
CREATE INDEX dmarc_reports_old ON dmarc_reports (day);

-- The messages in those reports by day and source.
CREATE TABLE dmarc_sources (
    account_id TEXT NOT NULL,
    domain TEXT NOT NULL,
    day INTEGER NOT NULL,
    source TEXT NOT NULL,                       -- an IP address; empty: all those over the limit
    messages INTEGER NOT NULL,
    passed INTEGER NOT NULL,                    -- DMARC: by DKIM or SPF, aligned
    dkim INTEGER NOT NULL,
    spf INTEGER NOT NULL,
    quarantined INTEGER NOT NULL,
    rejected INTEGER NOT NULL,
    PRIMARY KEY (account_id, domain, day, source)
) STRICT, WITHOUT ROWID;
CREATE INDEX dmarc_sources_old ON dmarc_sources (day);

-- TLS reports (RFC 8460).
CREATE TABLE tls_reports (
    account_id TEXT NOT NULL,
    domain TEXT NOT NULL,
    org TEXT NOT NULL,
    report_id TEXT NOT NULL,
    day INTEGER NOT NULL,
    successes INTEGER NOT NULL,                 -- sessions
    failures INTEGER NOT NULL,
    received_at INTEGER NOT NULL,
    PRIMARY KEY (account_id, domain, org, report_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX tls_reports_by_day ON tls_reports (account_id, domain, day);
CREATE INDEX tls_reports_old ON tls_reports (day);

-- The failed sessions in those reports by day, server and type of failure; both are empty for all over the limit.
CREATE TABLE tls_failures (
    account_id TEXT NOT NULL,
    domain TEXT NOT NULL,
    day INTEGER NOT NULL,
    mx TEXT NOT NULL,
    type TEXT NOT NULL,
    sessions INTEGER NOT NULL,
    PRIMARY KEY (account_id, domain, day, mx, type)
) STRICT, WITHOUT ROWID;
CREATE INDEX tls_failures_old ON tls_failures (day);

-- Recipients by day (UTC), what became of them, class of bounce and provider; added up as hourly_counts are.
CREATE TABLE daily_feedback (
    account_id TEXT NOT NULL,
    day INTEGER NOT NULL,
    kind TEXT NOT NULL,                         -- delivered, bounced, failed, suppressed, cancelled, late_bounced or complained
    class TEXT NOT NULL,                        -- of a bounce; empty: none
    provider TEXT NOT NULL,                     -- a pool with a name of its own; empty: all others
    recipients INTEGER NOT NULL,
    PRIMARY KEY (account_id, day, kind, class, provider)
) STRICT, WITHOUT ROWID;
CREATE INDEX daily_feedback_old ON daily_feedback (day);

-- Recipients by day (UTC), by one thing that their messages have, and what became of them; added up as hourly_counts are.
CREATE TABLE daily_breakdown (
    account_id TEXT NOT NULL,
    dimension TEXT NOT NULL,                    -- domain (of the sender), tag, template, provider, or a pair of them
    day INTEGER NOT NULL,
    value TEXT NOT NULL,                        -- empty: all others
    kind TEXT NOT NULL,                         -- sent, or as in daily_feedback, or see store/breakdown.py
    recipients INTEGER NOT NULL,
    PRIMARY KEY (account_id, dimension, day, value, kind)
) STRICT, WITHOUT ROWID;
CREATE INDEX daily_breakdown_old ON daily_breakdown (day);

-- The index of messages by words, made behind the mail: see store/search_index.py. A block is some thousand messages of
-- one account that follow each other.
CREATE TABLE search_blocks (
    number INTEGER PRIMARY KEY,
    account_id TEXT NOT NULL,
    after_id TEXT NOT NULL,                     -- it has all messages after this one, as long as none is deleted
    last_id TEXT NOT NULL,                      -- up to this one
    size INTEGER NOT NULL,                      -- messages; 0: not in use, not yet or no more
    ids TEXT NOT NULL                           -- of its messages in their order, each without `msg_`
) STRICT;
CREATE INDEX search_blocks_by_account ON search_blocks (account_id, after_id);
CREATE INDEX search_blocks_unused ON search_blocks (number) WHERE size = 0;

CREATE TABLE search_terms (
    block INTEGER NOT NULL,
    term TEXT NOT NULL,
    postings TEXT NOT NULL,                     -- which messages of the block have it: their numbers from 0, as 4 hex digits
    PRIMARY KEY (block, term)
) STRICT, WITHOUT ROWID;

-- How far that has come.
CREATE TABLE search_positions (
    account_id TEXT PRIMARY KEY,
    message_id TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Messages of which something has changed so late that they may be in a block already.
CREATE TABLE search_changes (
    account_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (account_id, message_id)
) STRICT, WITHOUT ROWID;

-- Changes by people, API keys and the operator; an action of an administrator on another account has a row in both.
CREATE TABLE audit_log (
    account_id TEXT NOT NULL,                   -- empty: the installation's
    id TEXT NOT NULL,
    at INTEGER NOT NULL,
    actor_kind TEXT NOT NULL,                   -- user, key, operator
    actor TEXT NOT NULL,                        -- the user's email address, the key's id, the system's user
    actor_name TEXT NOT NULL,                   -- of a key
    action TEXT NOT NULL,
    object TEXT NOT NULL,
    details TEXT NOT NULL,                      -- a JSON object; no secrets
    address TEXT NOT NULL,                      -- the client's, or `cli`
    PRIMARY KEY (account_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX audit_log_old ON audit_log (at);

-- Problems that need a person; the server mails each once: see model/attention.py.
CREATE TABLE attention (
    account_id TEXT NOT NULL,                   -- empty: the machine, which concerns administrators
    node TEXT NOT NULL,                         -- whose machine; empty: all nodes
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,                      -- a domain, pool, key, webhook or listener
    severity TEXT NOT NULL,
    title TEXT NOT NULL,
    detail TEXT NOT NULL,
    link TEXT NOT NULL,
    since INTEGER NOT NULL,
    opened_at INTEGER NOT NULL,                 -- when a check found it
    ended_at INTEGER,                           -- when a check no longer found it
    PRIMARY KEY (account_id, node, kind, subject)
) STRICT, WITHOUT ROWID;

-- The request log: a page is the requests of one account within a second or so.
CREATE TABLE request_pages (
    id TEXT PRIMARY KEY,
    account_id TEXT NOT NULL,
    size INTEGER NOT NULL,                      -- in bytes, as request_sizes counts it
    data BLOB NOT NULL                          -- compressed JSON lines, see store/request_log.py
) STRICT;
CREATE INDEX request_pages_by_account ON request_pages (account_id, id);

CREATE TABLE request_sizes (
    account_id TEXT PRIMARY KEY,
    bytes INTEGER NOT NULL                      -- of its pages
) STRICT, WITHOUT ROWID;

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
