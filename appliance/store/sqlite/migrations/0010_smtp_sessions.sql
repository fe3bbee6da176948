-- The recipients in SMTP sessions that have taken a while, as the running server last said: for `appliance explain`.
CREATE TABLE smtp_sessions (
    recipient_id TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    address TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    awaits TEXT NOT NULL,
    since INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
