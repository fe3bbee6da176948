-- compatible since: 1
-- Mail in the feedback queue is counted by its sender and its recipient; mail without a token is read last.
ALTER TABLE feedback_mail ADD COLUMN size BIGINT NOT NULL DEFAULT 0;
ALTER TABLE feedback_mail ADD COLUMN shares TEXT COLLATE "C" NOT NULL DEFAULT '[]';
ALTER TABLE feedback_mail ADD COLUMN without_token BIGINT NOT NULL DEFAULT 0;
DROP INDEX feedback_mail_next;
CREATE INDEX feedback_mail_next ON feedback_mail (tries, without_token, id);

CREATE TABLE feedback_counts (
    scope TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    mails BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    PRIMARY KEY (scope, name)
);
CREATE INDEX feedback_counts_empty ON feedback_counts (scope, name) WHERE mails <= 0;

-- The last mails to the feedback addresses that a person has to read.
CREATE TABLE feedback_inbox (
    account_id TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    address TEXT COLLATE "C" NOT NULL,
    sender TEXT COLLATE "C" NOT NULL,
    subject TEXT COLLATE "C" NOT NULL,
    result TEXT COLLATE "C" NOT NULL,
    received_at BIGINT NOT NULL,
    size BIGINT NOT NULL,
    mime BYTEA NOT NULL,
    PRIMARY KEY (account_id, kind, id)
);
CREATE INDEX feedback_inbox_newest ON feedback_inbox (id);
