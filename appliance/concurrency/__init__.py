"""Tools for Trio tasks: fair shares, worker threads, batched writes, caches and sleeps."""
