-- compatible since: 1
-- As hourly_counts and daily_feedback, for each stream but the default one, whose numbers are the difference. Nodes of an
-- older release count all mail for the default stream.
CREATE TABLE hourly_stream_counts (
    account_id TEXT COLLATE "C" NOT NULL,
    hour BIGINT NOT NULL,  -- hours since 1970
    stream TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,  -- as in hourly_counts, or late_bounced or complained
    bucket BIGINT NOT NULL,  -- as in hourly_counts
    recipients BIGINT NOT NULL,
    PRIMARY KEY (account_id, hour, stream, kind, bucket)
);
CREATE INDEX unsubscriptions_by_list ON unsubscriptions (account_id, list, created_at);
