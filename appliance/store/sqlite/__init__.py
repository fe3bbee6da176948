"""The embedded engine: one SQLite file in WAL mode, written by one process, with the care the file needs."""
