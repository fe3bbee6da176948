"""Small Trio tools: shared work, batched writes, caches, and worker threads."""
