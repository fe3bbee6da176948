-- Mail that came to return paths and report addresses, until it is read; and complaints of recipients.

CREATE TABLE feedback_mail (
    id TEXT PRIMARY KEY,
    addresses TEXT NOT NULL,                    -- it was sent to, with a space between them
    mime BLOB NOT NULL,                         -- its beginning, see inbound/listener.py
    received_at INTEGER NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0            -- readings that were begun
) STRICT;
CREATE INDEX feedback_mail_next ON feedback_mail (tries, id);

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
