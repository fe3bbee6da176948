-- Recipients that bounced by mail after delivery, which are rare: a filter of the message list.
CREATE INDEX recipients_late_bounces ON recipients (account_id, message_id) WHERE late_bounce IS NOT NULL;
