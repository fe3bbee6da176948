"""Certificates by ACME (RFC 8555, http-01): account, orders, renewal, and the challenge server on port 80."""
