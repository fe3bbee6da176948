"""In charge of certificates by ACME (RFC 8555, http-01): an account, orders, renewals, and the questions on port 80."""
