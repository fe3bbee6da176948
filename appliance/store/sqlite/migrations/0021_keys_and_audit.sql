-- API keys: more scopes, a limit to one sender domain, an expiry, where they were used last, and the secret before the
-- current one. And the audit log.

CREATE TABLE keys_before AS SELECT * FROM api_keys;
DROP TABLE api_keys;
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
    previous_expires_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX api_keys_by_account ON api_keys (account_id);
INSERT INTO api_keys (id, account_id, key_sha256, hint, scope, test, created_at, revoked_at, name, last_used_at)
    SELECT id, account_id, key_sha256, hint, scope, test, created_at, revoked_at, name, last_used_at FROM keys_before;
DROP TABLE keys_before;

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
