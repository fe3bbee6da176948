"""Sockets, connection limits and small HTTP, for every service that listens or dials."""
