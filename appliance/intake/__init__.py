"""Accepting mail: what HTTP and SMTP submission share, from credentials to the accepting transaction."""
