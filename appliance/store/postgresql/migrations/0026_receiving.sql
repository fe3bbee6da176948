-- compatible since: 1
-- Receiving: the addresses of an account, and its received messages; see store/receiving.py and store/received.py.
CREATE TABLE receiving_addresses (
    address TEXT COLLATE "C" PRIMARY KEY,
    account_id TEXT COLLATE "C" NOT NULL REFERENCES accounts (id),
    domain TEXT COLLATE "C" NOT NULL,
    parent TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE INDEX receiving_addresses_by_account ON receiving_addresses (account_id, address);
CREATE INDEX receiving_addresses_by_domain ON receiving_addresses (domain, account_id);

CREATE TABLE received_messages (
    account_id TEXT COLLATE "C" NOT NULL REFERENCES accounts (id),
    id TEXT COLLATE "C" NOT NULL,
    received_at BIGINT NOT NULL,
    envelope TEXT COLLATE "C" NOT NULL,
    sender TEXT COLLATE "C" NOT NULL,
    recipients TEXT COLLATE "C" NOT NULL,
    subject TEXT COLLATE "C" NOT NULL,
    spf TEXT COLLATE "C" NOT NULL,
    dkim TEXT COLLATE "C" NOT NULL,
    dmarc TEXT COLLATE "C" NOT NULL,
    auto_submitted BIGINT NOT NULL,
    attachments BIGINT NOT NULL,
    facts TEXT COLLATE "C" NOT NULL,
    size BIGINT NOT NULL,
    counted BIGINT NOT NULL,
    mime BYTEA NOT NULL,
    parts_size BIGINT NOT NULL,
    PRIMARY KEY (account_id, id)
);
CREATE INDEX received_messages_by_age ON received_messages (id);

-- Mail for receiving addresses waits here, too: it has an envelope and a turn.
ALTER TABLE feedback_mail ADD COLUMN turn TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE feedback_mail ADD COLUMN envelope TEXT COLLATE "C";
ALTER TABLE feedback_mail ADD COLUMN parts_size BIGINT NOT NULL DEFAULT 0;
DROP INDEX feedback_mail_next;
CREATE INDEX feedback_mail_next ON feedback_mail (tries, without_token, id) WHERE turn = '';
CREATE INDEX feedback_mail_turns ON feedback_mail (turn, tries, id) WHERE turn <> '';

-- A reply names the Message-ID of the message that it answers.
CREATE INDEX messages_header_id ON messages (account_id, header_id) WHERE header_id IS NOT NULL;
