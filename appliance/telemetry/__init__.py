"""The log and the metrics of the running program."""
