"""Secrets: the installation's key file, and the keys and passwords kept under it."""
