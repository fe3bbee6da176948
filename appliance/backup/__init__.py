"""Backups: one file with everything that an installation needs, made while the server runs."""
