-- Several users of an account, each with a role in it; links to set a password by, and second factors.
ALTER TABLE users ADD COLUMN account_role TEXT NOT NULL DEFAULT 'owner'
    CHECK (account_role IN ('owner', 'developer', 'viewer'));

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
