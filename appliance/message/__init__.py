"""One message, from the request or the submitted bytes to the bytes that are sent. No I/O, no state but caches."""
