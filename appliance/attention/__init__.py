"""Problems that need a person: what is wrong now, and the mail about it."""
