"""The listener of Prometheus metrics."""
