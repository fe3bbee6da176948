"""Secrets: the installation's key file, and the keys and passwords sealed with it."""
