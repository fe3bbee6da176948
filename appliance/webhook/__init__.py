"""Webhooks: posts the events of an account's messages to the URL that the account has set, with retries."""
