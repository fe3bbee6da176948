"""The operating system: locks, memory, file ownership, and the systemd service."""
