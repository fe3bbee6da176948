"""The mail appliance: a self-hosted transactional-email server in one process."""

__version__ = "0.6.0"
