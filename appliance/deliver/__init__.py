"""Delivers accepted mail: from due recipients in the store to SMTP servers, and their outcomes back into the store."""
