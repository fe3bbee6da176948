-- Receiving: the addresses of an account, and its received messages; see store/receiving.py and store/received.py.
CREATE TABLE receiving_addresses (
    address TEXT PRIMARY KEY,                   -- lower case, A-labels; a domain: every address of it
    account_id TEXT NOT NULL REFERENCES accounts (id),
    domain TEXT NOT NULL,                       -- that mail for it is sent to; of one account only
    parent TEXT NOT NULL,                       -- the account's sending domain: `domain` itself, or one above it
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX receiving_addresses_by_account ON receiving_addresses (account_id, address);
CREATE INDEX receiving_addresses_by_domain ON receiving_addresses (domain, account_id);

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

-- Mail for receiving addresses waits here, too: it has an envelope and a turn.
ALTER TABLE feedback_mail ADD COLUMN turn TEXT NOT NULL DEFAULT '';
ALTER TABLE feedback_mail ADD COLUMN envelope TEXT;
ALTER TABLE feedback_mail ADD COLUMN parts_size INTEGER NOT NULL DEFAULT 0;
DROP INDEX feedback_mail_next;
CREATE INDEX feedback_mail_next ON feedback_mail (tries, without_token, id) WHERE turn = '';
CREATE INDEX feedback_mail_turns ON feedback_mail (turn, tries, id) WHERE turn <> '';

-- A reply names the Message-ID of the message that it answers.
CREATE INDEX messages_header_id ON messages (account_id, header_id) WHERE header_id IS NOT NULL;
