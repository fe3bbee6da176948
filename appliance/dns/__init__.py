"""DNS: the resolver, and the records that a sending domain needs."""
