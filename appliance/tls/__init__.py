"""Certificates that listeners show, and the authorities that clients trust."""
