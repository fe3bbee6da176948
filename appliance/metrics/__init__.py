"""In charge of telling Prometheus what is counted and measured, on a listener of its own."""
