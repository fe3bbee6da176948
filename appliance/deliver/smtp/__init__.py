"""In charge of speaking SMTP to other servers: a core without I/O and a thin Trio driver."""
