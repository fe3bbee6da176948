-- As hourly_counts and daily_feedback, for each stream but the default one, whose numbers are the difference.
CREATE TABLE hourly_stream_counts (
    account_id TEXT NOT NULL,
    hour INTEGER NOT NULL,                      -- hours since 1970
    stream TEXT NOT NULL,
    kind TEXT NOT NULL,                         -- as in hourly_counts, or late_bounced or complained
    bucket INTEGER NOT NULL,                    -- as in hourly_counts
    recipients INTEGER NOT NULL,
    PRIMARY KEY (account_id, hour, stream, kind, bucket)
) STRICT, WITHOUT ROWID;
CREATE INDEX unsubscriptions_by_list ON unsubscriptions (account_id, list, created_at);
