-- compatible since: 1
-- For reading an account's events by time: see store/event_feed.py.
CREATE INDEX events_by_account ON events (account_id, id);
