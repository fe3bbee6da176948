"""What the running program writes and counts: the log, each message's log lines, and the metrics."""
