-- compatible since: 1
-- Problems that need a person; the server mails each once: see model/attention.py.
CREATE TABLE attention (
    account_id TEXT COLLATE "C" NOT NULL,
    node TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    subject TEXT COLLATE "C" NOT NULL,
    severity TEXT COLLATE "C" NOT NULL,
    title TEXT COLLATE "C" NOT NULL,
    detail TEXT COLLATE "C" NOT NULL,
    link TEXT COLLATE "C" NOT NULL,
    since BIGINT NOT NULL,
    opened_at BIGINT NOT NULL,
    ended_at BIGINT,
    PRIMARY KEY (account_id, node, kind, subject)
);

-- When a user wants mail about problems, when the last was queued, and until when problems are known to the user.
ALTER TABLE users ADD COLUMN notify TEXT COLLATE "C" NOT NULL DEFAULT 'at_once';
ALTER TABLE users ADD COLUMN notified_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE users ADD COLUMN notified_until BIGINT NOT NULL DEFAULT 0;
-- A message with a link that sets a password: only its recipient reads it.
ALTER TABLE messages ADD COLUMN confidential BIGINT NOT NULL DEFAULT 0;
