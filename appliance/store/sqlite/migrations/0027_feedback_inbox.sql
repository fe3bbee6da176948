-- Mail in the feedback queue is counted by its sender and its recipient; mail without a token is read last.
ALTER TABLE feedback_mail ADD COLUMN size INTEGER NOT NULL DEFAULT 0;
ALTER TABLE feedback_mail ADD COLUMN shares TEXT NOT NULL DEFAULT '[]';
ALTER TABLE feedback_mail ADD COLUMN without_token INTEGER NOT NULL DEFAULT 0;
DROP INDEX feedback_mail_next;
CREATE INDEX feedback_mail_next ON feedback_mail (tries, without_token, id);

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
    account_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    address TEXT NOT NULL,
    sender TEXT NOT NULL,
    subject TEXT NOT NULL,
    result TEXT NOT NULL,
    received_at INTEGER NOT NULL,
    size INTEGER NOT NULL,
    mime BLOB NOT NULL,
    PRIMARY KEY (account_id, kind, id)
) STRICT;
CREATE INDEX feedback_inbox_newest ON feedback_inbox (id);
